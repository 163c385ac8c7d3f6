package test

import (
	"fmt"
	"strings"
	"testing"

	"weir.io/weir/lab/netlab"
)

// Containers behind their hosts' agents are redirected, as clients and as backends, like the hosts
// themselves: packets that a host forwards pass its programs on the uplink, too.
//
//	pod --- client --- router --- switch --- director
//	                                     --- backend1 --- box, the backend
func TestRedirectContainers(t *testing.T) {
	t.Parallel()
	l := &redirectLab{lab: newLab(t, size{backends: 1}), agents: map[string]*daemon{}}
	pod, box, host := l.Host("pod"), l.Host("box"), l.backends[0]
	inside := func(h, behind *netlab.Host, net string) {
		l.Link(h, behind, netlab.LinkOptions{
			A: []string{"10.9." + net + ".2/24", "fd00:9:" + net + "::2/64"}, B: []string{"10.9." + net + ".1/24", "fd00:9:" + net + "::1/64"}})
		h.Route("default", "10.9."+net+".1")
		h.Route("default", "fd00:9:"+net+"::1")
		behind.Sysctl("net.ipv4.ip_forward", "1")
		behind.Sysctl("net.ipv6.conf.all.forwarding", "1")
	}
	inside(pod, l.client, "1")
	inside(box, host, "2")
	l.router.Route("10.9.1.0/24", "10.0.0.2")
	l.router.Route("fd00:9:1::/64", "fd00::2")
	for _, h := range []*netlab.Host{l.router, l.director} {
		h.Route("10.9.2.0/24", lanAddress(backendHost, false).String())
		h.Route("fd00:9:2::/64", lanAddress(backendHost, true).String())
	}
	var services []string
	for six, address := range map[bool]string{false: "10.9.2.2", true: "fd00:9:2::2"} {
		services = append(services, fmt.Sprintf("- name: redirect1-%v\n  vip: %s\n  protocol: tcp\n  port: %d\n  mode: redirect\n  health: {kind: none}\n  backends:\n  - {name: box, address: \"%s\"}\n",
			six, redirectVIP(1, six), linesPort, address))
	}
	serveLines(t, box, "box")
	l.agents["client"] = startDaemon(t, l.client, "agent", configText("", "eth0", services...))
	l.agents[host.Name] = startDaemon(t, host, "agent", strings.Replace(configText("", "eth0", services...),
		"agent:\n", "agent:\n  namespaces: ["+box.Namespace()+"]\n", 1))
	l.daemon = startDaemon(t, l.director, "run", configText("eth0", "", services...))
	l.waitRedirects("")
	var all []*askedConnection
	for _, from := range []*netlab.Host{l.client, pod} {
		l.bypasses(t, 2, func() {
			for _, six := range []bool{false, true} {
				c := l.dialAsked(t, from, redirectService{number: 1, port: linesPort}.at(six), "box")
				c.ask(t, "from "+from.Name)
				all = append(all, c)
			}
		})
	}
	l.bypasses(t, 2, func() {
		// One more connection, so that the service has a packet: open connections send none.
		for _, six := range []bool{false, true} {
			l.dialAsked(t, pod, redirectService{number: 1, port: linesPort}.at(six), "box").ask(t, "once more")
		}
		for _, c := range all {
			c.ask(t, "later")
		}
	})
	if n := l.event("client", "taken"); n < 6 {
		t.Errorf("the client's host has taken %d connections over, want those of its own and of its container: 6", n)
	}
}
