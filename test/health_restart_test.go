package test

import (
	"syscall"
	"testing"

	"weir.io/weir/internal/model"
)

// A process that starts continues with what the previous one found: failing probes take out a
// backend, and its VIP from the routers, only after the usual number of failures. A VIP whose
// backend was down is not announced before a probe has found the backend well.
func TestRestartGoesOnWithHealth(t *testing.T) {
	t.Parallel()
	w := way{mode: "l2dsr"}
	l := newAnnouncing(t, 1, 1, frrText)
	service, prefix := w.service("tcp", "80", everyBackend(1)), w.vip().String()+"/32"
	// Nothing listens at port 81.
	checked := func(how string) string {
		return configText("eth0", "", service+"  health: {kind: tcp, port: 81, to: address, "+how+"}\n") + bgpText(directorHost)
	}
	l.serve(service)
	d := l.direct(0, bgpText(directorHost), service)
	waitRouted(t, l.router, prefix, "via 10.2.0.11")
	d.edit(checked("interval: 500ms, fall: 100")) // longer than all of this test
	fails := func() bool {
		services, err := d.services()
		return err == nil && len(services) == 1 && services[0].Backends[0].Health != nil && services[0].Backends[0].Health.Reason == "refused"
	}
	d.waitFor("probe in vain", fails)
	changes := watchRoutes(t, l.router)
	d.end(syscall.SIGKILL)
	l.waitSession("lose the session", lanAddress(directorHost, false), false)
	d.start()
	d.waitFor("tell the route", func() bool {
		status, err := d.tryBGP()
		return err == nil && len(status.Routes) == 1 && status.Routes[0].Neighbors == 1
	})
	d.waitFor("probe in vain", fails)
	if b := d.backends()[0]; b.State != model.Active || b.Health.Failures == 0 {
		t.Errorf("after a restart and some probes that failed, the backend is %+v, %+v", b, b.Health)
	}
	l.answers("after the restart", w)
	if n := changes(prefix); n > 0 {
		t.Errorf("while the director started anew, the router's route changed %d times", n)
	}

	d.edit(checked("interval: 100ms, fall: 2"))
	waitRouted(t, l.router, prefix, "nowhere")
	before := changes(prefix)
	d.end(syscall.SIGKILL)
	l.waitSession("lose the session", lanAddress(directorHost, false), false)
	d.start()
	l.waitSession("have a session again", lanAddress(directorHost, false), true)
	d.waitHealth("down")
	if n := changes(prefix); n > before {
		t.Errorf("a director that starts has announced a VIP whose backend is down: %d changes of its route", n-before)
	}
}
