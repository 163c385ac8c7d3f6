package datapath

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/datapath/nexthop"
	"weir.io/weir/internal/datapath/observe"
	"weir.io/weir/internal/model"
)

// imagined is a table laid out as Set would lay it out, beside the one that is forwarded. What is
// in both tables has the same index in both, so that what is remembered of it counts.
type imagined struct {
	services []*service
	observed map[uint32]observe.Service
	entries  []abi.Backend
	lines    []byte
	begins   map[uint32]uint64 // by service: the line that its ring begins with
	settings abi.Settings
	lookups  lookups
	loads    map[uint32]abi.Load
	sources  map[uint32][]netip.Prefix // by their sets
}

// UnfitError says why the kernel's maps have no room for an imagined table.
type UnfitError struct{ cause error }

// Error names the limit.
func (e *UnfitError) Error() string { return e.cause.Error() }

// Unwrap returns the cause.
func (e *UnfitError) Unwrap() error { return e.cause }

// ExplainWith is Explain as if this table were forwarded. It loads the program once more, with maps
// for this one question, which may take seconds.
func (d *Datapath) ExplainWith(t model.Table, name string, frame []byte) (model.Explanation, error) {
	d.observing.Lock()
	defer d.observing.Unlock()
	d.mu.Lock()
	if !d.begun || d.closed() {
		d.mu.Unlock()
		return model.Explanation{}, observe.ErrNothingForwarded
	}
	m, err := d.imagine(&t)
	d.mu.Unlock()
	if err != nil {
		return model.Explanation{}, err
	}
	o := d.options
	o.Limits.RingMemory = uint64(len(m.lines))
	shared := maps.Clone(d.kernel.all)
	for _, own := range imaginedMaps {
		delete(shared, own)
	}
	x, err := observe.Load(o.size, shared)
	if err != nil {
		return model.Explanation{}, err
	}
	defer x.Close()
	if err := m.fill(x, d.kernel.Egress); err != nil {
		return model.Explanation{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed() {
		return model.Explanation{}, observe.ErrNothingForwarded
	}
	w := &observe.Snapshot{Rings: m.lines, Backends: m.entries, Settings: m.settings, Services: m.observed, Loads: m.loads, Live: d.kernel.all, Leaves: d.hops.Leaves, Inside: d.overlay.wayOf}
	closeTable, err := d.imagineSNAT(w, &t)
	if err != nil {
		return model.Explanation{}, err
	}
	defer closeTable()
	return w.Explain(x, name, frame)
}

// imaginedMaps are the maps that a table decides, of those that are shared otherwise.
var imaginedMaps = []string{directorMapServices4, directorMapServices6, directorMapFronts, directorMapRanges4, directorMapRanges6, directorMapSourceRanges,
	directorMapRings, directorMapRingLines, directorMapBackends, directorMapReplies4, directorMapReplies6, directorMapAskBackends, directorMapBackendSources, abi.SourceFilter, directorMapThisDirector, directorMapEgress}

// imagine lays a table out.
func (d *Datapath) imagine(t *model.Table) (*imagined, error) {
	if err := d.checkLimits(t); err != nil {
		return nil, &UnfitError{err}
	}
	m := &imagined{observed: map[uint32]observe.Service{}, entries: slices.Clone(d.entries.Entries), begins: map[uint32]uint64{}, loads: map[uint32]abi.Load{}, sources: map[uint32][]netip.Prefix{},
		lines: make([]byte, abi.LineSize)} // line 0 is no ring's
	services, backends := d.unused()
	interfaces := nexthop.NamesOf(t.Interfaces, d.findInterfaces(t.Interfaces))
	for i := range t.Services {
		if err := m.add(d, interfaces, &t.Services[i], services, backends); err != nil {
			return nil, &UnfitError{fmt.Errorf("service %s: %w", t.Services[i].Name, err)}
		}
	}
	maps.Copy(m.sources, kernelSets(t.KernelSources))
	m.leaveOut(d)
	m.lookups = lookupsOf(m.services)
	m.settings = d.settings(m.services, func(b model.TableBackend) nexthop.Hop {
		hop, _ := d.hops.Imagine(b, interfaces)
		return hop
	})
	const byLookups = uint32(abi.SettingsFlagSETTINGS_RANGES | abi.SettingsFlagSETTINGS_REPLIES | abi.SettingsFlagSETTINGS_ASKS)
	m.settings.Flags = m.settings.Flags&^byLookups | m.lookups.flags()
	return m, nil
}

// leaveOut frees the backends that would be gone: what is remembered of them no longer counts.
func (m *imagined) leaveOut(d *Datapath) {
	stays := map[uint32]bool{}
	for _, s := range m.services {
		for _, b := range s.order {
			stays[b.index] = true
		}
	}
	for _, s := range d.services {
		for _, b := range s.backends {
			if entry := &m.entries[b.index]; !stays[b.index] {
				entry.State, entry.Epoch = uint8(abi.BackendStateBACKEND_FREE), d.entries.nextEpoch(b.index)
			}
		}
	}
}

// unused hands out indexes that no service and no backend has.
func (d *Datapath) unused() (services, backends *indexes) {
	services, backends = newIndexes(0, d.options.Limits.Services), newIndexes(1, d.options.Limits.Backends)
	for _, s := range d.services {
		services.used[s.index] = true
		for _, b := range s.backends {
			backends.used[b.index] = true
		}
	}
	return services, backends
}

// add lays a service out.
func (m *imagined) add(d *Datapath, interfaces []string, desired *model.TableService, services, backends *indexes) (err error) {
	s := &service{key: keyOf(desired), desired: desired, backends: map[backendKey]*backend{}}
	was := d.services[s.key]
	if was == nil {
		was = &service{}
		if s.index, err = services.allocate(); err != nil {
			return err
		}
	} else {
		s.index, s.ring, s.remembered = was.index, was.ring, was.remembered
	}
	var came []bool
	for _, b := range desired.Backends {
		key := backendKey{b.Address, b.Port, b.SNAT}
		hop, awaits := d.hops.Imagine(b, interfaces)
		placed, entry := &backend{desired: b, vlan: hop.VLAN}, entryOf(desired, s.index, b, hop)
		if awaits {
			entry.State = uint8(b.State) // the kernel would be asked for the neighbor then, and would find it
		}
		old := was.backends[key]
		if old != nil {
			placed.index = old.index
			entry.Epoch = d.entries.Entries[old.index].Epoch
		} else {
			if placed.index, err = backends.allocate(); err != nil {
				return err
			}
			entry.Epoch = d.entries.nextEpoch(placed.index)
		}
		came = append(came, aliveIn(entry.State) && (old == nil || !d.entries.alive(old.index) || uint32(b.Weight) > d.loads.Entries[old.index].Weight))
		m.entries[placed.index] = d.imagineSuspect(placed.index, entry)
		s.backends[key] = placed
		s.order = append(s.order, placed)
	}
	s.tunnels = tunnelsTo(desired.Backends)
	image, err := d.imageOf(nil, s, func(index uint32) bool { return aliveIn(m.entries[index].State) })
	if err != nil {
		return err
	}
	if set, named := namedSet(image); named {
		m.sources[set] = desired.SourceRanges
	}
	m.begins[s.index] = uint64(len(m.lines) / abi.LineSize)
	m.lines = append(m.lines, image...)
	m.services, m.observed[s.index] = append(m.services, s), s.observed()
	return m.weigh(d, s, came)
}

// imagineSuspect is suspect for a backend that is not a suspect now: one that is keeps its
// connections.
func (d *Datapath) imagineSuspect(index uint32, entry abi.Backend) abi.Backend {
	if entry.State != uint8(abi.BackendStateBACKEND_SUSPECT) {
		return entry
	}
	if stored := d.entries.Entries[index]; stored.State == entry.State {
		return suspected(stored, entry)
	}
	entry.State = uint8(abi.BackendStateBACKEND_DOWN)
	return entry
}

// weigh sets the loads of the backends of a service whose policy goes by loads, as weighLoads does.
func (m *imagined) weigh(d *Datapath, s *service, came []bool) error {
	if !s.desired.Policy.ByLoad() {
		return nil
	}
	period, err := loadPeriod()
	if err != nil {
		return err
	}
	var others []uint32
	weights := map[uint32]uint16{}
	for i, b := range s.order {
		weights[b.index] = b.desired.Weight
		if aliveIn(m.entries[b.index].State) && !came[i] && b.desired.Weight > 0 {
			others = append(others, b.index)
		}
	}
	for i, b := range s.order {
		word, _ := d.loads.read(b.index)
		load := abi.Load{Opened: word.in(period), Period: period, Weight: uint32(b.desired.Weight)}
		if came[i] && len(others) > 0 {
			load.Opened = max(load.Opened, d.loads.like(others, weights, b.index, period))
		}
		m.loads[b.index] = load
	}
	return nil
}

// fill writes the table into an observer's maps. The front of the services stays empty: a service
// that is not found there is found behind it.
func (m *imagined) fill(x *observe.Observer, egress *ebpf.Map) error {
	of := x.Maps()
	k := &kernel{directorMaps: directorMaps{Services4: of[directorMapServices4], Services6: of[directorMapServices6],
		Ranges4: of[directorMapRanges4], Ranges6: of[directorMapRanges6], Replies4: of[directorMapReplies4], Replies6: of[directorMapReplies6],
		AskBackends: of[directorMapAskBackends]}}
	if err := m.lookups.write(k, newLookups(0), nil); err != nil {
		return err
	}
	refused, err := openRefused(of[directorMapBackendSources], of[abi.SourceFilter])
	if err == nil {
		err = errors.Join(refused.set(m.services, nil), refused.filter.Close())
	}
	if err != nil {
		return err
	}
	for name, bytes := range map[string][]byte{
		directorMapBackends:  unsafe.Slice((*byte)(unsafe.Pointer(&m.entries[0])), len(m.entries)*int(unsafe.Sizeof(m.entries[0]))),
		directorMapRingLines: m.lines,
	} {
		memory, err := bpfload.Map[byte](of[name])
		copy(memory.Bytes, bytes)
		if err := errors.Join(err, memory.Close()); err != nil {
			return fmt.Errorf("fill %s: %w", name, err)
		}
	}
	for set, ranges := range m.sources {
		for _, p := range ranges {
			if err := of[directorMapSourceRanges].Put(sourceKey(set, p), uint8(1)); err != nil {
				return fmt.Errorf("write source range %s: %w", p, err)
			}
		}
	}
	for index, line := range m.begins {
		if err := of[directorMapRings].Put(index, line); err != nil {
			return fmt.Errorf("write ring: %w", err)
		}
	}
	if err := of[directorMapThisDirector].Put(uint32(0), m.settings); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	return m.openEgress(of[directorMapEgress], egress)
}

// openEgress lets packets leave as they do now, and to where the table's backends are.
func (m *imagined) openEgress(own, live *ebpf.Map) error {
	open := map[uint32]bool{}
	var index, itself uint32
	all := live.Iterate()
	for all.Next(&index, &itself) {
		open[index] = true
	}
	if err := all.Err(); err != nil {
		return fmt.Errorf("read interfaces for forwarding: %w", err)
	}
	for _, s := range m.services {
		for _, b := range s.order {
			open[m.entries[b.index].Ifindex] = true
		}
	}
	delete(open, 0)
	for index := range open {
		if err := own.Put(index, index); err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: the interface is gone
			return fmt.Errorf("open interface %d for forwarding: %w", index, err)
		}
	}
	return nil
}

// imagineSNAT gives a snapshot the table of full NAT that a table of services would have: the present
// one, or one in which no flow has a port yet.
func (d *Datapath) imagineSNAT(w *observe.Snapshot, t *model.Table) (func(), error) {
	if !usesSNAT(t) {
		return d.lendShared(w)
	}
	want, err := flows.LayoutOf(t.SNAT)
	if err != nil {
		return nil, err
	}
	closeTable, err := d.openSNAT(w)
	if err != nil {
		return nil, err
	}
	want.Salt = w.Header.Salt
	if w.Tables[directorMapSnatTables] != nil && w.Header == want {
		return closeTable, nil
	}
	closeTable()
	closeShared, err := d.lendShared(w)
	if err != nil {
		return nil, err
	}
	table, err := flows.NewNAT(want)
	if err != nil {
		closeShared()
		return nil, err
	}
	w.Tables[directorMapSnatTables], w.Header = table, want
	return func() { closeShared(); table.Close() }, nil
}
