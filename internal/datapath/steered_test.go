package datapath

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// steeredQueue is the receive queue of the tests.
const steeredQueue = 3

// testKeys are those of the hash of flows.
var testKeys = [2]uint64{0x9e3779b97f4a7c15, 0xd1b54a32d192ed03}

// queuesLink makes an interface with several receive queues, and returns its index.
func queuesLink(t testing.TB) uint32 {
	t.Helper()
	const name = "queues0"
	if l, err := netlink.LinkByName(name); err == nil {
		return uint32(l.Attrs().Index)
	}
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, NumTxQueues: 8, NumRxQueues: 8}, PeerName: "queues1"}))
	l, err := netlink.LinkByName(name)
	must(t, err)
	must(t, netlink.LinkSetUp(l))
	return uint32(l.Attrs().Index)
}

// onQueue makes the director of hosts whose NICs steer flows run, with packets from a receive queue.
func (d *testDirector) onQueue(t testing.TB, queue uint32) {
	t.Helper()
	d.program = d.Programs["director_steering"]
	d.link, d.queue = queuesLink(t), queue
	d.put(t, abi.Steering, uint32(0), steeringData{Factor: 1 << (32 - steeredInterfacesBits), Mask: d.Maps["steered_words"].MaxEntries() - 1, Heavy: d.Maps["heavy_flows"].MaxEntries() - 1, Keys: testKeys})
	t.Cleanup(func() {
		d.program, d.link, d.queue = d.Programs["director"], 0, 0
		d.put(t, "steered_queues", queue+d.place(), abi.SteeredQueue{})
	})
}

// place is where the queues of the interface begin, by the factor of onQueue.
func (d *testDirector) place() uint32 { return d.link % (1 << steeredInterfacesBits) * steeredQueues }

// steer makes the client's flow one that has a rule to the queue. What is known of its backend is that of a
// position; -1: nothing.
func (s scenario) steer(t testing.TB, d *testDirector, backend int) {
	t.Helper()
	key, _ := frontOf(endpoint{s.segment.Key(), s.vip, uint8(s.protocol), s.port.First})
	l2dsr := uint8(0)
	if s.backends[0].mode == model.L2DSR {
		l2dsr = 1
	}
	d.put(t, "steered_queues", d.place()+d.queue, abi.SteeredQueue{Address: key.Address, Key: key.Key, Salt: s.salt, Service: s.index,
		Affinity: s.affinity.Kind(), L2dsr: l2dsr, Shortest: shortest(serviceKey{vip: s.vip, protocol: s.protocol}), Interface: d.link,
		Packets: 1, Usual: 1}) // no sample
	k := steeredKey{addressWords(s.client), be16(clientPort), s.index}
	where := steering{data: bpfload.Memory[steeringData]{Entries: []steeringData{{Mask: d.Maps["steered_words"].MaxEntries() - 1, Keys: testKeys}}}}
	d.steeredAt = where.firstPlace(k) + 1
	d.put(t, "steered_flows", d.steeredAt, abi.SteeredFlow{Address: k.address, Port: k.port, Service: k.service})
	d.putWord(t, s.word(t, d, k, backend))
}

// word is what the table has of a flow whose backend is that of a position; -1: it is not known.
func (s scenario) word(t testing.TB, d *testDirector, k steeredKey, backend int) uint64 {
	t.Helper()
	where := steering{data: bpfload.Memory[steeringData]{Entries: []steeringData{{Keys: testKeys}}}}
	word := where.hash(k)&steeredHash | d.tick(t)<<steeredTickShift | steeredPlaceTaken
	if backend >= 0 {
		word |= uint64(s.first) + uint64(backend) | uint64(s.backends[backend].epoch)<<steeredEpochShift
	}
	return word
}

// tick is that of words that hold now.
func (d *testDirector) tick(t testing.TB) uint64 {
	t.Helper()
	return uint64(d.clock) >> (clocks[asm.FnJiffies64] + steeredTickBits) & 0xff
}

// putWord writes the word of the place of the last flow, and none to the other place.
func (d *testDirector) putWord(t testing.TB, word uint64) {
	t.Helper()
	var words abi.SteeredWords
	words.Word[d.steeredAt%steeredPlaces] = word
	d.put(t, "steered_words", d.steeredAt/steeredPlaces, words)
}

// steeredWord is that word.
func (d *testDirector) steeredWord(t testing.TB) uint64 {
	t.Helper()
	var words abi.SteeredWords
	must(t, d.Maps["steered_words"].Lookup(d.steeredAt/steeredPlaces, &words))
	return words.Word[d.steeredAt%steeredPlaces]
}

// queueCounts are what the receive queue has counted.
func (d *testDirector) queueCounts(t testing.TB) (q abi.SteeredQueue) {
	t.Helper()
	must(t, d.Maps["steered_queues"].Lookup(d.place()+d.queue, &q))
	return q
}

// wantKnown: what the table has of the flow's backend is that of a position; -1: nothing.
func (s scenario) wantKnown(t testing.TB, d *testDirector, backend int, when string) {
	t.Helper()
	want := s.word(t, d, steeredKey{addressWords(s.client), be16(clientPort), s.index}, backend)
	if got := d.steeredWord(t); got != want {
		t.Errorf("%s %v: %s the flow's word is %#x, want %#x", s.name, s.vip, when, got, want)
	}
}

// steeredWorld has every mode whose flows may be steered. The packets leave by the interface that they
// come in by.
func steeredWorld(t testing.TB) (*testWorld, []scenario) {
	w := &testWorld{}
	scenarios := w.scenarios(func(way wayTo) bool { return !way.snat && way.mode != model.GUE })
	scenarios = slices.DeleteFunc(scenarios, ofSCTP) // NICs have no rules for it
	for _, s := range scenarios {
		for i := range s.backends {
			s.backends[i].ifindex = queuesLink(t)
		}
	}
	return w, scenarios
}

// Packets of a flow with a rule go to its backend, as they would if the slot had that owner alone. Others
// that come to the queue take the usual way.
func testSteered(t *testing.T) {
	w, scenarios := steeredWorld(t)
	d := loadTestDirector(t, w)
	d.onQueue(t, steeredQueue)
	for i, s := range scenarios {
		alone := *s.testService
		alone.ring = model.Ring{Slots: []model.Slot{{Owner: 1, Next: model.NoBackend}}}
		steered, other := scenario{&alone, s.name, s.client}, scenarios[(i+1)%len(scenarios)]
		usual := s.forward("", s.flow(), 0, s.data(100)...)
		named := func(name string) []row {
			usual.name = s.name + ", " + name
			return []row{usual}
		}
		s.steer(t, d, -1)
		d.check(t, named("backend not known"))
		s.wantKnown(t, d, 0, "after its first packet")
		s.steer(t, d, 1)
		d.check(t, []row{
			steered.forward(s.name, s.flow(), 1, s.data(100)...),
			steered.forward(s.name+", shortest", s.flow(), 1, s.data(0)...),
			s.forward(s.name+", from another port", s.flowFrom(clientPort+1), 0, ip(s.client, s.vip), l4(s.protocol, clientPort+1, servicePort), packet.Zeros(9)),
			other.forward(s.name+", stray of "+other.name, other.flow(), 0, other.data(100)...),
		})
		d.queue++
		d.check(t, named("another queue"))
		d.queue--
		s.setBackend(t, d, 1, abi.BackendStateBACKEND_DOWN)
		d.check(t, named("backend down"))
		s.setBackend(t, d, 1, abi.BackendStateBACKEND_SUSPECT)
		d.check(t, named("backend suspected to be down"))
		s.setBackend(t, d, 1, abi.BackendStateBACKEND_ACTIVE)
		d.check(t, named("backend up again"))
		s.steer(t, d, 1)
		s.backends[1].epoch++
		s.setBackend(t, d, 1, abi.BackendStateBACKEND_ACTIVE)
		d.check(t, named("index is another backend's"))
		d.putWord(t, 0)
		d.check(t, named("without a rule"))
		// The other place has the flow's key still.
		s.steer(t, d, 1)
		var f abi.SteeredFlow
		must(t, d.Maps["steered_flows"].Lookup(d.steeredAt, &f))
		d.put(t, "steered_flows", d.steeredAt-1, f)
		d.check(t, []row{steered.forward(s.name+", behind a place that it had", s.flow(), 1, s.data(100)...)})
		d.putWord(t, 0)
	}
}

// Some packets take the usual way, and what that says is so of the flow from then on.
func testSteeredMemory(t *testing.T) {
	bothProtocols(t, func(t *testing.T, d *testDirector, s scenario) {
		if ofSCTP(s) {
			return
		}
		d.onQueue(t, steeredQueue)
		for i := range s.backends {
			s.backends[i].ifindex = d.link
			s.setBackend(t, d, i, abi.BackendStateBACKEND_ACTIVE)
		}
		s.steer(t, d, -1)
		s.want(t, d, clientPort, ackFlag, 2, "the oldest owner has what is not known")
		s.wantKnown(t, d, -1, "while flow memory knows one packet")
		d.advance(t, 10*time.Second)
		s.steer(t, d, -1)
		s.want(t, d, clientPort, ackFlag, 2, "the usual way")
		s.wantKnown(t, d, 2, "after a packet")
		d.advance(t, 10*time.Second)
		now, before := d.now(), d.queueCounts(t)
		for range 8192 {
			s.want(t, d, clientPort, ackFlag, 2, "the flow's backend")
		}
		q := d.queueCounts(t)
		if seen := q.Usual - before.Usual; q.Packets-before.Packets != 8192 || seen < 20 || seen > 60 {
			t.Errorf("%d of %d packets took the usual way, too, want 32 of 8192, and some by their bytes", seen, q.Packets-before.Packets)
		}
		if f := s.remembered(t, d)[clientPort]; f == nil || f.Seen != now {
			t.Errorf("%v: the flow is %+v after packets on a steered queue", s.name, f)
		}
		s.steer(t, d, 1)
		d.advance(t, 3*time.Second)
		s.want(t, d, clientPort, ackFlag, 2, "the usual way, in another tick")
		s.wantKnown(t, d, 2, "after that")
		// What the table says is forgotten by the time a packet takes the usual way.
		s.steer(t, d, 1)
		d.await(t, s, func(q abi.SteeredQueue) bool { return isSample(q.Packets) }, 1)
		s.want(t, d, clientPort, ackFlag, 2, "the usual way")
		s.want(t, d, clientPort, ackFlag, 2, "what the usual way has said")
		s.steer(t, d, 1)
		q = d.queueCounts(t)
		q.Packets, q.Usual, q.Bytes = 1, 1, 1<<16-1
		d.put(t, "steered_queues", d.place()+d.queue, q)
		s.want(t, d, clientPort, ackFlag, 2, "the usual way after so many bytes")
	})
}

// isSample is is_sample.
func isSample(number uint64) bool { return number*0x9e3779b97f4a7c15>>(64-8) == 0 }

// await sends packets of the flow, which go to a backend, until the queue is as it should be.
func (d *testDirector) await(t testing.TB, s scenario, is func(abi.SteeredQueue) bool, backend int) {
	t.Helper()
	for range 1000 {
		if is(d.queueCounts(t)) {
			return
		}
		s.want(t, d, clientPort, ackFlag, backend, "the flow's backend, by the table")
	}
	t.Fatal("no packet is a sample")
}

// A connection that begins once more may get another backend, by whichever way its SYN comes.
func testSteeredAgain(t *testing.T) {
	for _, is4 := range []bool{true, false} {
		w, s := flowWorld(model.TCP, is4)
		d := loadTestDirector(t, w)
		d.onQueue(t, steeredQueue)
		for i := range s.backends {
			s.backends[i].ifindex = d.link
			s.setBackend(t, d, i, abi.BackendStateBACKEND_ACTIVE)
		}
		headers := func(flags uint8) []packet.Header {
			return []packet.Header{ip(s.client, s.vip), s.segment4(clientPort, servicePort, flags), packet.Text("client")}
		}
		begins := map[string]func(){
			"by the queue":     func() { s.goes(t, d, clientPort, synFlag) },
			"by another queue": func() { d.queue++; s.goes(t, d, clientPort, synFlag); d.queue-- },
			"with a priority": func() {
				d.run(t, packet.Build(slices.Concat([]packet.Header{arrived, packet.VLANTag{Priority: 3}}, headers(synFlag))...), 0)
			},
		}
		for how, begin := range begins {
			s.steer(t, d, 1)
			s.want(t, d, clientPort, ackFlag, 1, "the flow's backend, by the table")
			begin()
			s.wantKnown(t, d, -1, "after a SYN "+how)
			s.want(t, d, clientPort, ackFlag, 0, "the connection that began "+how)
			s.wantKnown(t, d, 0, "after the packet that proves the SYN "+how)
			// A RST of somebody who does not know the connection's numbers ends nothing.
			d.run(t, packet.Build(arrived, ip(s.client, s.vip), packet.TCPHeader{Src: clientPort, Dst: servicePort, Flags: rstFlag, Seq: 1 << 30}), 0)
			s.wantKnown(t, d, 0, "after a RST out of sequence")
			// What ends a connection ends what is known of it: the next one may begin by way of another director.
			s.steer(t, d, 1)
			s.goes(t, d, clientPort, rstFlag)
			for range 2 {
				if got := d.steeredWord(t); got&steeredBackend != 0 || got&steeredEnded == 0 {
					t.Errorf("after a RST the flow's word is %#x", got)
				}
				s.goes(t, d, clientPort, ackFlag)
			}
			d.advance(t, time.Hour)
		}
	}
}

// The sample has the flows with the most packets, and what has become of them.
func testHeavyFlows(t *testing.T) {
	w, s := flowWorld(model.TCP, true)
	d := loadTestDirector(t, w)
	d.onQueue(t, steeredQueue)
	for i := range s.backends {
		s.backends[i].ifindex = d.link
		s.setBackend(t, d, i, abi.BackendStateBACKEND_ACTIVE)
	}
	for i := range d.Maps["heavy_flows"].MaxEntries() { // other tests have had flows
		d.put(t, "heavy_flows", i, make([]abi.HeavyLine, d.cpus))
	}
	r := rand.New(rand.NewPCG(3, 4))
	weights := rand.NewZipf(r, 1.1, 1, 499)
	sent := map[uint16]int{}
	for range 200_000 {
		port := clientPort + uint16(weights.Uint64())
		s.goes(t, d, port, ackFlag)
		sent[port]++
	}
	found := map[uint16]float64{}
	var lines []abi.HeavyLine
	for i := range d.Maps["heavy_flows"].MaxEntries() {
		must(t, d.Maps["heavy_flows"].Lookup(i, &lines))
		for _, line := range lines {
			for _, at := range line.At {
				if at.Backend != 0 {
					found[be16(at.SourcePort)] += float64(at.Packets-at.Taken) * heavySample
				}
			}
		}
	}
	for rank := range uint16(8) {
		port := clientPort + rank
		had := float64(sent[port])
		if chance := 5 * math.Sqrt(had*heavySample); math.Abs(found[port]-had) > chance {
			t.Errorf("the flow from port %d has %v packets by the sample, and had %v, give or take %v", port, found[port], had, chance)
		}
	}
}
