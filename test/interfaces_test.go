package test

import (
	"fmt"
	"testing"

	"weir.io/weir/lab/netlab"
)

// Packets leave by another interface than they came in on, and replies of nat the
// other way round.
//
//	client --- router --- eth0 director eth1 --- switch --- nginx, nginx
//	                 +----------------------------+
func TestEgressOnAnotherInterface(t *testing.T) {
	t.Parallel()
	l := &lab{Lab: netlab.ForTest(t), t: t}
	l.client, l.router, l.lan, l.director = l.Host("client"), l.Router("router"), l.Switch("switch"), l.Router("director")
	l.Link(l.client, l.router, netlab.LinkOptions{
		A: []string{"10.0.0.2/24", "fd00::2/64"}, B: []string{"10.0.0.1/24", "fd00::1/64"}})
	l.Link(l.router, l.director, netlab.LinkOptions{XDP: true,
		A: []string{"10.0.1.1/24", "fd00:0:1::1/64"}, B: []string{"10.0.1.2/24", "fd00:0:1::2/64"}}).A.ReceiveXDP()
	l.Link(l.director, l.lan, netlab.LinkOptions{XDP: true, A: lanPrefixes(directorHost, snatHost)})
	l.Link(l.router, l.lan, netlab.LinkOptions{A: lanPrefixes(routerHost)})
	for i := range 2 {
		b := l.Host(fmt.Sprintf("backend%d", i+1))
		l.Link(b, l.lan, netlab.LinkOptions{XDP: true, A: lanPrefixes(backendHost+i, natHost+i)})
		l.backends = append(l.backends, b)
		startNginx(t, b)
	}
	l.route(true)
	l.router.Route("192.0.2.0/24", "10.0.1.2")
	l.router.Route("2001:db8::/64", "fd00:0:1::2")
	l.director.Route("default", "10.0.1.1")
	l.director.Route("default", "fd00:0:1::1")
	for _, b := range l.backends {
		startDaemon(t, b, "agent", configText("", "eth0", webServices(2)...))
	}
	startDaemon(t, l.director, "run", configText("eth0, eth1", "", webServices(2)...))
	eachWay(t, func(t *testing.T, w way) {
		answers := map[string]int{}
		for range 40 {
			answers[curl(t, l.client, w.url("name"))]++
		}
		if answers["backend1"] < 4 || answers["backend2"] < 4 || len(answers) != 2 {
			t.Errorf("40 answers come from %v, want them from both backends", answers)
		}
	})
}
