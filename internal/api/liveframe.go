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
	at       time.Time
	status   *model.DatapathStatus
	services map[string]*model.ServiceStatus // by name
	reasons  map[string]uint64
}

// liveFrame is what is sent to listeners of one reading. It is never changed: many read it.
type liveFrame struct {
	now    *reading
	before *reading      // the start of rates; nil: there was none
	took   time.Duration // the time that reading took
	whole  LiveMessage   // without what depends on the listener
}

// dropsBegin begins the reasons for which packets are dropped.
const dropsBegin = string(model.OutcomeDrop) + "_"

// take takes what the kernel said, of which rates begin with an earlier reading.
func (f *liveFrame) take(status *model.DatapathStatus) {
	f.now.status = status
	f.now.services, f.now.reasons = make(map[string]*model.ServiceStatus, len(status.Services)), make(map[string]uint64, len(status.Reasons))
	m := &f.whole
	m.LivePoint = LivePoint{Time: f.now.at.UTC().Truncate(time.Millisecond), Drops: map[string]float64{}}
	if f.before != nil {
		m.Seconds = math.Round(1000*f.now.at.Sub(f.before.at).Seconds()) / 1000
	}
	m.CPUs, m.Rates, m.Troubled = orEmpty(status.CPUs), make(map[string]LiveRate, len(status.Services)), &LiveTroubled{Backends: []LiveTroubledBackend{}}
	for _, c := range status.Reasons {
		f.now.reasons[c.Name] = c.Packets
		if c.Packets == 0 {
			continue
		}
		r := LiveReason{Name: c.Name, Text: model.ReasonText(c.Name), Packets: c.Packets}
		if f.before != nil {
			r.Rate = f.perSecond(c.Packets, f.before.reasons[c.Name])
		}
		if strings.HasPrefix(c.Name, dropsBegin) && r.Rate > 0 {
			m.Drops[c.Name] = r.Rate
			m.Total.Dropped += r.Rate
		}
		m.Reasons = append(m.Reasons, r)
	}
	for i := range status.Services {
		f.now.services[status.Services[i].Name] = &status.Services[i]
		f.add(&status.Services[i])
	}
	slices.SortFunc(m.Services, func(a, b LiveService) int { return cmp.Compare(a.Name, b.Name) })
	t := &m.Total
	t.Connections, t.Packets, t.Bytes, t.Dropped = rounded(t.Connections), rounded(t.Packets), rounded(t.Bytes), rounded(t.Dropped)
}

// in is the frame as a view has it: with its services, and what they sum up to.
func (f *liveFrame) in(v view) *liveFrame {
	if v.all() {
		return f
	}
	status := *f.now.status
	if v.limited {
		status = model.DatapathStatus{}
	}
	status.Services = v.ofServices(f.now.status.Services)
	g := &liveFrame{now: &reading{at: f.now.at}, before: f.before, took: f.took}
	g.take(&status)
	m := &g.whole
	if !v.limited {
		m.Director, m.Flows, m.BGP, m.Group = f.whole.Director, f.whole.Flows, f.whole.BGP, f.whole.Group
	}
	m.Total.Dropped, m.Drops = 0, map[string]float64{} // reasons are counted for all segments together
	m.Flows.Remembered = 0
	for i := range status.Services {
		m.Flows.Remembered += status.Services[i].Remembered
	}
	for _, rate := range m.Rates {
		m.Total.Dropped += rate.Dropped
	}
	m.Total.Dropped = rounded(m.Total.Dropped)
	return g
}

func (f *liveFrame) add(s *model.ServiceStatus) {
	m := &f.whole
	of := LiveService{Name: s.Name, Segment: s.Segment, VIP: s.VIP, Protocol: s.Protocol, Port: s.Port, Policy: s.Policy,
		Slots: s.Slots, Backends: len(s.Backends), Generations: s.Log.Generations, Waits: s.Log.Waits, Moved: s.Log.Moved, Starting: s.Log.Starting}
	if s.Health != nil {
		of.Checked, of.Unhealthy, of.Unknown, of.Panic = true, s.Health.Down, s.Health.Unknown, s.Health.Panic
	}
	if s.Tiers != nil {
		of.Tier = s.Tiers.Active
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
			m.Troubled.add(s.Name, liveBackend(b))
		}
	}
	m.Services = append(m.Services, of)
	var rate LiveRate
	if before := f.before.service(s.Name); before != nil {
		rate = f.rate(ofService(s), ofService(before))
	}
	m.Rates[s.Name] = rate
	t := &m.Total
	t.Connections, t.Packets, t.Bytes = t.Connections+rate.Connections, t.Packets+rate.Packets, t.Bytes+rate.Bytes
}

// service returns a service of that name; nil: there was none.
func (r *reading) service(name string) *model.ServiceStatus {
	if r == nil {
		return nil
	}
	return r.services[name]
}

// counted are the counters of a service or of a backend.
type counted struct{ opened, packets, bytes, dropped uint64 }

func ofService(s *model.ServiceStatus) counted {
	return counted{s.Opened, s.Packets, s.Bytes, s.Dropped}
}
func ofBackend(b *model.BackendStatus) counted { return counted{b.Opened, b.Packets, b.Bytes, 0} }

// rate returns the rate between two readings. If counters have shrunk there is none yet: all that
// they count may be old.
func (f *liveFrame) rate(now, before counted) LiveRate {
	if now.packets < before.packets {
		return LiveRate{}
	}
	return LiveRate{Connections: f.perSecond(now.opened, before.opened), Packets: f.perSecond(now.packets, before.packets),
		Bytes: f.perSecond(now.bytes, before.bytes), Dropped: f.perSecond(now.dropped, before.dropped)}
}

func (f *liveFrame) perSecond(now, before uint64) float64 {
	return rounded(float64(now-min(now, before)) / f.now.at.Sub(f.before.at).Seconds())
}

// rounded rounds a rate to what can be seen: so less has to be sent.
func rounded(n float64) float64 {
	if n < 100 {
		return math.Round(10*n) / 10
	}
	unit := math.Pow(10, math.Floor(math.Log10(n))-3)
	return math.Round(math.Round(n/unit) * unit)
}

// message returns what differs between this frame and one that was sent; nil: none was sent.
func (f *liveFrame) message(sent *liveFrame, service string) LiveMessage {
	m := f.whole
	if m.Whole = sent == nil; m.Whole {
		sent = &liveFrame{}
	}
	m.Director, m.Group, m.BGP = changed(m.Director, sent.whole.Director), changed(m.Group, sent.whole.Group), changed(m.BGP, sent.whole.BGP)
	m.Reasons, m.Troubled = changed(m.Reasons, sent.whole.Reasons), changed(m.Troubled, sent.whole.Troubled)
	m.Services, m.Gone = changedServices(m.Services, sent.whole.Services)
	m.Rates = changedRates(m.Rates, sent.whole.Rates)
	if service != "" {
		m.Detail = f.detail(sent, service)
	}
	return m
}

// changed returns what there is now, or nothing if it was the same before.
func changed[T any](now, before T) (none T) {
	if reflect.DeepEqual(now, before) {
		return none
	}
	return now
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
func (f *liveFrame) detail(sent *liveFrame, name string) *LiveDetail {
	s := f.now.service(name)
	if s == nil {
		return &LiveDetail{Service: name, Missing: true}
	}
	backends, rates := f.backends(s)
	var were []LiveBackend
	var before map[string]LiveRate
	if old := sent.now.service(name); old != nil {
		were, before = sent.backends(old)
	}
	d := &LiveDetail{Service: name, Backends: backends, Rates: changedRates(rates, before)}
	if slices.Equal(backends, were) {
		d.Backends = nil
	}
	return d
}

func (f *liveFrame) backends(s *model.ServiceStatus) (list []LiveBackend, rates map[string]LiveRate) {
	old := map[string]counted{}
	rates = map[string]LiveRate{}
	if before := f.before.service(s.Name); before != nil {
		for i := range before.Backends {
			old[before.Backends[i].Name] = ofBackend(&before.Backends[i])
		}
	}
	for i := range s.Backends {
		b := &s.Backends[i]
		list = append(list, liveBackend(b))
		if before, was := old[b.Name]; was {
			rates[b.Name] = f.rate(ofBackend(b), before)
		}
	}
	return list, rates
}

// add puts a backend that has the same trouble in several services, which is mostly that of its host,
// on the list once.
func (t *LiveTroubled) add(service string, b LiveBackend) {
	t.Count++
	for i := range t.Backends {
		if same := &t.Backends[i]; same.Address == b.Address && same.State == b.State && same.Health == b.Health && same.Reason == b.Reason {
			same.Count++
			if same.last != service { // services come one after the other
				same.last = service
				same.Services++
			}
			if same.Port != b.Port {
				same.Port = 0
			}
			return
		}
	}
	if len(t.Backends) < mostTroubled {
		t.Backends = append(t.Backends, LiveTroubledBackend{service, 1, 1, service, b})
	}
}

func liveBackend(b *model.BackendStatus) LiveBackend {
	of := LiveBackend{Name: b.Name, Address: b.Address, Segment: b.Segment, Port: b.Port, Mode: b.Mode, State: b.State, Interface: b.Interface, NextHop: b.NextHop, Slots: b.Slots, Tier: b.Tier, Override: b.Override}
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
	b = withLists(b)
	return &LiveBGP{ASN: b.ASN, Draining: b.Draining, Routes: len(b.Routes), Neighbors: b.Neighbors}
}
