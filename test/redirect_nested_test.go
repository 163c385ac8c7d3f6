package test

import (
	"net/netip"
	"testing"
	"time"

	"weir.io/weir/lab/netlab"
)

// If a host's guests have agents of their own, beside the host's, each connection is taken over
// once, by its own end: the guest, or the container. A backend's answer has the option once, with
// timestamps among the other options, or with room for a second one.
//
//	guest, pod --- client --- router --- switch --- director
//	                                            --- backend1 --- machine, the backend
func TestRedirectAgentBehindAgent(t *testing.T) {
	t.Parallel()
	l := newRoutedGuestsLab(t)
	pod := l.Host("pod")
	l.Link(pod, l.client, netlab.LinkOptions{A: []string{"10.9.3.2/24", "fd00:9:3::2/64"}, B: []string{"10.9.3.1/24", "fd00:9:3::1/64"}})
	for gateway, subnet := range map[string]string{"10.9.3.1": "10.9.3.0/24", "fd00:9:3::1": "fd00:9:3::/64"} {
		pod.Route("default", gateway)
		l.router.Route(subnet, map[bool]string{false: "10.0.0.2", true: "fd00::2"}[netip.MustParseAddr(gateway).Is6()])
	}
	for _, h := range []*netlab.Host{l.guest.Host, pod, l.machine.Host} {
		l.agents[h.Name] = startDaemon(t, h, "agent", configText("", "eth0", guestServices(routedMachine...)...))
	}
	l.startGuests(t, routedMachine...)
	for _, timestamps := range []string{"1", "0"} {
		l.machine.Sysctl("net.ipv4.tcp_timestamps", timestamps)
		for _, from := range []*netlab.Host{l.guest.Host, pod} {
			taken, asked := l.event(from.Name, "taken"), l.event("client", "asks_already")
			for _, address := range routedMachine {
				l.bypasses(t, 1, func() {
					conn, err := from.DialContext(t.Context(), "tcp", netip.AddrPortFrom(redirectVIP(1, address.Is6()), guestPort).String())
					if err != nil {
						t.Fatalf("from %s to %s, timestamps %s: %v", from.Name, address, timestamps, err)
					}
					defer conn.Close()
					if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
						t.Fatal(err)
					}
					passes(t, "from "+from.Name, conn, conn, 1<<20)
				})
			}
			if n := l.event(from.Name, "taken") - taken; n != 2 {
				t.Errorf("the agent of %s, timestamps %s, has taken %d connections over, want 2", from.Name, timestamps, n)
			}
			if n := l.event("client", "asks_already") - asked; n != 2 {
				t.Errorf("the agent of its host counts %d of them as asks_already, want 2", n)
			}
		}
	}
	if n := l.event("client", "taken"); n != 0 {
		t.Errorf("the agent of guest's and pod's host has taken %d connections over, want none", n)
	}
	for _, host := range []string{"guest", "pod"} {
		if n := l.event(host, "again"); n != 0 {
			t.Errorf("%d SYNs of %s were sent again", n, host)
		}
	}
	for _, host := range []string{"machine", "backend1"} {
		// Probes go on: one may come between reading the two counters.
		waitFor(t, "all SYNs that "+host+" has received to be echoed, at least 8", func() bool {
			received := l.event(host, "received")
			return received >= 8 && l.event(host, "echoed") == received
		})
		if not := l.event(host, "unechoed"); not != 0 {
			t.Errorf("%s has not echoed %d SYNs", host, not)
		}
	}
}
