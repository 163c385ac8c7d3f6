package datapath

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// Two directors beside each other, on two interfaces, which share flows by
// hand: what internal/flowsync does over a network.

func openShare(t *testing.T, pin string) *Datapath {
	t.Helper()
	d, err := Open(Options{Pin: "/sys/fs/bpf/" + pin})
	must(t, err)
	t.Cleanup(func() { d.Close() })
	d.sweepsByHand()
	return d
}

// shareTable is tableOf on an interface, with the services in the opposite order where
// that is asked for: the directors' indexes differ.
func shareTable(on string, backends, vary int, reversed bool) model.Table {
	table := tableOf(2, backends, vary)
	table.Interfaces = []string{on}
	if reversed {
		slices.Reverse(table.Services)
	}
	return table
}

// sendsFrom runs a packet from a client's port to the first service of tableOf through the
// program, and returns the next hop that it leaves to.
func (d *Datapath) sendsFrom(t *testing.T, port uint16, flags uint8) (to model.MAC) {
	t.Helper()
	frame := build(ip(client4, netip.MustParseAddr("198.51.0.0")), packet.TCPHeader{Src: port, Dst: 80, Flags: flags}, packet.Text("client"))
	_, out, err := d.kernel.program.Test(frame)
	must(t, err)
	copy(to[:], out)
	return to
}

// follow collects what a director shares. It can be read as soon as the program shares.
func follow(t *testing.T, d *Datapath) (read func() []model.RememberedFlow) {
	t.Helper()
	var mu sync.Mutex
	var all []model.RememberedFlow
	begun := 0
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		err := d.FollowFlows(ctx, func(news model.FlowNews, unshared bool) {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, news.Flows...)
			if unshared {
				begun++
			}
		})
		if err != nil {
			t.Errorf("follow flows: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); done.Wait() })
	eventually(t, "the program shares", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return begun == 1
	})
	return func() []model.RememberedFlow {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

func (d *Datapath) outcome(t *testing.T, outcome abi.ToldOutcome) uint64 {
	t.Helper()
	return statusOf(t, d).Flows.Imported[outcome].Count
}

// goesOn sends a packet of a connection, and another one when it has gone on for PROOF_LASTS.
func (d *Datapath) goesOn(t *testing.T, port uint16, flags uint8) (to model.MAC) {
	t.Helper()
	d.sendsFrom(t, port, flags)
	d.sendsFrom(t, port, packet.ACK)
	for i := range d.flows.Entries {
		d.flows.Entries[i].Since -= 3
	}
	return d.sendsFrom(t, port, packet.ACK)
}

func TestFlowsAreShared(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 3)
	onCPU(t, 0, func() { testFlowsAreShared(t) })
}

func testFlowsAreShared(t *testing.T) {
	must(t, device.SetEthtool("wire1", unix.ETHTOOL_SGRO, 1)) // XDP sends into wire0 whoever has a program at its other end
	one, other := openShare(t, "one"), openShare(t, "other")
	set := func(vary int) {
		t.Helper()
		must(t, one.Set(shareTable("wire0", 3, vary, false)))
		must(t, other.Set(shareTable("wire1", 3, vary, true)))
	}
	set(0)
	set(1) // its slots settle
	news := follow(t, one)
	const shared, unshared = 20000, 20001
	backend := one.sendsFrom(t, shared, packet.SYN)
	isTrue(t, one.goesOn(t, shared, packet.ACK) == backend, "the connection stays")
	eventually(t, "the connection is shared, first as a fresh one", func() bool { return len(news()) > 1 })
	isTrue(t, news()[0].Class == model.FreshFlow, "the connection is fresh at first")
	flow := news()[1]
	want := model.RememberedFlow{
		Service: model.ServiceID{VIP: netip.MustParseAddr("198.51.0.0"), Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}},
		Backend: flow.Backend, Source: netip.AddrPortFrom(client4, shared), Port: 80, Class: model.SustainedFlow, State: model.FlowOpen, Next: flow.Next,
	}
	if flow.Age = 0; flow != want || flow.Next == 0 || neighborMAC(flow.Backend.Addr()) != backend {
		t.Errorf("shared %+v, want %+v with the backend at %v", flow, want, backend)
	}
	must(t, other.Remember(news()))
	set(2)
	isTrue(t, other.sendsFrom(t, shared, packet.ACK) == backend, "the other director knows where the connection is")
	owner := other.sendsFrom(t, unshared, packet.ACK)
	if n := other.outcome(t, abi.ToldOutcomeTOLD_NEW); n != 1 {
		t.Errorf("%d flows are new to the other director, want 1", n)
	}
	// A director that knows nothing has no slot that asks, until it imports some.
	must(t, other.Close())
	must(t, Detach("/sys/fs/bpf/other"))
	fresh := openShare(t, "fresh")
	must(t, fresh.Set(shareTable("wire1", 3, 2, true)))
	isTrue(t, fresh.sendsFrom(t, shared, packet.ACK) != backend, "a director that has imported nothing goes by the ring")
	isTrue(t, fresh.sendsFrom(t, unshared, packet.ACK) == owner, "as for any connection")
	must(t, one.RememberedFlows(func(some []model.RememberedFlow) bool {
		must(t, fresh.Remember(some))
		return true
	}))
	isTrue(t, fresh.sendsFrom(t, shared, packet.ACK) == backend, "a director that has imported everything knows")
	if status := statusOf(t, fresh).Flows; status.Settling != 1 || status.Remembered != 1 {
		t.Errorf("status is %+v, want one flow, and one slot that settles", status)
	}
	fresh.sweep()
	fresh.sweep()
	isTrue(t, fresh.sendsFrom(t, shared, packet.ACK) == backend, "the slot asks for as long as it must")
	testGuessesAreShared(t, one, fresh, news)
}

func isTrue(t *testing.T, holds bool, what string) {
	t.Helper()
	if !holds {
		t.Error("not true: " + what)
	}
}

// TestImportedFlowsWait: a flow of a service or of a backend that is not known yet is
// remembered when a Set brings it, and is given up later.
func TestImportedFlowsWait(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 3)
	d := openShare(t, "one")
	flow := model.RememberedFlow{
		Service: model.ServiceID{VIP: netip.MustParseAddr("198.51.0.0"), Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}},
		Backend: netip.MustParseAddrPort("10.0.0.13:0"), Source: netip.AddrPortFrom(client4, 20000), Port: 80, State: model.FlowOpen,
	}
	must(t, d.Remember([]model.RememberedFlow{flow}))
	must(t, d.Set(shareTable("wire0", 2, 0, false)))
	if n := d.outcome(t, abi.ToldOutcomeTOLD_WAITS); n != 1 {
		t.Errorf("%d flows wait, want 1", n)
	}
	must(t, d.Set(shareTable("wire0", 3, 0, false)))
	if n := d.outcome(t, abi.ToldOutcomeTOLD_NEW); n != 1 {
		t.Fatalf("%d flows are remembered that waited for their backend, want 1", n)
	}
	onCPU(t, 0, func() {
		isTrue(t, d.sendsFrom(t, 20000, packet.ACK) == neighborMAC(flow.Backend.Addr()), "it goes where it was imported to")
	})
	stranger := flow
	stranger.Backend = netip.MustParseAddrPort("10.0.0.99:0")
	must(t, d.Remember([]model.RememberedFlow{stranger}))
	d.imports.waiting[0].since = d.imports.waiting[0].since.Add(-importWaits)
	must(t, d.Set(shareTable("wire0", 3, 0, false)))
	if n := d.outcome(t, abi.ToldOutcomeTOLD_UNKNOWN); n != 1 || len(d.imports.waiting) != 0 {
		t.Errorf("%d flows of an unknown backend were given up and %d wait, want 1 and 0", n, len(d.imports.waiting))
	}
	var many []model.RememberedFlow
	for i := range mostWaiting + 10 {
		stranger.Source = netip.AddrPortFrom(netip.AddrFrom4([4]byte{100, byte(i >> 16), byte(i >> 8), byte(i)}), 1)
		many = append(many, stranger)
	}
	must(t, d.Remember(many))
	if n := d.outcome(t, abi.ToldOutcomeTOLD_UNKNOWN); n != 11 || len(d.imports.waiting) != mostWaiting {
		t.Errorf("%d flows were given up and %d wait, want 11 and %d", n, len(d.imports.waiting), mostWaiting)
	}
	broken := flow
	broken.Source = netip.MustParseAddrPort("[2001:db8::1]:5")
	must(t, d.Remember([]model.RememberedFlow{broken}))
	if n := d.outcome(t, abi.ToldOutcomeTOLD_UNKNOWN); n != 12 {
		t.Errorf("a flow of two families was taken: %d were given up, want 12", n)
	}
}
