package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/model"
)

// How often connections are looked at, and how often they are reported, even if nothing about them
// has changed: directors count only on reports that are younger than their changes. etcd keeps
// every version of a report until it is compacted, so there are more reports only when signs of
// strain begin or end.
const (
	lookAtSockets = 5 * time.Second
	reportEvery   = 15 * time.Second
)

// Reporter takes reports to the directors.
type Reporter interface {
	PutReports(ctx context.Context, reports []model.AgentReport) error
}

// Report tells the directors which connections this host's backends have, until the context ends. A
// report is no longer than limit bytes. A failure is logged once, and tried again; a report that is
// not known to be true is not made.
func (a *Agent) Report(ctx context.Context, to Reporter, limit int) {
	r := reports{agent: a, to: to, limit: limit}
	tick := time.NewTicker(lookAtSockets)
	defer tick.Stop()
	for ctx.Err() == nil {
		err := r.once(ctx)
		if err != nil && !r.failed && ctx.Err() == nil {
			a.deps.Log.Warn("directors do not learn of this host's connections; their logs keep generations until max-retention", "error", err)
		}
		if err == nil && r.failed {
			a.deps.Log.Info("directors learn of this host's connections again")
		}
		a.noteReport(err)
		r.failed = err != nil
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// NotReported says why directors do not learn of this host's connections, or not of all of them;
// nil: they do, or are not to be told.
func (a *Agent) NotReported() error {
	a.reporting.Lock()
	defer a.reporting.Unlock()
	return errors.Join(a.notReported, a.noDropReports)
}

// noteReport remembers the first reason of several failures in a row, so that they are one problem.
func (a *Agent) noteReport(err error) {
	a.reporting.Lock()
	defer a.reporting.Unlock()
	if err == nil {
		a.notReported = nil
	} else if a.notReported == nil {
		a.notReported = fmt.Errorf("directors do not learn of this host's connections, their logs keep generations until max-retention: %w", err)
	}
}

// noteNoDrops remembers that this kernel cannot be asked for sockets that drop datagrams.
func (a *Agent) noteNoDrops(err error) {
	a.reporting.Lock()
	defer a.reporting.Unlock()
	a.noDropReports = fmt.Errorf("directors do not learn which servers drop datagrams: %w", err)
}

// reports is the state between two reports.
type reports struct {
	agent  *Agent
	to     Reporter
	limit  int
	failed bool
	seen   []model.AgentReport // when the sockets were last looked at
	sent   time.Time           // when there was the last report
	strain strainMeter
	signs  map[model.ServiceID]model.Signal // of the last report
}

func (r *reports) once(ctx context.Context) error {
	now, err := r.agent.connections()
	if err != nil {
		r.seen = nil
		return err
	}
	signs, err := r.strain.look(r.agent, time.Now())
	if err != nil {
		return err
	}
	// A listing may miss a socket, but two in a row will hardly miss the same one. If there is no
	// listing before this one, the next is reported.
	reports, joined := joinListings(now, r.seen)
	r.seen = now
	// A report was sent some time after a look, and looks are not quite on time.
	due := time.Since(r.sent) > reportEvery-lookAtSockets/2
	if !joined || len(reports) == 0 || !due && !otherSigns(r.signs, signs) {
		return nil
	}
	for i := range reports {
		addSigns(&reports[i], signs)
		if err := shorten(&reports[i], r.limit); err != nil {
			return err
		}
	}
	if err := r.to.PutReports(ctx, reports); err != nil {
		return fmt.Errorf("report connections: %w", err)
	}
	r.sent, r.signs = time.Now(), signs
	return nil
}

// connections looks at all connections of this host and returns a report about each
// backend on it.
func (a *Agent) connections() ([]model.AgentReport, error) {
	a.mu.Lock()
	config, own := a.config, a.seen.addresses
	a.placed.note(config.Services)
	placed := a.placed.clone()
	a.mu.Unlock()
	reports := emptyReports(config, own, placed, a.memory.flows.remembers(), time.Now().UTC())
	t := newTally(reports)
	tcp := func(local, remote netip.AddrPort) { t.note(model.TCP, local, remote) }
	return reports, errors.Join(
		eachNamespace(a.sockets, config.Agent.Namespaces, func(s sockets) error { return s.connections(tcp) }),
		a.memory.flows.alive(t.note))
}

// eachNamespace calls ask for the host's own network namespace, and each of these whose container
// runs.
func eachNamespace(own sockets, names []string, ask func(sockets) error) error {
	if err := ask(own); err != nil {
		return err
	}
	for _, name := range names {
		there, err := openSocketsIn(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // its container does not run
		}
		if err == nil {
			err = ask(there)
			there.close()
		}
		if err != nil {
			return fmt.Errorf("network namespace %s: %w", name, err)
		}
	}
	return nil
}

// emptyReports returns a report without connections about each backend on this host, for services
// with a second chance. UDP has a second chance if flows are remembered.
func emptyReports(config model.Config, own map[netip.Addr]int, placed affinities, udp bool, now time.Time) []model.AgentReport {
	var reports []model.AgentReport
	about := map[model.HostAddress]int{}
	for i := range config.Services {
		s := &config.Services[i]
		if s.Protocol != model.TCP && !udp {
			continue
		}
		for _, b := range s.Backends {
			if _, here := own[b.Address]; !here || b.Host.IsValid() || b.ModeIn(*s) != model.GUE {
				continue
			}
			of := b.AddressIn(s)
			at, known := about[of]
			if !known {
				at = len(reports)
				about[of] = at
				reports = append(reports, model.AgentReport{Backend: of.Address, Segment: of.Segment, Taken: now})
			}
			if reports[at].Of(s.ID(), s.PlacedBy()) == nil {
				reports[at].Services = append(reports[at].Services, emptyReport(s, placed)...)
			}
		}
	}
	return reports
}

// affinities are those of services beside the usual ones, the newest first: what this process has seen their
// files say. Generations of directors' logs may still have the slots of former ones.
type affinities map[model.ServiceID][]model.Affinity

// mostAffinities is how many of a service are kept beside the usual ones.
const mostAffinities = 4

// note notes what chooses the slots of services, and forgets other services.
func (a *affinities) note(services []model.Service) {
	now := affinities{}
	for i := range services {
		s := &services[i]
		seen, is := (*a)[s.ID()], s.PlacedBy()
		if !slices.Contains(model.UsualAffinities, is) && (len(seen) == 0 || seen[0] != is) {
			seen = append([]model.Affinity{is}, slices.DeleteFunc(slices.Clone(seen), func(was model.Affinity) bool { return was == is })...)
		}
		if len(seen) > 0 {
			now[s.ID()] = seen[:min(len(seen), mostAffinities)]
		}
	}
	*a = now
}

func (a affinities) clone() affinities { return maps.Clone(a) }

// emptyReport is about a service by each affinity, its own first: directors may change from one to
// another, and each generation of their logs has the slots of one.
func emptyReport(s *model.Service, placed affinities) []model.ReportedService {
	var list []model.ReportedService
	for _, affinity := range slices.Concat(model.UsualAffinities, placed[s.ID()]) {
		about := model.ReportedService{ServiceID: s.ID(), Affinity: affinity, Used: model.NewSlotSet(s.ReportRanges())}
		at := len(list)
		if affinity == s.PlacedBy() {
			at = 0
		}
		list = slices.Insert(list, at, about)
	}
	return list
}

// tally adds connections to reports.
type tally struct {
	services map[netip.Addr][]tallied // by VIP
}

type tallied struct {
	*model.ReportedService
	salt uint64
}

func newTally(reports []model.AgentReport) tally {
	t := tally{map[netip.Addr][]tallied{}}
	for i := range reports {
		for j := range reports[i].Services {
			s := &reports[i].Services[j]
			t.services[s.VIP] = append(t.services[s.VIP], tallied{s, s.Salt()})
		}
	}
	return t
}

// note adds a connection to the reports about every service that it may be of: a socket
// does not say which segment its packets come from, nor to which address of this host
// they are sent.
func (t tally) note(protocol model.Protocol, local, remote netip.AddrPort) {
	for _, s := range t.services[local.Addr()] {
		if s.Protocol != protocol || !s.Port.Contains(local.Port()) {
			continue
		}
		f := model.Flow{
			Segment: s.Segment, Protocol: uint8(s.Protocol),
			Source: remote.Addr(), SourcePort: remote.Port(),
			Destination: local.Addr(), DestinationPort: local.Port(),
		}
		s.Note(f.Hash(s.salt, s.Affinity))
	}
}

// joinListings returns reports as of now, with the connections of the listing before added. joined
// is false if something was not looked at before, or was looked at in another way.
func joinListings(now, before []model.AgentReport) (reports []model.AgentReport, joined bool) {
	for _, r := range now {
		at := slices.IndexFunc(before, func(b model.AgentReport) bool { return b.At() == r.At() })
		if at < 0 {
			return nil, false
		}
		r.Services = slices.Clone(r.Services)
		for j := range r.Services {
			s := &r.Services[j]
			was := before[at].Of(s.ServiceID, s.Affinity)
			if was == nil || was.Used.Size() != s.Used.Size() {
				return nil, false
			}
			s.Used = s.Used.Or(was.Used)
		}
		reports = append(reports, r)
	}
	return reports, true
}

// shorten makes the ranges of a report's largest services wider until it is no longer than limit
// bytes.
func shorten(r *model.AgentReport, limit int) error {
	for {
		text, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("encode a report: %w", err)
		}
		if len(text) <= limit {
			return nil
		}
		largest := -1
		for i, s := range r.Services {
			if s.Used.Size() > 1 && (largest < 0 || s.Used.Size() > r.Services[largest].Used.Size()) {
				largest = i
			}
		}
		if largest < 0 {
			return fmt.Errorf("the report about %d services of %s is longer than %d bytes", len(r.Services), r.At(), limit)
		}
		r.Services[largest].Used = r.Services[largest].Used.Halved()
	}
}
