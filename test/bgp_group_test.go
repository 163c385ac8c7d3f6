package test

import (
	"syscall"
	"testing"

	"weir.io/weir/lab/etcdlab"
)

// A director that starts reads its sets, and the group's, before it tells routers anything: they
// keep what the previous process announced, and a VIP that only a set has is never missing from the
// router's kernel.
//
//	client --- router (FRR) --- switch --- director
//	                                   --- backend1
//	                                   --- store (etcd)
func TestSetsAreAnnouncedFromTheStart(t *testing.T) {
	t.Parallel()
	for _, shared := range []bool{false, true} {
		t.Run(map[bool]string{false: "alone", true: "in a group"}[shared], func(t *testing.T) {
			w := way{mode: "l2dsr"}
			l := newAnnouncing(t, 1, 1, frrText)
			text := "director:\n  interfaces: [eth0]\n"
			if shared {
				_, store := l.startStore(etcdlab.Options{Members: 1})
				text += store
			}
			d := startDaemon(t, l.director, "run", text+"services: []\n"+bgpText(directorHost))
			d.apply(w.service("tcp", "80", everyBackend(1)))
			prefix := w.vip().String() + "/32"
			waitRouted(t, l.router, prefix, "via 10.2.0.11")
			changes := watchRoutes(t, l.router)
			for range 3 {
				d.end(syscall.SIGKILL)
				l.waitSession("lose the session", lanAddress(directorHost, false), false)
				d.start()
				d.waitFor("tell the route", func() bool {
					status, err := d.tryBGP()
					return err == nil && len(status.Routes) == 1 && status.Routes[0].Neighbors == 1
				})
				l.waitFresh(prefix)
			}
			if n := changes(prefix); n > 0 {
				t.Errorf("while the director started anew, the router's route changed %d times", n)
			}
		})
	}
}
