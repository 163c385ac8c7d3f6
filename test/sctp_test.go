package test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// sctpPort is where VIPs serve, and sctpOwnPort where backends of nat do.
const sctpPort, sctpOwnPort = 7000, 7001

// talk builds test/sctp/talk.c, an SCTP stack in userspace, and returns its path.
func talk(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "talk")
	if out, err := exec.Command("clang-19", "-O1", "-Wall", "-Wextra", "-Werror", "-o", path, "sctp/talk.c", "-lusrsctp", "-lpthread").CombinedOutput(); err != nil {
		t.Fatalf("build talk: %v\n%s", err, out)
	}
	return path
}

// talking is a process of talk.
type talking struct {
	*netlab.Command
	in   io.Writer
	out  *bufio.Scanner
	errs *bytes.Buffer
}

// startTalk starts talk on a host, and waits until it says that it is ready.
func startTalk(t *testing.T, h *netlab.Host, path string, args ...string) talking {
	t.Helper()
	cmd := h.Command(context.Background(), path, args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	errs := new(bytes.Buffer)
	cmd.Stderr = errs
	if err := cmd.Start(); err != nil {
		t.Fatalf("start talk on %s: %v", h.Name, err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended by itself
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "ready" {
		_ = cmd.Wait()
		t.Fatalf("talk %v on %s is not ready: %q %s", args, h.Name, lines.Text(), errs)
	}
	return talking{cmd, in, lines, errs}
}

// serveSCTP starts a server that answers by its host's name.
func serveSCTP(t *testing.T, h *netlab.Host, path string, at netip.AddrPort) *netlab.Command {
	t.Helper()
	return startTalk(t, h, path, "serve", at.Addr().String(), strconv.Itoa(int(at.Port())), h.Name).Command
}

// associations are open ones of a client's to a VIP.
type associations struct {
	talking
	way   way
	first []string // which backend has answered each of them first
}

// associate opens associations from ports of the client's.
func (l *lab) associate(t *testing.T, path string, w way, from, count int) *associations {
	t.Helper()
	args := []string{"call", w.vip().String(), strconv.Itoa(sctpPort)}
	for i := range count {
		args = append(args, strconv.Itoa(from+i))
	}
	a := &associations{way: w, talking: startTalk(t, l.client, path, args...)}
	a.first = a.ask(t, 10)
	if len(a.first) != count {
		t.Fatalf("%s: %d associations answer %q", w, count, a.first)
	}
	return a
}

// ask sends a message of so many bytes on each association, and returns who answers.
func (a *associations) ask(t *testing.T, size int) []string {
	t.Helper()
	if _, err := fmt.Fprintln(a.in, size); err != nil {
		t.Fatalf("%s: %v", a.way, err)
	}
	if !a.out.Scan() {
		_ = a.Wait()
		t.Fatalf("%s: a message of %d bytes is not answered on all associations: %s", a.way, size, a.errs)
	}
	return strings.Fields(a.out.Text())
}

// goOn checks that each association is where it was.
func (a *associations) goOn(t *testing.T, what string) {
	t.Helper()
	for _, size := range []int{1, 1200, 20000} {
		if now := a.ask(t, size); !slices.Equal(now, a.first) {
			t.Fatalf("%s: %s: messages of %d bytes are answered by\n%q, the first were by\n%q", a.way, what, size, now, a.first)
		}
	}
}

// sctpService is a way's service, whose backends of nat serve at a port of their own.
func sctpService(w way, backends []backend) string {
	text := w.service("sctp", fmt.Sprint(sctpPort), backends) + "  health: {kind: sctp, interval: 200ms, panic: 0}\n"
	if w.mode == "nat" {
		text = strings.NewReplacer(`, address: "`, fmt.Sprintf(`, port: %d, address: "`, sctpOwnPort)).Replace(text)
	}
	return text
}

// waitForServers waits until the checks of a backend in every service, or of all, have found the state.
func (d *daemon) waitForServers(what string, state model.HealthState, backend string) {
	d.waitFor(what, func() bool {
		list, err := d.services()
		return err == nil && !slices.ContainsFunc(list, func(s model.ServiceStatus) bool {
			return slices.ContainsFunc(s.Backends, func(b model.BackendStatus) bool {
				return (backend == "" || b.Name == backend) && (b.Health == nil || b.Health.State != state)
			})
		})
	})
}

// Associations of SCTP reach their backend in every mode and family, in nat at another port; they stay there
// while weights change and a backend drains; a check finds a server that has ended. The stack is a real one, in
// userspace.
//
//	client --- router --- switch --- director
//	                             --- backend1 ... backend3
func TestSCTPInEveryMode(t *testing.T) {
	t.Parallel()
	path := talk(t)
	l := newLab(t, size{backends: 3})
	services := func(backends []backend) (list []string) {
		for _, w := range ways {
			list = append(list, sctpService(w, backends))
		}
		return list
	}
	for _, b := range l.backends {
		startDaemon(t, b, "agent", configText("", "eth0", services(everyBackend(3))...))
	}
	servers := map[way]*netlab.Command{}
	for _, w := range ways {
		port := uint16(sctpPort)
		if w.mode == "nat" {
			port = sctpOwnPort
		}
		for i, b := range l.backends {
			servers[w] = serveSCTP(t, b, path, w.at(i+1, port)) // the last backend's
		}
	}
	d := startDaemon(t, l.director, "run", configText("eth0", "", services(everyBackend(3))...))
	d.waitForServers("find all servers up", model.HealthUp, "")
	var open []*associations
	for _, w := range ways {
		a := l.associate(t, path, w, 40000, 12)
		open = append(open, a)
		if who := slices.Compact(slices.Sorted(slices.Values(a.first))); len(who) < 2 {
			t.Errorf("%s: 12 associations are all on %q", w, who)
		}
		a.goOn(t, "at first")
	}
	for _, step := range []struct {
		what     string
		backends []backend
	}{
		{"other weights", []backend{{number: 1, weight: 20}, {number: 2}, {number: 3, weight: 300}}},
		{"a backend drains", []backend{{number: 1, weight: 20}, {number: 2, state: "draining"}, {number: 3, weight: 300}}},
		{"all are back", everyBackend(3)},
	} {
		d.edit(configText("eth0", "", services(step.backends)...))
		d.ready()
		for _, a := range open {
			a.goOn(t, step.what)
		}
	}
	for _, server := range servers {
		if err := server.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	d.waitForServers("find the servers that have ended down", model.HealthDown, "backend3")
}

// Associations in gue stay where they are, whichever director gets their packets, while backends drain and one
// director does not see a backend: agents pass packets on by the flows that they remember.
//
//	client --- router --- switch --- director, director2
//	                             --- backend1, backend2, backend3
func TestSCTPOutlivesChanges(t *testing.T) {
	t.Parallel()
	path := talk(t)
	l := &datagramLab{chanceLab: newChanceLabOf(t, "sctp", "1", "")}
	all := everyBackend(3)
	l.direct(t, all...)
	for _, b := range l.backends {
		for _, w := range gueWays {
			serveSCTP(t, b, path, netip.AddrPortFrom(w.vip(), linesPort))
		}
	}
	var open []*associations
	begin := func(from int) {
		for _, w := range gueWays {
			args := []string{"call", w.vip().String(), strconv.Itoa(linesPort)}
			for i := range 8 {
				args = append(args, strconv.Itoa(from+i))
			}
			a := &associations{way: w, talking: startTalk(t, l.client, path, args...)}
			a.first = a.ask(t, 10)
			open = append(open, a)
		}
	}
	ask := func(what string) {
		for _, director := range []int{otherDirector, directorHost} {
			l.via(t, director)
			for _, a := range open {
				a.goOn(t, fmt.Sprintf("%s, by director %d", what, director))
			}
		}
	}
	begin(40000)
	l.startOther(t, all)
	ask("a second director")
	l.change(t, backend{number: 1, state: "draining"}, backend{number: 2}, backend{number: 3})
	ask("a backend drains")
	begin(41000)
	ask("associations begin meanwhile")
	l.change(t, backend{number: 1}, backend{number: 2, state: "draining"}, backend{number: 3, state: "draining"})
	ask("it is back, others drain")
	l.change(t, all...)
	ask("all are back")
	seen := l.blind(t, 2)
	before := l.count(t, "passed_on")
	begin(42000)
	ask("one director does not see a backend")
	if l.count(t, "passed_on") == before {
		t.Error("no agent has passed a packet on")
	}
	seen()
	ask("it sees it again")
	for _, never := range []string{"drop_row_malformed", "drop_not_peer"} {
		if n := l.count(t, never); n > 0 {
			t.Errorf("the agents count %d packets as %s", n, never)
		}
	}
}
