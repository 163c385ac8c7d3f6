package api

import (
	"cmp"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"weir.io/weir/internal/model"
)

// reading is what the kernel said at one moment.
type reading struct {
	at      time.Time
	status  model.DatapathStatus
	places  map[string]int // of services in it, by name
	reasons map[string]uint64
}

func newReading(at time.Time, status model.DatapathStatus) *reading {
	r := &reading{at: at, status: status, places: make(map[string]int, len(status.Services)), reasons: make(map[string]uint64, len(status.Reasons))}
	for i := range status.Services {
		r.places[status.Services[i].Name] = i
	}
	for _, c := range status.Reasons {
		r.reasons[c.Name] = c.Packets
	}
	return r
}

// service returns a service of that name; nil: there is none.
func (r *reading) service(name string) *model.ServiceStatus {
	if r == nil {
		return nil
	}
	if i, there := r.places[name]; there {
		return &r.status.Services[i]
	}
	return nil
}

// liveFrame is what listeners are told of one reading. It is never changed: many read it.
type liveFrame struct {
	now      *reading
	before   *reading      // the start of rates; nil: there was none
	took     time.Duration // the time that reading took
	point    LivePoint
	flows    LiveFlows
	director *LiveDirector
	group    *LiveGroup
	bgp      *LiveBGP
	reasons  []LiveReason
	services []LiveService // in the order of their names
	rates    map[string]LiveRate
	troubled LiveTroubled
}

// dropsBegin begins the reasons for which packets are dropped.
const dropsBegin = string(model.OutcomeDrop) + "_"

// make works out what does not depend on the listener.
func (f *liveFrame) make() {
	f.point = LivePoint{Time: f.now.at.UTC().Truncate(time.Millisecond), Drops: map[string]float64{}}
	if f.before != nil {
		f.point.Seconds = math.Round(1000*f.now.at.Sub(f.before.at).Seconds()) / 1000
	}
	for _, c := range f.now.status.Reasons {
		if c.Packets == 0 {
			continue
		}
		r := LiveReason{Name: c.Name, Text: model.ReasonText(c.Name), Packets: c.Packets}
		if f.before != nil {
			r.Rate = f.perSecond(c.Packets, f.before.reasons[c.Name])
		}
		if strings.HasPrefix(c.Name, dropsBegin) && r.Rate > 0 {
			f.point.Drops[c.Name] = r.Rate
			f.point.Total.Dropped += r.Rate
		}
		f.reasons = append(f.reasons, r)
	}
	f.rates = make(map[string]LiveRate, len(f.now.status.Services))
	f.troubled.Backends = []LiveTroubledBackend{}
	for i := range f.now.status.Services {
		f.add(&f.now.status.Services[i])
	}
	slices.SortFunc(f.services, func(a, b LiveService) int { return cmp.Compare(a.Name, b.Name) })
	t := &f.point.Total
	t.Connections, t.Packets, t.Bytes, t.Dropped = rounded(t.Connections), rounded(t.Packets), rounded(t.Bytes), rounded(t.Dropped)
}

func (f *liveFrame) add(s *model.ServiceStatus) {
	of := LiveService{Name: s.Name, Segment: s.Segment, VIP: s.VIP, Protocol: s.Protocol, Port: s.Port, Policy: s.Policy,
		Slots: s.Slots, Backends: len(s.Backends), Generations: s.Log.Generations, Waits: s.Log.Waits, Moved: s.Log.Moved, Starting: s.Log.Starting}
	if s.Health != nil {
		of.Checked, of.Unhealthy, of.Unknown, of.Panic = true, s.Health.Down, s.Health.Unknown, s.Health.Panic
	}
	for i := range s.Backends {
		b := &s.Backends[i]
		switch b.State {
		case model.Active:
			of.Active++
		case model.Draining:
			of.Draining++
		}
		if b.State == model.Down || b.State == model.Suspect || b.Health != nil && b.Health.State == model.HealthDown {
			f.troubled.Count++
			if len(f.troubled.Backends) < mostTroubled {
				f.troubled.Backends = append(f.troubled.Backends, LiveTroubledBackend{s.Name, liveBackend(b)})
			}
		}
	}
	f.services = append(f.services, of)
	rate := f.rate(counted{s.Opened, s.Packets, s.Bytes, s.Dropped}, f.before.countedOf(s.Name))
	f.rates[s.Name] = rate
	t := &f.point.Total
	t.Connections, t.Packets, t.Bytes = t.Connections+rate.Connections, t.Packets+rate.Packets, t.Bytes+rate.Bytes
}

// counted are the counters of a service or of a backend.
type counted struct{ opened, packets, bytes, dropped uint64 }

// countedOf returns a service's counters; nil: it was not there.
func (r *reading) countedOf(name string) *counted {
	s := r.service(name)
	if s == nil {
		return nil
	}
	return &counted{s.Opened, s.Packets, s.Bytes, s.Dropped}
}

// rate returns the rate between two readings. A service or backend that is new, or whose counters
// have shrunk, has no rate yet: all that it has counted may be old.
func (f *liveFrame) rate(now counted, before *counted) LiveRate {
	if before == nil || now.packets < before.packets || f.before == nil {
		return LiveRate{}
	}
	return LiveRate{Connections: f.perSecond(now.opened, before.opened), Packets: f.perSecond(now.packets, before.packets),
		Bytes: f.perSecond(now.bytes, before.bytes), Dropped: f.perSecond(now.dropped, before.dropped)}
}

func (f *liveFrame) perSecond(now, before uint64) float64 {
	return rounded(float64(now-min(now, before)) / f.now.at.Sub(f.before.at).Seconds())
}

// rounded rounds a rate to what can be seen: so less has to be told.
func rounded(n float64) float64 {
	if n < 100 {
		return math.Round(10*n) / 10
	}
	unit := math.Pow(10, math.Floor(math.Log10(n))-3)
	return math.Round(math.Round(n/unit) * unit)
}

// message returns what differs between this frame and one that was told; nil: none was told.
func (f *liveFrame) message(told *liveFrame, service string) LiveMessage {
	m := LiveMessage{Whole: told == nil, LivePoint: f.point, Flows: f.flows, CPUs: orEmpty(f.now.status.CPUs)}
	if told == nil {
		told = &liveFrame{}
	}
	if !reflect.DeepEqual(f.director, told.director) {
		m.Director = f.director
	}
	if !reflect.DeepEqual(f.group, told.group) {
		m.Group = f.group
	}
	if !reflect.DeepEqual(f.bgp, told.bgp) {
		m.BGP = f.bgp
	}
	if !slices.Equal(f.reasons, told.reasons) {
		m.Reasons = f.reasons
	}
	if m.Whole || !slices.Equal(f.troubled.Backends, told.troubled.Backends) || f.troubled.Count != told.troubled.Count {
		m.Troubled = &f.troubled
	}
	m.Services, m.Gone = changedServices(f.services, told.services)
	m.Rates = changedRates(f.rates, told.rates)
	if service != "" {
		m.Detail = f.detail(told, service)
	}
	return m
}

// changedServices compares lists that are in the order of names.
func changedServices(now, before []LiveService) (changed []LiveService, gone []string) {
	for _, s := range now {
		for len(before) > 0 && before[0].Name < s.Name {
			gone, before = append(gone, before[0].Name), before[1:]
		}
		if len(before) > 0 && before[0].Name == s.Name {
			same := before[0] == s
			before = before[1:]
			if same {
				continue
			}
		}
		changed = append(changed, s)
	}
	for _, s := range before {
		gone = append(gone, s.Name)
	}
	return changed, gone
}

func changedRates(now, before map[string]LiveRate) map[string]LiveRate {
	changed := map[string]LiveRate{}
	for name, rate := range now {
		if rate != before[name] {
			changed[name] = rate
		}
	}
	return changed
}

// detail returns what is different in a service's backends.
func (f *liveFrame) detail(told *liveFrame, name string) *LiveDetail {
	backends, rates, there := f.backendsOf(name)
	d := &LiveDetail{Service: name, Missing: !there, Backends: backends}
	var before map[string]LiveRate
	if told.now != nil {
		var were []LiveBackend
		if were, before, _ = told.backendsOf(name); slices.Equal(backends, were) {
			d.Backends = nil
		}
	}
	d.Rates = changedRates(rates, before)
	return d
}

func (f *liveFrame) backendsOf(name string) (list []LiveBackend, rates map[string]LiveRate, there bool) {
	s := f.now.service(name)
	if s == nil {
		return nil, nil, false
	}
	old, rates := map[string]counted{}, map[string]LiveRate{}
	if before := f.before.service(name); before != nil {
		for _, b := range before.Backends {
			old[b.Name] = counted{b.Opened, b.Packets, b.Bytes, 0}
		}
	}
	for i := range s.Backends {
		b := &s.Backends[i]
		list = append(list, liveBackend(b))
		if before, was := old[b.Name]; was {
			rates[b.Name] = f.rate(counted{b.Opened, b.Packets, b.Bytes, 0}, &before)
		}
	}
	return list, rates, true
}

func liveBackend(b *model.BackendStatus) LiveBackend {
	of := LiveBackend{Name: b.Name, Address: b.Address, Port: b.Port, Mode: b.Mode, State: b.State, Interface: b.Interface, NextHop: b.NextHop, Slots: b.Slots, Override: b.Override}
	if h := b.Health; h != nil {
		of.Health, of.Since, of.Reason, of.Detail = h.State, h.Since, h.Reason, h.Detail
	}
	if b.Strain != nil {
		of.Strain = b.Strain.Parts
	}
	return of
}

func liveDirector(info Info, limits model.Limits, d *model.DatapathStatus) *LiveDirector {
	of := &LiveDirector{Info: info, Interfaces: orEmpty(d.Interfaces), Limits: limits, RingMemory: d.RingMemory, Agents: d.Agents, Neighbor: d.Neighbor.Problem}
	for _, v := range d.Neighbor.VIPs {
		if v.State == model.NeighborAnswers {
			of.Answers++
		}
	}
	return of
}

func liveBGP(b model.BGPStatus) *LiveBGP {
	of := &LiveBGP{ASN: b.ASN, Draining: b.Draining, Routes: len(b.Routes), Neighbors: orEmpty(b.Neighbors)}
	for i := range of.Neighbors {
		of.Neighbors[i].Families = orEmpty(of.Neighbors[i].Families)
	}
	return of
}
