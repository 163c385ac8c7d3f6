package datapath

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/model"
)

// Status reads counters and state from the kernel.
func (d *Datapath) Status() (model.DatapathStatus, error) {
	var status model.DatapathStatus
	nat, err := d.natStatus()
	if err != nil {
		return status, fmt.Errorf("count full NAT's flows: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	status.NAT = nat
	for i, name := range d.kernel.reasons {
		t, err := d.kernel.counted(directorMapReasons, uint32(i))
		if err != nil {
			return status, fmt.Errorf("read reasons: %w", err)
		}
		status.Reasons = append(status.Reasons, model.Counter{Name: name, Packets: t.packets, Bytes: t.bytes})
	}
	status.Interfaces = d.interfaceStatus()
	status.HopsMoved = d.movements.total
	flows, reset, err := d.flowStatus()
	if err != nil {
		return status, err
	}
	status.Flows = flows
	if status.QUIC, err = d.kernel.events(directorMapQuicEvents, d.kernel.quicEvents); err != nil {
		return status, fmt.Errorf("read QUIC events: %w", err)
	}
	if status.Asks, err = d.kernel.events(directorMapAskEvents, d.kernel.askEvents); err != nil {
		return status, fmt.Errorf("read events of asking: %w", err)
	}
	if status.Capture, err = d.captureStatus(); err != nil {
		return status, err
	}
	names := map[uint32]string{}
	for i := range d.table.Services {
		s := d.services[keyOf(&d.table.Services[i])]
		if s == nil {
			continue
		}
		service, err := d.serviceStatus(s, names)
		if err != nil {
			return status, fmt.Errorf("service %s: %w", s.desired.Name, err)
		}
		service.Reset, service.ResetTold = reset[s.index], d.resets.heardOf(s.key)
		for _, told := range service.ResetTold {
			service.Reset += int(told.Flows)
		}
		status.Services = append(status.Services, service)
		status.RingMemory += uint64(s.ring.lines) * lineSize
	}
	return status, nil
}

func (d *Datapath) serviceStatus(s *service, names map[uint32]string) (model.ServiceStatus, error) {
	status := model.ServiceStatus{
		Name: s.desired.Name, Segment: s.desired.Segment, VIP: s.desired.VIP, Protocol: s.desired.Protocol,
		Port: s.desired.Port, Mode: s.desired.Mode, Policy: s.desired.Policy, Slots: len(s.desired.Ring.Slots), QUIC: quicStatus(s.desired),
		SourceRanges: s.desired.SourceRanges,
	}
	dropped, err := d.kernel.counter(d.kernel.ServiceDrops, s.index)
	if err != nil {
		return status, err
	}
	status.Dropped = dropped.packets
	total := s.retired
	for i, b := range s.order {
		t, err := d.kernel.forwarded(b.index)
		if err != nil {
			return status, err
		}
		total = total.plus(t)
		status.Backends = append(status.Backends, d.backendStatus(b, s.desired.Backends[i], t, names))
	}
	status.Packets, status.Bytes, status.Opened = total.packets, total.bytes, total.opened
	return status, nil
}

func (d *Datapath) backendStatus(b *backend, desired model.TableBackend, t tally, names map[uint32]string) model.BackendStatus {
	entry := d.entries.entries[b.index]
	mode := desired.Mode
	if desired.Redirect {
		mode = model.Redirect
	}
	hop, by, kernel := d.hops.onward.wayOf(&entry, names)
	return model.BackendStatus{
		Name: desired.Name, Address: desired.Address, Host: desired.Host, Mode: mode, State: model.BackendState(entry.State),
		Local:     entry.Flags&uint8(directorBackendFlagBACKEND_LOCAL) != 0,
		Interface: by, NextHop: hop, ByKernel: kernel, MTU: entry.Mtu, Slots: b.slots, Packets: t.packets, Bytes: t.bytes, Opened: t.opened,
		ServerID: desired.ServerID, Port: desired.Port, Unreachable: d.whyUnreachable(b),
	}
}

// interfaceName asks the kernel once for each interface.
func interfaceName(index uint32, names map[uint32]string) string {
	if index == 0 {
		return ""
	}
	name, known := names[index]
	if !known {
		if link, err := netlink.LinkByIndex(int(index)); err == nil {
			name = link.Attrs().Name
		}
		names[index] = name
	}
	return name
}

// counter sums one element of a per-CPU counter map.
func (k *kernel) counter(m *ebpf.Map, index uint32) (tally, error) {
	return readTally(m, index)
}

// forwarded is what has been forwarded to a backend, by its index.
func (k *kernel) forwarded(index uint32) (tally, error) {
	t, err := k.counter(k.BackendCounters, index)
	if err != nil {
		return t, err
	}
	var perCPU []uint64
	if err := k.BackendOpened.Lookup(index, &perCPU); err != nil {
		return t, fmt.Errorf("read counter %d of connections: %w", index, err)
	}
	for _, n := range perCPU {
		t.opened += n
	}
	return t, nil
}

// events are how often each event of an enum has happened.
func (k *kernel) events(name string, names []string) (list []model.Tallied, err error) {
	for i, event := range names {
		t, err := k.counted(name, uint32(i))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", event, err)
		}
		list = append(list, model.Tallied{Name: event, Count: t.packets})
	}
	return list, nil
}

// tallies sums the elements of a per-CPU map that counts events.
func tallies(m *ebpf.Map, names []string) (list []model.Tallied, err error) {
	for i, name := range names {
		var perCPU []uint64
		if err := m.Lookup(uint32(i), &perCPU); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		t := model.Tallied{Name: name}
		for _, n := range perCPU {
			t.Count += n
		}
		list = append(list, t)
	}
	return list, nil
}

// clearCounter makes an index's counter start at zero for the next holder of the index.
func (k *kernel) clearCounter(m *ebpf.Map, index uint32) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("count CPUs: %w", err)
	}
	if err := m.Put(index, make([]directorCounter, cpus)); err != nil {
		return fmt.Errorf("clear counter %d: %w", index, err)
	}
	return nil
}

// clearForwarded does the same for the counters of a backend.
func (k *kernel) clearForwarded(index uint32) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("count CPUs: %w", err)
	}
	if err := k.BackendOpened.Put(index, make([]uint64, cpus)); err != nil {
		return fmt.Errorf("clear counter %d of connections: %w", index, err)
	}
	return k.clearCounter(k.BackendCounters, index)
}
