package test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.io/weir/lab/netlab"
)

// fragmentLab is a group behind a router that chooses directors by ports for first fragments, and
// always the first director for later ones, which have no ports.
//
//	client --- router --- switch --- director1, director2, director3
//	                             --- backend1, backend2
type fragmentLab struct {
	*lab
	directors []*netlab.Host
	daemons   []*daemon
	since     [3]int // where in a director's log its process begins
}

// fragmentPorts is how many source ports of the client lead to each director, from
// fragmentPort on.
const (
	fragmentPort  = 20000
	fragmentPorts = 100
)

func newFragmentLab(t *testing.T) *fragmentLab {
	// Room for the headers of tunnels: another test has packets that are too long for them.
	l := &fragmentLab{lab: newLab(t, size{backends: 2, lanMTU: 1700})}
	l.directors = []*netlab.Host{l.director}
	for i := 1; i < len(l.since); i++ {
		d := l.Router(fmt.Sprintf("director%d", i+1))
		l.Link(d, l.lan, netlab.LinkOptions{MTU: 1700, XDP: true, A: lanPrefixes(directorHost+i, snatHost+i)})
		d.Route("default", lanAddress(routerHost, false).String())
		d.Route("default", lanAddress(routerHost, true).String())
		l.directors = append(l.directors, d)
	}
	l.divide()
	return l
}

// divide makes the router choose like many routers in data centers, but unlike Linux's own ECMP: by
// ports if there are any.
func (l *fragmentLab) divide() {
	var ranges []string
	for i := range l.directors {
		first := fragmentPort + i*fragmentPorts
		ranges = append(ranges, fmt.Sprintf("%d-%d : %d", first, first+fragmentPorts-1, i+1))
		for _, six := range []bool{false, true} {
			family := map[bool]string{false: "-4", true: "-6"}[six]
			table := fmt.Sprint(100 + i)
			on(l.t, l.router, "ip", family, "rule", "add", "fwmark", fmt.Sprint(i+1), "table", table)
			on(l.t, l.router, "ip", family, "route", "add", map[bool]string{false: "192.0.2.0/24", true: "2001:db8::/64"}[six],
				"via", lanAddress(directorHost+i, six).String(), "table", table)
		}
	}
	by := "udp sport map { " + strings.Join(ranges, ", ") + " }"
	on(l.t, l.router, "nft", `add table inet divide
		add chain inet divide prerouting { type filter hook prerouting priority raw; }
		add rule inet divide prerouting ip daddr 192.0.2.0/24 ip frag-off & 0x1fff != 0 meta mark set 1 accept
		add rule inet divide prerouting ip6 daddr 2001:db8::/64 exthdr frag exists frag frag-off != 0 meta mark set 1 accept
		add rule inet divide prerouting ip daddr 192.0.2.0/24 meta mark set `+by+`
		add rule inet divide prerouting ip6 daddr 2001:db8::/64 meta mark set `+by)
}

// config is the file of a director, in its group or without it.
func (l *fragmentLab) config(number int, grouped bool, services []string) string {
	var group, sources []string
	for i := range l.directors {
		group = append(group, lanAddress(directorHost+i, false).String())
		sources = append(sources, lanAddress(directorHost+i, false).String(), `"`+lanAddress(directorHost+i, true).String()+`"`)
	}
	text := fmt.Sprintf("director:\n  interfaces: [eth0]\n  tunnel-source: [%s, \"%s\"]\n  snat:\n    addresses: [%s, \"%s\"]\n    ports: 20000-29999\n",
		lanAddress(directorHost+number, false), lanAddress(directorHost+number, true), lanAddress(snatHost+number, false), lanAddress(snatHost+number, true))
	if grouped {
		text += "  group: [" + strings.Join(group, ", ") + "]\n"
	}
	return text + "directors: [" + strings.Join(sources, ", ") + "]\nservices:\n" + strings.Join(services, "")
}

// start starts everything, the directors without their group.
func (l *fragmentLab) start(services []string) {
	for _, b := range l.backends {
		startDaemon(l.t, b, "agent", strings.Replace(l.config(0, false, services), "director:\n", "agent: {interfaces: [eth0]}\ndirector:\n", 1))
	}
	for i, h := range l.directors {
		l.daemons = append(l.daemons, startDaemon(l.t, h, "run", l.config(i, false, services)))
	}
}

// group makes the directors a group, and waits until each has found all others.
func (l *fragmentLab) group(services []string) {
	for i, d := range l.daemons {
		d.edit(l.config(i, true, services))
		d.hangUp()
	}
	for i := range l.daemons {
		l.found(i, len(l.directors)-1)
	}
}

// found waits until a director has found this many others.
func (l *fragmentLab) found(number, others int) {
	d := l.daemons[number]
	d.waitFor(fmt.Sprintf("find %d others of the group", others), func() bool {
		log := d.logged()[l.since[number]:]
		return strings.Count(log, "director of the group answers")-strings.Count(log, "director of the group does not answer") == others
	})
}

// digest answers each datagram with its SHA-256 sum.
func digest(t *testing.T, h *netlab.Host, at netip.AddrPort) {
	t.Helper()
	serveUDP(t, h, at, func(datagram []byte) []byte {
		sum := sha256.Sum256(datagram)
		return sum[:]
	})
}

// answered is how long to wait for an expected answer, also on a busy machine, and unanswered for
// one that must not come.
const (
	answered   = 5 * time.Second
	unanswered = 500 * time.Millisecond
)

// arrive sends datagrams of 4,000 bytes by one director's ports, and returns how many reach a
// backend unchanged.
func (l *fragmentLab) arrive(w way, director, datagrams int, wait time.Duration) (intact int) {
	l.t.Helper()
	for n := range datagrams {
		port := fragmentPort + director*fragmentPorts + n%fragmentPorts
		if l.arrives(w, port, 4000, wait) {
			intact++
		}
	}
	return intact
}

// arrives sends one datagram, and reports whether a backend gets it unchanged.
func (l *fragmentLab) arrives(w way, port, size int, wait time.Duration) bool {
	l.t.Helper()
	return l.isDigested(netip.AddrPortFrom(w.vip(), 7), port, size, wait)
}

// isDigested sends a datagram from a port of the client, and reports whether its sum comes back.
func (l *lab) isDigested(to netip.AddrPort, port, size int, wait time.Duration) bool {
	l.t.Helper()
	from := netip.IPv4Unspecified()
	if to.Addr().Is6() {
		from = netip.IPv6Unspecified()
	}
	conn, err := l.client.ListenPacket("udp", netip.AddrPortFrom(from, uint16(port)).String())
	if err != nil {
		l.t.Fatalf("take port %d: %v", port, err)
	}
	defer conn.Close()
	data, answer := make([]byte, size), make([]byte, 64)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	if _, err := conn.WriteTo(data, net.UDPAddrFromAddrPort(to)); err != nil {
		l.t.Fatalf("send to %s: %v", to, err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(wait))
	n, _, err := conn.ReadFrom(answer)
	sum := sha256.Sum256(data)
	return err == nil && bytes.Equal(answer[:n], sum[:])
}

// Datagrams in fragments arrive whole in every mode and family, whichever directors get their
// fragments. Without the group, no datagram arrives whose first fragment comes to another director
// than the other fragments. A director whose process has ended goes on; when it stops forwarding,
// the others take over.
func TestFragmentsMeet(t *testing.T) {
	t.Parallel()
	l := newFragmentLab(t)
	var services []string
	for _, w := range ways {
		services = append(services, w.service("udp", "7", everyBackend(2)))
	}
	l.start(services)
	for _, w := range ways {
		for i, b := range l.backends {
			digest(t, b, w.at(i+1, 7))
		}
	}
	const datagrams = 20
	for _, w := range []way{ways[0], ways[1]} {
		if n := l.arrive(w, 0, datagrams, answered); n != datagrams {
			t.Errorf("%s: without a group, %d of %d datagrams arrive whose fragments come to one director", w, n, datagrams)
		}
		if n := l.arrive(w, 1, 5, unanswered); n != 0 {
			t.Fatalf("%s: without a group, %d of 5 datagrams arrive whose fragments come to two directors: the lab does not divide them", w, n)
		}
	}
	l.group(services)
	eachWay(t, func(t *testing.T, w way) {
		for director := range l.directors {
			if n := l.arrive(w, director, datagrams, answered); n != datagrams {
				t.Errorf("%d of %d datagrams arrive whose first fragments come to director %d", n, datagrams, director+1)
			}
		}
	})
	for i := range l.directors {
		if l.daemons[i].reason("forward_fragment_owner") == 0 || l.daemons[i].reason("forward_fragment_met") == 0 {
			t.Errorf("director %d has sent no fragments to others, or from others to others", i+1)
		}
	}
	all := func(what string, directors int) {
		t.Helper()
		for _, w := range []way{ways[0], ways[1]} {
			for director := range directors {
				if n := l.arrive(w, director, datagrams, answered); n != datagrams {
					t.Errorf("%s: %s, %d of %d datagrams arrive whose first fragments come to director %d", w, what, n, datagrams, director+1)
				}
			}
		}
	}
	last := l.daemons[2]
	last.end(syscall.SIGKILL)
	all("without a director's process", 3)
	on(t, last.host, weir, "detach", "--bpffs", last.bpffs)
	l.found(0, 1)
	l.found(1, 1)
	all("without a director", 2)
	l.since[2] = len(last.logged())
	last.start()
	last.ready()
	l.found(0, 2)
	l.found(1, 2)
	l.found(2, 2)
	all("with the director back", 3)
}
