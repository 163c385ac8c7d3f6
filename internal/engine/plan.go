// Package engine turns desired state into what the sinks must do. It is one loop around one pure
// function: [Plan] works out the datapath's whole table from desired state and health, without a
// clock and without I/O; [Engine] hands it to the sinks until they have taken it.
package engine

import (
	"cmp"
	"slices"
	"time"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
)

// Logs are the logs of services. A service without one has a log of what it is now.
type Logs map[model.ServiceID]model.Log

// Report is what a plan says besides its table.
type Report struct {
	Services []ServiceReport
}

// ServiceReport is about one service, in the order of the table's.
type ServiceReport struct {
	Name        string
	ID          model.ServiceID
	Members     int // backends that own slots of the newest generation, if they exist
	Generations int
	Oldest      time.Time // when the oldest generation became the newest
	// Waits says that the service asks for another membership or ring size than the newest
	// generation has: the log has no room for it yet.
	Waits bool
	// Coming is how many of the newest generations place no connections yet.
	Coming int
	Slots  int
	// Shared is how many slots may have connections on several backends.
	Shared int
	// Held is how many slots stay with an older generation's owner because their rows are full of
	// living candidates.
	Held int
	// Kept is how many slots of older generations stay in the log because agents report connections
	// in them, or have not reported that there are none.
	Kept int
	// HeldAt has the numbers of the generations whose rows such slots have.
	HeldAt []uint64
	// Starting is how many backends do not have their whole share yet.
	Starting int
	// Health says how many backends are healthy; nil: they are not checked.
	Health *model.ServiceHealth
	// Tier is the tier that gets new connections, and Tiers says why; nil: there is one tier.
	Tier  uint8
	Tiers *model.ServiceTiers
	// Up says that routers should send the VIP's packets here.
	Up bool
}

func newServiceReport(s *model.Service, log model.Log) ServiceReport {
	n := len(log.Generations)
	return ServiceReport{
		Name: s.Name, ID: s.ID(), Members: len(log.Generations[0].Members),
		Generations: n, Oldest: log.Generations[n-1].Since, Waits: !history.Current(log, s),
		Coming: log.Coming, Kept: history.Kept(log), Starting: len(log.Steps),
	}
}

func (r *ServiceReport) noteRows(rows *rows) {
	r.Slots, r.Shared, r.Held, r.HeldAt = len(rows.ring.Slots), rows.shared, rows.held, rows.heldAt
}

// LogStatus returns what the report says about the services' logs.
func (r Report) LogStatus() map[model.ServiceID]model.LogStatus {
	all := make(map[model.ServiceID]model.LogStatus, len(r.Services))
	for _, s := range r.Services {
		all[s.ID] = model.LogStatus{Generations: s.Generations, Oldest: s.Oldest, Waits: s.Waits, Coming: s.Coming, Shared: s.Shared, Held: s.Held, Kept: s.Kept, Starting: s.Starting}
	}
	return all
}

// Plan returns what the datapath must do. It is a pure function: equal arguments
// give equal results on every director. The configuration is a valid one.
//
// Health changes the states of backends, and never a ring: a backend that is down keeps its slots,
// and the datapath goes on to their next candidates.
func Plan(desired model.Config, logs Logs, health Health) (model.Table, Report) {
	return NewPlanner().Plan(desired, logs, health)
}

// tableService returns a service without its ring. A new policy may still wait for a generation
// with the rows that it needs: until then it is maglev. If no backend has changed, they are the
// same memory as before.
func tableService(s *model.Service, log model.Log, health *serviceHealth, was *model.TableService, links map[model.Segment]string) model.TableService {
	before := was.Backends
	t := model.TableService{
		Name:          s.Name,
		Segment:       s.Segment,
		VIP:           s.VIP,
		Protocol:      s.Protocol,
		Port:          s.Port,
		Mode:          s.Mode,
		Policy:        model.Maglev,
		QUIC:          s.QUIC,
		SourceRanges:  s.SourceRanges,
		KernelSources: s.KernelSources,
		Reported:      history.Kept(log) > 0,
		Backends:      before,
		Health:        health.report(),
		TierHealth:    health.tiers(),
	}
	if id := s.ID(); was.Salt != 0 && id == was.ID() {
		t.Salt = was.Salt
	} else {
		t.Salt = id.Salt()
	}
	if s.Policy == log.Generations[0].Policy {
		t.Policy = s.Policy
	}
	same := len(before) == len(s.Backends)
	if !same {
		t.Backends = make([]model.TableBackend, len(s.Backends))
	}
	for i := range s.Backends {
		b := tableBackend(s, &s.Backends[i], health)
		b.Interface = cmp.Or(b.Interface, links[b.Segment])
		if t.Policy.ByLoad() && s.Backends[i].State != model.Draining {
			b.Weight = loadWeight(&log, &s.Backends[i])
		}
		if same && b != before[i] {
			same, t.Backends = false, slices.Clone(before) // tables are read only
		}
		if !same {
			t.Backends[i] = b
		}
	}
	return t
}

func tableBackend(s *model.Service, b *model.Backend, health *serviceHealth) model.TableBackend {
	mode := b.ModeIn(*s)
	return model.TableBackend{
		Name:      b.Name,
		Address:   b.Address,
		Host:      b.Host,
		Port:      b.Port,
		Mode:      mode,
		Redirect:  health.redirects(b),
		SNAT:      s.SNAT && mode == model.NAT,
		Asks:      b.AsksIn(s),
		State:     health.state(b),
		Unwell:    health.isUnwell(b),
		MAC:       b.MAC,
		VLAN:      b.Tag(),
		Interface: b.Interface,
		Segment:   b.TenantIn(s),
		Left:      b.Leaves(s),
		Place:     b.Place(),
		MTU:       b.MTU,
		Tier:      b.Tier,
		ServerID:  b.ServerID,
	}
}

// loadWeight is what a backend's load is divided by: a backend that starts slowly or is strained
// has a part of its weight, like its share of the slots.
func loadWeight(log *model.Log, b *model.Backend) uint16 {
	share := log.Share(b.Endpoint())
	if share == model.WholeShare {
		return b.Weight
	}
	return uint16(max(1, uint32(b.Weight)*share/model.WholeShare))
}
