package histories

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/agent"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/twin"
)

const tcNext, tcRedirect = 0xffffffff, 7

// host is a backend's host: an agent that is attached as in production, a server at each VIP, and
// the twin's view of its kernel.
type host struct {
	*netlab.Host
	addresses map[netip.Addr]bool
	uplink    *netlab.Port
	attach    agent.Attach
	pin       string
	agent     *agent.Agent
	xdp, tc   *ebpf.Program // xdp: nil if the agent has only tc
	street    int           // interface to and from clients, for packets of the VIPs
	listeners map[netip.Addr]*net.TCPListener
	sockets   map[netip.Addr]*net.UDPConn
	maps      map[string]*ebpf.Map // of the agent
	cookies   bool                 // the host answers every SYN with a cookie
	twin      twin.Host
	kept      map[model.Flow]time.Time // UDP: when a datagram was last kept, by the history's clock
	counted   map[string]uint64        // the agent's counts so far
	counts    map[string]uint64        // the counts that the twin expects since then
}

func newHost(t testing.TB, l *netlab.Lab, nobody *netlab.Host, number int, tc bool) *host {
	t.Helper()
	h := &host{Host: l.Host(fmt.Sprint("host", number)), addresses: map[netip.Addr]bool{}, listeners: map[netip.Addr]*net.TCPListener{},
		sockets: map[netip.Addr]*net.UDPConn{}}
	h.uplink = l.Link(h.Host, nobody, netlab.LinkOptions{XDP: true}).A
	for ; number < backendsIn; number += hostsIn {
		four, six := backendAddress(number, false), backendAddress(number, true)
		h.addresses[four], h.addresses[six] = true, true
		h.Address(h.uplink.Name, four.String()+"/24", six.String()+"/64")
	}
	h.attach = agent.AttachXDP
	if tc {
		h.attach = agent.AttachTC
	}
	h.pin = h.BPFFS() + "/weir"
	h.openStreet(t)
	return h
}

// load starts the agent, which attaches its programs.
func (h *host) load() error {
	return h.Do(func() (err error) {
		if h.agent, err = agent.Open(agent.Deps{Pin: h.pin, Interfaces: []string{h.uplink.Name}, Attach: h.attach, UDPFlows: 8 * model.MinUDPFlows, Log: silent}); err != nil {
			return err
		}
		if err := h.agent.Set(agentConfig()); err != nil {
			return err
		}
		links := filepath.Join(h.pin, "agent", "links")
		if h.attach == agent.AttachXDP {
			if h.xdp, err = attached(fmt.Sprintf("%s/xdp-%d", links, h.uplink.Index)); err != nil {
				return err
			}
		}
		if h.tc, err = attached(fmt.Sprintf("%s/ingress-%d", links, h.uplink.Index)); err != nil {
			return err
		}
		h.maps, err = mapsOf(h.tc)
		return err
	})
}

// close undoes load.
func (h *host) close() {
	if h.agent != nil {
		_ = h.agent.Close()
	}
	_, _ = h.xdp.Close(), h.tc.Close() // closing nil is fine
	for _, m := range h.maps {
		_ = m.Close()
	}
}

// mapsOf are the maps that a program uses, by their names.
func mapsOf(program *ebpf.Program) (map[string]*ebpf.Map, error) {
	info, err := program.Info()
	if err != nil {
		return nil, err
	}
	all := map[string]*ebpf.Map{}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return all, err
		}
		info, err := m.Info()
		if err != nil {
			return all, errors.Join(err, m.Close())
		}
		all[info.Name] = m
	}
	return all, nil
}

// serve listens at the VIPs, which the agent has added.
func (h *host) serve(t testing.TB) {
	t.Helper()
	for _, vip := range []netip.Addr{vip4, vip6} {
		listener, err := h.Listen("tcp", netip.AddrPortFrom(vip, webPort).String())
		must(t, err)
		t.Cleanup(func() { _ = listener.Close() })
		h.listeners[vip] = listener.(*net.TCPListener)
		socket, err := h.ListenPacket("udp", netip.AddrPortFrom(vip, webPort).String())
		must(t, err)
		t.Cleanup(func() { _ = socket.Close() })
		h.sockets[vip] = socket.(*net.UDPConn)
	}
}

// openStreet makes the interface by which clients' packets from tunnels reach the kernel, and by
// which it answers. This process is at its other end.
func (h *host) openStreet(t testing.TB) {
	t.Helper()
	must(t, h.Do(func() (err error) {
		if h.street, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
			return err
		}
		request, err := unix.NewIfreq("street")
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(h.street, unix.TUNSETIFF, request); err != nil {
			return err
		}
		link, err := netlink.LinkByName("street")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		for _, clients := range []netip.Prefix{clients4, clients6} {
			to := &net.IPNet{IP: clients.Addr().AsSlice(), Mask: net.CIDRMask(clients.Bits(), clients.Addr().BitLen())}
			if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: to}); err != nil {
				return err
			}
		}
		return nil
	}))
	t.Cleanup(func() { _ = unix.Close(h.street) })
}

// start makes the host one without connections, which answers SYNs with cookies or not.
func (h *host) start(t testing.TB, cookies bool) {
	t.Helper()
	h.twin = twin.Host{
		Addresses: h.addresses,
		Sockets:   map[twin.Connection]twin.Socket{},
		Cookies:   map[twin.Connection]twin.Cookie{},
		Proven:    map[twin.Connection]twin.Cookie{},
	}
	h.cookies, h.kept = cookies, map[model.Flow]time.Time{}
	h.forgetQuestions(t)
	// All hosts of the lab share one kernel, and so one secret for their cookies: a host that does
	// not answer with cookies accepts none either.
	h.Sysctl("net.ipv4.tcp_syncookies", map[bool]string{false: "0", true: "2"}[cookies])
	h.counted, h.counts = h.count(t), map[string]uint64{}
}

func (h *host) count(t testing.TB) map[string]uint64 {
	t.Helper()
	counted := map[string]uint64{}
	must(t, h.Do(func() error {
		status, err := h.agent.Status()
		for _, reason := range status.Reasons {
			counted[reason.Name] = reason.Packets
		}
		return err
	}))
	return counted
}

// checkCounts compares what the agent has counted with what the twin expects.
func (h *host) checkCounts(t testing.TB) {
	t.Helper()
	now := h.count(t)
	for reason, n := range now {
		if got := n - h.counted[reason]; got != h.counts[reason] {
			t.Fatalf("%s: the agent has counted %d packets as %s, the twin %d", h.Name, got, reason, h.counts[reason])
		}
	}
	h.counted, h.counts = now, map[string]uint64{}
}

// judge runs the host's programs on a frame. It returns the packet that goes up the stack, or the
// frame that goes on to another host.
func (h *host) judge(t testing.TB, frame []byte) (up []byte, on []byte) {
	t.Helper()
	must(t, h.Do(func() error {
		if h.xdp != nil {
			verdict, out := run(t, h.xdp, frame)
			if verdict != xdpPass {
				t.Fatalf("%s: XDP says %d", h.Name, verdict)
			}
			if !bytes.Equal(out, frame) {
				up = out[etherLength:]
				return nil
			}
		}
		verdict, out := run(t, h.tc, frame)
		switch {
		case verdict == tcRedirect:
			on = out
		case verdict == tcNext && !bytes.Equal(out, frame):
			up = out[etherLength:]
		default:
			t.Fatalf("%s: tc says %d", h.Name, verdict)
		}
		return nil
	}))
	return up, on
}

// deliver gives the kernel a packet, and discards what it has sent before.
func (h *host) deliver(t testing.TB, packet []byte) {
	t.Helper()
	for b := make([]byte, 2048); ; {
		if _, err := unix.Read(h.street, b); err != nil {
			break
		}
	}
	if _, err := unix.Write(h.street, packet); err != nil {
		t.Fatalf("%s: deliver a packet: %v", h.Name, err)
	}
}

// hear waits for a packet that the kernel sends to a client.
func (h *host) hear(t testing.TB, wanted func(segment) bool) segment {
	t.Helper()
	b := make([]byte, 2048)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		n, err := unix.Read(h.street, b)
		if err != nil {
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(h.street), Events: unix.POLLIN}}, 100)
			continue
		}
		if s, is := readSegment(b[:n]); is && wanted(s) {
			return s
		}
	}
	t.Fatalf("%s: the kernel does not answer", h.Name)
	return segment{}
}

// accept returns the server's end of a connection that the kernel has just accepted.
func (h *host) accept(t testing.TB, c twin.Connection) *net.TCPConn {
	t.Helper()
	listener := h.listeners[c.VIP.Addr()]
	must(t, listener.SetDeadline(time.Now().Add(patience)))
	for {
		conn, err := listener.AcceptTCP()
		if err != nil {
			t.Fatalf("%s: no connection of %v came: %v", h.Name, c.Client, err)
		}
		if from := conn.RemoteAddr().(*net.TCPAddr).AddrPort(); from.Addr().Unmap() == c.Client.Addr() && from.Port() == c.Client.Port() {
			return conn
		}
		abort(conn)
	}
}

// abort ends a connection at once and without a trace.
func abort(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}
