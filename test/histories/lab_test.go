package histories

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/datapath"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

const (
	bpffs       = "/sys/fs/bpf"
	directorsIn = 3
	hostsIn     = 5
	backendsIn  = 2 * hostsIn // of each family: two are on each host
	webPort     = 80
	patience    = 10 * time.Second
)

var (
	vip4, vip6       = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	clients4         = netip.MustParsePrefix("198.18.0.0/15")
	clients6         = netip.MustParsePrefix("2001:db8:c::/64")
	router4, router6 = netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("2001:db8:f::1")
	tunnels          = []netip.Prefix{netip.MustParsePrefix("10.99.0.0/26"), netip.MustParsePrefix("fd00:99::/64")}
)

// lab has directors, which are programs with their maps in this process's namespace, and hosts in
// namespaces of their own with agents and real sockets. No packet is sent: a program runs on it,
// and its output goes to the next program or to a kernel.
//
//	client's packet -> a director -> a host's programs -> the next host's -> ... -> kernel
//
// A lab outlives a history, because programs take a while to load.
type lab struct {
	directors []*director
	hosts     []*host
	at        map[netip.Addr]*host
}

func newLab(t testing.TB) *lab {
	t.Helper()
	l := &lab{at: map[netip.Addr]*host{}}
	l.wire(t)
	net := netlab.ForTest(t)
	nobody := newNobody(net)
	var loads []func() error
	for number := range hostsIn {
		h := newHost(t, net, nobody, number, number%3 == 2)
		t.Cleanup(h.close)
		l.hosts, loads = append(l.hosts, h), append(loads, h.load)
		for address := range h.addresses {
			l.at[address] = h
		}
	}
	for number := range directorsIn {
		d := &director{wire: wireName(number), pin: fmt.Sprintf("%s/director%d", bpffs, number)}
		t.Cleanup(func() { _ = errors.Join(d.close(), datapath.Detach(d.pin)) })
		l.directors, loads = append(l.directors, d), append(loads, d.load)
	}
	must(t, together(loads))
	for _, h := range l.hosts {
		h.serve(t)
	}
	return l
}

// newNobody makes the host at the other end of every host's uplink. Its kernel sends nothing:
// hosts on one switch would hear each other's multicast reports, and count them.
func newNobody(net *netlab.Lab) *netlab.Host {
	host := net.Host("nobody")
	host.Sysctl("net.ipv6.conf.default.disable_ipv6", "1")
	return host
}

// together runs all at once: the verifier takes most of their time.
func together(loads []func() error) error {
	errs := make([]error, len(loads))
	var all sync.WaitGroup
	for i, load := range loads {
		all.Go(func() { errs[i] = load() })
	}
	all.Wait()
	return errors.Join(errs...)
}

func wireName(number int) string { return fmt.Sprint("wire", number) }

// wire gives each director an interface, and routes to all hosts.
func (l *lab) wire(t testing.TB) {
	t.Helper()
	for number := range directorsIn {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: wireName(number), MTU: 1500}, PeerName: fmt.Sprint("end", number)}
		must(t, netlink.LinkAdd(veth))
		t.Cleanup(func() { _ = netlink.LinkDel(veth) })
		for _, name := range []string{veth.Name, veth.PeerName} {
			link, err := netlink.LinkByName(name)
			must(t, err)
			must(t, netlink.LinkSetUp(link))
		}
	}
	first, err := netlink.LinkByName(wireName(0))
	must(t, err)
	for _, prefix := range []string{"10.0.0.1/24", "fd00::1/64"} {
		a, err := netlink.ParseAddr(prefix)
		must(t, err)
		a.Flags = unix.IFA_F_NODAD
		must(t, netlink.AddrAdd(first, a))
	}
	for _, address := range backends() {
		must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: first.Attrs().Index, IP: address.AsSlice(),
			HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}, State: netlink.NUD_PERMANENT}))
	}
}

func backendAddress(number int, six bool) netip.Addr {
	if six {
		return netip.MustParseAddr(fmt.Sprintf("fd00::%d", 11+number))
	}
	return netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + number)})
}

// backends are the addresses of all possible backends.
func backends() (all []netip.Addr) {
	for number := range backendsIn {
		all = append(all, backendAddress(number, false), backendAddress(number, true))
	}
	return all
}

// agentConfig is every agent's configuration: it has all possible backends.
func agentConfig() model.Config {
	c := model.Config{Directors: tunnels}
	for _, vip := range []netip.Addr{vip4, vip6} {
		for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
			s := service(vip, protocol)
			for _, a := range backends() {
				s.Backends = append(s.Backends, model.Backend{Name: a.String(), Address: a, Weight: 1, State: model.Active})
			}
			c.Services = append(c.Services, s)
		}
	}
	return c
}

func service(vip netip.Addr, protocol model.Protocol) model.Service {
	return model.Service{Name: fmt.Sprint(protocol, " ", vip), VIP: vip, Protocol: protocol, Mode: model.GUE,
		Port: model.PortRange{First: webPort, Last: webPort}}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
