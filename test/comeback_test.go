package test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/packet"
)

// few is how many packets one injected packet may become, on all wires together and with hosts'
// requests for MAC addresses.
const few = 60

// comebackLab has two servers that answer every datagram, each with services in every mode, and
// counts packets.
//
//	client --- router --- switch --- director
//	                             --- backend1, backend2
type comebackLab struct {
	*lab
	daemon *daemon
	vips   []netip.Addr     // with a service at port 53
	serves []netip.AddrPort // where nat backends serve
}

func newComebackLab(t *testing.T) *comebackLab {
	t.Helper()
	l := &comebackLab{lab: newLab(t, size{backends: 2})}
	var services []string
	for n, six := range []bool{false, true} {
		for i, mode := range []string{"l2dsr", "ipip", "gue", "nat", "nat, snat: true"} {
			for b := range l.backends {
				vip := netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + 10*i + b)})
				if six {
					vip = netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", 0x100+16*i+b))
				}
				backend := fmt.Sprintf("address: \"%s\"", lanAddress(backendHost+b, six))
				if strings.HasPrefix(mode, "nat") {
					at := netip.AddrPortFrom(lanAddress(natHost+b, six), uint16(5350+i))
					l.serves = append(l.serves, at)
					backend = fmt.Sprintf("address: \"%s\", port: %d", at.Addr(), at.Port())
				}
				services = append(services, fmt.Sprintf("- {name: s%d-%d-%d, vip: \"%s\", protocol: udp, port: 53, mode: %s, backends: [{name: b, %s}]}\n", n, i, b, vip, mode, backend))
				l.vips = append(l.vips, vip)
			}
		}
	}
	l.daemon = l.start(services...)
	for i, vip := range l.vips {
		if i%10 < 6 { // not nat
			echo(t, l.backends[i%2], netip.AddrPortFrom(vip, 53))
		}
	}
	for i, at := range l.serves {
		echo(t, l.backends[i%2], at)
	}
	return l
}

// inject sends one packet from a host, as it is.
func inject(t *testing.T, h *netlab.Host, headers ...packet.Header) {
	t.Helper()
	frame := packet.Build(headers...)
	family, to := unix.AF_INET6, unix.Sockaddr(nil)
	if frame[0]>>4 == 4 {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Addr: [4]byte(frame[16:20])}
	} else {
		to = &unix.SockaddrInet6{Addr: [16]byte(frame[24:40])}
	}
	err := h.Do(func() error {
		socket, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(socket)
		return unix.Sendto(socket, frame, 0, to)
	})
	if err != nil {
		t.Fatalf("inject a packet at %s: %v", h.Name, err)
	}
}

// arrived are the packets that have come to any host of the servers' network.
func (l *comebackLab) arrived() (packets uint64) {
	l.t.Helper()
	for _, h := range append([]*netlab.Host{l.router, l.director}, l.backends...) {
		err := h.Do(func() error {
			links, err := netlink.LinkList()
			for _, link := range links {
				if link.Attrs().Name != "lo" {
					packets += link.Attrs().Statistics.RxPackets
				}
			}
			return err
		})
		if err != nil {
			l.t.Fatal(err)
		}
	}
	return packets
}

// becomes returns how many packets have come because of what is sent, when no more come.
func (l *comebackLab) becomes(send func()) uint64 {
	l.t.Helper()
	before := l.arrived()
	send()
	last, since := l.arrived(), time.Now()
	for time.Since(since) < 200*time.Millisecond {
		now := l.arrived()
		if now-before > 100*few {
			return now - before // it does not stop
		}
		if now != last {
			last, since = now, time.Now()
		}
		time.Sleep(5 * time.Millisecond) // between two looks
	}
	return last - before
}

func ipFrom(source, destination netip.Addr) packet.Header {
	if source.Is4() {
		return packet.IPv4Header{Src: source, Dst: destination, TTL: 255}
	}
	return packet.IPv6Header{Src: source, Dst: destination, HopLimit: 255}
}

// TestOnePacketMakesFew: one packet never becomes more than a few, whatever its source, even if
// servers answer answers.
func TestOnePacketMakesFew(t *testing.T) {
	t.Parallel()
	l := newComebackLab(t)
	same := func(a, b netip.Addr) bool { return a.Is4() == b.Is4() }
	try := func(name string, source netip.AddrPort, vip netip.Addr) {
		t.Helper()
		n := l.becomes(func() {
			inject(t, l.client, ipFrom(source.Addr(), vip), packet.UDPHeader{Src: source.Port(), Dst: 53}, packet.Text("an answer to an answer"))
		})
		if n > few {
			t.Errorf("%s: one packet from %s to %s became %d", name, source, vip, n)
		}
	}
	for i, vip := range l.vips {
		try("land", netip.AddrPortFrom(vip, 53), vip)
		other := l.vips[(i+1)%len(l.vips)]
		if same(vip, other) {
			try("from a VIP", netip.AddrPortFrom(other, 53), vip)
		}
		if i%10 >= 6 {
			try("from its backend", l.serves[i/10*4+i%10-6], vip)
		}
		try("from a director", netip.AddrPortFrom(lanAddress(directorHost, vip.Is6()), 53), vip)
		try("from an address of snat", netip.AddrPortFrom(lanAddress(snatHost, vip.Is6()), 20001), vip)
		try("from where replies are taken", netip.AddrPortFrom(lanAddress(directorHost, vip.Is6()), 6080), vip)
	}
	for _, reason := range []string{"drop_source_vip", "drop_source_backend"} {
		if l.daemon.reason(reason) == 0 {
			t.Errorf("no packet was dropped as %s", reason)
		}
	}
}

// TestRouterAsAServer: a router whose own route to a VIP leads back to the director gets a packet
// of L2DSR a few times, instead of until its TTL ends.
func TestRouterAsAServer(t *testing.T) {
	t.Parallel()
	l := &comebackLab{lab: newLab(t, size{backends: 1})}
	var services []string
	for _, six := range []bool{false, true} {
		vip := redirectVIP(9, six)
		l.vips = append(l.vips, vip)
		services = append(services, fmt.Sprintf("- {name: s%v, vip: \"%s\", protocol: udp, port: 53, mode: l2dsr, backends: [{name: router, address: \"%s\"}]}\n", six, vip, lanAddress(routerHost, six)))
	}
	l.daemon = l.start(services...)
	for _, vip := range l.vips {
		before := l.daemon.reason("forward_l2dsr")
		n := l.becomes(func() {
			inject(t, l.client, ipFrom(l.clientAddress(vip), vip), packet.UDPHeader{Src: 4711, Dst: 53}, packet.Text("question"))
		})
		if n > few {
			t.Errorf("one packet to %s became %d", vip, n)
		}
		if sent := l.daemon.reason("forward_l2dsr") - before; sent < 1 || sent > 3 {
			t.Errorf("the director has sent a packet to %s %d times to the router that it came from, want 1 to 3", vip, sent)
		}
	}
}

// TestUnservedPorts: a packet to a VIP that belongs to no service does not circle between the
// director and its router. If the director's host itself has the VIP, its programs get such
// packets.
func TestUnservedPorts(t *testing.T) {
	t.Parallel()
	l := newComebackLab(t)
	for _, vip := range l.vips {
		for name, headers := range map[string][]packet.Header{
			"datagram": {packet.UDPHeader{Src: 4711, Dst: 9}},
			"SYN":      {packet.TCPHeader{Src: 4711, Dst: 9, Flags: packet.SYN, Window: 1024}},
		} {
			n := l.becomes(func() { inject(t, l.client, append([]packet.Header{ipFrom(l.clientAddress(vip), vip)}, headers...)...) })
			if n > few {
				t.Errorf("one %s to port 9 of %s became %d packets", name, vip, n)
			}
		}
	}
	if n := l.daemon.reason("drop_no_service"); n < uint64(2*len(l.vips)) {
		t.Errorf("%d packets were dropped as drop_no_service, want %d", n, 2*len(l.vips))
	}
	vip := l.vips[0]
	l.director.Address("lo", vip.String()+"/32")
	var listener net.Listener
	l.must(l.director.Do(func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(vip, 22).String())
		return err
	}))
	defer listener.Close()
	l.must(l.client.Do(func() error {
		c, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(context.Background(), "tcp", listener.Addr().String())
		if err != nil {
			return err
		}
		return c.Close()
	}))
}

func (l *comebackLab) clientAddress(vip netip.Addr) netip.Addr {
	return clientAddress(2, vip.Is6())
}

// TestProbesLeaveNothing: late answers of a VIP to a health check that is over make no host send to
// the VIP.
func TestProbesLeaveNothing(t *testing.T) {
	t.Parallel()
	l := newComebackLab(t)
	for _, vip := range []netip.Addr{l.vips[0], l.vips[10]} {
		to := lanAddress(directorHost, vip.Is6())
		for name, headers := range map[string][]packet.Header{
			"datagram": {packet.UDPHeader{Src: 53, Dst: 54321}},
			"SYN-ACK":  {packet.TCPHeader{Src: 53, Dst: 54321, Flags: packet.SYN | packet.ACK, Window: 1024}},
			"data":     {packet.TCPHeader{Src: 53, Dst: 54321, Flags: packet.ACK | packet.PSH, Window: 1024}, packet.Text("hello")},
		} {
			late := l.daemon.reason("drop_answer_late")
			l.becomes(func() { inject(t, l.backends[0], append([]packet.Header{ipFrom(vip, to)}, headers...)...) })
			if n := l.daemon.reason("drop_answer_late") - late; n != 1 {
				t.Errorf("%s of %s: %d packets were dropped as drop_answer_late, want 1", name, vip, n)
			}
		}
	}
	for _, reason := range []string{"forward_l2dsr", "forward_icmp_error", "drop_source_backend"} {
		if n := l.daemon.reason(reason); n > 0 {
			t.Errorf("%d packets came back as %s", n, reason)
		}
	}
}
