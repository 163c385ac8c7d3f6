// Package segments knows where hosts of tenants' networks are: it merges what the API's clients, OVN and EVPN say,
// gives it to the datapath, and says where they contradict each other or the configuration.
package segments

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/retry"
	"weir.io/weir/internal/store"
)

// Sink forwards by what was learned: a datapath.
type Sink interface {
	// SetHosts replaces what was learned of where hosts are.
	SetHosts(hosts map[model.Segment][]model.SegmentHost) error
	// SetMACs replaces what was learned of where MAC addresses are, for backends whose own is configured.
	SetMACs(macs map[model.Segment][]model.SegmentMAC) error
	// SetVNIs replaces what was learned of networks' VNIs on the wire.
	SetVNIs(vnis map[model.Segment]uint32) error
	// SetVTEPs replaces what was learned of VTEPs that send packets in some segment.
	SetVTEPs(vteps []netip.Addr) error
}

// Said is what a source says.
type Said struct {
	Hosts map[model.Segment][]model.SegmentHost
	// MACs are where MAC addresses are, also of hosts whose IP addresses the source does not know.
	MACs map[model.Segment][]model.SegmentMAC
	// VNIs are those of networks on the wire, where the source knows them.
	VNIs map[model.Segment]uint32
	// Networks are the names by which the source knows segments, if it has others.
	Networks map[model.Segment]string
	// VTEPs send packets, also where nothing is known of the hosts behind them. They are sorted.
	VTEPs []netip.Addr
}

// learning are the sources that Segments merges, in the order in which they count. What the configuration says comes
// to the datapath with its table.
var learning = model.HostSources[1:]

// state is what is known of a source.
type state struct {
	said  Said
	since time.Time // of said, or of lost
	lost  error     // why it may say something else by now; nil: it does not
	wrote Said      // what its file has
	file  error     // why that is not written, or was lost
}

// Deps are what Segments works with.
type Deps struct {
	Sink      Sink
	Directory string // of the director's state
	Log       *slog.Logger
}

// Segments merges what sources say of where hosts of tenants' networks are.
type Segments struct {
	sink Sink
	dir  string
	log  *slog.Logger
	now  func() time.Time
	wake chan struct{} // something has to be tried again, or written

	putting sync.Mutex // one change of the API's at a time

	mu      sync.Mutex // guards all below, and makes changes reach the sink in order
	sources map[model.HostSource]*state
	merged  Said     // that the sink has
	beyond  beyond   // what the sink does not get of the last one
	unset   error    // why it does not have the last one
	changes uint64   // of what sources say
	at      struct { // what contradictions are, which are asked for often
		changes  uint64
		segments []model.SegmentSettings
		services []model.Service
		own      *model.OwnInside
		found    map[model.Segment][]string
	}
}

// What a source says is written after gathering, beside what else it says meanwhile, and then not again before keeping
// is over: a start goes on with it only until the source answers. What clients of the API say is written before they are
// answered.
const (
	gathering = time.Second
	keeping   = 10 * time.Second
)

// The pauses after the sink has refused, or a file could not be written.
const (
	firstPause = time.Second
	lastPause  = time.Minute
)

// New returns Segments with what sources have said to an earlier process. What they have not said again counts as
// lost. The sink has it at once.
func New(deps Deps) *Segments {
	s := &Segments{sink: deps.Sink, dir: deps.Directory, log: deps.Log, now: time.Now, wake: make(chan struct{}, 1), sources: map[model.HostSource]*state{}}
	for _, source := range learning {
		kept, found, err := store.LoadHosts(s.dir, source)
		if err != nil {
			s.log.Warn("where hosts of tenants' networks were is lost", "source", source, "error", err)
			s.sources[source] = &state{since: s.now(), file: err}
			continue
		}
		if !found {
			continue
		}
		of := &state{since: kept.Since, said: saidOf(kept)}
		of.wrote = of.said
		if source != model.HostsOfAPI {
			of.lost = errors.New("weir has started since, and it has not answered yet")
		}
		s.sources[source] = of
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.apply()
	return s
}

func saidOf(kept store.Hosts) Said {
	said := Said{Hosts: map[model.Segment][]model.SegmentHost{}, MACs: map[model.Segment][]model.SegmentMAC{}, VNIs: map[model.Segment]uint32{}, Networks: map[model.Segment]string{}, VTEPs: kept.VTEPs}
	for i := range kept.Segments {
		of := &kept.Segments[i]
		said.Hosts[of.ID] = of.Hosts
		if len(of.MACs) > 0 {
			said.MACs[of.ID] = of.MACs
		}
		if of.VNI != 0 {
			said.VNIs[of.ID] = of.VNI
		}
		if of.Network != "" {
			said.Networks[of.ID] = of.Network
		}
	}
	return said
}

func (said *Said) kept(since time.Time) store.Hosts {
	h := store.Hosts{Since: since, Segments: []store.SegmentHosts{}, VTEPs: said.VTEPs}
	all := map[model.Segment]bool{}
	for id := range said.Hosts {
		all[id] = true
	}
	for id := range said.MACs {
		all[id] = true
	}
	for id := range said.VNIs {
		all[id] = true
	}
	for _, id := range inOrder(all) {
		h.Segments = append(h.Segments, store.SegmentHosts{ID: id, VNI: said.VNIs[id], Network: said.Networks[id], Hosts: said.Hosts[id], MACs: said.MACs[id]})
	}
	return h
}

// inOrder returns segments in their order.
func inOrder[T any](of map[model.Segment]T) []model.Segment {
	return slices.SortedFunc(maps.Keys(of), func(a, b model.Segment) int { return int(a.Key()) - int(b.Key()) })
}

// Say replaces what a source says. Packets follow at once.
func (s *Segments) Say(source model.HostSource, said Said) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.say(source, said)
}

// say does so. The lock is held.
func (s *Segments) say(source model.HostSource, said Said) {
	of := s.sources[source]
	if of == nil {
		of = &state{}
		s.sources[source] = of
	}
	changed := !reflect.DeepEqual(of.said, said)
	if changed || of.lost != nil || of.since.IsZero() {
		of.since = s.now()
	}
	of.said, of.lost = said, nil
	if changed {
		s.changes++
		s.apply()
		s.wakeUp()
	}
}

// Hosts returns what a source has said last of where hosts are. Nobody may change it.
func (s *Segments) Hosts(source model.HostSource) map[model.Segment][]model.SegmentHost {
	s.mu.Lock()
	defer s.mu.Unlock()
	if of := s.sources[source]; of != nil {
		return of.said.Hosts
	}
	return nil
}

// Add is Say of a source that has not said all yet: of hosts and MAC addresses that it does not name, and VTEPs, what it
// said before goes on.
func (s *Segments) Add(source model.HostSource, said Said) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.sources[source]
	if of == nil {
		s.say(source, said)
		return
	}
	all := Said{Hosts: map[model.Segment][]model.SegmentHost{}, MACs: map[model.Segment][]model.SegmentMAC{}, VNIs: maps.Clone(of.said.VNIs), Networks: maps.Clone(of.said.Networks)}
	maps.Copy(all.MACs, said.MACs)
	for id, macs := range of.said.MACs {
		named := map[model.MAC]bool{}
		for _, m := range said.MACs[id] {
			named[m.MAC] = true
		}
		for _, m := range macs {
			if !named[m.MAC] {
				all.MACs[id] = append(slices.Clip(all.MACs[id]), m)
			}
		}
	}
	for id, hosts := range of.said.Hosts {
		named := map[netip.Addr]bool{}
		for _, h := range said.Hosts[id] {
			named[h.Address] = true
		}
		all.Hosts[id] = slices.DeleteFunc(slices.Clone(hosts), func(h model.SegmentHost) bool { return named[h.Address] })
	}
	for id, hosts := range said.Hosts {
		all.Hosts[id] = append(all.Hosts[id], hosts...)
	}
	all.VTEPs = slices.Concat(of.said.VTEPs, said.VTEPs)
	slices.SortFunc(all.VTEPs, netip.Addr.Compare)
	all.VTEPs = slices.Compact(all.VTEPs)
	lost, since := of.lost, of.since
	s.say(source, all)
	of.lost, of.since = lost, since
}

// Lose says that a source may say something else by now, and since when. What it has said last goes on.
func (s *Segments) Lose(source model.HostSource, since time.Time, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.sources[source]
	if of == nil {
		of = &state{}
		s.sources[source] = of
	}
	if of.lost == nil || of.since.IsZero() {
		of.since = since
	}
	of.lost = why
}

// Retain forgets what a source has said of segments, but for those of which keep says that it is still asked about them;
// the network is the name by which it knows them.
func (s *Segments) Retain(source model.HostSource, keep func(id model.Segment, network string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.sources[source]
	if of == nil {
		return
	}
	said := Said{Hosts: maps.Clone(of.said.Hosts), MACs: maps.Clone(of.said.MACs), VNIs: maps.Clone(of.said.VNIs), Networks: maps.Clone(of.said.Networks), VTEPs: of.said.VTEPs}
	forget := func(id model.Segment) bool { return !keep(id, of.said.Networks[id]) }
	maps.DeleteFunc(said.Hosts, func(id model.Segment, _ []model.SegmentHost) bool { return forget(id) })
	maps.DeleteFunc(said.MACs, func(id model.Segment, _ []model.SegmentMAC) bool { return forget(id) })
	maps.DeleteFunc(said.VNIs, func(id model.Segment, _ uint32) bool { return forget(id) })
	maps.DeleteFunc(said.Networks, func(id model.Segment, _ string) bool { return forget(id) })
	if !reflect.DeepEqual(of.said, said) {
		of.said = said
		s.changes++
		s.apply()
		s.wakeUp()
	}
}

// Forget forgets a source that is not asked any more, and what it has said.
func (s *Segments) Forget(source model.HostSource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sources[source] != nil {
		s.say(source, Said{Hosts: map[model.Segment][]model.SegmentHost{}, VNIs: map[model.Segment]uint32{}, Networks: map[model.Segment]string{}})
	}
}

// Put replaces what clients of the API have said. It is kept before it counts: an error changes nothing.
func (s *Segments) Put(list []model.SegmentHosts) error {
	s.putting.Lock()
	defer s.putting.Unlock()
	said := Said{Hosts: map[model.Segment][]model.SegmentHost{}}
	for _, of := range list {
		said.Hosts[of.ID] = slices.Clone(of.Hosts)
	}
	if err := store.SaveHosts(s.dir, model.HostsOfAPI, said.kept(s.now())); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.say(model.HostsOfAPI, said)
	of := s.sources[model.HostsOfAPI]
	if of.wrote, of.file = said, nil; s.unset != nil {
		return fmt.Errorf("what was put is kept, and is tried again: packets do not go by it: %w", s.unset)
	}
	return nil
}

// beyond are hosts that sources say, and a director has no room for.
type beyond map[model.Segment]struct {
	count int
	first model.SegmentHost
}

func (b beyond) add(id model.Segment, h model.SegmentHost) {
	of := b[id]
	if of.count == 0 {
		of.first = h
	}
	of.count++
	b[id] = of
}

// merge returns what the sources say together: of each address what the first one says.
func (s *Segments) merge() (Said, beyond) {
	all := Said{Hosts: map[model.Segment][]model.SegmentHost{}, MACs: map[model.Segment][]model.SegmentMAC{}, VNIs: map[model.Segment]uint32{}}
	place := map[model.Segment]map[netip.Addr]bool{}
	for _, source := range learning {
		of := s.sources[source]
		if of == nil {
			continue
		}
		for _, id := range inOrder(of.said.Hosts) {
			hosts := of.said.Hosts[id]
			taken := place[id]
			if taken == nil {
				taken = make(map[netip.Addr]bool, len(hosts))
				place[id] = taken
			}
			for _, h := range hosts {
				if taken[h.Address] {
					continue
				}
				taken[h.Address] = true
				all.Hosts[id] = append(all.Hosts[id], h)
			}
		}
		for id, macs := range of.said.MACs {
			all.MACs[id] = append(all.MACs[id], macs...)
		}
		for id, vni := range of.said.VNIs {
			if _, known := all.VNIs[id]; !known {
				all.VNIs[id] = vni
			}
		}
		all.VTEPs = append(all.VTEPs, of.said.VTEPs...)
	}
	slices.SortFunc(all.VTEPs, netip.Addr.Compare)
	all.VTEPs = slices.Compact(all.VTEPs)
	return all, share(all.Hosts)
}

// share leaves out the hosts for which a director has no room: the last ones of the segments that have most. So the hosts
// of one tenant take no room from those of others.
func share(hosts map[model.Segment][]model.SegmentHost) beyond {
	var wants []int
	for _, of := range hosts {
		wants = append(wants, len(of))
	}
	each, rest := model.FairShare(wants, model.MaxSegmentHosts), beyond{}
	for id, of := range hosts {
		if len(of) <= each {
			continue
		}
		for _, h := range of[each:] {
			rest.add(id, h)
		}
		hosts[id] = of[:each:each]
	}
	return rest
}

// apply gives the sink what has changed. The lock is held.
func (s *Segments) apply() {
	all, rest := s.merge()
	s.beyond = rest
	before := s.unset
	// The VNIs first: they say how hosts' packets are to be written.
	var errs []error
	if before != nil || !maps.Equal(all.VNIs, s.merged.VNIs) {
		errs = append(errs, s.sink.SetVNIs(all.VNIs))
	}
	if before != nil || !slices.Equal(all.VTEPs, s.merged.VTEPs) {
		errs = append(errs, s.sink.SetVTEPs(all.VTEPs))
	}
	if before != nil || !reflect.DeepEqual(all.MACs, s.merged.MACs) {
		errs = append(errs, s.sink.SetMACs(all.MACs))
	}
	if before != nil || !reflect.DeepEqual(all.Hosts, s.merged.Hosts) {
		errs = append(errs, s.sink.SetHosts(all.Hosts))
	}
	s.merged = all
	if s.unset = errors.Join(errs...); s.unset != nil {
		if before == nil {
			s.log.Error("where hosts of tenants' networks are is not forwarded by", "error", s.unset)
		}
		s.wakeUp()
	}
}

func (s *Segments) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run tries again what the sink has refused, and keeps what sources have said for the next start, until the context
// ends.
func (s *Segments) Run(ctx context.Context) {
	pauses := retry.Backoff{First: firstPause, Last: lastPause}
	for {
		select {
		case <-ctx.Done():
			s.keep()
			return
		case <-s.wake:
		}
		s.mu.Lock()
		again := s.unset != nil
		s.mu.Unlock()
		if again {
			retry.Sleep(ctx, pauses.Next())
		} else {
			pauses.Reset()
			retry.Sleep(ctx, gathering)
		}
		s.mu.Lock()
		if s.unset != nil {
			s.apply()
		}
		s.mu.Unlock()
		switch kept := s.keep(); {
		case !kept && ctx.Err() == nil:
			retry.Sleep(ctx, pauses.Next())
			s.wakeUp()
		case !again:
			retry.Sleep(ctx, keeping)
		}
	}
}

// keep writes what the files of sources do not have yet, and reports whether all do.
func (s *Segments) keep() (all bool) {
	s.putting.Lock() // the API's file is written by Put, too
	defer s.putting.Unlock()
	all = true
	for _, source := range learning {
		s.mu.Lock()
		of := s.sources[source]
		if of == nil || reflect.DeepEqual(of.wrote, of.said) {
			s.mu.Unlock()
			continue
		}
		said := of.said
		h := said.kept(of.since)
		s.mu.Unlock()
		err := store.SaveHosts(s.dir, source, h)
		s.mu.Lock()
		if of.file = err; err == nil {
			of.wrote = said
		} else {
			all = false
		}
		s.mu.Unlock()
	}
	return all
}

// Amiss returns why what a source says could not be kept for the next start, or was lost; nil: it is kept.
func (s *Segments) Amiss(source model.HostSource) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if of := s.sources[source]; of != nil && of.file != nil {
		return fmt.Errorf("where hosts of tenants' networks are, as %s says: %w", named(source), of.file)
	}
	return nil
}
