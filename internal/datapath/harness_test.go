package datapath

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

// The harness fills the director's maps by hand, without Datapath: what a packet
// table says about the program must not depend on the code that feeds it.

// testWorld is everything a director is told.
type testWorld struct {
	services []*testService
	settings abi.Settings
	silent   bool // no budget for ICMP errors
}

// testService is one service; its position is its index.
type testService struct {
	segment  model.Segment
	vip      netip.Addr
	protocol model.Protocol
	port     model.PortRange
	policy   model.Policy
	affinity model.Affinity
	salt     uint64
	backends []testBackend
	ring     model.Ring // no slots, and no noRing: one slot of the first backend, then the second
	noRing   bool
	before   *model.RingBefore // its backends are positions, too
	memory   bool              // flows are remembered
	settling bool              // in slots without a list too
	settles  []bool            // the same by slot, if there is any
	// redirected says that the policy places only what is redirected.
	redirected   bool
	sourceRanges []netip.Prefix // where clients have to be; none: anywhere
	// kernelSources says that packets from those of the tests are the kernel's.
	kernelSources bool
	quota         uint32 // number of its segment's; 0: none
	quic          []model.QUICConfig
	relayed       *testBackend // connection IDs name it, and it is down
	index         uint32       // of the service
	first         uint32       // index of the first backend
}

// testBackend is one backend. Zero: active, mode l2dsr, on the interface that
// packets come in on, MTU 1500.
type testBackend struct {
	mode     model.Mode
	snat     bool
	address  netip.Addr
	port     uint16
	state    abi.BackendState
	vlan     uint16
	keepTags bool
	redirect bool
	asks     bool // it is asked to hand connections over
	local    bool
	pod      uint32 // its name; 0: it is none
	gone     bool   // state is free, not to be filled in
	epoch    uint8
	mtu      uint16
	ifindex  uint32
	serverID model.ServerIDs
	weight   uint32 // what its load is divided by
	opened   uint32 // its load, which is not halved: see putLoads
}

// BPF_PROG_TEST_RUN says that packets come in on lo.
const ingress = 1

// otherEgress is an interface that packets may leave by, noEgress one that they
// may not. The device map takes any number for the one real interface there is.
const (
	otherEgress = 1007
	noEgress    = 1008
)

var (
	clientMAC  = [6]byte{2, 0, 0, 0, 0, 0xc1}
	ownMAC     = [6]byte{2, 0, 0, 0, 0, 0xd1}
	egressMAC  = [6]byte{2, 0, 0, 0, 0, 0xe1}
	tunnel4    = netip.MustParsePrefix("192.0.2.0/26")
	tunnel6    = netip.MustParsePrefix("2001:db8:77::/64")
	linkMTU    = uint32(9000)
	icmpBudget = uint32(1 << 30)
)

// backendMAC is the next hop of the backend with this index.
func backendMAC(index uint32) [6]byte {
	return [6]byte{2, 0xb, 0, 0, byte(index >> 8), byte(index)}
}

// add puts a service at the end, with defaults where fields are zero.
func (w *testWorld) add(s testService) *testService {
	s.index, s.first = uint32(len(w.services)), 1
	if n := len(w.services); n > 0 {
		last := w.services[n-1]
		s.first = last.first + uint32(len(last.backends))
	}
	for i := range s.backends {
		b := &s.backends[i]
		if b.state == 0 && !b.gone {
			b.state = abi.BackendStateBACKEND_ACTIVE
		}
		if b.mtu == 0 {
			b.mtu = 1500
		}
		if b.ifindex == 0 && (b.pod == 0 || !b.local) {
			b.ifindex = ingress
		}
	}
	if len(s.ring.Slots) == 0 && !s.noRing {
		next := model.NoBackend
		if len(s.backends) > 1 {
			next = 1
		}
		s.ring.Slots = []model.Slot{{Owner: 0, Next: next}}
	}
	w.services = append(w.services, &s)
	return &s
}

// testDirector is a loaded program with its maps.
type testDirector struct {
	*ebpf.Collection
	program *ebpf.Program
	places  []uint32      // of the front, that are taken
	lines   uint32        // of rings, that are taken; the first is nobody's
	table   *ebpf.MapSpec // of full NAT
	snat    *ebpf.Map     // the one in use
	world   *testWorld
	cpus    int
	clock   time.Duration // what its programs take for the kernel's
	link    uint32        // of onQueue; 0: packets come in on lo
	queue   uint32        // their receive queue
	tunnels *tunnelWorld  // that packets come in; nil: none
	// steeredAt is the line of the flow that has a rule.
	steeredAt uint32
	// flow memory, once it was looked at
	flowMemory bpfload.Memory[abi.FlowPlace]
	former     map[string]*ebpf.MapSpec // of flow memory of versions before 0.2
}

// mapSizes are enough for every test.
var mapSizes = map[string]uint32{
	"services4": 1024, "ask_backends": 1024, "services6": 1024, "ranges4": 1024, "ranges6": 1024, "rings": 512, "source_ranges": 4096, "backend_sources": 8192, "guesses": 512, "ring_lines": 1 << 16, "backends": 4096,
	"replies4": 1024, "replies6": 1024, "fragments": 4096, "egress": 16, "backend_counters": 4096, "backend_opened": 4096, "service_drops": 512, "service_quotas": 512, "loads": 4096, "next_turns": 512,
	"flow_table": testFlowBuckets, "steered_queues": steeredQueues << steeredInterfacesBits, "steered_words": 32, "steered_flows": 64, "heavy_flows": leastHeavyLines,
}

// sharedDirector is loaded once: it takes a while, more so in an emulated guest.
var sharedDirector *testDirector

// loadTestDirector returns the program with only the world in its maps.
func loadTestDirector(t testing.TB, w *testWorld) *testDirector {
	t.Helper()
	if inTunnels != nil {
		return loadInside(t, w)
	}
	if sharedDirector == nil {
		spec, err := loadPrograms()
		if err != nil {
			t.Fatalf("load the director's programs: %v", err)
		}
		addClock(spec)
		sharedDirector = loadSpec(t, spec, "director")
	}
	sharedDirector.clear(t)
	sharedDirector.stopClock(t)
	sharedDirector.fill(t, w)
	return sharedDirector
}

func loadSpec(t testing.TB, spec *ebpf.CollectionSpec, program string) *testDirector {
	t.Helper()
	for name, size := range mapSizes {
		if spec.Maps[name] == nil {
			t.Fatalf("there is no map %s", name)
		}
		spec.Maps[name].MaxEntries = size
	}
	former := map[string]*ebpf.MapSpec{}
	for name, outer := range formerMaps {
		spec.Maps[outer].InnerMap.MaxEntries = 2 * testFormerBuckets
		former[name] = formerSpec(spec, name)
	}
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatalf("load director: %+v", err)
	}
	return &testDirector{Collection: c, program: c.Programs[program], lines: 1, former: former,
		table: spec.Maps["snat_tables"].InnerMap, cpus: ebpf.MustPossibleCPU()}
}

// clear empties every map except the counters, of which only changes are looked at.
func (d *testDirector) clear(t testing.TB) {
	t.Helper()
	for name, m := range d.Maps {
		switch m.Type() {
		case ebpf.Hash, ebpf.LRUHash, ebpf.LPMTrie, ebpf.DevMapHash:
			var keys [][]byte
			var key []byte
			for iterator := m.Iterate(); iterator.Next(&key, new([]byte)); {
				keys = append(keys, slices.Clone(key))
			}
			for _, key := range keys {
				if err := m.Delete(key); err != nil {
					t.Fatalf("empty %s: %v", name, err)
				}
			}
		}
	}
	for i := range d.Maps["budgets"].MaxEntries() {
		d.put(t, "budgets", i, make([]abi.Budget, d.cpus))
	}
	if d.world == nil {
		return
	}
	for _, s := range d.world.services {
		d.put(t, "rings", s.index, uint64(0))
		d.put(t, "guesses", s.index, uint64(0))
		d.put(t, "next_turns", s.index, abi.Turn{})
		for i := range s.backends {
			d.put(t, "backends", s.first+uint32(i), abi.Backend{})
		}
	}
	for _, place := range d.places {
		d.put(t, "fronts", place, abi.Front{})
	}
	d.forgetFlows(t)
	d.put(t, abi.SourceFilter, uint32(0), [1 << sourceFilterBits / 64]uint64{})
	d.world, d.lines, d.places = nil, 1, nil
}

func (d *testDirector) put(t testing.TB, name string, key, value any) {
	t.Helper()
	if err := d.Maps[name].Put(key, value); err != nil {
		t.Fatalf("put %+v in %s: %v", key, name, err)
	}
}

func (d *testDirector) fill(t testing.TB, w *testWorld) {
	t.Helper()
	d.world = w
	d.put(t, "this_director", uint32(0), d.world.abiSettings())
	d.put(t, "egress", uint32(otherEgress), uint32(ingress))
	d.putSNAT(t, snatSources, snatPorts)
	for _, s := range d.world.services {
		for i := range s.backends {
			d.put(t, "backends", s.first+uint32(i), s.abiBackend(i))
			if s.backends[i].mode == model.NAT {
				d.putReply(t, s, i)
			}
			if s.backends[i].asks {
				d.putAsked(t, s, i)
			}
		}
		d.putService(t, s)
		d.putSources(t, s)
		d.putRefused(t, s)
		d.putRing(t, s)
		if s.policy.ByLoad() {
			d.putLoads(t, s)
		}
	}
}

// run sends one frame through the program. metadata bytes of the frame's
// beginning take room from the headroom, as a driver with little of it does.
func (d *testDirector) run(t testing.TB, frame []byte, metadata int) (action uint32, out []byte) {
	t.Helper()
	o := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+512)}
	if metadata > 0 {
		o.Data = append(make([]byte, metadata), frame...)
		o.DataOut = make([]byte, len(o.Data)+512)
		o.Context = &xdpContext{Data: uint32(metadata), DataEnd: uint32(len(o.Data)), Ingress: ingress}
	}
	if d.link != 0 {
		o.Context = &xdpContext{Data: uint32(metadata), DataEnd: uint32(len(o.Data)), Ingress: d.link, Queue: d.queue}
	}
	action, err := d.program.Run(o)
	if err != nil {
		t.Fatalf("run %d bytes: %v", len(frame), err)
	}
	return action, o.DataOut[min(metadata, len(o.DataOut)):]
}

// xdpContext is the kernel's struct xdp_md.
type xdpContext struct {
	Data, DataEnd, DataMeta, Ingress, Queue, Egress uint32
}

// mostGrowth is more bytes than any mode adds to a frame.
const mostGrowth = 512

// testContext is the kernel's struct xdp_md.
type testContext struct {
	Data, DataEnd, DataMeta, Ingress, Queue, Egress uint32
}
