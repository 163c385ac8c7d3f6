package health

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// executable writes a program that everybody may run.
func executable(t *testing.T, text string) string {
	t.Helper()
	directory := t.TempDir()
	file := filepath.Join(directory, "check")
	for _, at := range []string{directory, filepath.Dir(directory)} {
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

// ran is the failure of a program that is run for a backend.
func ran(t *testing.T, settings *model.ExecChecks, timeout time.Duration, argv ...string) *Failure {
	t.Helper()
	to := netip.MustParseAddrPort("10.0.0.2:25")
	check := model.Check{
		Service: "mail", Backend: "mx1", To: to, How: &model.HealthCheck{Kind: model.CheckExec, Exec: argv}, Programs: settings,
		Target: model.Target{Service: model.ServiceID{VIP: netip.MustParseAddr("203.0.113.1"), Protocol: model.TCP}, Backend: to},
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	a := &attempt{check: &check, timeout: timeout}
	if err := probeExec(ctx, a); err != nil {
		return explain(err, a.at, timeout)
	}
	return nil
}

func TestPrograms(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run programs as another user")
	}
	text := executable(t, "no program\n")
	plain := executable(t, "#!/bin/sh\n")
	if err := os.Chmod(plain, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		argv   []string
		want   Reason
		detail string
	}{
		{"well", []string{"/bin/true"}, well, ""},
		{"arguments are not a shell's", []string{"/usr/bin/test", "$(id) ; *", "=", "$(id) ; *"}, well, ""},
		{"ill", []string{"/bin/sh", "-c", "echo; echo 'the queue is full'; echo more; exit 3"}, Exit, "exit status 3: the queue is full"},
		{"ill, says so elsewhere", []string{"/bin/sh", "-c", "echo 'no mail' >&2; exit 1"}, Exit, "exit status 1: no mail"},
		{"ill, says nothing", []string{"/bin/false"}, Exit, "exit status 1"},
		{"killed", []string{"/bin/sh", "-c", "kill -TERM $$"}, Exit, "signal: terminated"},
		{"missing", []string{"/no/such/check"}, Local, "this host cannot run /no/such/check: no such file or directory"},
		{"not executable", []string{plain}, Local, "permission denied"},
		{"no program", []string{text}, Local, "exec format error"},
		{"slow", []string{"/bin/sleep", "60"}, Timeout, "the program did not end within"},
		{"it has nothing to read", []string{"/bin/sh", "-c", "! read x"}, well, ""},
		{"its environment", []string{"/usr/bin/env"}, well, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			timeout := patience
			if test.want == Timeout {
				timeout = patience / 20
			}
			checkFailure(t, ran(t, nil, timeout, test.argv...), test.want, test.detail)
		})
	}
}

// A program is told about the backend and nothing else, and has no rights: its output says what it has.
func TestWhatProgramsHave(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run programs as another user")
	}
	t.Setenv("SECRET", "x")
	said := func(settings *model.ExecChecks, command string) string {
		f := ran(t, settings, patience, "/bin/sh", "-c", "{ "+command+"; } | tr '\\n\\t' '  '; exit 1")
		if f == nil || f.Reason != Exit {
			t.Fatalf("%s: %v", command, f)
		}
		return strings.TrimPrefix(f.Detail, "exit status 1: ")
	}
	want := []string{"LANG=C.UTF-8", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "WEIR_ADDRESS=10.0.0.2", "WEIR_BACKEND=mx1", "WEIR_PORT=25", "WEIR_PROTOCOL=tcp", "WEIR_SERVICE=mail", "WEIR_VIP=203.0.113.1"}
	got := strings.Fields(said(nil, "env | grep -v ^PWD= | sort"))
	if !slices.Equal(got, want) {
		t.Errorf("the environment is %q, want %q", got, want)
	}
	if got := said(nil, "id -u; id -g; id -G; pwd; grep -E '^Cap(Eff|Prm|Amb)' /proc/self/status"); got != "65534 65534 65534 / CapPrm: 0000000000000000 CapEff: 0000000000000000 CapAmb: 0000000000000000" {
		t.Errorf("as nobody it has %q", got)
	}
	if got := said(&model.ExecChecks{User: "daemon"}, "id -un"); got != "daemon" {
		t.Errorf("it runs as %q, want daemon", got)
	}
	checkFailure(t, ran(t, &model.ExecChecks{User: "no-such-user"}, patience, "/bin/true"), Local, "user no-such-user: user: unknown user no-such-user")
}

// What a program may take is limited: as another user only with CAP_SYS_RESOURCE, so it runs as this one.
func TestProgramsAreLimited(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := executable(t, "")
	if err := errors.Join(os.Remove(file), os.Link(self, file)); err != nil {
		if err := exec.Command("/bin/cp", self, file).Run(); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(file, "-test.run", "^TestProgramsOfAnOrdinaryUser$", "-test.v")
	cmd.Env, cmd.Dir = append(os.Environ(), "WEIR_TEST_ORDINARY=1"), "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4711, Gid: 4711}}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestProgramsOfAnOrdinaryUser") {
		t.Errorf("an ordinary user's programs: %v\n%s", err, out)
	}
}

// TestProgramsOfAnOrdinaryUser is run by the test above.
func TestProgramsOfAnOrdinaryUser(t *testing.T) {
	if os.Getenv("WEIR_TEST_ORDINARY") == "" {
		t.Skip("is run by TestProgramsAreLimited")
	}
	const command = "until [ \"$(ulimit -d) $(ulimit -c)\" = \"524288 0\" ]; do :; done; echo $(id -u) $(ulimit -d) $(ulimit -c); exit 1"
	checkFailure(t, ran(t, nil, patience, "/bin/sh", "-c", command), Exit, "exit status 1: 4711 524288 0")
	checkFailure(t, ran(t, &model.ExecChecks{User: "nobody"}, patience, "/bin/true"), Local, "to run programs as user nobody, this process lacks CAP_SETUID, CAP_SETGID, CAP_KILL: give it these and start it again")
}

// What a program has started ends with it, when its time is over or it has ended.
func TestProgramsLeaveNothingBehind(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run programs as another user")
	}
	for command, want := range map[string]Reason{"sleep 1000 & echo $! >%[1]s; wait": Timeout, "sleep 1000 >/dev/null 2>&1 & echo $! >%[1]s": well} {
		file := filepath.Join(filepath.Dir(executable(t, "")), "pid")
		if err := os.WriteFile(file, nil, 0o666); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, 0o666); err != nil {
			t.Fatal(err)
		}
		checkFailure(t, ran(t, nil, patience/10, "/bin/sh", "-c", fmt.Sprintf(command, file)), want, "")
		var child int
		text, err := os.ReadFile(file)
		if _, err2 := fmt.Sscan(string(text), &child); err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		await(t, "the program's child has ended", func() bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child))
			return err != nil || strings.Contains(string(stat), ") Z ") || syscall.Kill(child, 0) != nil
		})
	}
}

// A service whose program hangs keeps no other service's from being run.
func TestServicesSharePrograms(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run programs as another user")
	}
	settings := &model.ExecChecks{AtOnce: 4}
	of := func(service string, n int, argv ...string) model.Check {
		check := checkOf(n, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(n)), func(h *model.HealthCheck) {
			h.Kind, h.Exec, h.Timeout = model.CheckExec, argv, model.Duration(time.Minute)
		})
		check.Service, check.Programs = service, settings
		check.Target.Service = model.ServiceID{VIP: netip.MustParseAddr("203.0.113.1"), Protocol: model.TCP, Port: model.PortRange{First: uint16(len(service)), Last: uint16(len(service))}}
		return check
	}
	c := newChecker(t, Direct{})
	var checks []model.Check
	for i := range 20 {
		checks = append(checks, of("slow", 1+i, "/bin/sleep", "1000"))
	}
	other := of("other", 100, "/bin/true")
	c.Set(append(checks, other))
	c.awaitState(t, other, model.HealthUp)
	await(t, "the other one is run again and again", func() bool { return c.Probes()[0].Count > 20 })
	await(t, "the first one's delay is told", func() bool { return len(c.Late()) == 1 && c.Late()[0].Service == "slow" })
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.programs.running; n > 4 {
		t.Errorf("%d programs are run at once, of which 4 may", n)
	}
}
