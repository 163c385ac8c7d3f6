package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/etcdlab"
)

// docs/reference/problems.md and the API's document have every kind, with the same text.
func TestProblemKindsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/problems.md")
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, row := range model.ProblemKinds {
		kinds = append(kinds, string(row.Kind))
		if line := fmt.Sprintf("\n| `%s` | %s |\n", row.Kind, row.About); !strings.Contains(string(text), line) {
			t.Errorf("docs/reference/problems.md does not have:%s", line)
		}
	}
	field, _ := reflect.TypeFor[model.Problem]().FieldByName("Kind")
	if got, want := field.Tag.Get("enum"), strings.Join(kinds, ","); got != want {
		t.Errorf("the API says that kinds are %s, and they are %s", got, want)
	}
}

// exits runs a command on the host, and returns what it prints and its exit status.
func (h *host) exits(args ...string) (out string, status exitStatus) {
	h.t.Helper()
	var both bytes.Buffer
	cmd := h.weir(args...)
	cmd.Stdout, cmd.Stderr = &both, &both
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		h.t.Fatal(err)
	}
	return both.String(), exitStatus(cmd.ProcessState.ExitCode())
}

// scrapes returns the process's metrics.
func (h *host) scrapes(socket string) string {
	h.t.Helper()
	out, err := exec.Command("curl", "-sf", "--unix-socket", socket, "http://weir/metrics").Output()
	if err != nil {
		h.t.Fatal(err)
	}
	return string(out)
}

// problem waits until there is a problem of a kind, and returns it.
func (h *host) problem(p *process, kind model.ProblemKind) (found model.Problem) {
	h.t.Helper()
	p.wait("list a problem of kind "+string(kind), func() bool {
		for _, one := range h.status().Problems {
			if one.Kind == kind {
				found = one
				return true
			}
		}
		return false
	})
	return found
}

// shownEverywhere reports each place that does not show a problem whose text has these words.
func (h *host) shownEverywhere(kind model.ProblemKind, words string) {
	h.t.Helper()
	if out, status := h.doctorOfProcess(); status != exitFailed || !strings.Contains(out, "FAIL  director "+string(kind)) || !strings.Contains(out, words) {
		h.t.Errorf("weir doctor ends with %d:\n%s", status, out)
	}
	if out, status := h.exits("status", "--socket", h.socket); status != exitProblems || !strings.Contains(out, words) {
		h.t.Errorf("weir status ends with %d:\n%s", status, out)
	}
	if out, status := h.exits("status", "--alive", "--socket", h.socket); status != exitDone {
		h.t.Errorf("weir status --alive ends with %d:\n%s", status, out)
	}
	if body, want := h.scrapes(h.socket), fmt.Sprintf(`weir_problems{kind="%s",severity="error"} 1`, kind); !strings.Contains(body, want) {
		h.t.Errorf("metrics do not say %s", want)
	}
	if out, _ := h.exits("events", "--last", "1000", "--socket", h.socket, "-o", "json"); !strings.Contains(out, `"state": "raised"`) || !strings.Contains(out, words) {
		h.t.Errorf("the events are:\n%s", out)
	}
}

// doctorOfProcess has doctor examine the host and ask the director.
func (h *host) doctorOfProcess() (out string, status exitStatus) {
	h.t.Helper()
	return h.exits("doctor", "-c", h.file, "--socket", h.socket, "--agent-socket", h.beside("none.sock"), "--bpffs", h.bpffs)
}

// resolvedEverywhere waits until nothing is wrong, and reports each place that does not show that.
func (h *host) resolvedEverywhere(p *process, kind model.ProblemKind) {
	h.t.Helper()
	p.wait("resolve its problems", func() bool { return len(h.status().Problems) == 0 })
	if out, status := h.exits("status", "--socket", h.socket); status != exitDone {
		h.t.Errorf("weir status ends with %d:\n%s", status, out)
	}
	if out, _ := h.doctorOfProcess(); !strings.Contains(out, "ok    director  ") && !strings.Contains(out, "the director runs all that is asked for") {
		h.t.Errorf("weir doctor says:\n%s", out)
	}
	if body, want := h.scrapes(h.socket), fmt.Sprintf(`weir_problems{kind="%s",severity="error"} 0`, kind); !strings.Contains(body, want) {
		h.t.Errorf("metrics do not say %s", want)
	}
	if out, _ := h.exits("events", "--last", "1000", "--socket", h.socket, "-o", "json"); !strings.Contains(out, `"state": "`+api.ProblemResolved+`"`) {
		h.t.Errorf("the events are:\n%s", out)
	}
}

// A file that is wrong is shown everywhere, with its line, until it is right.
func TestWrongFileIsShownEverywhere(t *testing.T) {
	h := newHost(t)
	head := "coalesce: 1ms\ndirector: {interfaces: [eth0], store: {directory: " + h.beside("state") + "}}"
	h.configure(head, "web")
	p := h.start("director runs")
	h.configure(head+"\nspeed: 3", "web")
	if got := h.problem(p, model.ProblemFile); got.File != h.file || got.Line != 3 || got.Field != "speed" || got.Severity != model.SeverityError {
		t.Errorf("the problem is %+v", got)
	}
	h.shownEverywhere(model.ProblemFile, h.file+":3: speed: unknown key")
	h.configure(head, "web")
	h.resolvedEverywhere(p, model.ProblemFile)
}

// Where the weights of all backends are 0, the last backends with a weight keep the traffic: that
// is shown until one has a weight again.
func TestServiceWithoutOwnersIsShown(t *testing.T) {
	h := newHost(t)
	const head = "coalesce: 1ms\n" + onEth0
	h.configure(head, "web")
	p := h.start("director runs")
	text, err := os.ReadFile(h.file)
	if err != nil {
		t.Fatal(err)
	}
	for _, backend := range []string{"{address: 10.0.0.2, weight: 0}", "{address: 10.0.0.2, state: draining}"} {
		idle := strings.Replace(string(text), "{address: 10.0.0.2}", backend, 1)
		if err := os.WriteFile(h.file, []byte(idle), 0o644); err != nil {
			t.Fatal(err)
		}
		const words = "service web: all backends are draining or of weight 0: those that were the last to have a weight get all new connections"
		if got := h.problem(p, model.ProblemService); got.Part != "web" || got.Severity != model.SeverityWarning || got.Text != words {
			t.Errorf("the problem is %+v", got)
		}
		if out, status := h.exits("status", "--socket", h.socket); status != exitDone || !strings.Contains(out, words) {
			t.Errorf("weir status ends with %d:\n%s", status, out)
		}
		if out, _ := h.doctorOfProcess(); !strings.Contains(out, words) {
			t.Errorf("weir doctor says:\n%s", out)
		}
		if body := h.scrapes(h.socket); !strings.Contains(body, `weir_problems{kind="service",severity="warning"} 1`) {
			t.Error("metrics do not count the problem")
		}
		p.wait("tell of it in an event", func() bool {
			out, _ := h.exits("events", "--last", "1000", "--socket", h.socket, "-o", "json")
			return strings.Contains(out, words)
		})
		h.configure(head, "web")
		h.resolvedEverywhere(p, model.ProblemService)
	}
}

// Directors of a group that have the same address of SNAT, or other settings that must be the same,
// say so, until the files are put right.
func TestSettingsOfTheGroupAreCompared(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	c := etcdlab.New(t, etcdlab.Options{Members: 1, Address: "10.0.0.1", On: h.Do})
	second := *h
	second.Host, second.bpffs = h.backend, h.backend.BPFFS()
	second.socket, second.file = h.beside("second.sock"), h.beside("second.yaml")
	text := func(state, snat, more, backend string) string {
		return fmt.Sprintf("director: {interfaces: [eth0], group: [10.0.0.1, 10.0.0.2], snat: {addresses: [%s]}%s, store: {directory: %s, etcd: {endpoints: [\"%s\"], prefix: %s}}}\nservices:\n"+
			"- {name: web, vip: 203.0.113.1, protocol: tcp, port: 80, mode: nat, snat: true, backends: [{address: %s}]}\n",
			snat, more, h.beside(state), strings.Join(c.Endpoints, "\", \""), c.Prefix, backend)
	}
	h.write(text("state", "10.0.0.9", "", "10.0.0.3"))
	second.write(text("state2", "10.0.0.9", ", flow-port: 7082", "10.0.0.4"))
	p := h.start(`msg="director runs"`)
	q := second.start(`msg="director runs"`)
	say := func(p *process, h *host, other, here, there string) {
		t.Helper()
		for _, words := range []string{
			"director " + other + " has the same director.snat.addresses as this one, 10.0.0.9",
			"director " + other + " has director.flow-port " + there + ", and this one " + here,
			"director " + other + " has other backends or settings for services of its file than this one, such as 203.0.113.1:80/tcp",
		} {
			p.wait("list that "+words, func() bool { return h.lists(model.ProblemGroup, words) })
		}
	}
	say(p, h, "10.0.0.2", "6082", "7082")
	say(q, &second, "10.0.0.1", "7082", "6082")
	second.write(text("state2", "10.0.0.8", "", "10.0.0.3"))
	p.wait("list none of it any more", func() bool { return !h.lists(model.ProblemGroup, "") })
	q.wait("list none of it any more", func() bool { return !second.lists(model.ProblemGroup, "") })
	q.stop()
	p.stop()
}

// Some failures that doctor finds are not examined again while a director runs. They are problems
// of another kind until they are over: strangers on the ports of flows and of BFD, and an etcd that
// does not answer.
func TestStrangersOnPortsAndALostEtcdAreProblems(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	c := etcdlab.New(t, etcdlab.Options{Members: 1, On: h.Do})
	h.write("director: {interfaces: [eth0], group: [10.0.0.1, 10.0.0.8], store: {directory: " + h.beside("state") +
		", etcd: {endpoints: [\"" + strings.Join(c.Endpoints, "\", \"") + "\"], prefix: " + c.Prefix + "}}}\n" +
		"bgp: {asn: 64512, router-id: 10.0.0.1, neighbors: [{address: 10.0.0.2, asn: 64513, bfd: {}}]}\nservices: []\n")
	var flows net.Listener
	var packets net.PacketConn
	h.onHost(func() (err error) {
		flows, err = net.Listen("tcp4", ":6082")
		var other error
		packets, other = net.ListenPacket("udp4", ":3784")
		return errors.Join(err, other)
	})
	p := h.start("director runs")
	strangers := []struct {
		kind model.ProblemKind
		text string
	}{{model.ProblemGroup, ":6082"}, {model.ProblemBFD, "UDP port 3784 is another process's"}}
	for _, s := range strangers {
		p.wait("list the stranger at "+s.text, func() bool { return h.lists(s.kind, s.text) })
	}
	if err := errors.Join(flows.Close(), packets.Close()); err != nil {
		t.Fatal(err)
	}
	for _, s := range strangers {
		p.wait("see that nobody is at "+s.text, func() bool { return !h.lists(s.kind, s.text) })
	}
	c.Kill(0)
	p.wait("list that etcd does not answer", func() bool { return h.lists(model.ProblemGroup, "etcd") })
	c.Start(0)
	p.wait("see that etcd answers", func() bool { return !h.lists(model.ProblemGroup, "etcd") })
	h.stopWithBFD(p)
}
