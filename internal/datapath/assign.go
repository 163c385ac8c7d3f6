package datapath

import (
	"fmt"

	"weir.io/weir/internal/model"
)

// change is what a table changes of what the kernel has.
type change struct {
	all     []*service // of the table, in its order
	changed []*service // whose entries and rings are to be written
	came    bool       // some are new
	// replied has the keys by which replies were found before, for changed services that have any.
	replied map[*service]lookups
	// whole says that the last Set has succeeded: all that has not changed since is in the kernel.
	whole bool
}

// touched are the services from which something may have to be taken out.
func (c *change) touched() []*service {
	if c.whole {
		return c.changed
	}
	return c.all
}

// assignIndexes gives every service and backend its index: the one that it has, the one that an earlier
// process gave it, or a free one.
func (d *Datapath) assignIndexes(t *model.Table) (change, error) {
	c := change{all: make([]*service, 0, len(t.Services)), replied: map[*service]lookups{}, whole: d.whole}
	d.whole = false // until this one has succeeded
	known := len(d.services)
	for i := range t.Services {
		var before *service
		if i < len(d.ordered) {
			before = d.ordered[i]
		}
		s, err := d.assignService(&c, &t.Services[i], before)
		if err != nil {
			return c, fmt.Errorf("service %s: %w", t.Services[i].Name, err)
		}
		c.all = append(c.all, s)
		if s.changed {
			c.changed = append(c.changed, s)
		}
	}
	c.came = len(d.services) > known
	d.ordered = c.all
	return c, nil
}

// assignService is quick if the service is at the same place of the table as before.
func (d *Datapath) assignService(c *change, desired *model.TableService, before *service) (*service, error) {
	key := keyOf(desired)
	s := before
	if s == nil || s.key != key {
		s = d.services[key]
	}
	if s == nil {
		index, found := d.old.services[key]
		if !found {
			var err error
			if index, err = d.serviceIndexes.allocate(); err != nil {
				return nil, err
			}
			d.kernel.records.addService(index, key)
			d.guesses.forget(index)
			if err := writeTally(d.kernel.ServiceDrops, index, tally{}); err != nil {
				return nil, err
			}
		}
		s = &service{key: key, index: index, desired: desired, backends: map[backendKey]*backend{}}
		if found {
			s.ring = d.rings.of(index)
			s.remembered = d.kernel.kept[directorMapFlowTable] || d.kernel.formerTable.in || d.kernel.resized.kernel != nil
			s.retired = d.kernel.records.retired(index)
		}
		d.services[key] = s
	}
	if s.assigned && sameService(s.desired, desired) {
		s.desired = desired
		return s, nil
	}
	order := make([]*backend, 0, len(desired.Backends))
	for _, b := range desired.Backends {
		assigned, err := d.assignBackend(s, desired, b)
		if err != nil {
			return nil, fmt.Errorf("backend %s: %w", b.Name, err)
		}
		order = append(order, assigned)
	}
	// Not before every backend has its index: until then the service stays as it was.
	if l := repliesOf(s); l.haveReplies() {
		c.replied[s] = l
	}
	s.desired, s.order, s.assigned, s.changed = desired, order, true, true
	s.distinct, s.tunnels = 0, tunnelsTo(desired.Backends)
	for i, b := range s.order {
		b.desired = desired.Backends[i]
	}
	for _, b := range s.order {
		if b.slots >= 0 {
			s.distinct++
		}
		b.slots = -1
	}
	for _, b := range s.order {
		b.slots = 0
	}
	for _, slot := range desired.Ring.Slots {
		if int(slot.Owner) < len(s.order) {
			s.order[slot.Owner].slots++
		}
	}
	return s, nil
}

func (d *Datapath) assignBackend(s *service, of *model.TableService, desired model.TableBackend) (*backend, error) {
	key := backendKey{desired.Address, desired.Port, desired.SNAT}
	b := s.backends[key]
	if b == nil {
		index, found := d.old.backends[s.index][key]
		if !found {
			var err error
			if index, err = d.backendIndexes.allocate(); err != nil {
				return nil, err
			}
			if d.entries.used(index) {
				if err := d.kernel.clearForwarded(index); err != nil {
					return nil, err
				}
			}
		}
		entry := entryOf(of, s.index, desired, d.hops.Resolve(desired, d.own))
		switch {
		case !found:
			d.kernel.records.addBackend(index, s.index, key, desired.Mode, d.entries.nextEpoch(index))
			d.entries.create(index, entry)
		case !d.entries.holds(index, entry):
			d.entries.restore(index, entry) // in maps that were made anew
		}
		b = &backend{index: index, desired: desired}
		s.backends[key] = b
	}
	d.kernel.records.note(b.index, &desired)
	return b, nil
}
