package datapath

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// steeredTo is the host part of the backend that a packet of a client's port goes to, by the MAC address.
func steeredTo(t *testing.T, d *Datapath, link, queue uint32, vip netip.Addr, port uint16) byte {
	t.Helper()
	frame := packet.Build(arrived, ip(client4, vip), l4(model.TCP, port, servicePort))
	out := make([]byte, len(frame)+mostGrowth)
	action, err := d.kernel.program.Run(&ebpf.RunOptions{Data: frame, DataOut: out, Context: &xdpContext{DataEnd: uint32(len(frame)), Ingress: link, Queue: queue}})
	must(t, err)
	if action != xdpRedirect {
		t.Fatalf("verdict %d of a packet of the service", action)
	}
	return out[5]
}

// What receive queues are lasts until it is changed, until its backend or service leaves, and beyond a
// process.
func TestSteer(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	link := queuesLink(t)
	for i := range 4 {
		addNeighbor(t, netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + i)}))
	}
	d := openOptions(t, Options{SteeredFlows: 100})
	table := tableOf(2, 3, 0)
	must(t, d.Set(table))
	s := &table.Services[0]
	usual := steeredTo(t, d, link, 3, s.VIP, clientPort)
	other := byte(11)
	if usual == other {
		other++
	}
	want := func(queue uint32, port uint16, backend byte, why string) {
		t.Helper()
		if got := steeredTo(t, d, link, queue, s.VIP, port); got != backend {
			t.Errorf("a packet of queue %d and port %d goes to backend %d, want %d: %s", queue, port, got, backend, why)
		}
	}
	id := model.ServiceID{VIP: s.VIP, Protocol: s.Protocol, Port: s.Port}
	flow := SteeredFlow{id, netip.AddrPortFrom(client4, clientPort)}
	queue := SteeredQueue{Interface: int(link), Queue: 3, Service: id}
	steer := func(queues []SteeredQueue, flows ...SteeredFlow) {
		t.Helper()
		left, err := d.Steer(queues, flows)
		must(t, err)
		if len(left) > 0 {
			t.Errorf("flows %v have no place", left)
		}
	}
	// again steers the flow, whose places rest.
	again := func() {
		t.Helper()
		eventually(t, "the places have rested", func() bool {
			left, err := d.Steer([]SteeredQueue{queue}, []SteeredFlow{flow})
			must(t, err)
			place := placeOf(queueID{int(link), queue.Queue}, d.steering.data.Entries[0].Factor)
			return len(left) == 0 && d.steering.queues.Entries[place].Key != steeredNoService
		})
	}
	// away makes the flow's packets go to another backend than the usual way says: so one sees whether
	// they are followed.
	away := func() {
		t.Helper()
		steeredTo(t, d, link, 3, s.VIP, clientPort) // what it says holds now
		word := d.steering.word(d.placeIn(t, flow))
		for _, b := range d.services[keyOfID(id)].order {
			if neighborMAC(b.desired.Address)[5] == other {
				*word = *word>>steeredTickShift<<steeredTickShift | steeredPlaceTaken | uint64(b.index) | uint64(d.entries.Entries[b.index].Epoch)<<steeredEpochShift
			}
		}
	} // wantAway: its packets are followed. A word holds for a tick, so there is another try.
	wantAway := func(why string) {
		t.Helper()
		for range 3 {
			if away(); steeredTo(t, d, link, 3, s.VIP, clientPort) == other {
				return
			}
		}
		want(3, clientPort, other, why)
	}

	wantKept := func(queues ...uint32) {
		t.Helper()
		kept, err := KeptQueues(d.kernel.pin)
		if must(t, err); !slices.Equal(kept[int(link)], queues) || len(kept) > 1 {
			t.Errorf("queues %v are kept for steered flows, want %v of interface %d", kept, queues, link)
		}
	}
	wantKept()
	steer([]SteeredQueue{{Interface: int(link), Queue: 3}})
	wantKept(3)
	steer([]SteeredQueue{queue}, flow) // at once: no packet has looked at the queue's service
	wantKept(3)
	want(3, clientPort, usual, "its backend is not known")
	want(3, clientPort, usual, "its backend is known")
	wantAway("the table says so")
	want(5, clientPort, usual, "nothing is known of the queue")
	if steeredTo(t, d, link, 3, table.Services[1].VIP, clientPort) == 0 {
		t.Error("a stray has no backend")
	}
	steer([]SteeredQueue{queue}, flow)
	wantAway("what stays is not changed")
	steer([]SteeredQueue{{Interface: int(link), Queue: 3}, {Interface: int(link), Queue: 9}}, flow)
	want(3, clientPort, usual, "no flows of the queue are steered any more")
	wantKept(3, 9)
	steer(nil, flow)
	want(3, clientPort, usual, "the queue is others'")
	wantKept()
	again()
	wantAway("the queue is steered again")

	c, err := d.StartCapture(t.Context(), "ops", model.Capture{})
	must(t, err)
	wantCapturing(t, c)
	c.Close()
	eventually(t, "the capture has ended", func() bool { d.mu.Lock(); defer d.mu.Unlock(); return d.capturing == nil })
	want(3, clientPort, usual, "a capture has compared nothing")
	away()

	d.Close()
	d = openOptions(t, Options{SteeredFlows: 100})
	want(3, clientPort, usual, "the process before may have ended while it captured")
	must(t, d.Set(table))
	if flows := d.SteeredFlows(); !slices.Equal(flows, []SteeredFlow{flow}) {
		t.Errorf("the next process knows flows %v to have rules, want %v", flows, flow)
	}
	wantAway("the flow and its queue are known to the next process")
	for range 3 { // a word holds for a tick
		away()
		must(t, d.Set(table))
		want(3, clientPort, usual, "new rings may have flow memory see more of flows")
	}
	word := d.steering.word(d.placeIn(t, flow))
	atomic.OrUint64(word, steeredEnded)
	must(t, d.Set(table))
	if atomic.LoadUint64(word)&steeredEnded == 0 {
		t.Error("new rings make a connection that has ended go on")
	}
	atomic.AndUint64(word, ^steeredEnded)
	if found, err := d.HeavyFlows(1000); err != nil || len(found) != 1 || found[0].SteeredFlow != flow || !found[0].Steered {
		t.Errorf("flows with many packets are %+v (%v), want the one that has a rule", found, err)
	}

	ranged := tableOf(2, 3, 0)
	ranged.Services[0].SourceRanges = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	must(t, d.Set(ranged))
	want(3, clientPort, usual, "sources are checked packet by packet")
	if left, err := d.Steer([]SteeredQueue{queue}, []SteeredFlow{flow}); err != nil || len(left) != 1 {
		t.Errorf("flows %v are left over (%v), want the one whose service must not be steered", left, err)
	}
	must(t, d.Set(table))
	again()
	wantAway("sources are free again")

	fewer := tableOf(2, 3, 0)
	for i := range fewer.Services[0].Backends {
		if fewer.Services[0].Backends[i].Address == netip.AddrFrom4([4]byte{10, 0, 0, other}) {
			fewer.Services[0].Backends[i].Address = netip.AddrFrom4([4]byte{10, 0, 0, 14})
		}
	}
	must(t, d.Set(fewer))
	want(3, clientPort, usual, "its backend has left")
	d.Close()
	if _, err := d.Steer(nil, nil); err == nil {
		t.Error("a datapath that is closed is told of flows")
	}
}

// placeIn is where a flow is.
func (d *Datapath) placeIn(t *testing.T, f SteeredFlow) uint32 {
	t.Helper()
	k, known := d.steeredKey(f)
	first := d.steering.firstPlace(k)
	for i := range uint32(steeredPlaces) {
		if at := &d.steering.flows.Entries[first+i]; known && *d.steering.word(first + i) != 0 && keyOfFlow(at) == k {
			return first + i
		}
	}
	t.Fatalf("flow %v has no place", f)
	return 0
}

// Each interface has a place of its own for its queues.
func TestSteeredInterfaces(t *testing.T) {
	t.Parallel()
	for _, links := range [][]int{{}, {2}, {2, 18, 34}, {1, 17, 33, 49, 65, 81, 97, 113}, {5, 26}, {21, 42}, {5, 1 << 20, 1<<20 + 1, 1<<31 - 1}} {
		set, places := map[int]bool{}, map[uint32]bool{}
		for _, l := range links {
			set[l] = true
		}
		factor := factorFor(set)
		for _, l := range links {
			places[placeOf(queueID{link: l}, factor)] = true
		}
		if len(places) != len(links) || factor == 0 {
			t.Errorf("interfaces %v have %d places by factor %#x", links, len(places), factor)
		}
	}
	many := map[int]bool{}
	for i := range 9 {
		many[i+1] = true
	}
	if factor := factorFor(many); factor != 0 {
		t.Errorf("9 interfaces have places by factor %#x", factor)
	}
}
