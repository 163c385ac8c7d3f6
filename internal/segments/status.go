package segments

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/model"
)

// named is how people call a source.
func named(source model.HostSource) string {
	return map[model.HostSource]string{model.HostsOfConfiguration: "the configuration", model.HostsOfAPI: "the API", model.HostsOfOVN: "OVN", model.HostsOfEVPN: "EVPN"}[source]
}

// Status returns what is known of all segments that the configuration names, or sources do. Hosts are in the order of
// their addresses.
func (s *Segments) Status(c *model.Config) model.SegmentsStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := model.SegmentsStatus{Sources: []model.HostSourceStatus{}, Segments: []model.SegmentStatus{}}
	status.Sources = append(status.Sources, s.ofSources()...)
	all := s.all(c)
	wires := s.wires(all)
	for _, id := range inOrder(all) {
		one := s.status(id, all[id], c, wires)
		one.Hosts = s.hosts(id, all[id])
		status.Segments = append(status.Segments, one)
	}
	return status
}

// Sources returns how far what each source has said can be trusted.
func (s *Segments) Sources() []model.HostSourceStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ofSources()
}

// ofSources does so. The lock is held.
func (s *Segments) ofSources() (list []model.HostSourceStatus) {
	for _, source := range learning {
		of := s.sources[source]
		if of == nil {
			continue
		}
		one := model.HostSourceStatus{Source: source, Since: of.since}
		for _, hosts := range of.said.Hosts {
			one.Hosts += len(hosts)
		}
		if of.lost != nil {
			one.Lost = of.lost.Error()
		}
		list = append(list, one)
	}
	return list
}

// segment is what the configuration says of one.
type segment struct {
	settings *model.SegmentSettings // nil: nothing, but that services are in it
	services []string
	backends []model.SegmentHost // that themselves say where they are, if the segment has peers
}

// segmentsOf returns the segments that a configuration names.
func segmentsOf(c *model.Config) map[model.Segment]*segment {
	all := map[model.Segment]*segment{}
	at := func(id model.Segment) *segment {
		if all[id] == nil {
			all[id] = &segment{}
		}
		return all[id]
	}
	for i := range c.Segments {
		at(c.Segments[i].ID).settings = &c.Segments[i]
	}
	for i := range c.Services {
		service := &c.Services[i]
		in := func(id model.Segment) {
			if id == (model.Segment{}) {
				return
			}
			if of := at(id); len(of.services) == 0 || of.services[len(of.services)-1] != service.Name {
				of.services = append(of.services, service.Name)
			}
		}
		in(service.Segment)
		for j := range service.Backends {
			b := &service.Backends[j]
			tenant := b.TenantIn(service)
			in(tenant)
			if of := all[tenant]; b.VTEP.IsValid() && of != nil && of.settings != nil && len(of.settings.Peers) > 0 {
				of.backends = append(of.backends, b.Place())
			}
		}
	}
	return all
}

// all returns the segments that a configuration names, or sources do. The lock is held.
func (s *Segments) all(c *model.Config) map[model.Segment]*segment {
	all := segmentsOf(c)
	for _, of := range s.sources {
		for id := range of.said.Hosts {
			if all[id] == nil {
				all[id] = &segment{}
			}
		}
	}
	return all
}

// wires returns the segments to which a network on the wire belongs: what is learned counts only where nothing is
// configured. The lock is held.
func (s *Segments) wires(all map[model.Segment]*segment) map[model.Segment]model.Segment {
	of := map[model.Segment]model.Segment{}
	for _, learned := range []bool{false, true} {
		for _, id := range inOrder(all) {
			wire, how := s.wire(id, all[id])
			if _, taken := of[wire]; wire != (model.Segment{}) && how == learned && !taken {
				of[wire] = id
			}
		}
	}
	return of
}

// wire returns a segment's kind with the VNI that it has on the wire, and whether a source has said that one; the zero
// value: it is not known.
func (s *Segments) wire(id model.Segment, of *segment) (wire model.Segment, learned bool) {
	vni, known := s.merged.VNIs[id]
	switch {
	case !id.IsOverlay():
		return model.Segment{}, false
	case of.settings != nil && of.settings.VNI != 0:
		return of.settings.Wire(), false
	case known:
		return model.Segment{Kind: id.Kind, ID: vni}, true
	case of.settings != nil && of.settings.Network != "":
		return model.Segment{}, false
	}
	return id, false
}

// status returns what is known of a segment. The lock is held.
func (s *Segments) status(id model.Segment, of *segment, c *model.Config, wires map[model.Segment]model.Segment) model.SegmentStatus {
	status := model.SegmentStatus{ID: id, Services: of.services, Addresses: []netip.Addr{}, Hosts: []model.SegmentHostStatus{}}
	if status.Services == nil {
		status.Services = []string{}
	}
	if id.IsOverlay() {
		status.MAC = model.VTEPMAC(c.Director.VTEP.Addresses, id)
	}
	if of.settings != nil {
		status.Addresses = append(status.Addresses, of.settings.Addresses...)
		status.SNATAddresses = slices.Clone(of.settings.SNATAddresses)
		status.Network = of.settings.Network
		if !of.settings.MAC.IsZero() {
			status.MAC = of.settings.MAC
		}
	}
	wire, learned := s.wire(id, of)
	status.VNI = wire.ID
	if owner := wires[wire]; wire != (model.Segment{}) && owner != id {
		status.Problems = append(status.Problems, fmt.Sprintf("no packets are taken from it: VNI %d is that of %s", wire.ID, owner))
	}
	if vni, known := s.merged.VNIs[id]; known && !learned && vni != wire.ID {
		status.Problems = append(status.Problems, fmt.Sprintf("its VNI is configured to be %d, and a source says %d", wire.ID, vni))
	}
	if rest := s.beyond[id]; rest.count > 0 {
		status.Problems = append(status.Problems, fmt.Sprintf("no packets go to %d of its hosts, the first of them %v: a director has room for %d hosts of all segments together",
			rest.count, rest.first.Address, model.MaxSegmentHosts))
	}
	status.Problems = append(status.Problems, s.contradicted(id, of, c)...)
	return status
}

// contradicted remembers what contradictions, excluded and impossible find, until a source or the configuration says something
// else: there may be very many hosts. The lock is held.
func (s *Segments) contradicted(id model.Segment, of *segment, c *model.Config) []string {
	at := &s.at
	same := model.SameMemory(at.segments, c.Segments) && model.SameMemory(at.services, c.Services)
	if at.found == nil || at.changes != s.changes || !same {
		at.changes, at.segments, at.services, at.found = s.changes, c.Segments, c.Services, map[model.Segment][]string{}
		at.own = model.NewOwnInside(c)
	}
	found, known := at.found[id]
	if !known {
		found = slices.Concat(s.excluded(id, of), s.impossible(id, of), s.contradictions(id, of))
		at.found[id] = found
	}
	return found
}

// excluded says which hosts of a segment are at VTEPs from which none of its packets are taken. The lock is held.
func (s *Segments) excluded(id model.Segment, of *segment) []string {
	if of.settings == nil || len(of.settings.Peers) == 0 {
		return nil
	}
	var first model.SegmentHost
	seen := map[[2]netip.Addr]bool{}
	look := func(h model.SegmentHost) {
		if of.settings.TakesFrom(h.VTEP) {
			return
		}
		if len(seen) == 0 {
			first = h
		}
		seen[[2]netip.Addr{h.Address, h.VTEP}] = true
	}
	for _, h := range s.hosts(id, of) {
		look(h.SegmentHost)
	}
	for _, h := range of.backends {
		look(h)
	}
	if len(seen) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("what %d of its hosts send to this director is dropped, such as answers to health checks: segments[].peers has not their VTEPs; the first of them is %v at %v", len(seen), first.Address, first.VTEP)}
}

// impossible says which hosts cannot be what a source says of them. Of the configuration and the API that is refused,
// unless it was said before the configuration changed. The lock is held.
func (s *Segments) impossible(id model.Segment, of *segment) (found []string) {
	if !id.IsOverlay() {
		return nil
	}
	macs := model.MACsApart{}
	hosts := s.hosts(id, of)
	for i := range hosts {
		h := &hosts[i]
		if problem := s.at.own.Refuse(id, &h.SegmentHost, h.Source); problem != "" {
			found = append(found, fmt.Sprintf("%v: %s says %s, and %s", h.Address, named(h.Source), where(&h.SegmentHost), problem))
			continue
		}
		if _, problem := macs.Find(&h.SegmentHost, i); problem != "" {
			found = append(found, fmt.Sprintf("%v: %s says so: %s", h.Address, named(h.Source), problem))
		}
	}
	return found
}

// contradictions says where sources contradict each other about a segment's hosts. The lock is held.
func (s *Segments) contradictions(id model.Segment, of *segment) (found []string) {
	say := 0
	if of.settings != nil && len(of.settings.Hosts) > 0 {
		say++
	}
	for _, source := range s.sources {
		if len(source.said.Hosts[id]) > 0 {
			say++
		}
	}
	if say < 2 {
		return nil // this is asked for often, and there may be many hosts
	}
	hosts := s.hosts(id, of)
	for i := range hosts {
		for j := range hosts[i].Others {
			found = append(found, contradiction(&hosts[i], &hosts[i].Others[j]))
		}
	}
	return found
}

// contradiction says what two sources say of one host.
func contradiction(h *model.SegmentHostStatus, o *model.OtherHost) string {
	return fmt.Sprintf("%v: %s says %s, and counts; %s says %s", h.Address, named(h.Source), where(&h.SegmentHost), named(o.Source), where(&o.SegmentHost))
}

// where writes what is said of a host.
func where(h *model.SegmentHost) string {
	text := fmt.Sprintf("%v at %v", h.MAC, h.VTEP)
	if h.VNI != 0 {
		text += fmt.Sprintf(", VNI %d", h.VNI)
	}
	if h.Options != "" {
		text += fmt.Sprintf(", options %s", h.Options)
	}
	return text
}

// hosts returns the hosts of a segment with what each source says of them. The lock is held.
func (s *Segments) hosts(id model.Segment, of *segment) []model.SegmentHostStatus {
	list := []model.SegmentHostStatus{}
	place := map[netip.Addr]int{}
	wire, _ := s.wire(id, of)
	same := func(a, b model.SegmentHost) bool {
		a.VNI, b.VNI = cmp.Or(a.VNI, wire.ID), cmp.Or(b.VNI, wire.ID)
		return a == b
	}
	add := func(source model.HostSource, hosts []model.SegmentHost) {
		for _, h := range hosts {
			at, known := place[h.Address]
			if !known {
				place[h.Address] = len(list)
				list = append(list, model.SegmentHostStatus{SegmentHost: h, Source: source})
			} else if !same(list[at].SegmentHost, h) {
				list[at].Others = append(list[at].Others, model.OtherHost{SegmentHost: h, Source: source})
			}
		}
	}
	if of.settings != nil {
		add(model.HostsOfConfiguration, of.settings.Hosts)
	}
	for _, source := range learning {
		if state := s.sources[source]; state != nil {
			add(source, state.said.Hosts[id])
		}
	}
	slices.SortFunc(list, func(a, b model.SegmentHostStatus) int { return a.Address.Compare(b.Address) })
	return list
}

// mostContradictions bounds how many hosts are named for a segment.
const mostContradictions = 20

// Problems returns what is wrong with what is known, but for what a lost source says of itself.
func (s *Segments) Problems(c *model.Config) (found []model.Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unset != nil {
		found = append(found, model.Problem{Text: "packets do not go to where hosts of tenants' networks are: " + s.unset.Error()})
	}
	for _, source := range learning {
		if of := s.sources[source]; of != nil && of.lost != nil {
			found = append(found, model.Problem{Part: string(source), Severity: model.SeverityWarning,
				Text: fmt.Sprintf("%s may say something else by now of where hosts of tenants' networks are, and what it said until %s goes on: %v", named(source), of.since.UTC().Format(time.RFC3339), of.lost)})
		}
	}
	all := s.all(c)
	wires := s.wires(all)
	for _, id := range inOrder(all) {
		of := s.status(id, all[id], c, wires)
		for _, text := range of.Problems[:min(len(of.Problems), mostContradictions)] {
			found = append(found, model.Problem{Part: of.ID.String(), Segment: of.ID, Severity: model.SeverityWarning, Text: fmt.Sprintf("%s: %s", of.ID, text),
				Fix: "see weir segments for what each source says"})
		}
		if more := len(of.Problems) - mostContradictions; more > 0 {
			found = append(found, model.Problem{Part: of.ID.String(), Segment: of.ID, Severity: model.SeverityWarning, Text: fmt.Sprintf("%s: and %d more, see weir segments", of.ID, more)})
		}
	}
	return found
}
