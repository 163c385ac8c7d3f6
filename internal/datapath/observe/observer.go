package observe

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
)

// lent are the maps that the program only reads: an observer shares them with the program that
// forwards.
var lent = map[string]bool{
	observedMapServices4: true, observedMapServices6: true, observedMapFronts: true, observedMapRanges4: true, observedMapRanges6: true, observedMapSourceRanges: true,
	observedMapRings: true, observedMapRingLines: true, observedMapBackends: true, observedMapReplies4: true, observedMapReplies6: true, observedMapAskBackends: true,
	observedMapThisDirector: true, observedMapEgress: true, observedMapPeers: true, observedMapPeerMacs: true, observedMapOwnMacs: true, observedMapGroupSlots: true,
	observedMapBackendSources: true, abi.SourceFilter: true, observedMapServiceQuotas: true, observedMapSegmentQuotas: true, observedMapQuotas: true,
	observedMapVtepNetworks: true, observedMapVtepPeers: true, observedMapVtepPlaces: true, observedMapVtepBackends: true, observedMapVtepHosts: true,
	observedMapVtepOwnAddresses: true, observedMapVtepStandIns: true, abi.VTEP: true,
}

// sparse are the maps that the program reads and writes, and that decide about packets. An observer
// has its own: hash maps with copies of the entries that a packet may ask for. The program does not
// see the difference.
var sparse = map[string]uint32{ // how many entries each has
	observedMapFlowTable: 64, observedMapLoads: 1 << 16, observedMapFragments: 64, observedMapNextTurns: 1,
}

// counted are the maps that decide about nothing, with their size in an observer; 0: the usual
// size. Nothing is counted where an entry is missing.
var counted = map[string]uint32{
	observedMapReasons: 0, observedMapFlowEvents: 0, observedMapQuicEvents: 0, observedMapAskEvents: 0, observedMapRowBuffer: 0, observedMapFlowTellings: 1,
	observedMapBackendCounters: 1, observedMapBackendOpened: 1, observedMapServiceDrops: 1, observedMapQuotaSpent: 1, observedMapQuotaShares: 1, observedMapGuesses: 1, observedMapToldFlows: 4096, observedMapObserved: 0,
}

// unused are the maps of flows that NICs steer, of which an observer has some without content: it takes the
// usual way of the packet, which leads to the same backend; and those that hold what a CPU does at the moment.
var unused = []string{observedMapSteeredQueues, observedMapSteeredWords, observedMapSteeredFlows, observedMapHeavyFlows, observedMapSteeredPacket, abi.Steering,
	observedMapVtepEntries, observedMapVtepFronts}

// tables are the maps of maps that have one table, with how many of the table's entries a packet may
// ask for. An observer has a table of its own there, as in sparse.
var tables = map[string]uint32{observedMapSnatTables: 64, observedMapSharedTables: 4, observedMapSharedClients: 4, observedMapSharedEnds: 4}

// Observer is the director's program a second time, to ask what it would do with a packet. It reads
// what the first one reads, and writes only to maps of its own.
type Observer struct {
	collection *ebpf.Collection
	program    *ebpf.Program
	tables     map[string]*ebpf.Map // by the map of maps
	hasSNAT    bool                 // the program finds full NAT's
	reasons    []string
	flowStates map[uint32]string
	snatStates map[uint32]string
	asked      map[uint32]string // of enum asked_state
}

// Load loads the program beside these maps. Maps of lent that are missing there are the observer's
// own, as large as size makes them.
func Load(size func(*ebpf.CollectionSpec), live map[string]*ebpf.Map) (_ *Observer, err error) {
	spec, err := loadObserved()
	if err != nil {
		return nil, fmt.Errorf("read observed program: %w", err)
	}
	clear(spec.Variables) // as the director's
	spec.Programs = map[string]*ebpf.ProgramSpec{observedProgExplain: spec.Programs[observedProgExplain]}
	size(spec)
	x := &Observer{}
	if x.reasons, err = bpfload.EnumNames(spec.Types, "reason", ""); err != nil {
		return nil, err
	}
	if x.flowStates, err = enumValues(spec.Types, "flow_state", "FLOW_"); err != nil {
		return nil, err
	}
	if x.snatStates, err = enumValues(spec.Types, "snat_state", "SNAT_"); err != nil {
		return nil, err
	}
	if x.asked, err = enumValues(spec.Types, "asked_state", "ASKED_"); err != nil {
		return nil, err
	}
	replacements, err := divide(spec, live)
	if err != nil {
		return nil, err
	}
	if x.collection, err = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replacements}); err != nil {
		return nil, bpfload.Error(err)
	}
	x.program = x.collection.Programs[observedProgExplain]
	if err := x.makeTables(spec); err != nil {
		return nil, errors.Join(err, x.Close())
	}
	return x, nil
}

// makeTables makes the observer's own tables. Those of shared flows are empty where there are none.
func (x *Observer) makeTables(spec *ebpf.CollectionSpec) error {
	x.tables = map[string]*ebpf.Map{}
	for name := range tables {
		table, err := ebpf.NewMap(spec.Maps[name].InnerMap)
		if err != nil {
			return fmt.Errorf("create observer's table in %s: %w", name, err)
		}
		x.tables[name] = table
		if name == observedMapSnatTables {
			continue // see offerSNAT
		}
		if err := x.collection.Maps[name].Put(uint32(0), table); err != nil {
			return fmt.Errorf("give the observer a table in %s: %w", name, err)
		}
	}
	return nil
}

// divide returns the maps that the observer shares, and makes the others its own.
func divide(spec *ebpf.CollectionSpec, live map[string]*ebpf.Map) (map[string]*ebpf.Map, error) {
	shared := map[string]*ebpf.Map{}
	for name, m := range spec.Maps {
		entries, isSparse := sparse[name]
		some, isTable := tables[name]
		small, isCounted := counted[name]
		switch {
		case lent[name]:
			if live[name] != nil {
				shared[name] = live[name]
			}
		case isSparse:
			m.Type, m.Flags, m.MaxEntries = ebpf.Hash, unix.BPF_F_NO_PREALLOC, entries
		case isCounted:
			if small > 0 {
				m.MaxEntries = small
			}
		case isTable:
			inner := m.InnerMap.Copy()
			inner.Type, inner.Flags, inner.MaxEntries = ebpf.Hash, unix.BPF_F_NO_PREALLOC, some
			inner.Key, inner.Value = nil, nil
			m.InnerMap = inner
		case name == observedMapFormerFlows, name == observedMapFormerFlowTags:
			m.InnerMap = m.InnerMap.Copy() // nothing is remembered there alone
			m.InnerMap.MaxEntries = 1
		case name == observedMapBudgets, slices.Contains(unused, name), name == bpfload.Constants, name == abi.FlowClock:
		default:
			return nil, fmt.Errorf("map %s: nobody says whether one who only observes may share it", name)
		}
	}
	return shared, nil
}

// Maps are the maps that the program has.
func (x *Observer) Maps() map[string]*ebpf.Map { return x.collection.Maps }

// Close unloads the program.
func (x *Observer) Close() error {
	x.collection.Close()
	var errs []error
	for _, table := range x.tables {
		errs = append(errs, table.Close())
	}
	return errors.Join(errs...)
}

// run sends a frame through the program.
func (x *Observer) run(frame []byte, ifindex int) (o observedObservation, out []byte, err error) {
	options := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+mostGrowth),
		Context: &testContext{DataEnd: uint32(len(frame)), Ingress: uint32(ifindex)}}
	if _, err = x.program.Run(options); err != nil {
		return o, nil, fmt.Errorf("run the program on a frame of %d bytes: %w", len(frame), err)
	}
	if err = x.collection.Maps[observedMapObserved].Lookup(uint32(0), &o); err != nil {
		return o, nil, fmt.Errorf("read what the program found out: %w", err)
	}
	return o, options.DataOut, nil
}

// mostGrowth is more bytes than any mode adds to a frame.
const mostGrowth = 512

// testContext is the kernel's struct xdp_md.
type testContext struct {
	Data, DataEnd, DataMeta, Ingress, Queue, Egress uint32
}

// copyBudgets copies how much each CPU may still do in this second.
func (x *Observer) copyBudgets(live map[string]*ebpf.Map) error {
	from, to := live[observedMapBudgets], x.collection.Maps[observedMapBudgets]
	for i := range from.MaxEntries() {
		var all []abi.Budget
		if err := from.Lookup(i, &all); err != nil {
			return fmt.Errorf("read budgets: %w", err)
		}
		if err := to.Put(i, all); err != nil {
			return fmt.Errorf("copy budgets: %w", err)
		}
	}
	return nil
}

// offerSNAT lets the program find full NAT's table, or none. It writes only if that changes
// something, because a write to a map of maps waits for a grace period.
func (x *Observer) offerSNAT(there bool) error {
	if x.hasSNAT == there {
		return nil
	}
	outer := x.collection.Maps[observedMapSnatTables]
	if there {
		if err := outer.Put(uint32(0), x.tables[observedMapSnatTables]); err != nil {
			return fmt.Errorf("give the observer a table of full NAT: %w", err)
		}
	} else if err := outer.Delete(uint32(0)); err != nil {
		return fmt.Errorf("take the observer's table of full NAT: %w", err)
	}
	x.hasSNAT = there
	return nil
}

// copied are entries of live maps, by map and key; nil where there is no entry.
type copied map[mapKey][]byte

// mapKey is a map and a key of it, as bytes. A map of maps stands for its table.
type mapKey struct{ name, key string }

func (x *Observer) mapOf(name string) *ebpf.Map {
	if table := x.tables[name]; table != nil {
		return table
	}
	return x.collection.Maps[name]
}

// snatFlow is a flow of full NAT as the program has left it; nil: there is none with this number.
func (x *Observer) snatFlow(number uint32) (*abi.SnatFlow, error) {
	var err error
	if number&sharedNumber != 0 {
		var shared abi.SnatShared
		if err = x.tables[observedMapSharedTables].Lookup(number&^sharedNumber, &shared); err == nil {
			return &shared.Flow, nil
		}
	} else {
		var bucket abi.SnatBucket
		if err = x.tables[observedMapSnatTables].Lookup(number/uint32(flows.BucketPorts), &bucket); err == nil {
			return &bucket.Flows[number%uint32(flows.BucketPorts)], nil
		}
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, nil
	}
	return nil, err
}

// remember makes these entries everything that the program remembers.
func (x *Observer) remember(entries copied) error {
	for _, name := range slices.Concat(slices.Collect(maps.Keys(sparse)), slices.Collect(maps.Keys(tables))) {
		if err := empty(x.mapOf(name)); err != nil {
			return fmt.Errorf("empty %s: %w", name, err)
		}
	}
	for at, value := range entries {
		if value == nil {
			continue
		}
		if err := x.mapOf(at.name).Put([]byte(at.key), value); err != nil {
			return fmt.Errorf("copy an entry of %s: %w", at.name, err)
		}
	}
	return nil
}

// empty removes all entries of a hash map.
func empty(m *ebpf.Map) error {
	for {
		key, err := m.NextKeyBytes(nil)
		if err != nil || key == nil {
			return err
		}
		if err := m.Delete(key); err != nil {
			return err
		}
	}
}

// enumValues are the names of all of an enum's values, in lower case and without a prefix.
func enumValues(types *btf.Spec, name, prefix string) (map[uint32]string, error) {
	var enum *btf.Enum
	if err := types.TypeByName(name, &enum); err != nil {
		return nil, fmt.Errorf("find enum %s: %w", name, err)
	}
	values := map[uint32]string{}
	for _, v := range enum.Values {
		values[uint32(v.Value)] = strings.ToLower(strings.TrimPrefix(v.Name, prefix))
	}
	return values, nil
}
