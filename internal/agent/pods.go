package agent

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/contents"
	"weir.io/weir/internal/model"
)

// podMemory is the maps of flows between clients and pods of this host. Programs of every version
// that reads the same format share them, because their content cannot be made again: they are
// pinned in a directory named by the format.
type podMemory struct {
	opening, flows, datagrams *ebpf.Map
	dir                       string
	fresh                     bool // this process made it
}

// podDirectories begin the names of directories with such maps in the agent's state.
const podDirectories = "pods-"

// podMaps are the maps' names in the programs.
var podMaps = []string{"pod_opening", "pod_flows", "pod_datagrams"}

// openPods opens the memory that is pinned, or makes one.
func openPods(state string, spec *ebpf.CollectionSpec) (*podMemory, error) {
	hash := sha256.New()
	for _, name := range podMaps {
		m := spec.Maps[name]
		fmt.Fprintf(hash, "%s %v %d %d %d %9v %9v\n", name, m.Type, m.KeySize, m.ValueSize, m.MaxEntries, m.Key, m.Value)
	}
	p := &podMemory{dir: filepath.Join(state, fmt.Sprintf("%s%x", podDirectories, hash.Sum(nil)[:8]))}
	_, err := os.Stat(p.dir)
	p.fresh = errors.Is(err, os.ErrNotExist)
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory for flows of pods: %w", err)
	}
	for i, m := range []**ebpf.Map{&p.opening, &p.flows, &p.datagrams} {
		if *m, err = openPinned(filepath.Join(p.dir, podMaps[i]), spec.Maps[podMaps[i]]); err != nil {
			return nil, errors.Join(fmt.Errorf("open memory of pods' flows: %w", err), p.giveUp())
		}
	}
	return p, nil
}

// openPinned opens a map that is pinned, or makes and pins one.
func openPinned(path string, spec *ebpf.MapSpec) (*ebpf.Map, error) {
	m, err := ebpf.LoadPinnedMap(path, nil)
	if !errors.Is(err, os.ErrNotExist) {
		return m, err
	}
	if m, err = ebpf.NewMap(spec); err != nil {
		return nil, err
	}
	if err := m.Pin(path); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// replacements gives the programs these maps instead of some of their own.
func (p *podMemory) replacements() map[string]*ebpf.Map {
	return map[string]*ebpf.Map{podMaps[0]: p.opening, podMaps[1]: p.flows, podMaps[2]: p.datagrams}
}

func (p *podMemory) all() []*ebpf.Map { return []*ebpf.Map{p.opening, p.flows, p.datagrams} }

// close ends this process's part: the memory stays.
func (p *podMemory) close() error {
	var errs []error
	for _, m := range p.all() {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}

// giveUp removes a memory that this process made and no program uses.
func (p *podMemory) giveUp() error {
	err := p.close()
	if p.fresh {
		err = errors.Join(err, os.RemoveAll(p.dir))
		_ = os.Remove(filepath.Dir(p.dir)) // only if it is empty
	}
	return err
}

// takeOver ends the memories of other formats: their programs no longer run, and this version
// cannot read them.
func (p *podMemory) takeOver() error {
	dirs, err := filepath.Glob(filepath.Join(filepath.Dir(p.dir), podDirectories+"*"))
	for _, dir := range dirs {
		if dir != p.dir {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}
	return err
}

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
	case protocol == model.UDP:
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
		errs = append(errs, eachPodFlow(m, func(flow bpfPodFlow, way bpfPodWay) {
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
			errs = append(errs, takeFlow(m, flow, way), takeFlow(m, back, reply))
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

// takeFlow removes a flow, unless another flow has its place by now.
func takeFlow(m *ebpf.Map, flow bpfPodFlow, was bpfPodWay) error {
	var is bpfPodWay
	err := m.Lookup(flow, &is)
	if err == nil && is.Seen == was.Seen && is.Address == was.Address && is.Port == was.Port {
		err = m.Delete(flow)
	}
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("take a flow out of %s: %w", m, err)
	}
	return nil
}

// eachPodFlow reads whole buckets of the map, so that flows that come and go do not make it miss
// others.
func eachPodFlow(m *ebpf.Map, found func(bpfPodFlow, bpfPodWay)) error {
	flows, ways := make([]bpfPodFlow, flowsAtOnce), make([]bpfPodWay, flowsAtOnce)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, flows, ways, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("read flows in %s: %w", m, err)
		}
		for i := range n {
			found(flows[i], ways[i])
		}
		if err != nil {
			return nil // that was all
		}
	}
}

// agePods removes flows that have ended, and counts the others for the services' quotas. The
// agent's lock is held.
func (a *Agent) agePods() error {
	counts := map[uint32]bpfHostQuota{0: {}} // 0: all services
	for _, s := range a.plan.services {
		if len(s.pods) > 0 {
			counts[a.tables.indexes[s.identity()]] = bpfHostQuota{}
		}
	}
	count := func(index uint32) {
		if of, is := counts[index]; is {
			of.Counted++
			counts[index] = of
		}
	}
	err := a.pods.age(now(), a.plan.has, func(flow bpfPodFlow) {
		count(0)
		if s := a.plan.serviceOf(flow.end(), model.Protocol(flow.Protocol)); s != nil {
			count(a.tables.indexes[s.identity()])
		}
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
	return list, errors.Join(eachPodFlow(a.pods.flows, count), eachPodFlow(a.pods.datagrams, count))
}

// podPlace identifies a pod of a service. If several services have the same VIP and pod, one counts
// for all.
func podPlace(vip netip.Addr, protocol model.Protocol, pod netip.Addr, port uint16) bpfPodFlow {
	return bpfPodFlow{Client: address(vip), Local: address(pod), LocalPort: networkOrder(port), Protocol: uint8(protocol)}
}
