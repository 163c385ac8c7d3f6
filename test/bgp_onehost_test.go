package test

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"weir.io/weir/lab/netlab"
)

// Several directors may run on one host, for different services: each has interfaces, a socket,
// pins, a state and routers' sessions of its own. A failure of one does not affect the other.
//
//	client --- router (FRR) --- switch --- eth0 director
//	                |                  --- backend1
//	                +--------------------- eth1 director
func TestTwoDirectorsOnOneHost(t *testing.T) {
	t.Parallel()
	web, other := way{mode: "l2dsr"}, way{mode: "ipip"}
	l := newAnnouncing(t, 1, 1, strings.Replace(frrText, " bgp listen range fd00", " bgp listen range 10.3.0.0/24 peer-group directors\n bgp listen range fd00", 1))
	second := l.Link(l.router, l.director, netlab.LinkOptions{XDP: true, A: []string{"10.3.0.1/24"}, B: []string{"10.3.0.11/24"}})
	second.A.ReceiveXDP()
	one, two := web.service("tcp", "80", everyBackend(1)), other.service("tcp", "80", everyBackend(1))
	l.serve(one, two)
	a := l.direct(0, bgpText(directorHost), one)

	dir := filepath.Join(l.director.Dir(), "second")
	b := &daemon{t: t, host: l.director, binary: weir, verb: "run", bpffs: filepath.Join(l.director.BPFFS(), "second"),
		log: filepath.Join(dir, "run.log"), socket: filepath.Join(dir, "run.sock")}
	on(t, l.director, "mkdir", "-p", filepath.Join(dir, "etc"), b.bpffs)
	text := strings.Replace(configText(second.B.Name, "", two), "director:\n", fmt.Sprintf("director:\n  store: {directory: %s}\n", filepath.Join(dir, "state")), 1)
	b.config = write(t, l.director, "second/etc/weir.yaml", text+
		"bgp:\n  asn: 65001\n  router-id: 10.3.0.11\n  neighbors:\n  - {address: 10.3.0.1, asn: 65000, hold-time: 3s}\n")
	b.start()
	b.ready()

	first, next := web.vip().String()+"/32", other.vip().String()+"/32"
	waitRouted(t, l.router, first, "via 10.2.0.11")
	waitRouted(t, l.router, next, "via 10.3.0.11")
	l.answers("of the first director", web)
	l.answers("of the second director", other)
	changes := watchRoutes(t, l.router)
	b.end(syscall.SIGTERM)
	on(t, l.director, weir, "detach", "--bpffs", b.bpffs, "--socket", b.socket)
	a.end(syscall.SIGKILL)
	a.start()
	a.ready()
	l.answers("of the first director, without the second", web)
	if n := changes(first); n > 0 {
		t.Errorf("with the second director gone, the route to the first one's VIP changed %d times", n)
	}
}
