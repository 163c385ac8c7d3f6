package agent

import (
	"fmt"

	"github.com/cilium/ebpf"

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
	status.Upkeep = a.keeper.Status()
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
		if err != nil {
			return nil, fmt.Errorf("counters of service %s: %w", s.describe(), err)
		}
		noPlace, err := readCounter(a.objects.ServiceNoPlace, a.tables.indexes[s.identity()])
		if err != nil {
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
