package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/etcdlab"
	"weir.io/weir/internal/model"
)

// kill ends the process as a power cut does.
func (p *process) kill() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		p.t.Fatal(err)
	}
	<-p.ended
}

// put makes the services of a text an owner's set.
func (h *host) put(owner, text string) {
	h.t.Helper()
	if _, err := api.NewClient(h.socket).PutSet(h.t.Context(), owner, api.SetText{Text: []byte(text)}, api.Condition{}); err != nil {
		h.t.Fatal(err)
	}
}

// runs says which services the director has, and fails if these are others.
func (h *host) runs(when string, names ...string) {
	h.t.Helper()
	services, err := api.NewClient(h.socket).Services(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	var got []string
	for i := range services {
		got = append(got, services[i].Name)
	}
	if strings.Join(got, " ") != strings.Join(names, " ") {
		h.t.Errorf("%s, the director forwards %q, want %q", when, got, names)
	}
}

// write makes a text the file.
func (h *host) write(text string) {
	h.t.Helper()
	if err := os.WriteFile(h.file, []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

const appSet = "services: [{name: app, vip: 203.0.113.10, protocol: tcp, port: 80, mode: l2dsr, backends: [{name: a, address: 10.0.0.2}]}]"

// A file that does not go together with a set is refused, and that is shown everywhere, with the
// line and with where the set is; a start with it goes on with what ran; when the set is gone, it
// runs.
func TestFileThatConflictsWithASet(t *testing.T) {
	h := newHost(t)
	head := "coalesce: 1ms\ndirector: {interfaces: [eth0], store: {directory: " + h.beside("state") + "}}"
	h.configure(head, "web")
	p := h.start("director runs")
	h.put("cli", appSet)
	h.runs("at first", "web", "app")
	h.configure(head, "web", "app") // line 5
	check := func(when string) {
		t.Helper()
		got := h.problem(p, model.ProblemFile)
		if got.File != h.file || got.Line != 5 || got.Field != "services[1].name" || got.Owner != "cli" || got.Stored != h.beside("state/cli.json") {
			t.Errorf("%s, the problem is %+v", when, got)
		}
		h.shownEverywhere(model.ProblemFile, h.beside("state/cli.json"))
		h.runs(when, "web", "app")
	}
	check("refused")
	p.kill()
	p = h.start("director runs")
	check("started again")
	p.kill()
	p = h.start("director runs")
	h.put("cli", "services: []")
	h.resolvedEverywhere(p, model.ProblemFile)
	h.runs("when the set is gone", "web", "app")
	p.stop()
}

// A start with a file that is wrong, or gone, goes on with the version that ran.
func TestStartWithAWrongFileGoesOn(t *testing.T) {
	h := newHost(t)
	head := "director: {interfaces: [eth0], store: {directory: " + h.beside("state") + "}}"
	h.configure(head, "web", "other")
	h.start("director runs").kill()
	for name, text := range map[string]string{
		"an unknown key":  head + "\nspeed: 3\nservices: []\n",
		"no YAML":         head + "\nservices: [{name: web\n",
		"no interfaces":   "director: {store: {directory: " + h.beside("state") + "}}\nservices: []\n",
		"a wrong service": head + "\nservices: [{name: web, vip: 203.0.113.1, protocol: tcp, port: 80, mode: dr, backends: []}]\n",
	} {
		t.Run(name, func(t *testing.T) {
			h.t = t
			h.write(text)
			p := h.start("director runs")
			if got := h.problem(p, model.ProblemFile); !strings.Contains(got.Text, h.file) || got.Severity != model.SeverityError {
				t.Errorf("the problem is %+v", got)
			}
			h.runs("with "+name, "web", "other")
			h.shownEverywhere(model.ProblemFile, h.file)
			p.kill()
		})
	}
	h.t = t
	h.configure(head, "web")
	p := h.start("director runs")
	h.resolvedNow(p)
	h.runs("with a file that is right", "web")
	p.stop()
}

// resolvedNow waits until nothing is wrong.
func (h *host) resolvedNow(p *process) {
	h.t.Helper()
	p.wait("have no problems", func() bool { return len(h.status().Problems) == 0 })
}

// The documented way into a group: start without etcd, apply an empty set, start with etcd and
// apply. What is applied is forwarded.
func TestTheWayIntoAGroup(t *testing.T) {
	h := newHost(t)
	c := etcdlab.New(t, etcdlab.Options{Members: 1, On: h.Do})
	state := h.beside("state")
	h.write("director: {interfaces: [eth0], store: {directory: " + state + "}}\nservices: []\n")
	p := h.start("director runs")
	h.put("cli", appSet)
	h.put("cli", "services: []")
	p.stop()
	if _, err := os.Stat(filepath.Join(state, "cli.json")); err != nil {
		t.Fatal(err)
	}
	h.write("director: {interfaces: [eth0], store: {directory: " + state + ", etcd: {endpoints: [\"" + strings.Join(c.Endpoints, "\", \"") + "\"], prefix: " + c.Prefix + "}}}\nservices: []\n")
	p = h.start("director runs")
	h.put("cli", appSet)
	h.runs("applied", "app")
	p.kill()
	p = h.start("director runs")
	h.runs("started again", "app")
	h.resolvedNow(p)
	p.stop()
}

// What the kernel does not take at the start is shown everywhere, and taken when it can be.
func TestStartWaitsForTheKernel(t *testing.T) {
	h := newHost(t)
	h.configure("director: {interfaces: [eth7]}", "web")
	p := h.start("director runs")
	if got := h.problem(p, model.ProblemDatapath); !strings.Contains(got.Text, "eth7") {
		t.Errorf("the problem is %+v", got)
	}
	h.shownEverywhere(model.ProblemDatapath, "eth7")
	err := h.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth7", Flags: net.FlagUp}, PeerName: "eth8"})
	})
	if err != nil {
		t.Fatal(err)
	}
	h.resolvedEverywhere(p, model.ProblemDatapath)
	h.runs("when the interface has come", "web")
	p.stop()
}
