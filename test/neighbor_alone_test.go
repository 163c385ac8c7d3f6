package test

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"

	"weir.io/weir/lab/netlab"
)

// A director that is alone answers for VIPs in the networks of its interface, as long as they are
// up. It tells the link when its MAC address changes, and does not let another host have a VIP.
//
//	client, newcomer --- switch --- director
//	                            --- backend1
func TestOneDirectorAnswers(t *testing.T) {
	t.Parallel()
	l := newLab(t, size{backends: 1, routed: true})
	client, newcomer := l.Host("neighbor"), l.Host("newcomer")
	port := l.Link(client, l.lan, netlab.LinkOptions{XDP: true, A: lanPrefixes(61)}).A
	other := l.Link(newcomer, l.lan, netlab.LinkOptions{XDP: true, A: lanPrefixes(62)}).A
	director := portOf(t, l.director)
	l.director.Sysctl("net.ipv6.conf.eth0.keep_addr_on_down", "1") // as if its network were configured again
	four, six := lanAddress(200, false), lanAddress(200, true)
	service := func(w way, vip netip.Addr) string {
		return strings.Replace(w.service("tcp", "80", everyBackend(1)), w.vip().String(), vip.String(), 1)
	}
	services := []string{service(way{mode: "ipip"}, four), service(way{mode: "ipip", inner6: true, outer6: true}, six)}
	startDaemon(t, l.backends[0], "agent", configText("", "eth0", services...))
	startNginx(t, l.backends[0])
	text := strings.Replace(configText("eth0", "", services...), "director:\n", "director:\n  neighbor: {refresh: 1s, interfaces: [{name: eth0}]}\n", 1)
	d := startDaemon(t, l.director, "run", text)
	answers := func(when string, vips ...netip.Addr) {
		t.Helper()
		for _, vip := range vips {
			if answer := curl(t, client, "http://"+netip.AddrPortFrom(vip, 80).String()+"/name"); answer != "backend1" {
				t.Errorf("%s %v answers %q", when, vip, answer)
			}
		}
	}
	answers("at the start", four, six)
	a := newAsker(t, port, lanAddress(61, false), lanAddress(61, true), []netip.Addr{four, six})
	known := func(mac string) {
		t.Helper()
		for _, vip := range []netip.Addr{four, six} {
			waitFor(t, fmt.Sprintf("the client to know %v at %s", vip, mac), func() bool { return neighborOf(t, client, vip) == mac })
		}
	}
	known(director.MAC.String())

	t.Run("another host wants the VIP", func(t *testing.T) {
		newcomer.Sysctl("net.ipv6.conf.all.accept_dad", "1")
		newcomer.Sysctl("net.ipv6.conf.eth0.accept_dad", "1")
		// The newcomer asks repeatedly, and takes the address a second after its last question: the
		// director's process may be busy for a second.
		newcomer.Sysctl("net.ipv6.conf.eth0.dad_transmits", "20")
		on(t, newcomer, "ip", "addr", "add", six.String()+"/64", "dev", "eth0")
		waitFor(t, "the newcomer to learn that it cannot have the VIP", func() bool {
			return strings.Contains(on(t, newcomer, "ip", "-6", "addr", "show", "dev", "eth0"), "dadfailed")
		})
		on(t, newcomer, "ip", "addr", "del", six.String()+"/64", "dev", "eth0")
	})
	t.Run("another host says that the VIP is his", func(t *testing.T) {
		thief := newAsker(t, other, lanAddress(62, false), lanAddress(62, true), nil)
		if err := thief.send(frameOf(&layers.Ethernet{SrcMAC: other.MAC, DstMAC: layers.EthernetBroadcast, EthernetType: layers.EthernetTypeARP},
			arpOf(layers.ARPReply, other.MAC, four, layers.EthernetBroadcast, four))); err != nil {
			t.Fatal(err)
		}
		d.waitFor("count the conflict", func() bool {
			status, err := neighborStatus(d)
			return err == nil && status.Interfaces[0].Conflicts > 0
		})
		known(director.MAC.String())
		d.waitFor("tell of it", func() bool {
			return strings.Contains(d.logged(), "another host says that a VIP of this director is its own")
		})
		d.waitFor("list it as a problem", func() bool {
			out, err := tryOn(t, l.director, weir, "status", "--socket", d.socket)
			return err == nil && strings.Contains(out, fmt.Sprintf("%v: another host, %v, says that it has it", four, other.MAC))
		})
	})
	t.Run("the director's address changes", func(t *testing.T) {
		moved := net.HardwareAddr{2, 0, 0, 0, 9, 9}
		on(t, l.director, "ip", "link", "set", "eth0", "address", moved.String())
		known(moved.String())
	})
	t.Run("its link goes down and comes back", func(t *testing.T) {
		on(t, l.director, "ip", "link", "set", "eth0", "down")
		problem := func(want string) {
			t.Helper()
			d.waitFor("say of its link: "+want, func() bool {
				status, err := neighborStatus(d)
				return err == nil && status.Interfaces[0].Problem == want
			})
		}
		problem("it is down, or has no carrier")
		down := time.Now()
		on(t, l.director, "ip", "link", "set", "eth0", "up")
		problem("")
		waitFor(t, "the VIP to be answered for again", func() bool { return a.frames(four, down) > 0 })
		answers("with the link back", four, six) // its kernel has found the backend again: what follows needs that
	})
	t.Run("a VIP is not up", func(t *testing.T) {
		d.edit(strings.Replace(text, services[0], strings.Replace(services[0], "}\n", ", state: down}\n", 1), 1))
		d.waitFor("answer for the other VIP alone", func() bool {
			status, err := neighborStatus(d)
			return err == nil && len(status.VIPs) == 1 && answersFor(status) == 1
		})
		since := time.Now()
		waitFor(t, "the other VIP to be answered for", func() bool { return a.frames(six, since) > 5 })
		if n := a.frames(four, since); n > 0 {
			t.Errorf("a VIP that is not up is answered for %d times", n)
		}
	})
	t.Run("the process ends", func(t *testing.T) {
		d.end(syscall.SIGTERM)
		answers("without the process", six)
	})
}
