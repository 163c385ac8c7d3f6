package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// checkBy is a check of port 80 of a VIP, at a backend that it leads to.
func checkBy(mode model.Mode, vip, backend string) model.Check {
	address := netip.MustParseAddr(backend)
	return model.Check{
		Target: model.Target{
			Service: model.ServiceID{VIP: netip.MustParseAddr(vip), Protocol: model.TCP, Port: singlePort(80)},
			Backend: netip.AddrPortFrom(address, 0),
		},
		To: netip.AddrPortFrom(address, 80), How: &model.HealthCheck{Kind: model.CheckTCP},
		Way: &model.CheckWay{CheckHost: &model.CheckHost{Interfaces: []string{"wire0"}}, VIP: netip.MustParseAddr(vip),
			Backend: model.TableBackend{Address: address, Mode: mode}},
	}
}

// checkDevices are the devices of checks, and checkRules how many rules lead there.
func checkDevices(t *testing.T) (names []string) {
	t.Helper()
	links, err := netlink.LinkList()
	must(t, err)
	for _, l := range links {
		if device.Made(l) {
			names = append(names, l.Attrs().Name)
		}
	}
	return names
}

func checkRules(t *testing.T) (n int) {
	t.Helper()
	rules, err := netlink.RuleList(netlink.FAMILY_ALL)
	must(t, err)
	for _, r := range rules {
		if r.Priority == 1 {
			n++
		}
	}
	return n
}

// The host's routes lead to another network than a tenant's: a check without a way there goes nowhere.
func TestCheckInsideGoesNowhereElse(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	ways := openTest(t, model.Limits{}).Checks()
	check := checkBy(model.NAT, "198.51.100.1", "10.0.0.11")
	if way := ways.Way(&check); way.Fault != "" {
		t.Errorf("a check by the host's routes has the fault %s", way.Fault)
	}
	check.Way.Backend.Segment = model.Segment{Kind: model.SegmentVXLAN, ID: 5001}
	if way := ways.Way(&check); way.Fault != model.FaultUnreachable {
		t.Errorf("a check in a tenant's network goes to %v", way.To)
	}
}

// listenAtFarEnd returns what reads the next frame that leaves by wire0.
func listenAtFarEnd(t *testing.T) func() []byte {
	t.Helper()
	far, err := netlink.LinkByName("wire1")
	must(t, err)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, int(abi.BigEndian16(unix.ETH_P_ALL)))
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	must(t, errors.Join(unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: abi.BigEndian16(unix.ETH_P_ALL), Ifindex: far.Attrs().Index}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10})))
	return func() []byte {
		buffer := make([]byte, 2048)
		n, err := unix.Read(fd, buffer)
		for errors.Is(err, unix.EINTR) {
			n, err = unix.Read(fd, buffer)
		}
		if err != nil {
			t.Fatalf("nothing comes to the far end: %v", err)
		}
		return buffer[:n]
	}
}

// connectBy sends a SYN from a socket that is prepared for a way.
func connectBy(t *testing.T, way model.Way) {
	t.Helper()
	family, to := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: way.To.Addr().As16(), Port: int(way.To.Port())})
	if way.To.Addr().Is4() {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Addr: way.To.Addr().As4(), Port: int(way.To.Port())}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	must(t, way.Prepare(fd))
	if err := unix.Connect(fd, to); !errors.Is(err, unix.EINPROGRESS) {
		t.Fatalf("connect to %v: %v", way.To, err)
	}
}

// TestCheckDevice: sockets that are prepared for a way reach the wire in its headers, and
// nothing is left when the checks end.
func TestCheckDevice(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, model.Limits{})
	four, six := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::1")
	leads := []struct {
		check   model.Check
		mtu     int
		headers []packet.Checker // before the packet to the VIP
		mss     uint16
	}{
		{checkBy(model.L2DSR, "198.51.100.1", "10.0.0.11"), 1500, nil, 1460},
		{checkBy(model.IPIP, "198.51.100.1", "10.0.0.12"), 1480, []packet.Checker{packet.IP(four, netip.MustParseAddr("10.0.0.12"), packet.TTL(64))}, 1440},
		{checkBy(model.IPIP, "2001:db8:5::1", "2001:db8::13"), 1460, []packet.Checker{packet.IP(six, netip.MustParseAddr("2001:db8::13"), packet.TTL(64))}, 1400},
	}
	var all []model.Check
	for _, l := range leads {
		addNeighbor(t, l.check.To.Addr())
		all = append(all, l.check)
	}
	silent := checkBy(model.L2DSR, "198.51.100.1", "10.0.0.99")
	killed := d.Checks() // a process that ends without Close
	killed.Set(all)
	checks := d.Checks()
	checks.Set(append(all, silent))
	if names, rules := checkDevices(t), checkRules(t); len(names) != 2 || rules != 2 {
		t.Errorf("the devices are %q, and %d rules lead there", names, rules)
	}
	for _, l := range leads {
		way := checks.Way(&l.check)
		if want := netip.AddrPortFrom(l.check.Way.VIP, 80); way.To != want || way.MTU != l.mtu {
			t.Fatalf("%v is led to %v, with packets of %d, and not to %v of %d", l.check.To, way.To, way.MTU, want, l.mtu)
		}
		next := listenAtFarEnd(t)
		connectBy(t, way)
		own := six
		if way.To.Addr().Is4() {
			own = four
		}
		mac := neighborMAC(l.check.To.Addr())
		want := append([]packet.Checker{packet.Ether(mac, [6]byte(wire(t).Attrs().HardwareAddr))}, l.headers...)
		want = append(want, packet.IP(own, l.check.Way.VIP, packet.TTL(2)), packet.TCP(0, 80, packet.MSS(l.mss)), packet.Anything())
		for packet.Match(next(), want...) != nil { // neighbors are asked for, too
		}
	}
	for _, waits := range []bool{true, false} {
		eventually(t, fmt.Sprintf("without a next hop a probe waits: %t", waits), func() bool {
			if waits { // it has just come
				checks.Set(all)
				checks.Set(append(all, silent))
			}
			way := checks.Way(&silent)
			return way.To == silent.To && way.Later == waits
		})
	}
	checks.Set(all[1:])
	if way := checks.Way(&all[0]); way.To != all[0].To {
		t.Errorf("a check that nobody wants goes to %v", way.To)
	}
	own := checkBy(model.L2DSR, four.String(), "10.0.0.11")
	checks.Set([]model.Check{own})
	if way := checks.Way(&own); way.To != own.To {
		t.Errorf("a VIP of this host's own is looked for at %v", way.To)
	}
	must(t, checks.Close())
	if names, rules := checkDevices(t), checkRules(t); len(names) != 0 || rules != 0 {
		t.Errorf("the devices %q and %d rules are left", names, rules)
	}
	left := d.Checks()
	left.Set(all)
	must(t, errors.Join(d.Close(), Detach("/sys/fs/bpf/weir")))
	if names, rules := checkDevices(t), checkRules(t); len(names) != 0 || rules != 0 {
		t.Errorf("after detaching the devices %q and %d rules are left", names, rules)
	}
}
