package test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"weir.io/weir/lab/twin"
)

// tiersLab is nodePortLab behind a director that forwards to the nodes:
//
//	client --- router --- switch --- director: asks
//	                             --- node1, node2: director, agent, pod
//	                             --- node3: director, agent
//
// Only the nodes have agents. The daemon is node3's director.
type tiersLab struct {
	*nodePortLab
	asks *daemon // the first director
}

// The first director's VIPs: packets to viaOne go only to node3, which has no pod, those to viaAll
// to all nodes.
const viaOne, viaAll = 1, 2

func tiersServices() (services []string) {
	for vip, weights := range map[int][]int{viaOne: {0, 0, 1}, viaAll: {1, 1, 1}} {
		for _, six := range []bool{false, true} {
			var b strings.Builder
			fmt.Fprintf(&b, "- name: web%d-%v\n  vip: %s\n  protocol: tcp\n  port: 80\n  mode: nat\n  snat: true\n  ask-redirect: true\n  health: {kind: none}\n  backends:\n",
				vip, six, redirectVIP(vip, six))
			for i, weight := range weights {
				fmt.Fprintf(&b, "  - {name: node%d, address: \"%s\", port: %d, weight: %d}\n", i+1, lanAddress(backendHost+i, six), nodePort, weight)
			}
			services = append(services, b.String())
		}
	}
	return services
}

func newTiersLab(t *testing.T) *tiersLab {
	t.Helper()
	l := &tiersLab{nodePortLab: &nodePortLab{redirectLab: &redirectLab{lab: newLab(t, size{backends: 3}), agents: map[string]*daemon{}}}}
	l.startNodes()
	l.asks = startDaemon(t, l.director, "run", configText("eth0", "", tiersServices()...))
	return l
}

func (l *tiersLab) url(vip int, six bool, path string) string {
	return "http://" + netip.AddrPortFrom(redirectVIP(vip, six), 80).String() + "/" + path
}

// askEvent is a counter of the first director.
func (l *tiersLab) askEvent(name string) uint64 {
	l.t.Helper()
	for _, e := range l.asks.directorStatus().Asks {
		if e.Name == "ask_"+name {
			return e.Count
		}
	}
	l.t.Fatalf("there is no event of asking %s", name)
	return 0
}

// countTaken runs something that opens this many connections (0: at least one). The first director must
// take each from node3, which sees only their SYNs.
func (l *tiersLab) countTaken(t *testing.T, connections uint64, what func()) {
	t.Helper()
	before, again := l.askEvent("taken"), l.askEvent("again")
	l.bypasses(t, connections, what)
	if n := l.askEvent("taken") - before; n != connections && (connections > 0 || n == 0) {
		t.Errorf("the first director has taken %d connections, want %d", n, connections)
	}
	if n := l.askEvent("again") - again; n != 0 {
		t.Errorf("%d SYNs were sent again", n)
	}
}

// A director asks for redirection on behalf of clients without an agent: a node without a pod sees
// the SYN, and then the director has the connection with the pod's node.
func TestNodePortBehindDirector(t *testing.T) {
	l := newTiersLab(t)
	bothFamilies(t, func(t *testing.T, six bool) {
		// First: no connection has the neighboring ports yet.
		t.Run("forged answers", func(t *testing.T) { l.forged(t, six) })
		t.Run("curl", func(t *testing.T) {
			seen := map[string]bool{}
			l.countTaken(t, 20, func() {
				for range 20 {
					seen[curl(t, l.client, l.url(viaOne, six, "name"))] = true
				}
			})
			for n := 0; n < 200 && len(seen) < 2; n++ {
				seen[curl(t, l.client, l.url(viaOne, six, "name"))] = true
			}
			if !seen["backend1"] || !seen["backend2"] || len(seen) != 2 {
				t.Errorf("answers came from %v, want both pods", seen)
			}
		})
		t.Run("many at once", func(t *testing.T) {
			l.countTaken(t, 0, func() {
				if out := on(t, l.client, "wrk", "-t", "1", "-c", "50", "-d", "1s", l.url(viaOne, six, "name")); strings.Contains(out, "Socket errors") || strings.Contains(out, "Non-2xx") {
					t.Errorf("wrk says:\n%s", out)
				}
			})
			if out := on(t, l.client, "wrk", "-t", "1", "-c", "20", "-d", "1s", "-H", "Connection: close", l.url(viaAll, six, "name")); strings.Contains(out, "Socket errors") || strings.Contains(out, "Non-2xx") {
				t.Errorf("by all nodes, with a connection for each request, wrk says:\n%s", out)
			}
		})
		t.Run("large transfers", func(t *testing.T) { l.transfers(t, six) })
		t.Run("the pod sees the first director", func(t *testing.T) { l.podSees(t, six) })
	})
	t.Run("pods' nodes without agents", l.withoutAgents)
}

func (l *tiersLab) transfers(t *testing.T, six bool) {
	data, name := noise(), fmt.Sprintf("large-%v", six)
	for _, root := range l.roots {
		if err := os.WriteFile(filepath.Join(root, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(l.client.Dir(), name)
	l.countTaken(t, 1, func() { curl(t, l.client, "-o", path, l.url(viaOne, six, name)) })
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the download has %d bytes (%v), want the %d that the server has", len(got), err, len(data))
	}
	l.countTaken(t, 1, func() { curl(t, l.client, "-T", path, l.url(viaOne, six, "upload/"+name)) })
	whole := 0
	for _, root := range l.roots {
		if got, err := os.ReadFile(filepath.Join(root, "upload", name)); err == nil && bytes.Equal(got, data) {
			whole++
		}
	}
	if whole != 1 {
		t.Errorf("%d servers have got the upload as it was sent, want one", whole)
	}
}

// podSees looks at an open connection from both ends.
func (l *tiersLab) podSees(t *testing.T, six bool) {
	conn, err := l.client.DialContext(t.Context(), "tcp", netip.AddrPortFrom(redirectVIP(viaOne, six), 80).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	l.bypassesAfterSYN(t, func() {
		for range 5 {
			answers(t, conn, "keep-alive")
		}
	})
	sees := ""
	for _, pod := range l.backends[:2] {
		sees += on(t, pod, "ss", "-Htn", "state", "established", "sport", "=", ":80")
	}
	if !strings.Contains(sees, lanAddress(snatHost, six).String()) || strings.Contains(sees, conn.LocalAddr().String()) || strings.Contains(sees, lanAddress(natHost+2, six).String()) {
		t.Errorf("pods have %q, want a connection with %s, and with nobody else", sees, lanAddress(snatHost, six))
	}
}

// bypassesAfterSYN runs something that node3 must not see.
func (l *tiersLab) bypassesAfterSYN(t *testing.T, what func()) {
	t.Helper()
	handed, others := l.passing()
	what()
	if nowHanded, nowOthers := l.passing(); nowHanded != handed || nowOthers != others {
		t.Errorf("node3 has seen %d SYNs and %d other packets, want none", nowHanded-handed, nowOthers-others)
	}
}

// forged sends answers, partly right, to a SYN that is neither answered nor sent again yet; they
// change nothing. Then the pod answers.
func (l *tiersLab) forged(t *testing.T, six bool) {
	// The switch drops the pods' answers to the first director, and neither the forged ones, whose
	// number is 1, nor those to the probes of node3. The pods' firewalls cannot: a kernel that fails
	// to send an answer again forgets the connection.
	family := "ip"
	if six {
		family = "ip6"
	}
	on(t, l.lan, "nft", fmt.Sprintf("add table bridge test; add chain bridge test forward { type filter hook forward priority 0; }; "+
		"add rule bridge test forward %s daddr %s tcp sport 80 tcp flags & (syn | ack) == syn | ack tcp sequence != 1 drop", family, lanAddress(snatHost, six)))
	on(t, l.client, "nft", "add table inet test; add chain inet test output { type filter hook output priority 0; }; add rule inet test output tcp dport 80 tcp flags & (syn | ack) == syn limit rate over 1/hour burst 1 packets drop")
	heard := l.hearSYN(t, lanAddress(snatHost, six))
	dialed := make(chan error, 1)
	go func() {
		conn, err := l.client.DialContext(t.Context(), "tcp", netip.AddrPortFrom(redirectVIP(viaOne, six), 80).String())
		if err == nil {
			conn.Close()
		}
		dialed <- err
	}()
	source, number, at := heard()
	asked := netip.AddrPortFrom(lanAddress(backendHost+2, six), nodePort)
	// The director's kernel resets refused answers: with the right number, the reset would reach
	// the pod that has the connection.
	pod := lanAddress(backendHost+1-at, six)
	for _, forgery := range []struct {
		event string
		from  netip.Addr
		to    uint16
		ack   uint32
		names netip.AddrPort
	}{
		{"not_asked_for", pod, source.Port(), number + 2, asked},
		{"not_asked_for", pod, source.Port(), 0x12345678, asked},
		{"not_asked_for", pod, source.Port() ^ 1, number + 1, asked},
		{"misnamed", pod, source.Port(), number + 1, netip.AddrPortFrom(pod, nodePort)},
		{"misnamed", pod, source.Port(), number + 1, netip.AddrPortFrom(asked.Addr(), nodePort+1)},
		{"foreign", lanAddress(99, six), source.Port(), number + 1, asked},
	} {
		events, taken := l.askEvent(forgery.event), l.askEvent("taken")
		sendSegment(t, l.router, forgery.from, source.Addr(), layers.TCP{SrcPort: 80, DstPort: layers.TCPPort(forgery.to), Seq: 1, Ack: forgery.ack, SYN: true, ACK: true, Window: 65160, Options: redirectOption(forgery.names)})
		waitFor(t, fmt.Sprintf("the first director to count %+v", forgery), func() bool { return l.askEvent(forgery.event) > events })
		if n := l.askEvent("taken"); n != taken {
			t.Errorf("an answer that is %s was taken", forgery.event)
		}
	}
	taken := l.askEvent("taken")
	on(t, l.lan, "nft", "delete table bridge test")
	// The pod's kernel sends its answer again.
	if err := <-dialed; err != nil {
		t.Error(err)
	}
	if n := l.askEvent("taken"); n != taken+1 {
		t.Errorf("%d true answers were taken, want one", n-taken)
	}
	on(t, l.client, "nft", "delete table inet test")
}

// redirectOption is the option that names an address and port, and its NOPs.
func redirectOption(names netip.AddrPort) []layers.TCPOption {
	bytes := twin.AppendRedirect(nil, names)
	return []layers.TCPOption{{OptionType: layers.TCPOptionKind(bytes[0]), OptionLength: bytes[1], OptionData: bytes[2:10]}, {OptionType: layers.TCPOptionKindNop}, {OptionType: layers.TCPOptionKindNop}}
}

// hearSYN listens on the pods' nodes for a SYN from an address. The returned function waits for it,
// and returns its source and number, and the node to which it came.
func (l *tiersLab) hearSYN(t *testing.T, from netip.Addr) func() (source netip.AddrPort, number uint32, node int) {
	t.Helper()
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	var sockets []int
	for _, pod := range l.backends[:2] {
		err := pod.Do(func() error {
			fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(all))
			sockets = append(sockets, fd)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return func() (source netip.AddrPort, number uint32, node int) {
		frame := make([]byte, 2048)
		waitFor(t, "the SYN to come to a pod's node", func() bool {
			for i, fd := range sockets {
				for {
					n, _, err := unix.Recvfrom(fd, frame, 0)
					if err != nil {
						break
					}
					if source, number = readSYN(frame[:n]); source.Addr() == from {
						node = i
						return true
					}
				}
			}
			return false
		})
		for _, fd := range sockets {
			unix.Close(fd)
		}
		return source, number, node
	}
}

// readSYN returns the source and the sequence number of a frame that is a SYN.
func readSYN(frame []byte) (source netip.AddrPort, number uint32) {
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.NoCopy)
	tcp, isTCP := p.TransportLayer().(*layers.TCP)
	if !isTCP || !tcp.SYN || tcp.ACK {
		return netip.AddrPort{}, 0
	}
	from, _ := netip.AddrFromSlice(p.NetworkLayer().NetworkFlow().Src().Raw())
	return netip.AddrPortFrom(from, uint16(tcp.SrcPort)), tcp.Seq
}

// withoutAgents: node3 relays a connection that cannot be handed over, at the latest when the SYN
// is sent again.
//
// A client that uses a port again gets no other answer, whatever host has had the connection before.
func (l *tiersLab) withoutAgents(t *testing.T) {
	ports := map[bool]uint16{}
	for _, six := range []bool{false, true} {
		l.countTaken(t, 1, func() { ports[six] = l.askFrom(t, six, 0) })
	}
	for i, node := range l.backends[:2] {
		l.agents[node.Name].end(syscall.SIGTERM)
		l.directors[i].end(syscall.SIGTERM)
		on(t, node, weir, "detach", "--bpffs", node.BPFFS())
	}
	for _, six := range []bool{false, true} {
		curl(t, l.client, l.url(viaOne, six, "name"))
		l.askFrom(t, six, ports[six])
	}
	l.daemon.waitFor("find that nobody can take connections", func() bool {
		for _, b := range l.daemon.backends() {
			if strings.HasPrefix(b.Service, "node3") && (b.Redirect == nil || b.Redirect.Able) {
				return false
			}
		}
		return true
	})
	for _, six := range []bool{false, true} {
		handed, others := l.passing()
		not, again := l.askEvent("not_taken"), l.askEvent("again")
		curl(t, l.client, l.url(viaOne, six, "name"))
		if nowHanded, nowOthers := l.passing(); nowHanded != handed || nowOthers-others < 4 {
			t.Errorf("node3 has handed %d connections over and relayed %d packets, want 0 and all of one", nowHanded-handed, nowOthers-others)
		}
		if l.askEvent("not_taken") != not+1 || l.askEvent("again") != again {
			t.Errorf("%d connections were not taken and %d SYNs sent again, want 1 and 0", l.askEvent("not_taken")-not, l.askEvent("again")-again)
		}
	}
}

// askFrom asks for a page from a port of the client (0: any), and returns that port. It resets the
// connection, so that the port is free at once.
func (l *tiersLab) askFrom(t *testing.T, six bool, port uint16) uint16 {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{Port: int(port)}}
	var conn net.Conn
	err := l.client.Do(func() (err error) {
		conn, err = dialer.DialContext(t.Context(), "tcp", netip.AddrPortFrom(redirectVIP(viaOne, six), 80).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	answers(t, conn, "keep-alive")
	tcp := conn.(*net.TCPConn)
	if err := errors.Join(tcp.SetLinger(0), tcp.Close()); err != nil {
		t.Fatal(err)
	}
	return uint16(conn.LocalAddr().(*net.TCPAddr).Port)
}
