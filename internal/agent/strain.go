package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"time"

	"weir.io/weir/internal/model"
)

// strainMeter measures how often this host refuses connections to its services, or has no room
// for them, from one look to the next.
type strainMeter struct {
	last     time.Time
	drops    map[[diagCookieLength]byte]uint32 // of sockets that serve all clients
	refusals map[identity]uint64
	noUDP    bool // the kernel does not list UDP sockets
}

// look returns the signs of strain since the last look; the first look returns none.
func (m *strainMeter) look(a *Agent, now time.Time) (map[model.ServiceID]model.Signal, error) {
	a.mu.Lock()
	config := a.config
	refusals, err := a.refusals()
	a.mu.Unlock()
	if err != nil {
		return nil, err
	}
	datagrams := false
	for id := range refusals {
		datagrams = datagrams || id.protocol == model.UDP
	}
	var all []listener
	list := func(s sockets) error {
		note := func(l listener) { all = append(all, l) }
		if err := s.listeners(note); err != nil || !datagrams || m.noUDP {
			return err
		}
		err := s.receivers(note)
		if m.noUDP = errors.Is(err, fs.ErrNotExist); m.noUDP {
			a.noteNoDrops(err)
			return nil
		}
		return err
	}
	if err := eachNamespace(a.sockets, config.Agent.Namespaces, list); err != nil {
		return nil, err
	}
	return m.measure(config.Services, refusals, all, now), nil
}

// refusals returns how many connections to each service this host has refused. UDP counts as none:
// Linux limits its refusals there, so that their number says nothing (icmp_ratelimit: one a second
// to each client). The lock is held.
func (a *Agent) refusals() (map[identity]uint64, error) {
	counts := make(map[identity]uint64, len(a.plan.services))
	for _, s := range a.plan.services {
		if s.protocol != model.TCP {
			counts[s.identity()] = 0
			continue
		}
		c, err := readCounter(a.objects.ServiceRefusals, a.tables.indexes[s.identity()])
		if err != nil {
			return nil, fmt.Errorf("refusals of service %s: %w", s.describe(), err)
		}
		counts[s.identity()] = c.Packets
	}
	return counts, nil
}

// measure compares the present counts with the last ones.
func (m *strainMeter) measure(services []model.Service, refusals map[identity]uint64, all []listener, now time.Time) map[model.ServiceID]model.Signal {
	before, seconds := *m, now.Sub(m.last).Seconds()
	*m = strainMeter{now, make(map[[diagCookieLength]byte]uint32, len(all)), refusals, before.noUDP}
	for _, l := range all {
		m.drops[l.cookie] = l.drops
	}
	if before.last.IsZero() || seconds <= 0 {
		return nil
	}
	signs := map[model.ServiceID]model.Signal{}
	for i := range services {
		s := &services[i]
		count, known := refusals[identity{s.VIP, s.Protocol, s.Port}]
		if !known {
			continue // the service has no backend here
		}
		sign := model.Signal{ServiceID: s.ID(), Refused: perSecond(since(count, before.refusals[identity{s.VIP, s.Protocol, s.Port}]), seconds)}
		dropped := uint64(0)
		for _, l := range all {
			if l.serves(&sign.ServiceID) {
				dropped += uint64(l.drops - before.drops[l.cookie]) // modulo 2^32, as the kernel counts
			}
		}
		if sign.Overflows = perSecond(dropped, seconds); sign.Refused > 0 || sign.Overflows > 0 {
			signs[sign.ServiceID] = sign
		}
	}
	return signs
}

// since is how much a counter has counted; the counter may have begun anew.
func since(now, before uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}

// perSecond rounds to tenths: more digits say nothing more.
func perSecond(count uint64, seconds float64) float64 {
	return math.Round(10*float64(count)/seconds) / 10
}

// leastSign is the rate per second that is worth a report of its own when it begins or ends.
const leastSign = 0.5

// otherSigns reports whether signs of strain have changed: to twice as many, or half.
func otherSigns(before, now map[model.ServiceID]model.Signal) bool {
	differ := func(a, b float64) bool { return max(a, b) >= leastSign && max(a, b) > 2*min(a, b) }
	for id, s := range now {
		if b := before[id]; differ(b.Refused, s.Refused) || differ(b.Overflows, s.Overflows) {
			return true
		}
	}
	for id, s := range before {
		if _, still := now[id]; !still && max(s.Refused, s.Overflows) >= leastSign {
			return true
		}
	}
	return false
}

// addSigns adds the signs of the services that a report is about.
func addSigns(r *model.AgentReport, signs map[model.ServiceID]model.Signal) {
	for i := range r.Services {
		id := r.Services[i].ServiceID
		if i > 0 && r.Services[i-1].ServiceID == id {
			continue // the same service by another affinity
		}
		if s, has := signs[id]; has {
			r.Signals = append(r.Signals, s)
		}
	}
}
