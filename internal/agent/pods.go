package agent

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/contents"
	"weir.io/weir/internal/model"
)

// podMemory is the maps of flows between clients and pods of this host, in a directory that is named
// by their format.
type podMemory struct {
	dir                       string
	opening, flows, datagrams *ebpf.Map
}

// podDirectories begin the names of directories with such maps in the agent's state.
const podDirectories = "pods-"

// podMaps are the maps' names in the programs.
var podMaps = []string{"pod_opening", "pod_flows", "pod_datagrams"}

// podFormat names what programs of two versions must agree about.
func podFormat(spec *ebpf.CollectionSpec) string {
	hash := sha256.New()
	for _, name := range podMaps {
		s := spec.Maps[name]
		fmt.Fprintf(hash, "%s %v %d %d %d %9v %9v\n", name, s.Type, s.KeySize, s.ValueSize, s.MaxEntries, s.Key, s.Value)
	}
	return fmt.Sprintf("%x", hash.Sum(nil)[:8])
}

func (m *memory) openPods(spec *ebpf.CollectionSpec) error {
	p := &m.pods
	p.dir = filepath.Join(m.dir, podDirectories+podFormat(spec))
	for i, to := range []**ebpf.Map{&p.opening, &p.flows, &p.datagrams} {
		opened, err := m.open(podMaps[i], filepath.Join(p.dir, podMaps[i]), spec.Maps[podMaps[i]])
		if err != nil {
			return err
		}
		*to = opened.Map
	}
	return nil
}

func (p *podMemory) all() []*ebpf.Map { return []*ebpf.Map{p.opening, p.flows, p.datagrams} }

// How long a flow is remembered after its last packet: a TCP flow as long as a redirected
// connection (see timeoutOf), one that is being opened as long as its SYN may be sent again, and a
// UDP flow as long as in the programs (POD_DATAGRAM_TIMEOUT).
const (
	podOpeningTimeout  = time.Minute
	podDatagramTimeout = time.Duration(flowTimeout)
)

func (p *podMemory) timeoutOf(m *ebpf.Map, protocol model.Protocol, signs uint8) time.Duration {
	const client, pod, reset = uint8(bpfPodSignPOD_FIN_CLIENT), uint8(bpfPodSignPOD_FIN_POD), uint8(bpfPodSignPOD_RESET)
	switch {
	case m == p.opening:
		return podOpeningTimeout
	case protocol.Datagrams():
		return podDatagramTimeout
	case signs&reset != 0:
		return resetTimeout
	case signs&client != 0 && signs&pod != 0:
		return closedTimeout
	case signs&(client|pod) != 0:
		return halfTimeout
	}
	return openTimeout
}

// age removes flows that have been silent for too long, and those of pods that this host no longer
// has: the next pod with the address must not get their packets. It calls stays once for each flow
// that stays.
func (p *podMemory) age(now time.Duration, has func(vip netip.AddrPort, protocol model.Protocol, pod netip.AddrPort) bool, stays func(bpfPodFlow)) error {
	var errs []error
	for _, m := range p.all() {
		errs = append(errs, eachEntry(m, func(flow bpfPodFlow, way bpfPodWay) {
			back := flow.turned(way)
			var reply bpfPodWay
			err := m.Lookup(back, &reply)
			if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				errs = append(errs, fmt.Errorf("look for the other way of a flow in %s: %w", m, err))
				return
			}
			idle := now - time.Duration(max(way.Seen, reply.Seen))*time.Second
			if way.Kind == uint8(bpfPodWayKindPOD_LEAVING) {
				// The other way was pushed out, or is looked at by itself.
				if err == nil || idle < podOpeningTimeout {
					return
				}
			} else if idle < p.timeoutOf(m, model.Protocol(flow.Protocol), way.Signs) && has(flow.end(), model.Protocol(flow.Protocol), way.end()) {
				if m == p.flows {
					stays(flow)
				}
				return
			}
			errs = append(errs, removeFlow(m, flow, way.same), removeFlow(m, back, reply.same))
		}))
	}
	return errors.Join(errs...)
}

// turned is the flow as the other end sees it.
func (f bpfPodFlow) turned(way bpfPodWay) bpfPodFlow {
	f.Local, f.LocalPort = way.Address, way.Port
	return f
}

// end is the VIP of a flow that arrives, the pod of one that leaves.
func (f bpfPodFlow) end() netip.AddrPort { return flowEnd(f.Local, f.LocalPort) }

func (w bpfPodWay) end() netip.AddrPort { return flowEnd(w.Address, w.Port) }

// same reports whether an entry is still of the same flow, which has had no packet since.
func (w bpfPodWay) same(is bpfPodWay) bool {
	return is.Seen == w.Seen && is.Address == w.Address && is.Port == w.Port
}

// agePods removes flows that have ended, and counts the others for the services' quotas. The
// agent's lock is held.
func (a *Agent) agePods() error {
	counts := a.newQuotas(func(s *service) bool { return len(s.pods) > 0 })
	err := a.memory.pods.age(now(), a.plan.has, func(flow bpfPodFlow) {
		counts.add(a.indexOf(flow.end(), model.Protocol(flow.Protocol)), 1)
	})
	return errors.Join(err, contents.Put(a.objects.PodQuotas, counts))
}

// podStatus is the number of flows of each pod on this host.
func (a *Agent) podStatus() ([]model.AgentPod, error) {
	var list []model.AgentPod
	place := map[bpfPodFlow]int{} // by VIP and pod: see below
	for _, s := range a.plan.services {
		if s.protocol == 0 {
			continue
		}
		for _, p := range s.pods {
			place[podPlace(s.vip, s.protocol, p.address, p.port)] = len(list)
			list = append(list, model.AgentPod{Service: s.name, Address: p.address, Port: p.port})
		}
	}
	if len(list) == 0 {
		return nil, nil
	}
	count := func(flow bpfPodFlow, way bpfPodWay) {
		if way.Kind == uint8(bpfPodWayKindPOD_LEAVING) {
			return
		}
		vip, at := flow.end(), way.end()
		for _, port := range []uint16{at.Port(), 0} {
			if i, known := place[podPlace(vip.Addr(), model.Protocol(flow.Protocol), at.Addr(), port)]; known {
				list[i].Flows++
				return
			}
		}
	}
	return list, errors.Join(eachEntry(a.memory.pods.flows, count), eachEntry(a.memory.pods.datagrams, count))
}

// podPlace identifies a pod of a service. If several services have the same VIP and pod, one counts
// for all.
func podPlace(vip netip.Addr, protocol model.Protocol, pod netip.Addr, port uint16) bpfPodFlow {
	return bpfPodFlow{Client: address(vip), Local: address(pod), LocalPort: networkOrder(port), Protocol: uint8(protocol)}
}
