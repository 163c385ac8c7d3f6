package datapath

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// imagined is a table laid out as Set would lay it out, beside the one that is forwarded. What is
// in both tables has the same index in both, so that what is remembered of it counts.
type imagined struct {
	services []*service
	byIndex  map[uint32]*service
	entries  []directorBackend
	lines    []byte
	begins   map[uint32]uint64 // by service: the line that its ring begins with
	settings directorSettings
	lookups  lookups
	loads    map[uint32]directorLoad
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
	if !d.begun || d.entries.memory == nil {
		d.mu.Unlock()
		return model.Explanation{}, ErrNothingForwarded
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
	x, err := loadObserver(o, shared)
	if err != nil {
		return model.Explanation{}, err
	}
	defer x.close()
	if err := m.fill(x, d.kernel.Egress); err != nil {
		return model.Explanation{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.entries.memory == nil {
		return model.Explanation{}, ErrNothingForwarded
	}
	w := &snapshot{rings: m.lines, entries: m.entries, settings: m.settings, services: m.byIndex, loads: m.loads, live: d.kernel.all, onward: d.hops.onward}
	closeTable, err := d.imagineSNAT(w, &t)
	if err != nil {
		return model.Explanation{}, err
	}
	defer closeTable()
	return w.explain(x, name, frame)
}

// imaginedMaps are the maps that a table decides, of those that are shared otherwise.
var imaginedMaps = []string{directorMapServices4, directorMapServices6, directorMapFronts, directorMapRanges4, directorMapRanges6, directorMapSourceRanges,
	directorMapRings, directorMapRingLines, directorMapBackends, directorMapReplies4, directorMapReplies6, directorMapAskBackends, directorMapBackendSources, sourceFilter, directorMapThisDirector, directorMapEgress}

// imagine lays a table out.
func (d *Datapath) imagine(t *model.Table) (*imagined, error) {
	if err := d.checkLimits(t); err != nil {
		return nil, &UnfitError{err}
	}
	m := &imagined{byIndex: map[uint32]*service{}, entries: slices.Clone(d.entries.entries), begins: map[uint32]uint64{}, loads: map[uint32]directorLoad{}, sources: map[uint32][]netip.Prefix{},
		lines: make([]byte, lineSize)} // line 0 is no ring's
	services, backends := d.unused()
	interfaces := currentNames(t.Interfaces, d.findInterfaces(t.Interfaces))
	for i := range t.Services {
		if err := m.add(d, interfaces, &t.Services[i], services, backends); err != nil {
			return nil, &UnfitError{fmt.Errorf("service %s: %w", t.Services[i].Name, err)}
		}
	}
	maps.Copy(m.sources, kernelSets(t.KernelSources))
	m.leaveOut(d)
	m.lookups = lookupsOf(m.services)
	m.settings = d.settings(m.services, func(b model.TableBackend) nextHop {
		hop, _ := d.hops.imagine(b, interfaces)
		return hop
	})
	const byLookups = uint32(directorSettingsFlagSETTINGS_RANGES | directorSettingsFlagSETTINGS_REPLIES | directorSettingsFlagSETTINGS_ASKS)
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
				entry.State, entry.Epoch = uint8(directorBackendStateBACKEND_FREE), d.entries.nextEpoch(b.index)
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
		if s.index, err = services.take(); err != nil {
			return err
		}
	} else {
		s.index, s.ring, s.remembered = was.index, was.ring, was.remembered
	}
	var came []bool
	for _, b := range desired.Backends {
		key := backendKey{b.Address, b.Port, b.SNAT}
		hop, awaits := d.hops.imagine(b, interfaces)
		placed, entry := &backend{desired: b, vlan: hop.vlan}, entryOf(desired, s.index, b, hop)
		if awaits {
			entry.State = uint8(b.State) // the kernel would be asked for the neighbor then, and would find it
		}
		old := was.backends[key]
		if old != nil {
			placed.index = old.index
			entry.Epoch = d.entries.entries[old.index].Epoch
		} else {
			if placed.index, err = backends.take(); err != nil {
				return err
			}
			entry.Epoch = d.entries.nextEpoch(placed.index)
		}
		came = append(came, aliveIn(entry.State) && (old == nil || !d.entries.alive(old.index) || uint32(b.Weight) > d.loads.entries[old.index].Weight))
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
	m.begins[s.index] = uint64(len(m.lines) / lineSize)
	m.lines = append(m.lines, image...)
	m.services, m.byIndex[s.index] = append(m.services, s), s
	return m.weigh(d, s, came)
}

// imagineSuspect is suspect for a backend that is not a suspect now: one that is keeps its
// connections.
func (d *Datapath) imagineSuspect(index uint32, entry directorBackend) directorBackend {
	if entry.State != uint8(directorBackendStateBACKEND_SUSPECT) {
		return entry
	}
	if stored := d.entries.entries[index]; stored.State == entry.State {
		return suspected(stored, entry)
	}
	entry.State = uint8(directorBackendStateBACKEND_DOWN)
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
		load := directorLoad{Opened: word.in(period), Period: period, Weight: uint32(b.desired.Weight)}
		if came[i] {
			if len(others) > 0 {
				like := min(d.loads.perWeight(others, weights, period)*float64(b.desired.Weight), float64(directorLoadScaleLOAD_MOST))
				load.Opened = max(load.Opened, uint32(math.Round(like)))
			}
		}
		m.loads[b.index] = load
	}
	return nil
}

// fill writes the table into an observer's maps. The front of the services stays empty: a service
// that is not found there is found behind it.
func (m *imagined) fill(x *observer, egress *ebpf.Map) error {
	of := x.collection.Maps
	k := &kernel{directorMaps: directorMaps{Services4: of[directorMapServices4], Services6: of[directorMapServices6],
		Ranges4: of[directorMapRanges4], Ranges6: of[directorMapRanges6], Replies4: of[directorMapReplies4], Replies6: of[directorMapReplies6],
		AskBackends: of[directorMapAskBackends]}}
	if err := m.lookups.write(k, newLookups(0)); err != nil {
		return err
	}
	if err := writeRefused(m.services, of[directorMapBackendSources], of[sourceFilter]); err != nil {
		return err
	}
	for name, bytes := range map[string][]byte{
		directorMapBackends:  unsafe.Slice((*byte)(unsafe.Pointer(&m.entries[0])), len(m.entries)*int(unsafe.Sizeof(m.entries[0]))),
		directorMapRingLines: m.lines,
	} {
		memory, err := mapArray(of[name])
		if err != nil {
			return fmt.Errorf("map %s into memory: %w", name, err)
		}
		copy(memory, bytes)
		if err := unix.Munmap(memory); err != nil {
			return fmt.Errorf("unmap %s: %w", name, err)
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
func (d *Datapath) imagineSNAT(w *snapshot, t *model.Table) (func(), error) {
	if !usesSNAT(t) {
		return func() {}, nil
	}
	want, err := snatLayout(t.SNAT)
	if err != nil {
		return nil, err
	}
	closeTable, err := d.openSNAT(w)
	if err != nil {
		return nil, err
	}
	want.Salt = w.header.Salt
	if w.snat != nil && w.header == want {
		return closeTable, nil
	}
	closeTable()
	if w.snat, err = loadSNAT(want); err != nil {
		return nil, err
	}
	w.header = want
	return func() { w.snat.Close() }, nil
}
