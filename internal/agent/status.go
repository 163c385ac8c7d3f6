package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/crowd"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/upkeep"
)

// Status reads what the agent did from the kernel.
func (a *Agent) Status() (model.AgentStatus, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var status model.AgentStatus
	for _, at := range a.attachments {
		status.Interfaces = append(status.Interfaces, model.AgentInterface{
			Name: at.name, Index: at.index, MTU: at.mtu,
			Ingress: at.ingress, Egress: at.egress, Redirect: at.redirect, NoXDP: at.noXDP,
		})
	}
	status.Upkeep = a.reconciler.Status()
	var err error
	if status.VIPs, err = heldVIPs(); err != nil {
		return status, err
	}
	if status.Reasons, err = a.reasons(); err != nil {
		return status, err
	}
	if status.Services, err = a.services(); err != nil {
		return status, err
	}
	if status.Pods, err = a.podStatus(); err != nil {
		return status, err
	}
	if a.redirector != nil {
		status.Redirects, err = a.redirector.status()
	}
	return status, err
}

// Lowered are the interfaces at which tunnels come in and whose MTU has become smaller since this
// process looked for the first time.
func (a *Agent) Lowered() []model.LoweredMTU {
	a.mu.Lock()
	defer a.mu.Unlock()
	var now []upkeep.MTU
	for _, u := range entrances(a.seen.uplinks) {
		now = append(now, upkeep.MTU{Name: u.name, Index: u.index, MTU: u.mtu})
	}
	return a.mtus.Lowered(now, isGone)
}

func (a *Agent) services() ([]model.AgentService, error) {
	var services []model.AgentService
	for _, s := range a.plan.services {
		if s.protocol == 0 {
			continue
		}
		c, err := readCounter(a.objects.ServicePackets, a.tables.indexes[s.identity()])
		noPlace, errNoPlace := readCounter(a.objects.ServiceNoPlace, a.tables.indexes[s.identity()])
		if err := errors.Join(err, errNoPlace); err != nil {
			return nil, fmt.Errorf("counters of service %s: %w", s.describe(), err)
		}
		services = append(services, model.AgentService{
			Name: s.name, VIP: s.vip, Protocol: s.protocol, Port: s.port, MSS: s.mss,
			Packets: c.Packets, Bytes: c.Bytes, NoPlace: noPlace.Packets,
		})
	}
	return services, nil
}

// readCounter adds up the counts of all CPUs.
func readCounter(m *ebpf.Map, index uint32) (bpfCounter, error) {
	var perCPU []bpfCounter
	if err := m.Lookup(index, &perCPU); err != nil {
		return bpfCounter{}, err
	}
	var sum bpfCounter
	for _, c := range perCPU {
		sum.Packets += c.Packets
		sum.Bytes += c.Bytes
	}
	return sum, nil
}

func (a *Agent) reasons() ([]model.Counter, error) {
	names, err := reasonNames()
	if err != nil {
		return nil, err
	}
	counters := make([]model.Counter, 0, len(names))
	for i, name := range names {
		c, err := a.memory.reasonCounts.counted(uint32(i))
		if err != nil {
			return nil, fmt.Errorf("counter of reason %s: %w", name, err)
		}
		counters = append(counters, model.Counter{Name: name, Packets: c.Packets, Bytes: c.Bytes})
	}
	return counters, nil
}

// reasonNames returns the label of each reason: its name in enum host_reason, in lower case,
// without the prefix that all names have.
func reasonNames() ([]string, error) {
	spec, err := loadBpf()
	if err != nil {
		return nil, fmt.Errorf("read programs: %w", err)
	}
	return bpfload.EnumNames(spec.Types, "host_reason", "HOST_")
}

// serviceInTable is a service whose flows are kept in a table.
type serviceInTable struct{ service, table string }

// Crowded returns the services whose flows have just found no place, within their quota, in a table
// of the host.
func (a *Agent) Crowded() ([]model.CrowdedService, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if a.crowds.Due(now) && !a.closed {
		totals, err := a.refusedFlows()
		if err != nil {
			return nil, err
		}
		a.crowds.Take(totals, now)
	}
	return crowdedIn(&a.crowds, now), nil
}

func crowdedIn(w *crowd.Watch[serviceInTable], now time.Time) (found []model.CrowdedService) {
	for of, grew := range w.Lasting(now) {
		found = append(found, model.CrowdedService{Service: of.service, Table: of.table, Flows: uint32(grew)})
	}
	return crowd.Most(found)
}

// refusedFlows counts all packets so far of each service whose flow found no place. The lock is
// held.
func (a *Agent) refusedFlows() (map[serviceInTable]uint64, error) {
	totals := map[serviceInTable]uint64{}
	for _, s := range a.plan.services {
		if !s.protocol.Datagrams() && len(s.pods) == 0 {
			continue
		}
		c, err := readCounter(a.objects.ServiceNoPlace, a.tables.indexes[s.identity()])
		if err != nil {
			return nil, err
		}
		totals[serviceInTable{s.name, s.table()}] += c.Packets
	}
	if a.redirector == nil {
		return totals, nil
	}
	return totals, a.redirector.refused(totals)
}

// table is the table in which flows of a service are kept on this host.
func (s *service) table() string {
	if len(s.pods) > 0 {
		return model.PodsTable
	}
	return model.UDPFlowsTable
}

// refused adds the number of connections of each service for which there was no place.
func (r *redirector) refused(totals map[serviceInTable]uint64) error {
	for _, s := range r.list {
		for _, event := range []redirectRedirectEvent{redirectRedirectEventREDIRECT_QUOTA, redirectRedirectEventREDIRECT_FULL} {
			n, err := r.counted(r.indexes[s.vip], event)
			if err != nil {
				return err
			}
			totals[serviceInTable{s.name, model.RedirectTable}] += n
		}
	}
	return nil
}

// Idle is why an agent does nothing for the services that it is given, or for some of them.
type Idle struct {
	// NoBackend says that no address of this host is a backend's. It is not said if services have
	// pods: hosts of pods have no backend whenever they have no pod.
	NoBackend bool
	// NoDirector are addresses of backends here to which no host may send through tunnels:
	// directors has no address of their family.
	NoDirector []netip.Addr
}

// Idle says whether what the file asks for needs this host at all.
func (a *Agent) Idle() Idle {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.idle
}

// noteIdle notes why the agent has nothing to do, if that is so.
func (a *Agent) noteIdle(p plan, h host) {
	a.idle = Idle{}
	if len(p.services) > 0 {
		a.idle.NoDirector = model.WithoutDirector(p.ends, a.config.Directors)
		return
	}
	if len(p.redirects) > 0 {
		return
	}
	var nat []string // services with a backend on this host that needs no agent
	pods := false
	for _, s := range a.config.Services {
		if slices.ContainsFunc(s.Backends, func(b model.Backend) bool { return !unwrapped(b.ModeIn(s)) && h.has(hostOf(&b)) }) {
			nat = append(nat, s.Name)
		}
		pods = pods || slices.ContainsFunc(s.Backends, func(b model.Backend) bool { return b.Host.IsValid() })
	}
	if len(nat) > 0 {
		a.deps.Log.Info("the backends of this host are all of mode nat, which needs no agent: there is nothing to unwrap", "services", nat)
		return
	}
	a.idle.NoBackend = !pods
}
