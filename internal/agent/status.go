package agent

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"weir.io/weir/internal/model"
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

func (a *Agent) services() ([]model.AgentService, error) {
	var services []model.AgentService
	for _, s := range a.plan.services {
		if s.protocol == 0 {
			continue
		}
		c, err := readCounter(a.objects.ServicePackets, a.indexes[s.identity()])
		if err != nil {
			return nil, fmt.Errorf("counters of service %s: %w", s.describe(), err)
		}
		services = append(services, model.AgentService{
			Name: s.name, VIP: s.vip, Protocol: s.protocol, Port: s.port, MSS: s.mss,
			Packets: c.Packets, Bytes: c.Bytes,
		})
	}
	return services, nil
}

func (a *Agent) reasons() ([]model.Counter, error) {
	names, err := reasonNames()
	if err != nil {
		return nil, err
	}
	counters := make([]model.Counter, 0, len(names))
	for i, name := range names {
		c, err := readCounter(a.objects.Reasons, uint32(i))
		if err != nil {
			return nil, fmt.Errorf("counter of reason %s: %w", name, err)
		}
		counters = append(counters, model.Counter{Name: name, Packets: c.Packets, Bytes: c.Bytes})
	}
	return counters, nil
}

// reasonNames returns the label of each reason: its name in enum host_reason
// without what is the same for all, in lower case.
func reasonNames() ([]string, error) {
	spec, err := loadBpf()
	if err != nil {
		return nil, fmt.Errorf("read programs: %w", err)
	}
	return enumNames(spec, "host_reason", "HOST_", uint64(bpfHostReasonHOST_REASON_COUNT))
}

// enumNames returns the names of an enum by their numbers, but for the one that counts them.
func enumNames(spec *ebpf.CollectionSpec, name, prefix string, count uint64) ([]string, error) {
	var enum *btf.Enum
	if err := spec.Types.TypeByName(name, &enum); err != nil {
		return nil, fmt.Errorf("find enum %s: %w", name, err)
	}
	names := make([]string, count)
	for _, v := range enum.Values {
		if v.Value != count {
			names[v.Value] = strings.ToLower(strings.TrimPrefix(v.Name, prefix))
		}
	}
	return names, nil
}

// readCounter adds up what all CPUs counted.
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
