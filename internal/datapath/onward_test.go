package datapath

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/nexthop"
	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

const onwardPin = "/sys/fs/bpf/weir"

// onOverlay is a backend's address behind the interface that addOverlay makes.
var onOverlay = netip.MustParseAddr("10.244.0.7")

// addOverlay makes a VXLAN, with a network of its own.
func addOverlay(t *testing.T) netlink.Link {
	t.Helper()
	return addLink(t, &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "overlay", MTU: 1450}, VxlanId: 7, Port: 8472, SrcAddr: net.IPv4(10, 0, 0, 1)}, "10.244.0.1/24")
}

// addLink makes an interface.
func addLink(t *testing.T, link netlink.Link, addresses ...string) netlink.Link {
	t.Helper()
	must(t, netlink.LinkAdd(link))
	must(t, netlink.LinkSetUp(link))
	for _, text := range addresses {
		address, err := netlink.ParseAddr(text)
		must(t, err)
		must(t, netlink.AddrAdd(link, address))
	}
	made, err := netlink.LinkByName(link.Attrs().Name)
	must(t, err)
	return made
}

// ipipTo is a table of one service with these backends.
func ipipTo(addresses ...netip.Addr) model.Table {
	table := tableOf(1, len(addresses), 0)
	for i, a := range addresses {
		b := &table.Services[0].Backends[i]
		b.Name, b.Address, b.Mode = a.String(), a, model.IPIP
	}
	return table
}

// pair returns the end that a director sends into; nil: there is none.
func pair(t *testing.T) netlink.Link {
	t.Helper()
	link, err := netlink.LinkByName(nexthop.OnwardName(onwardPin))
	if none := (netlink.LinkNotFoundError{}); errors.As(err, &none) {
		return nil
	}
	must(t, err)
	other, err := netlink.LinkByName(link.Attrs().Name + device.OtherEnd)
	must(t, err)
	if !device.Made(link) || !device.Made(other) {
		t.Errorf("%s and %s do not count as made by a director", link.Attrs().Name, other.Attrs().Name)
	}
	return link
}

// filterOf returns the number of the program at a pair's other end; 0: it has none.
func filterOf(t *testing.T) int {
	t.Helper()
	end, err := netlink.LinkByName(nexthop.OnwardName(onwardPin) + "-x")
	must(t, err)
	filters, err := netlink.FilterList(end, netlink.HANDLE_MIN_INGRESS)
	must(t, err)
	for _, f := range filters {
		if bpf, ok := f.(*netlink.BpfFilter); ok && bpf.Name == "weir-onward" {
			return bpf.Id
		}
	}
	return 0
}

// leavesByKernel says whether packets for a backend go into the pair that there is, and into no
// other device, for the kernel to send them by an interface.
func leavesByKernel(t *testing.T, d *Datapath, backend int, by string) bool {
	t.Helper()
	ends := pair(t)
	if ends == nil {
		return false
	}
	b := statusOf(t, d).Services[0].Backends[backend]
	d.mu.Lock()
	entry := d.entries.Entries[d.services[keyOf(&d.table.Services[0])].order[backend].index]
	d.mu.Unlock()
	return b.State == model.Active && b.Interface == by && b.ByKernel && b.NextHop.IsZero() &&
		entry.Ifindex == uint32(ends.Attrs().Index) && slices.Contains(egressOf(t, d), entry.Ifindex)
}

// TestOnwardPair: it is made when a backend needs it, and not before, also not by asking what would
// be; the next process takes it over with a program of its own, and detaching removes it.
func TestOnwardPair(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addOverlay(t)
	near := netip.MustParseAddr("10.0.0.11")
	addNeighbor(t, near)
	d := openTest(t, explainLimits)
	must(t, d.Set(ipipTo(near)))
	both := ipipTo(near, onOverlay)
	e, err := d.ExplainWith(ipipTo(onOverlay), "wire0", build(ip(client4, both.Services[0].VIP), packet.TCPHeader{Src: 1, Dst: 80, Flags: packet.SYN}))
	must(t, err)
	if e.Reason != "forward_ipip" {
		t.Errorf("of a packet to a backend behind the overlay it says %+v", e)
	}
	if made := pair(t); made != nil {
		t.Errorf("nobody needs it, and there is %+v", made)
	}
	must(t, d.Set(both))
	made := pair(t)
	if made == nil || !leavesByKernel(t, d, 1, "overlay") {
		t.Fatalf("the backend behind the overlay is %+v, the pair %+v", statusOf(t, d).Services[0].Backends[1], made)
	}
	if b := statusOf(t, d).Services[0].Backends[0]; b.ByKernel || b.Interface != "wire0" || b.NextHop != neighborMAC(near) {
		t.Errorf("the other backend is %+v", b)
	}
	first := filterOf(t)
	must(t, d.Close())
	if left := pair(t); left == nil || filterOf(t) != first {
		t.Error("what goes on without a process is gone with it")
	}
	d = openTest(t, explainLimits)
	must(t, d.Set(both))
	if next := pair(t); next == nil || next.Attrs().Index != made.Attrs().Index || !leavesByKernel(t, d, 1, "overlay") {
		t.Errorf("the next process has %+v, and the first had %+v", next, made)
	}
	if second := filterOf(t); second == 0 || second == first {
		t.Errorf("the next process has program %d, the first had %d", second, first)
	}
	must(t, errors.Join(d.Close(), Detach(onwardPin)))
	if left := pair(t); left != nil {
		t.Errorf("after detaching there is %+v", left)
	}
}

// TestOnwardHalfMade: a process was killed while it made the pair.
func TestOnwardHalfMade(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addOverlay(t)
	half := netlink.NewVeth(netlink.LinkAttrs{Name: nexthop.OnwardName(onwardPin)})
	half.PeerName = half.Name + "-x"
	must(t, netlink.LinkAdd(half))
	before := pair(t).Attrs().Index
	d := openTest(t, model.Limits{})
	must(t, d.Set(ipipTo(onOverlay)))
	if whole := pair(t); whole == nil || whole.Attrs().Index == before || whole.Attrs().Flags&net.FlagUp == 0 || filterOf(t) == 0 {
		t.Errorf("of the half pair %d has become %+v", before, whole)
	}
	if !leavesByKernel(t, d, 0, "overlay") {
		t.Errorf("the backend is %+v", statusOf(t, d).Services[0].Backends[0])
	}
}

// TestOnwardDeleted: somebody removes the pair, by either end.
func TestOnwardDeleted(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addOverlay(t)
	d := openTest(t, model.Limits{})
	must(t, d.Set(ipipTo(onOverlay)))
	for _, end := range []string{nexthop.OnwardName(onwardPin), nexthop.OnwardName(onwardPin) + "-x"} {
		was := pair(t).Attrs().Index
		link, err := netlink.LinkByName(end)
		must(t, err)
		must(t, netlink.LinkDel(link))
		eventually(t, "the backend is reached by another pair", func() bool {
			now := pair(t)
			return now != nil && now.Attrs().Index != was && leavesByKernel(t, d, 0, "overlay")
		})
		if filterOf(t) == 0 {
			t.Errorf("after %s was removed the pair has no program", end)
		}
	}
}

// TestOnwardGeneric: generic XDP sends into all interfaces that have Ethernet.
func TestOnwardGeneric(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	overlay := addOverlay(t)
	addLink(t, &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tunnel"}, Mode: netlink.TUNTAP_MODE_TUN, Flags: netlink.TUNTAP_NO_PI}, "10.245.0.1/24")
	mac := neighborMAC(onOverlay)
	must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: overlay.Attrs().Index, IP: onOverlay.AsSlice(), HardwareAddr: mac[:], State: netlink.NUD_PERMANENT}))
	d, err := Open(Options{Pin: onwardPin, Mode: model.XDPGeneric})
	must(t, err)
	t.Cleanup(func() { d.Close() })
	must(t, d.Set(ipipTo(onOverlay)))
	if b := statusOf(t, d).Services[0].Backends[0]; b.State != model.Active || b.ByKernel || b.Interface != "overlay" || b.NextHop != mac || pair(t) != nil {
		t.Errorf("by generic XDP the backend is %+v", b)
	}
	must(t, d.Set(ipipTo(netip.MustParseAddr("10.245.0.7"))))
	if !leavesByKernel(t, d, 0, "tunnel") {
		t.Errorf("behind a tunnel without Ethernet it is %+v", statusOf(t, d).Services[0].Backends[0])
	}
}

// TestOnwardTakesNoFrames: the kernel would write frames for the backend itself, or with a configured
// address or tag, anew, and drops what XDP redirects there. So they are not sent, which is said.
func TestOnwardTakesNoFrames(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	overlay := addOverlay(t)
	own := neighborMAC(onOverlay)
	must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: overlay.Attrs().Index, IP: onOverlay.AsSlice(), HardwareAddr: own[:], State: netlink.NUD_PERMANENT}))
	d := openTest(t, model.Limits{})
	for name, change := range map[string]func(*model.TableBackend){
		"l2dsr":             func(b *model.TableBackend) { b.Mode = model.L2DSR },
		"a configured mac":  func(b *model.TableBackend) { b.MAC = model.MAC{2, 0, 0, 0, 0, 9} },
		"a configured vlan": func(b *model.TableBackend) { b.VLAN = 7 },
	} {
		table := ipipTo(onOverlay)
		change(&table.Services[0].Backends[0])
		must(t, d.Set(table))
		if b := statusOf(t, d).Services[0].Backends[0]; b.State != model.Down || !strings.HasPrefix(b.Unreachable, "XDP cannot send into overlay (vxlan)") || pair(t) != nil {
			t.Errorf("a backend of %s is %+v", name, b)
		}
		if all := d.Unreachable(10); len(all) != 1 || all[0].Why == "" {
			t.Errorf("of a backend of %s it is said %+v", name, all)
		}
	}
}

// TestOnwardTunnelSource: where the kernel's choice of an address is none that agents accept, it is
// another one of the interface that the route leads into, not of the pair's.
func TestOnwardTunnelSource(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	overlay := addOverlay(t)
	second, err := netlink.ParseAddr("10.243.0.1/32")
	must(t, err)
	must(t, netlink.AddrAdd(overlay, second))
	d := openTest(t, model.Limits{})
	table := ipipTo(onOverlay)
	table.Directors = []netip.Prefix{netip.MustParsePrefix("10.243.0.0/24")}
	must(t, d.Set(table))
	if got, want := settingsOf(t, d).TunnelSource4, abi.BigEndianAddress(netip.MustParseAddr("10.243.0.1")); got != want {
		t.Errorf("tunnels come from %x, want %x", got, want)
	}
}

// heard is what is logged.
type heard struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (h *heard) Write(line []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text.Write(line)
}

func (h *heard) lines(with string) (found []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for line := range strings.Lines(h.text.String()) {
		if strings.Contains(line, with) {
			found = append(found, line)
		}
	}
	return found
}

// TestOnwardRefused: the pair cannot be made, because a device of another kind has the name of an end
// of it, up or down. The backends behind the overlay are down until it is gone, and the log says so once.
func TestOnwardRefused(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addOverlay(t)
	for _, c := range []struct {
		end string
		up  bool
		why string
	}{
		{"", true, "there is a bridge of that name"},
		{"", false, "there is a bridge of that name"},
		{"-x", true, "make veth pair: file exists"},
	} {
		t.Run(fmt.Sprintf("end%s up %t", c.end, c.up), func(t *testing.T) {
			log := &heard{}
			taken := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: nexthop.OnwardName(onwardPin) + c.end}}
			must(t, netlink.LinkAdd(taken))
			if c.up {
				must(t, netlink.LinkSetUp(taken))
			}
			d, err := Open(Options{Pin: onwardPin, Log: slog.New(slog.NewTextHandler(log, nil))})
			must(t, err)
			t.Cleanup(func() { must(t, errors.Join(d.Close(), Detach(onwardPin))) })
			near, other := netip.MustParseAddr("10.0.0.11"), netip.MustParseAddr("10.244.0.8")
			addNeighbor(t, near)
			must(t, d.Set(ipipTo(near, onOverlay)))
			time.Sleep(1200 * time.Millisecond) // it tries again a second later
			must(t, d.Set(ipipTo(near, onOverlay, other)))
			for i, want := range []model.BackendState{model.Active, model.Down, model.Down} {
				if b := statusOf(t, d).Services[0].Backends[i]; b.State != want {
					t.Errorf("backend %d is %+v, want %s", i, b, want)
				}
			}
			must(t, netlink.LinkDel(taken)) // which is still there: it is not weir's
			eventually(t, "the backends are reached", func() bool { return leavesByKernel(t, d, 1, "overlay") && leavesByKernel(t, d, 2, "overlay") })
			if lines := log.lines("level=ERROR"); len(lines) != 1 || !strings.Contains(lines[0], c.why) || !strings.Contains(lines[0], "interface=overlay") {
				t.Errorf("the log says %q, want once that %s", lines, c.why)
			}
		})
	}
}
