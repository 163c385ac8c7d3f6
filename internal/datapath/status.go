package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

// Status reads counters and state from the kernel.
func (d *Datapath) Status() (model.DatapathStatus, error) {
	nat, err := d.natStatus()
	if err != nil {
		return model.DatapathStatus{}, fmt.Errorf("count full NAT's flows: %w", err)
	}
	status, desired, err := d.status()
	if err != nil {
		return model.DatapathStatus{}, err
	}
	status.NAT = nat
	d.shares.fill(desired, status.Services) // without the lock: changes do not wait for it
	return status, nil
}

// status is Status without what takes long, and the services of which it is.
func (d *Datapath) status() (status model.DatapathStatus, desired []*model.TableService, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, name := range d.kernel.reasons {
		t, err := d.kernel.counted(directorMapReasons, uint32(i))
		if err != nil {
			return status, nil, fmt.Errorf("read reasons: %w", err)
		}
		status.Reasons = append(status.Reasons, model.Counter{Name: name, Packets: t.packets, Bytes: t.bytes})
	}
	status.Limits = d.options.Limits
	status.Interfaces = d.interfaceStatus()
	status.HopsMoved = d.movements.total
	flows, counts, err := d.flowStatus()
	if err != nil {
		return status, nil, err
	}
	status.Flows = flows
	if status.QUIC, err = d.kernel.events(directorMapQuicEvents, d.kernel.quicEvents); err != nil {
		return status, nil, fmt.Errorf("read QUIC events: %w", err)
	}
	if status.Asks, err = d.kernel.events(directorMapAskEvents, d.kernel.askEvents); err != nil {
		return status, nil, fmt.Errorf("read events of asking: %w", err)
	}
	if status.Capture, err = d.captures.Status(); err != nil {
		return status, nil, err
	}
	names := map[uint32]string{}
	var sums model.SegmentSums
	for i := range d.table.Services {
		s := d.services[keyOf(&d.table.Services[i])]
		if s == nil {
			continue
		}
		service, err := d.serviceStatus(s, names)
		if err != nil {
			return status, nil, fmt.Errorf("service %s: %w", s.desired.Name, err)
		}
		service.Health, service.Tiers = d.table.Services[i].Health, d.table.Services[i].TierHealth
		service.Remembered = int(counts.of[s.index])
		service.Reset, service.ResetsShared = counts.reset[s.index], d.resets.heardOf(s.key)
		for _, imported := range service.ResetsShared {
			service.Reset += int(imported.Flows)
		}
		status.Services, desired = append(status.Services, service), append(desired, s.desired)
		ring := d.bytesInUse(s)
		status.RingMemory += ring
		sums.Add(&service)
		sums.At(service.Segment).RingMemory += ring
	}
	for segment, was := range d.passed {
		of := sums.At(model.SegmentOf(segment))
		of.Packets, of.Bytes, of.Opened, of.Dropped = of.Packets+was.packets, of.Bytes+was.bytes, of.Opened+was.opened, of.Dropped+was.dropped
	}
	status.Segments = sums.List()
	for i := range status.Segments {
		if err := d.overQuota(&status.Segments[i]); err != nil {
			return status, nil, err
		}
	}
	return status, desired, nil
}

// CountedUnder returns how many packets have been counted under each of these reasons.
func (d *Datapath) CountedUnder(reasons ...string) ([]uint64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed() {
		return nil, errors.New("the datapath is closed")
	}
	packets := make([]uint64, len(reasons))
	for i, reason := range reasons {
		number := slices.Index(d.kernel.reasons, reason)
		if number < 0 {
			return nil, fmt.Errorf("there is no reason %q", reason)
		}
		t, err := d.kernel.counted(directorMapReasons, uint32(number))
		if err != nil {
			return nil, fmt.Errorf("read reasons: %w", err)
		}
		packets[i] = t.packets
	}
	return packets, nil
}

func (d *Datapath) serviceStatus(s *service, names map[uint32]string) (model.ServiceStatus, error) {
	status := model.ServiceStatus{
		Name: s.desired.Name, Segment: s.desired.Segment, VIP: s.desired.VIP, Protocol: s.desired.Protocol,
		Port: s.desired.Port, Mode: s.desired.Mode, Policy: s.desired.Policy, Slots: len(s.desired.Ring.Slots), QUIC: quicStatus(s.desired),
		SourceRanges: s.desired.SourceRanges,
	}
	dropped, err := readTally(d.kernel.ServiceDrops, s.index)
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
	entry := d.entries.Entries[b.index]
	mode := desired.Mode
	if desired.Redirect {
		mode = model.Redirect
	}
	hop, by, kernel := d.hops.Leaves(entry.Ifindex, entry.Mac, names)
	return model.BackendStatus{
		Name: desired.Name, Address: desired.Address, Segment: desired.Segment, Host: desired.Host, Mode: mode, Tier: desired.Tier, State: model.BackendState(entry.State),
		Local:     entry.Flags&uint8(abi.BackendFlagBACKEND_LOCAL) != 0,
		Interface: by, NextHop: hop, ByKernel: kernel, MTU: entry.Mtu, Slots: b.slots, Packets: t.packets, Bytes: t.bytes, Opened: t.opened,
		ServerID: desired.ServerID, Port: desired.Port, Unreachable: d.whyUnreachable(b),
	}
}

// Service returns the service of that name as the kernel was last set to it; false: there is none.
// It must only be read.
func (d *Datapath) Service(name string) (model.TableService, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.table.Services {
		if d.table.Services[i].Name == name {
			return d.table.Services[i], true
		}
	}
	return model.TableService{}, false
}

// Counted is what has been forwarded to the backends of some services until a moment.
type Counted struct {
	at  time.Time
	all map[model.Target]tally
}

// Count reads what has been forwarded to the backends of the services that are asked for.
func (d *Datapath) Count(which func(model.ServiceID) bool) (Counted, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := Counted{at: time.Now(), all: map[model.Target]tally{}}
	for i := range d.table.Services {
		t := &d.table.Services[i]
		id := t.ID()
		s := d.services[keyOf(t)]
		if s == nil || !which(id) {
			continue
		}
		for n, b := range s.order {
			now, err := d.kernel.forwarded(b.index)
			if err != nil {
				return c, err
			}
			c.all[model.Target{Service: id, Backend: s.desired.Backends[n].Endpoint()}] = now
		}
	}
	return c, nil
}

// Since returns how much was forwarded per second since an earlier count, to the backends of each
// service that are in both counts.
func (c Counted) Since(before Counted) map[model.ServiceID]map[netip.AddrPort]model.Rate {
	seconds := c.at.Sub(before.at).Seconds()
	rates := map[model.ServiceID]map[netip.AddrPort]model.Rate{}
	for target, now := range c.all {
		old, had := before.all[target]
		if !had || now.packets < old.packets || seconds <= 0 {
			continue // the backend came meanwhile, perhaps in the place of another
		}
		of := rates[target.Service]
		if of == nil {
			of = map[netip.AddrPort]model.Rate{}
			rates[target.Service] = of
		}
		of[target.Backend] = model.Rate{Connections: float64(now.opened-min(old.opened, now.opened)) / seconds,
			Packets: float64(now.packets-old.packets) / seconds, Bytes: float64(now.bytes-min(old.bytes, now.bytes)) / seconds}
	}
	return rates
}

// Usage returns what the services that are in the kernel use.
func (d *Datapath) Usage() model.Usage {
	d.mu.Lock()
	defer d.mu.Unlock()
	var t model.Usage
	for i := range d.table.Services {
		if s := d.services[keyOf(&d.table.Services[i])]; s != nil {
			t.Services++
			t.Backends += uint64(len(s.order))
			t.RingMemory += d.bytesInUse(s)
			t.SourceRanges += uint64(len(s.desired.SourceRanges))
		}
	}
	return t
}

// UsageOf returns what a service uses.
func UsageOf(s *model.TableService) model.Usage {
	return model.Usage{Services: 1, Backends: uint64(len(s.Backends)), RingMemory: ringBytes(s), SourceRanges: uint64(len(s.SourceRanges))}
}
