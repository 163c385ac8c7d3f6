package datapath

import (
	"net/netip"
	"time"

	"weir.io/weir/internal/model"
)

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
		id := model.ServiceID{Segment: t.Segment, VIP: t.VIP, Protocol: t.Protocol, Port: t.Port}
		s := d.services[keyOf(t)]
		if s == nil || !which(id) {
			continue
		}
		for n, b := range s.order {
			now, err := d.kernel.forwarded(b.index)
			if err != nil {
				return c, err
			}
			desired := &s.desired.Backends[n]
			c.all[model.Target{Service: id, Backend: netip.AddrPortFrom(desired.Address, desired.Port)}] = now
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

// Takes is what tables take of this host's memory for BPF, as limits count it.
type Takes struct{ Services, Backends, RingMemory, SourceRanges uint64 }

// Taken returns what the services that are in the kernel take.
func (d *Datapath) Taken() Takes {
	d.mu.Lock()
	defer d.mu.Unlock()
	var t Takes
	for i := range d.table.Services {
		if s := d.services[keyOf(&d.table.Services[i])]; s != nil {
			t.Services++
			t.Backends += uint64(len(s.order))
			t.RingMemory += uint64(s.ring.lines) * lineSize
			t.SourceRanges += uint64(len(s.desired.SourceRanges))
		}
	}
	return t
}

// TakesOf returns what a service takes.
func TakesOf(s *model.TableService) Takes {
	return Takes{1, uint64(len(s.Backends)), ringBytes(s), uint64(len(s.SourceRanges))}
}
