package datapath

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"

	"weir.io/weir/internal/model"
)

// Set makes the kernel forward what the table says. New state is built aside and
// switched in: new backends, then rings, then services; what is gone is taken out
// in the opposite order. After an error the kernel has some of both, each service
// consistent in itself; the next Set goes on from there. The table's slices must
// not be written to afterwards.
func (d *Datapath) Set(t model.Table) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.checkLimits(&t); err != nil {
		return err
	}
	links, err := d.findInterfaces(t.Interfaces)
	if err != nil {
		return err
	}
	d.table, d.names = t, flowNames{}
	want, err := d.place(&d.table)
	if err != nil {
		return err
	}
	d.begun = true
	for _, s := range want {
		if s.changed {
			d.writeBackends(s)
		}
	}
	d.awaitSuspects()
	if err := d.switchSNAT(&d.table); err != nil {
		return err
	}
	if err := d.configure(want, d.have.flags(), false); err != nil {
		return err
	}
	if err := d.switchRings(want); err != nil {
		return err
	}
	lookups := lookupsOf(want)
	d.awaitGroup()
	if err := d.configure(want, lookups.flags()|d.have.flags(), false); err != nil {
		return err
	}
	if err := lookups.write(d.kernel, d.have); err != nil {
		return err
	}
	d.fronts.add(lookups.services)
	if err := d.switchPrograms(t.Interfaces, links, lookups.haveReplies()); err != nil {
		return err
	}
	if err := d.kernel.tidy(); err != nil {
		return err
	}
	if err := d.retire(want, lookups); err != nil {
		return err
	}
	return d.rememberWaiting()
}

// checkLimits refuses what the maps have no room for, by the name of the limit.
func (d *Datapath) checkLimits(t *model.Table) error {
	limits := d.options.Limits
	backends, memory := 0, uint64(0)
	for i := range t.Services {
		backends += len(t.Services[i].Backends)
		memory += ringBytes(&t.Services[i])
	}
	switch {
	case len(t.Services) > int(limits.Services):
		return fmt.Errorf("%d services are more than director.limits.services (%d)", len(t.Services), limits.Services)
	case backends > int(limits.Backends):
		return fmt.Errorf("%d backends of all services are more than director.limits.backends (%d)", backends, limits.Backends)
	case memory > limits.RingMemory:
		return ringMemoryError(fmt.Sprintf("rings of %d bytes are more than director.limits.ring-memory (%d)", memory, limits.RingMemory))
	}
	return nil
}

// place gives every service and backend its index: the one it has, the one that
// an earlier process gave it, or a free one.
func (d *Datapath) place(t *model.Table) ([]*service, error) {
	want := make([]*service, 0, len(t.Services))
	for i := range t.Services {
		s, err := d.placeService(&t.Services[i])
		if err != nil {
			return nil, fmt.Errorf("service %s: %w", t.Services[i].Name, err)
		}
		want = append(want, s)
	}
	return want, nil
}

func (d *Datapath) placeService(desired *model.TableService) (*service, error) {
	key := keyOf(desired)
	s := d.services[key]
	if s == nil {
		index, found := d.old.services[key]
		if !found {
			var err error
			if index, err = d.serviceIndexes.take(); err != nil {
				return nil, err
			}
			d.kernel.book.addService(index, key)
			d.guesses.forget(index)
			if err := d.kernel.clearCounter(d.kernel.ServiceDrops, index); err != nil {
				return nil, err
			}
		}
		s = &service{key: key, index: index, desired: desired, backends: map[backendKey]*backend{}}
		if found {
			s.ring = d.rings.of(index)
			s.remembered = d.kernel.kept[directorMapFlows]
		}
		d.services[key] = s
	}
	if s.placed && sameService(s.desired, desired) {
		s.desired = desired
		return s, nil
	}
	order := make([]*backend, 0, len(desired.Backends))
	for _, b := range desired.Backends {
		placed, err := d.placeBackend(s, desired, b)
		if err != nil {
			return nil, fmt.Errorf("backend %s: %w", b.Name, err)
		}
		order = append(order, placed)
	}
	// Not before every backend has its index: until then the service is as it was.
	s.desired, s.order, s.placed, s.changed = desired, order, true, true
	s.distinct = 0
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

func (d *Datapath) placeBackend(s *service, of *model.TableService, desired model.TableBackend) (*backend, error) {
	key := backendKey{desired.Address, desired.Port, desired.SNAT}
	b := s.backends[key]
	if b == nil {
		index, found := d.old.backends[s.index][key]
		if !found {
			var err error
			if index, err = d.backendIndexes.take(); err != nil {
				return nil, err
			}
			if d.entries.used(index) {
				if err := d.kernel.clearCounter(d.kernel.BackendCounters, index); err != nil {
					return nil, err
				}
			}
		}
		entry := entryOf(of, s.index, desired, d.hops.resolve(desired, d.table.Interfaces))
		switch {
		case !found:
			d.kernel.book.addBackend(index, s.index, key, desired.Mode, d.entries.nextEpoch(index))
			d.entries.create(index, entry)
		case !d.entries.holds(index, entry):
			d.entries.restore(index, entry) // in maps that were made anew
		}
		b = &backend{index: index, desired: desired}
		s.backends[key] = b
	}
	d.kernel.book.setMode(b.index, desired.Mode)
	return b, nil
}

// writeBackends brings the service's entries up to date: state and next hop.
func (d *Datapath) writeBackends(s *service) {
	entries := make([]directorBackend, len(s.order))
	var turning []uint32
	for i, b := range s.order {
		hop := d.hops.resolve(b.desired, d.table.Interfaces)
		b.vlan = hop.vlan
		entries[i] = d.suspect(b, entryOf(s.desired, s.index, b.desired, hop))
		if aliveIn(entries[i].State) != d.entries.alive(b.index) {
			turning = append(turning, b.index)
		}
	}
	if d.asksForLoads(s) {
		d.weighLoads(s, entries)
	}
	d.turn(s, turning)
	for i, b := range s.order {
		d.entries.update(b.index, entries[i])
	}
}

// hopsChanged runs when the kernel's routes, links or neighbours have changed.
func (d *Datapath) hopsChanged() {
	d.mu.Lock()
	defer d.mu.Unlock()
	// Before the first Set nothing may change: what an earlier process has set
	// goes on, of which this one does not know the table.
	if d.entries.memory == nil || !d.begun {
		return
	}
	services := slices.Collect(maps.Values(d.services))
	// Before the backends: a packet that follows the new way must find its
	// interface open. After them: the old way is closed.
	err := errors.Join(d.reattach(), d.configure(services, d.have.flags(), true))
	for _, s := range services {
		d.writeBackends(s)
	}
	d.awaitSuspects()
	if err = errors.Join(err, d.followReplies(services), d.configure(services, d.have.flags(), true)); err != nil {
		d.log.Error("follow changed routes", "error", err)
	}
}

// followReplies finds the replies of NAT backends whose routes now lead through
// another VLAN.
func (d *Datapath) followReplies(services []*service) error {
	if !d.have.haveReplies() {
		return nil
	}
	lookups := lookupsOf(services)
	if err := lookups.write(d.kernel, d.have); err != nil {
		return err
	}
	err := lookups.remove(d.kernel, d.have)
	d.have = lookups
	return err
}

// switchRings writes the rings that changed, and switches to each when it is there.
func (d *Datapath) switchRings(want []*service) error {
	var buffer []byte
	for _, s := range want {
		if !s.changed {
			continue
		}
		index := make([]uint32, len(s.order))
		for i, b := range s.order {
			index[i] = b.index
		}
		image, err := buildRing(buffer, s.desired, s.index, index)
		if err != nil {
			return err
		}
		buffer = image[:cap(image)]
		switch {
		case s.ring.lines > 0:
			if s.desired.Protocol == model.TCP {
				carryMemory(image, d.rings.bytes(s.ring))
			}
			carrySettling(image, d.rings.bytes(s.ring))
		case s.remembered:
			unsettle(image, func(uint32) bool { return true }) // by what ring is not known
		}
		unsettle(image, func(owner uint32) bool { return !d.entries.alive(owner) })
		if s.ring.lines == 0 || !bytes.Equal(image, d.rings.bytes(s.ring)) {
			next, err := d.rings.take(uint32(len(image) / lineSize))
			if err != nil {
				return fmt.Errorf("service %s: %w", s.desired.Name, err)
			}
			copy(d.rings.bytes(next), image)
			d.rings.switchTo(s.index, s.ring, next)
			s.ring = next
		}
		// Also of a ring that an earlier process has left.
		s.settling, s.clean = countSettling(d.rings.bytes(s.ring)), nil
		s.changed = false
	}
	return nil
}

// retire takes out what the table no longer has: lookups, then services, then
// backends. Their indexes rest before they are used again.
func (d *Datapath) retire(want []*service, lookups lookups) error {
	d.fronts.remove(d.have.services, lookups.services)
	if err := lookups.remove(d.kernel, d.have); err != nil {
		return err
	}
	d.have = lookups
	if d.retires(want) {
		for _, index := range d.leaving(want) {
			d.entries.disown(index)
		}
		if err := d.readers.wait(); err != nil {
			return err
		}
	}
	// First, while those that are retired below still have their indexes: one that
	// was left over and taken up again must not be released twice.
	d.retireLeftovers()
	wanted := make(map[*service]bool, len(want))
	for _, s := range want {
		wanted[s] = true
		if len(s.backends) > s.distinct {
			d.retireBackends(s)
		}
	}
	for key, s := range d.services {
		if wanted[s] {
			continue
		}
		s.order = nil
		d.retireBackends(s)
		d.retireService(s.index, s.ring)
		delete(d.services, key)
	}
	if err := d.dropSNAT(&d.table); err != nil {
		return err
	}
	return d.configure(want, d.have.flags(), false)
}

func (d *Datapath) retireBackends(s *service) {
	wanted := make(map[*backend]bool, len(s.order))
	for _, b := range s.order {
		wanted[b] = true
	}
	for key, b := range s.backends {
		if wanted[b] {
			continue
		}
		if t, err := d.kernel.counter(d.kernel.BackendCounters, b.index); err == nil {
			s.retired = s.retired.plus(t)
		}
		d.freeBackend(b.index)
		delete(s.backends, key)
	}
}

// retires says whether there is something to take out.
func (d *Datapath) retires(want []*service) bool {
	return !d.old.empty() || len(want) < len(d.services) ||
		slices.ContainsFunc(want, func(s *service) bool { return len(s.backends) > s.distinct })
}

// leaving are the backends that are taken out.
func (d *Datapath) leaving(want []*service) (gone []uint32) {
	stay := map[uint32]bool{}
	for _, s := range want {
		for _, b := range s.order {
			stay[b.index] = true
		}
	}
	add := func(index uint32) {
		if !stay[index] {
			gone, stay[index] = append(gone, index), true
		}
	}
	for _, s := range d.services {
		for _, b := range s.backends {
			add(b.index)
		}
	}
	for _, index := range d.old.backendIndexes() {
		add(index)
	}
	return gone
}

// retireService frees what a service has that no lookup finds any more.
func (d *Datapath) retireService(index uint32, ring run) {
	d.rings.switchTo(index, ring, run{})
	d.kernel.book.removeService(index)
	d.serviceIndexes.release(index)
}

// retireLeftovers frees what the process before had and the table has not.
func (d *Datapath) retireLeftovers() {
	if d.old.empty() {
		return
	}
	inUse, services := map[uint32]bool{}, map[uint32]bool{}
	for _, s := range d.services {
		services[s.index] = true
		for _, b := range s.backends {
			inUse[b.index] = true
		}
	}
	for _, index := range d.old.backendIndexes() {
		if !inUse[index] {
			d.freeBackend(index)
		}
	}
	for _, index := range d.old.serviceIndexes() {
		if !services[index] {
			d.retireService(index, d.rings.of(index))
		}
	}
	d.kernel.book.forgetBeyond(d.options.Limits)
	d.old = leftovers{lookups: newLookups(0)}
}

func (d *Datapath) freeBackend(index uint32) {
	d.entries.free(index)
	d.loads.forget(index)
	delete(d.suspicions.until, index)
	d.kernel.book.removeBackend(index, d.entries.entries[index].Epoch)
	d.backendIndexes.release(index)
}
