package main

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// With --grace-period, a director that is told to end works on for a while, and leaves nothing behind.
func TestDirectorDrains(t *testing.T) {
	h := newHost(t)
	h.configure(onEth0, "web")
	p := h.start(`msg="director runs"`, "--grace-period", "5s")
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.waitLog(`msg="director withdraws: it forwards for its grace period, and then detaches" wait=5s`)
	h.configure(onEth0, "web", "mail")
	p.waitLog(`msg="configuration applied" services=2`)
	if err := <-p.ended; err != nil {
		t.Errorf("a director that drained ends with %v", err)
	}
	if got := h.program(); got != 0 {
		t.Errorf("after the drain program %d is attached", got)
	}
	if left, _ := os.ReadDir(filepath.Join(h.bpffs, "weir")); len(left) > 0 {
		t.Errorf("after the drain %v is left", left)
	}
}

// A director to which SIGUSR2 says that another process takes over leaves everything to that, whatever its
// grace period is.
func TestDirectorHandsOver(t *testing.T) {
	h := newHost(t)
	h.configure(onEth0, "web")
	p := h.start(`msg="director runs"`, "--grace-period", "1h")
	before := h.program()
	if err := p.cmd.Process.Signal(syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	if err := <-p.ended; err != nil {
		t.Errorf("a director that hands over ends with %v", err)
	}
	if got := h.program(); got != before || got == 0 {
		t.Errorf("it leaves program %d, before it was %d", got, before)
	}
}

// A director that is told twice does not wait, and leaves its program to the next director.
func TestDirectorIsToldTwice(t *testing.T) {
	h := newHost(t)
	h.configure(onEth0, "web")
	p := h.start(`msg="director runs"`, "--grace-period", "1h")
	before := h.program()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.waitLog(`msg="director withdraws`)
	p.stop()
	if got := h.program(); got != before || got == 0 {
		t.Errorf("told twice, the director leaves program %d, before it was %d", got, before)
	}
	h.start(`msg="director runs"`, "--grace-period", "1ms").stop()
	if got := h.program(); got != 0 {
		t.Errorf("after the drain program %d is attached", got)
	}
}

// awaitState waits until a backend of a service has a state, and returns it.
func (h *host) awaitState(p *process, service string, want model.BackendState) (found api.Backend) {
	h.t.Helper()
	p.wait("make the backend of "+service+" "+want.String(), func() bool {
		list, err := api.NewClient(h.socket).Backends(h.t.Context())
		if err != nil {
			return false
		}
		for _, b := range list {
			if b.Service == service && b.State == want {
				found = b
				return true
			}
		}
		return false
	})
	return found
}

// Clients that drain the last active backends of a service at the same time all get what they ask for,
// and at least one of them is told that no active backend is left; those that give them
// connections again at the same time do, too.
func TestClientsDrainTheLastBackendsAtOnce(t *testing.T) {
	h := newHost(t)
	h.configure("coalesce: 1ms\ndirector: {interfaces: [eth0], store: {directory: "+h.beside("state")+"}}", "web")
	p := h.start("director runs")
	h.put("cli", strings.Replace(appSet, "10.0.0.2}", "10.0.0.2}, {name: b, address: 10.0.0.3, mac: \"02:00:00:00:00:03\"}", 1))
	atOnce := func(verb string, backends ...string) (all string) {
		t.Helper()
		outs := make([]string, len(backends))
		var clients sync.WaitGroup
		for i, b := range backends {
			clients.Go(func() {
				out, err := h.weir(verb, b, "--socket", h.socket).CombinedOutput()
				if outs[i] = string(out); err != nil {
					t.Errorf("weir %s %s: %v\n%s", verb, b, err, out)
				}
			})
		}
		clients.Wait()
		return strings.Join(outs, "\n")
	}
	const last = "has no active backend any more"
	for range 5 {
		if said := strings.Count(atOnce("drain", "web/10.0.0.2", "web/10.0.0.2"), last); said != 2 {
			t.Errorf("of two clients that drain the last backend of the file, %d are told so", said)
		}
		if said := strings.Count(atOnce("drain", "app/a", "app/b"), last); said < 1 {
			t.Error("of two clients that drain the last two backends of a set, none is told so")
		}
		h.awaitState(p, "web", model.Draining)
		p.wait("drain both backends of app", func() bool { return h.count("app", model.Draining) == 2 })
		atOnce("undrain", "web/10.0.0.2", "web/10.0.0.2", "app/a", "app/b")
		h.awaitState(p, "web", model.Active)
		p.wait("make both backends of app active", func() bool { return h.count("app", model.Active) == 2 })
	}
}

// count counts a service's backends in a state.
func (h *host) count(service string, state model.BackendState) (n int) {
	h.t.Helper()
	list, err := api.NewClient(h.socket).Backends(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	for i := range list {
		if list[i].Service == service && list[i].State == state {
			n++
		}
	}
	return n
}

// A drained backend of the director's own file is draining at once, and across reloads, restarts
// and kills. It is shown with the client that drained it and the time, and gets connections
// again on request.
func TestDrainBesideTheFile(t *testing.T) {
	h := newHost(t)
	head := "coalesce: 1ms\ndirector: {interfaces: [eth0], store: {directory: " + h.beside("state") + "}}"
	h.configure(head, "web", "mail")
	p := h.start("director runs")
	h.awaitState(p, "web", model.Active)
	for _, half := range []string{"/10.0.0.2", "web/"} { // an empty variable of a script is no name for all
		if out, status := h.exits("drain", half, "--socket", h.socket); status != exitUsage || !strings.Contains(out, "is not SERVICE/BACKEND") {
			t.Errorf("weir drain %s ends with %d:\n%s", half, status, out)
		}
	}
	if out, status := h.exits("drain", "web/10.0.0.2", "--socket", h.socket); status != exitDone || !strings.Contains(out, "draining (beside the file, until weir undrain)") {
		t.Fatalf("weir drain ends with %d:\n%s", status, out)
	}
	drains := func(when string) {
		t.Helper()
		b := h.awaitState(p, "web", model.Draining)
		if b.Override == nil || b.Override.By != "root" || b.Override.At.IsZero() {
			t.Errorf("%s, the override is %+v", when, b.Override)
		}
		h.awaitState(p, "mail", model.Active)
		for _, args := range [][]string{{"status", "--alive"}, {"backends"}, {"explain", "10.0.0.9:4321", "203.0.113.1:80/tcp"}} {
			if out, _ := h.exits(append(args, "--socket", h.socket)...); !strings.Contains(out, "by root at ") {
				t.Errorf("%s, weir %s prints\n%s", when, args[0], out)
			}
		}
	}
	drains("drained")
	set := h.beside("set.yaml")
	for _, text := range []string{appSet, "services: []"} {
		text = strings.ReplaceAll(text, "203.0.113.10", "203.0.113.90")
		if err := os.WriteFile(set, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, status := h.exits("plan", "-f", set, "--measure", "0s", "--socket", h.socket); status != exitDone || !strings.Contains(out, "GOES-ON") || !strings.Contains(out, "root") {
			t.Errorf("weir plan of %q ends with %d, and does not show the drain:\n%s", text, status, out)
		}
	}
	h.configure(head, "web", "mail", "more")
	h.awaitState(p, "more", model.Active)
	drains("reloaded")
	p.kill()
	p = h.start("director runs")
	drains("killed and started")
	if out, status := h.exits("undrain", "web/10.0.0.2", "--socket", h.socket); status != exitDone {
		t.Fatalf("weir undrain ends with %d:\n%s", status, out)
	}
	if b := h.awaitState(p, "web", model.Active); b.Override != nil {
		t.Errorf("undrained, the override is %+v", b.Override)
	}
	p.stop()
}

// The file ends an override when it sets another state itself, or no longer has the backend.
func TestFileEndsOverrides(t *testing.T) {
	h := newHost(t)
	head := "coalesce: 1ms\ndirector: {interfaces: [eth0], store: {directory: " + h.beside("state") + "}}\n"
	service := func(backend string) string {
		return head + "services: [{name: web, vip: 203.0.113.1, protocol: tcp, port: 80, mode: l2dsr, backends: [{name: a, address: 10.0.0.2" + backend + "}]}]\n"
	}
	h.write(service(""))
	p := h.start("director runs")
	said := func(text string) (n int) { // all events that say so, whatever came after them
		out, _ := h.exits("events", "--last", "1000", "--socket", h.socket)
		return strings.Count(out, "backend a of service web "+text)
	}
	for name, text := range map[string]string{
		"another state":   service(", state: draining"),
		"another address": strings.ReplaceAll(service(""), "10.0.0.2", "10.0.0.3"),
		"another name":    strings.ReplaceAll(service(""), "name: a", "name: b"),
		"no service":      head + "services: []\n",
	} {
		h.write(service(""))
		p.wait("know the backend", func() bool {
			list, err := api.NewClient(h.socket).Backends(t.Context())
			return err == nil && len(list) == 1 && list[0].Name == "a" && list[0].Address.String() == "10.0.0.2" && list[0].State == model.Active
		})
		ends := "is not in the director's file any more, and so its override has ended"
		if name == "another state" || name == "another address" {
			ends = "has the state again that the director's file gives it"
		}
		drained, ended := said("is draining by "), said(ends)
		if out, status := h.exits("drain", "a", "--socket", h.socket); status != exitDone {
			t.Fatalf("weir drain ends with %d:\n%s", status, out)
		}
		h.awaitState(p, "web", model.Draining)
		p.wait("say that it drains", func() bool { return said("is draining by ") > drained })
		h.write(text)
		p.wait("end the override by "+name, func() bool { return len(h.status().Overrides) == 0 })
		p.wait("say so", func() bool { return said(ends) > ended })
		if name == "another state" {
			out, status := h.exits("undrain", "a", "--socket", h.socket)
			if status != exitRefused || !strings.Contains(out, "the director's file itself says that it is not active; change the file") {
				t.Errorf("weir undrain ends with %d:\n%s", status, out)
			}
		}
	}
	p.stop()
}

// A backend is drained even if the state directory cannot be written: the answer says so, and a
// problem shows it until it can be. From then on the drain outlives the process.
func TestDrainWithoutRoom(t *testing.T) {
	h := newHost(t)
	state := h.beside("state")
	h.write("coalesce: 1ms\ndirector: {interfaces: [eth0], store: {directory: " + state + "}}\n" +
		"services: [{name: web, vip: 203.0.113.1, protocol: tcp, port: 80, mode: l2dsr, backends: [{address: 10.0.0.2}, {address: 10.0.0.1}]}]\n")
	p := h.start("director runs")
	h.awaitState(p, "web", model.Active)
	for _, name := range []string{".new-overrides", ".new-file.json"} { // in the way of what is written
		if err := os.MkdirAll(filepath.Join(state, name, "obstacle"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if out, status := h.exits("drain", "web/10.0.0.2", "--socket", h.socket); status != exitDone || !strings.Contains(out, "done until the director's process ends") {
		t.Fatalf("weir drain ends with %d:\n%s", status, out)
	}
	h.awaitState(p, "web", model.Draining)
	if got := h.problem(p, model.ProblemHost); got.Part != "state" || !strings.Contains(got.Text, "overrides is not written") {
		t.Errorf("the problem is %+v", got)
	}
	h.shownEverywhere(model.ProblemHost, "overrides is not written")
	for _, name := range []string{".new-overrides", ".new-file.json"} {
		if err := os.RemoveAll(filepath.Join(state, name)); err != nil {
			t.Fatal(err)
		}
	}
	h.resolvedEverywhere(p, model.ProblemHost)
	p.kill()
	p = h.start("director runs")
	h.awaitState(p, "web", model.Draining)
	p.stop()
}
