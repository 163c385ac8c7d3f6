package datapath

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/datapath/observe"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// An explanation of a table that is only imagined equals the one after the table is set,
// and changes nothing.
func TestExplainWith(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	must(t, os.WriteFile("/proc/sys/net/ipv6/conf/wire1/disable_ipv6", []byte("1"), 0))
	for n := range 60 {
		addNeighbor(t, explainBackend(true, n))
		addNeighbor(t, explainBackend(false, n))
	}
	wire, err := netlink.LinkByName("wire0")
	must(t, err)
	x := &explainRun{T: t, r: rand.New(rand.NewPCG(4, 9)), d: openUnswept(t), wire: wire.Attrs().Index,
		seen: map[model.Chosen]int{}, reasons: map[string]int{}, asked: map[string]int{}}
	x.change()
	compared, others := 0, 0
	for range rounds(4) + 1 {
		for range 60 {
			x.step(false)
		}
		next := x.random()
		frames, answers, before := make([][]byte, 3), make([]model.Explanation, 3), x.dump()
		for i := range frames {
			frames[i] = x.frameOf(next.Services)
			answers[i], err = x.d.ExplainWith(next, "wire0", frames[i])
			must(t, err)
		}
		x.unchanged(before)
		now := make([]string, len(frames))
		for i := range frames {
			e, err := x.d.Explain("wire0", frames[i])
			must(t, err)
			now[i] = e.Reason + string(e.Out)
		}
		had := map[netip.Addr]bool{}
		for i := range x.table.Services {
			had[x.table.Services[i].VIP] = true
		}
		x.table = next
		must(t, x.d.Set(next))
		for i, frame := range frames {
			e, err := x.d.Explain("wire0", frame)
			must(t, err)
			said := answers[i]
			// The index of a service that comes may be one that another had, of which something
			// is still remembered: which one it gets is decided by then.
			if e.Service != nil && !had[e.Service.ID.VIP] && (e.Memory != nil || said.Memory != nil) {
				continue
			}
			compared++
			if now[i] != e.Reason+string(e.Out) {
				others++
			}
			if e.Backend != nil && e.Backend.Source.IsValid() { // of a new table of full NAT, whose salt is random
				e.Out, said.Out, said.Backend.Source = nil, nil, e.Backend.Source
			}
			if e.Memory != nil && said.Memory != nil {
				said.Memory.Age = e.Memory.Age // time passes
			}
			if !reflect.DeepEqual(e, said) {
				t.Fatalf("said was %+v\nbackend %+v slot %+v, it is %+v\nbackend %+v slot %+v\n%s", said, said.Backend, said.Slot, e, e.Backend, e.Slot, packet.Describe(frame))
			}
		}
	}
	if others == 0 {
		t.Errorf("none of %d packets was another's by the next table: the test shows nothing", compared)
	}
}

// Nobody is asked for the MAC address of a backend that may never be one.
func TestExplainWithAsksNobody(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, explainLimits)
	must(t, d.Set(tableOf(1, 1, 0)))
	next := tableOf(2, 1, 0)
	stranger := netip.MustParseAddr("10.0.0.200")
	next.Services[1].Backends[0].Address = stranger
	e, err := d.ExplainWith(next, "wire0", build(ip(client4, next.Services[1].VIP), packet.TCPHeader{Src: 1, Dst: 80, Flags: packet.SYN}))
	must(t, err)
	if e.Reason != "forward_l2dsr" || e.Backend == nil || e.Backend.Backend.Addr() != stranger || !e.Backend.NextHop.IsZero() {
		t.Errorf("a backend that nobody knows: %+v, %+v", e, e.Backend)
	}
	neighbors, err := netlink.NeighList(0, 0)
	must(t, err)
	for _, n := range neighbors {
		if n.IP.Equal(stranger.AsSlice()) {
			t.Errorf("the kernel was asked for it: %+v", n)
		}
	}
	must(t, d.Set(next))
	neighbors, err = netlink.NeighList(0, 0)
	must(t, err)
	if !slices.ContainsFunc(neighbors, func(n netlink.Neigh) bool { return n.IP.Equal(stranger.AsSlice()) }) {
		t.Error("the kernel is not asked for a backend that is one: the test shows nothing")
	}
}

// A later fragment follows its first one to a backend that is still one, and to nobody else.
func TestExplainWithoutAFragmentsBackend(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	wire, err := netlink.LinkByName("wire0")
	must(t, err)
	d := openTest(t, explainLimits)
	table := tableOf(1, 2, 0)
	table.Services[0].Protocol = model.UDP
	for n := range table.Services[0].Backends {
		addNeighbor(t, table.Services[0].Backends[n].Address)
	}
	must(t, d.Set(table))
	fragments := pieces(7, ip(client4, table.Services[0].VIP), packet.UDPHeader{Src: 1, Dst: 80}, packet.Zeros(600))
	onCPU(t, 0, func() {
		_, err = d.kernel.program.Run(&ebpf.RunOptions{Data: fragments[0], DataOut: make([]byte, len(fragments[0])+512),
			Context: &testContext{DataEnd: uint32(len(fragments[0])), Ingress: uint32(wire.Attrs().Index)}})
	})
	must(t, err)
	before, err := d.Explain("wire0", fragments[1])
	must(t, err)
	if before.Reason != "forward_fragment" || before.Backend == nil {
		t.Fatalf("the later fragment before the change: %+v", before)
	}
	for _, stays := range []bool{true, false} {
		next := tableOf(1, 1, 0)
		next.Services[0].Protocol = model.UDP
		address := before.Backend.Backend.Addr()
		if !stays {
			address = otherThan(address, table.Services[0].Backends)
		}
		next.Services[0].Backends[0].Address = address
		said, err := d.ExplainWith(next, "wire0", fragments[1])
		must(t, err)
		must(t, d.Set(next))
		is, err := d.Explain("wire0", fragments[1])
		must(t, err)
		if want := map[bool]string{true: "forward_fragment", false: "drop_fragment_unknown"}[stays]; is.Reason != want || said.Reason != want {
			t.Errorf("the backend stays: %t. Said was %s, it is %s; want %s", stays, said.Reason, is.Reason, want)
		}
		if !reflect.DeepEqual(is, said) {
			t.Errorf("the backend stays: %t. Said was %+v\nit is %+v", stays, said, is)
		}
		must(t, d.Set(table))
	}
}

// otherThan returns the address of the backend that has not this one.
func otherThan(address netip.Addr, backends []model.TableBackend) netip.Addr {
	for _, b := range backends {
		if b.Address != address {
			return b.Address
		}
	}
	panic("no other backend")
}

func TestExplainWithRefuses(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, explainLimits)
	if _, err := d.ExplainWith(tableOf(1, 1, 0), "wire0", make([]byte, 60)); !errors.Is(err, observe.ErrNothingForwarded) {
		t.Errorf("before anything is forwarded: %v", err)
	}
	must(t, d.Set(tableOf(1, 1, 0)))
	_, err := d.ExplainWith(tableOf(65, 1, 0), "wire0", make([]byte, 60))
	if unfit := (*UnfitError)(nil); !errors.As(err, &unfit) || err.Error() != "65 services are more than director.limits.services, 64" {
		t.Errorf("65 services of 64: %v", err)
	}
}
