package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
)

// do runs f on a host and ends the test if it goes wrong.
func do(t testing.TB, h *netlab.Host, what string, f func() error) {
	t.Helper()
	if err := h.Do(f); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// loopbackAddresses returns the addresses on the host's lo.
func loopbackAddresses(t *testing.T, h *netlab.Host) []netlink.Addr {
	t.Helper()
	var list []netlink.Addr
	do(t, h, "list addresses of lo", func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		list, err = netlink.AddrList(lo, netlink.FAMILY_ALL)
		return err
	})
	return list
}

// TestVIPsOnLoopback: VIPs come and go with the configuration, cannot become the
// source of the host's own connections, and what others put on lo is theirs.
func TestVIPsOnLoopback(t *testing.T) {
	s := newStreet(t, true)
	s.host.Address("lo", "192.0.2.200/32", rangeVIP6.String()+"/128")
	a := s.agent(t, AttachAuto)
	defer s.detach(t, a)

	scopes := map[string]int{}
	for _, address := range loopbackAddresses(t, s.host) {
		scopes[address.IPNet.String()] = address.Scope
		if vip := address.IP.Equal(net.IP(vip6.AsSlice())); vip && address.Flags&unix.IFA_F_DEPRECATED == 0 {
			t.Errorf("%s may become a source address", address.IPNet)
		}
		if address.Flags&unix.IFA_F_TENTATIVE != 0 {
			t.Errorf("%s waits for duplicate address detection", address.IPNet)
		}
	}
	for _, want := range []string{"192.0.2.10/32", "192.0.2.11/32", "2001:db8::10/128", "2001:db8::11/128", "192.0.2.200/32"} {
		if _, ok := scopes[want]; !ok {
			t.Errorf("%s is not on lo: %v", want, scopes)
		}
	}
	if got := scopes["192.0.2.10/32"]; got != unix.RT_SCOPE_HOST {
		t.Errorf("the VIP has scope %d, want host", got)
	}
	held := []netip.Addr{vip4, rangeVIP4, vip6}
	if got := s.status(t, a).VIPs; !slices.Equal(got, held) {
		t.Errorf("the agent says that it holds %v, want %v: the other was there before", got, held)
	}

	fewer := testConfig()
	fewer.Services = fewer.Services[:2] // of vip4
	do(t, s.host, "set", func() error { return a.Set(fewer) })
	var left []string
	for _, address := range loopbackAddresses(t, s.host) {
		if !address.IP.IsLoopback() {
			left = append(left, address.IPNet.String())
		}
	}
	slices.Sort(left)
	if want := []string{"192.0.2.10/32", "192.0.2.200/32", "2001:db8::11/128"}; !slices.Equal(left, want) {
		t.Errorf("lo has %v, want %v", left, want)
	}
}

// resolves asks the link for an address, by ARP or neighbor discovery.
func (s *street) resolves(t *testing.T, address netip.Addr) bool {
	t.Helper()
	found := false
	do(t, s.client, "resolve "+address.String(), func() error {
		ip := net.IP(address.AsSlice())
		entry := netlink.Neigh{LinkIndex: s.link.A.Index, IP: ip, State: unix.NUD_NONE, Flags: netlink.NTF_USE}
		// With NTF_USE the kernel resolves the entry as if a packet had to leave.
		if err := netlink.NeighSet(&entry); err != nil {
			return err
		}
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) { // between two looks
			list, err := netlink.NeighList(s.link.A.Index, 0)
			if err != nil {
				return err
			}
			i := slices.IndexFunc(list, func(n netlink.Neigh) bool { return n.IP.Equal(ip) })
			if i < 0 {
				continue
			}
			switch list[i].State {
			case unix.NUD_REACHABLE:
				found = true
				return nil
			case unix.NUD_FAILED:
				return nil
			}
		}
		return errors.New("neither found nor failed")
	})
	return found
}

// TestVIPsAreSilent: nobody on the link learns that the host has the VIPs.
func TestVIPsAreSilent(t *testing.T) {
	s := newStreet(t, true)
	const before = "192.0.2.201"
	s.host.Address("lo", before+"/32")
	if !s.resolves(t, netip.MustParseAddr(before)) {
		t.Fatal("Linux does not answer for an address of lo: then this test shows nothing")
	}
	a := s.agent(t, AttachAuto)
	defer s.detach(t, a)
	for _, own := range []netip.Addr{host4, host6} {
		if !s.resolves(t, own) {
			t.Errorf("the host does not answer for %s", own)
		}
	}
	// Questions that get no answer must not take seconds.
	for _, family := range []string{"ipv4", "ipv6"} {
		s.client.Sysctl("net."+family+".neigh.eth0.retrans_time_ms", "50")
	}
	for _, vip := range []netip.Addr{vip4, rangeVIP4, vip6, rangeVIP6} {
		if s.resolves(t, vip) {
			t.Errorf("the host answers for VIP %s", vip)
		}
	}
	// A packet with the VIP as source makes the host ask for the client's MAC; it
	// must not name the VIP when it does.
	do(t, s.client, "forget the host", func() error {
		return netlink.NeighDel(&netlink.Neigh{LinkIndex: s.link.A.Index, IP: net.IP(host4.AsSlice())})
	})
	do(t, s.host, "send from the VIP", func() error {
		conn, err := net.DialUDP("udp4", &net.UDPAddr{IP: vip4.AsSlice()}, &net.UDPAddr{IP: net.IPv4(10, 0, 1, 1), Port: 9})
		if err != nil {
			return err
		}
		defer conn.Close()
		_ = netlink.NeighDel(&netlink.Neigh{LinkIndex: s.link.B.Index, IP: net.IPv4(10, 0, 1, 1)})
		_, err = conn.Write([]byte("x"))
		return err
	})
	waitFor(t, "the client to learn the host's address from its question", func() bool { return s.knows(t, host4) })
	if s.knows(t, vip4) {
		t.Error("the client knows the VIP's MAC: the host announced it")
	}
}

func (s *street) knows(t *testing.T, address netip.Addr) bool {
	t.Helper()
	known := false
	do(t, s.client, "list neighbors", func() error {
		list, err := netlink.NeighList(s.link.A.Index, netlink.FAMILY_V4)
		known = slices.ContainsFunc(list, func(n netlink.Neigh) bool {
			return n.IP.Equal(net.IP(address.AsSlice())) && n.State != unix.NUD_FAILED && len(n.HardwareAddr) > 0
		})
		return err
	})
	return known
}

var waitFor = netlab.WaitFor

// TestSysctls: what is strict becomes loose, what is higher already stays.
func TestSysctls(t *testing.T) {
	s := newStreet(t, true)
	s.host.Sysctl("net.ipv4.conf.all.rp_filter", "1")
	s.host.Sysctl("net.ipv4.conf.eth0.rp_filter", "0")
	s.host.Sysctl("net.ipv4.conf.all.arp_ignore", "2")
	a := s.agent(t, AttachAuto)
	defer s.detach(t, a)
	for key, want := range map[string]string{
		"all/rp_filter": "1", "eth0/rp_filter": "2", "all/arp_ignore": "2", "eth0/arp_ignore": "1",
		"all/arp_announce": "2", "eth0/arp_announce": "2",
	} {
		do(t, s.host, "read sysctl", func() error {
			got, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + key)
			if strings.TrimSpace(string(got)) != want {
				t.Errorf("%s is %s, want %s", key, strings.TrimSpace(string(got)), want)
			}
			return err
		})
	}
}

// TestRestartLosesNothing sends datagrams while agents come and go: programs, maps
// and VIPs are there all the time.
func TestRestartLosesNothing(t *testing.T) {
	for _, via := range []string{viaXDP, viaTCX, viaClsact} {
		t.Run(via, func(t *testing.T) { checkRestart(t, via) })
	}
}

func checkRestart(t *testing.T, via string) {
	s := newStreet(t, true)
	attach := AttachTC
	if via == viaXDP {
		attach = AttachXDP
	}
	a := s.agentVia(t, attach, via)
	defer wrap(t, s.link.A, way{gue: true})()
	server, err := s.host.ListenPacket("udp", netip.AddrPortFrom(vip4, 53).String())
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	client, err := s.client.DialContext(t.Context(), "udp", netip.AddrPortFrom(vip4, 53).String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()

	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- exchange(client, server, stop) }()
	pins := s.pins(t)
	for range 5 {
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		a = s.agentVia(t, attach, via)
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := s.pins(t); !slices.Equal(got, pins) {
		t.Errorf("pinned are %v, were %v", got, pins)
	}
	for _, service := range s.status(t, a).Services {
		if service.Name == "dns4" && service.Packets == 0 {
			t.Error("the counters did not outlive the agents")
		}
	}
	s.detach(t, a)
}

// exchange sends datagrams one after the other and expects each to arrive.
func exchange(client net.Conn, server net.PacketConn, stop <-chan struct{}) error {
	buffer := make([]byte, 64)
	for n := 0; ; n++ {
		select {
		case <-stop:
			return nil
		default:
		}
		want := fmt.Sprintf("datagram %d", n)
		if _, err := client.Write([]byte(want)); err != nil {
			return fmt.Errorf("send %s: %w", want, err)
		}
		_ = server.SetReadDeadline(time.Now().Add(patience / 3))
		length, _, err := server.ReadFrom(buffer)
		if err != nil || string(buffer[:length]) != want {
			return fmt.Errorf("received %q (%w) instead of %s", buffer[:length], err, want)
		}
	}
}

// pins lists what is pinned for the host's agent.
func (s *street) pins(t *testing.T) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(filepath.Join(s.host.BPFFS(), "agent"), func(path string, _ os.DirEntry, err error) error {
		list = append(list, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestDetachLeavesNothing also after the agent was killed, which leaves it all.
func TestDetachLeavesNothing(t *testing.T) {
	for _, via := range []string{viaXDP, viaTCX, viaClsact} {
		t.Run(via, func(t *testing.T) {
			s := newStreet(t, true)
			attach := AttachTC
			if via == viaXDP {
				attach = AttachXDP
			}
			a := s.agentVia(t, attach, via)
			do(t, s.host, "detach beside a running agent", func() error {
				if err := Detach(s.host.BPFFS()); !errors.Is(err, ErrRunning) {
					t.Errorf("error is %v, want ErrRunning", err)
				}
				return nil
			})
			s.detach(t, a)
			if _, err := os.Stat(filepath.Join(s.host.BPFFS(), "agent")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the agent's pins are still there (%v)", err)
			}
			for _, address := range loopbackAddresses(t, s.host) {
				if !address.IP.IsLoopback() {
					t.Errorf("left on lo: %s", address.IPNet)
				}
			}
			do(t, s.host, "look at eth0", func() error {
				link, err := netlink.LinkByIndex(s.link.B.Index)
				if err != nil {
					return err
				}
				if xdp := link.Attrs().Xdp; xdp != nil && xdp.Attached {
					t.Error("an XDP program is still attached")
				}
				for _, hook := range []string{hookIngress, hookEgress} {
					filters, _ := netlink.FilterList(link, filterOf(hook).Parent)
					if len(filters) != 0 {
						t.Errorf("filters are left at %s: %v", hook, filters)
					}
				}
				return nil
			})
			do(t, s.host, "detach again", func() error { return Detach(s.host.BPFFS()) })
		})
	}
}

// TestDirectorsHostLeavesXDP: on a host that is a director as well, XDP is the
// director's, whichever starts first.
func TestDirectorsHostLeavesXDP(t *testing.T) {
	s := newStreet(t, true)
	s.host.Address("eth0", "10.0.9.9/32")
	a := s.agent(t, AttachAuto)
	defer s.detach(t, a)
	got := s.status(t, a).Interfaces
	if len(got) != 1 || got[0].Ingress == viaXDP || !strings.Contains(got[0].NoXDP, "directors") {
		t.Errorf("attached as %+v, want tc because of directors", got)
	}
}

// TestRefresh: the agent follows the host's MTU and addresses.
func TestRefresh(t *testing.T) {
	s := newStreet(t, true)
	a := s.agent(t, AttachAuto)
	defer s.detach(t, a)
	do(t, s.host, "lower the MTU", func() error {
		return netlink.LinkSetMTU(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: s.link.B.Index}}, 1400)
	})
	do(t, s.host, "look", func() error { a.reconciler.Look(); return nil })
	for _, service := range s.status(t, a).Services {
		if service.Name == "web4" && service.MSS != webMSS4-100 {
			t.Errorf("the MSS is %d, want %d", service.MSS, webMSS4-100)
		}
	}
	do(t, s.host, "move away", func() error {
		return netlink.AddrDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: s.link.B.Index}},
			&netlink.Addr{IPNet: &net.IPNet{IP: host4.AsSlice(), Mask: net.CIDRMask(24, 32)}})
	})
	do(t, s.host, "look", func() error { a.reconciler.Look(); return nil })
	if got, want := s.status(t, a).VIPs, []netip.Addr{vip4, vip6, rangeVIP6}; !slices.Equal(got, want) {
		t.Errorf("VIPs are %v, want %v: those with a backend here, of vip4 the one at %v", got, want, host6)
	}
}

// TestRefusals: what an operator can get wrong has an error that says so.
func TestRefusals(t *testing.T) {
	s := newStreet(t, true)
	options := Deps{Pin: s.host.BPFFS(), Log: slog.New(slog.DiscardHandler)}
	do(t, s.host, "try", func() error {
		if _, err := Open(Deps{Pin: t.TempDir(), Log: options.Log}); !errors.Is(err, ErrNoBPFFS) {
			t.Errorf("outside a BPF file system: error is %v", err)
		}
		if _, err := Open(Deps{Pin: options.Pin, Attach: "magic", Log: options.Log}); err == nil {
			t.Error("an unknown way to attach is accepted")
		}
		a, err := Open(options)
		if err != nil {
			return err
		}
		defer a.Close()
		if _, err := Open(options); !errors.Is(err, ErrRunning) {
			t.Errorf("a second agent: error is %v", err)
		}
		return nil
	})
	do(t, s.host, "detach", func() error { return Detach(options.Pin) })
}
