package datapath

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
	"unsafe"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

// Set makes the kernel forward what the table says. New state is built aside and switched in: new
// backends, then rings, then services. Old state is taken out in the opposite order. After an error
// the kernel has some of both, and each service is consistent in itself; the next Set goes on from
// there. The table's slices must not be written to afterwards.
//
// Services that have not changed are only compared: most changes are of few services.
func (d *Datapath) Set(t model.Table) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	// Before anything is written: a table that has no room must change nothing.
	if err := d.checkLimits(&t); err != nil {
		return err
	}
	d.table, d.names = t, flowNames{}
	moved := d.beginOverlay()
	d.lookUpInterfaces(t.Interfaces)    // next hops are told by them from those of the host's other interfaces
	c, err := d.assignIndexes(&d.table) // everything below writes to indexes
	if err != nil {
		return err
	}
	d.begun = true
	d.beginChange(c.whole)
	// New entries before the rings that name them. Their next hops also say which interfaces and
	// addresses configure has to write.
	for _, s := range c.changed {
		d.writeBackends(s)
	}
	for _, s := range c.all {
		if moved && s.isInside() && !slices.Contains(c.changed, s) {
			d.writeBackends(s)
		}
	}
	d.awaitSuspects()
	// Full NAT's table before a ring needs it.
	if err := d.switchSNAT(&d.table); err != nil {
		return err
	}
	// For the next rings: what leads to a new backend needs its interface open and its tunnel's
	// source. The flags are still those of the lookups that packets find.
	if err := d.configure(&c, d.have.flags()); err != nil {
		return err
	}
	// Who must not call a service is known before packets find it.
	if err := d.sources.leaveToKernel(d.table.KernelSources, d.counting()); err != nil {
		return err
	}
	if err := d.refused.set(c.changed, d.counting()); err != nil {
		return err
	}
	if err := d.setQuotas(c.all); err != nil {
		return err
	}
	// What takes replies, before a ring leads to backends that may answer.
	if err := d.beforeReplies(); err != nil {
		return err
	}
	d.keepSteering(c.all)
	err = d.switchRings(c.changed)
	d.forgetSteering(steeredAnyLeft) // flow memory may have to see more of flows than before
	if err != nil {
		return err
	}
	d.awaitGroup() // fragments go on as they did when the program takes another version's place
	// After writeBackends: by which key a reply is found depends on the next hop's VLAN.
	lookups := d.lookupsFor(&c)
	// For the next lookups: before they are there the program needs their flags, beside those of the
	// lookups that go only in retire. It also takes up which directors have answered by now.
	if err := d.configure(&c, lookups.flags()|d.have.flags()); err != nil {
		return err
	}
	// After the rings: a service that packets find has one.
	if err := d.addLookups(&lookups); err != nil {
		return err
	}
	// Twice: few flows change while the second call copies.
	for range 2 {
		if err := d.takeResized(); err != nil {
			return err
		}
	}
	// After all maps are filled: from here on this process's program forwards.
	if err := d.switchPrograms(t.Interfaces, d.links, lookups.all.haveReplies()); err != nil {
		return err
	}
	if err := d.endResized(); err != nil {
		return err
	}
	// After that no program uses what earlier versions have left.
	if err := d.kernel.tidy(); err != nil {
		return err
	}
	d.tidyPlaces()
	if err := d.endQuotas(c.all); err != nil {
		return err
	}
	d.publishLoads(&c) // before retire frees the indexes of backends that go
	if err := d.retire(&c, &lookups); err != nil {
		return err
	}
	if err := errors.Join(d.importFormer(), d.endFormer()); err != nil {
		return err
	}
	d.whole = true
	return d.rememberWaiting() // flows that had no room may have some now
}

// checkLimits refuses a table that the maps have no room for. The error names the limit.
func (d *Datapath) checkLimits(t *model.Table) error {
	usage := model.Usage{SourceRanges: uint64(len(t.KernelSources))}
	for i := range t.Services {
		usage.Add(UsageOf(&t.Services[i]))
	}
	exceeded := d.options.Limits.Refuse(usage)
	switch {
	case len(t.Quotas) > mostQuotas:
		return fmt.Errorf("more than %d segments have limits of packets per second or flows", mostQuotas)
	case len(exceeded) == 0:
		return nil
	case exceeded[0].Other == "director.limits.ring-memory":
		return ringMemoryError(exceeded[0].Problem)
	}
	return errors.New(exceeded[0].Problem)
}

// writeBackends brings the service's entries up to date: state and next hop.
func (d *Datapath) writeBackends(s *service) {
	entries := make([]abi.Backend, len(s.order))
	var turning []uint32
	now := time.Now()
	for i, b := range s.order {
		hop := d.hops.Resolve(b.desired, d.own)
		b.vlan, b.answers, b.link = hop.VLAN, hop.Answers, hop.Link
		d.movements.follow(b, hop, now)
		entries[i] = d.suspect(b, entryOf(s.desired, s.index, b.desired, hop))
		if err := d.overlay.setBackend(b.index, s.desired.Segment, &b.desired, &hop); err != nil {
			d.log.Error("lead packets into a tenant's network", "service", s.desired.Name, "backend", b.desired.Name, "error", err)
			entries[i].State = uint8(abi.BackendStateBACKEND_DOWN)
		}
		if aliveIn(entries[i].State) != d.entries.alive(b.index) {
			turning = append(turning, b.index)
		}
	}
	if d.asksForLoads(s) {
		d.weighLoads(s, entries)
	}
	d.turn(s, turning)
	for i, b := range s.order {
		if !d.entries.holds(b.index, entries[i]) { // a pod that has moved to another host
			d.entries.restore(b.index, entries[i])
		}
		d.entries.update(b.index, entries[i])
	}
}

// hopsChanged runs when the kernel's routes, links or neighbors have changed.
func (d *Datapath) hopsChanged() {
	d.mu.Lock()
	defer d.mu.Unlock()
	// Before the first Set nothing may change: what an earlier process has set goes on, and this
	// process does not know its table.
	if d.closed() || !d.begun {
		return
	}
	d.beginChange(d.whole)
	d.lookUpInterfaces(d.table.Interfaces)
	services := d.inOrder()
	all := change{all: services, changed: services}
	var err error
	if d.kernel.inUse { // else an earlier process's programs go on, on all interfaces
		err = d.reattach()
	}
	// Before the backends: a packet that follows the new way must find its
	// interface open. After them: the old way is closed.
	err = errors.Join(err, d.configure(&all, d.have.flags()))
	for _, s := range services {
		d.writeBackends(s)
	}
	d.awaitSuspects()
	if d.kernel.inUse {
		err = errors.Join(err, d.attachReplies(d.have.haveReplies(), false))
	}
	err = errors.Join(err, d.followReplies(services), d.configure(&all, d.have.flags()))
	if d.whole { // else rings may name backends that are no longer wanted
		err = errors.Join(err, d.closeEgress(services))
	}
	if err != nil {
		d.log.Error("follow changed routes", "error", err)
		d.whole = false // the next Set looks at everything
	}
}

// inOrder are all services: those of the table in its order, which decides for instance the source
// of tunnels, followed by those that are about to go.
func (d *Datapath) inOrder() []*service {
	list := make([]*service, 0, len(d.services))
	for i := range d.table.Services {
		if s := d.services[keyOf(&d.table.Services[i])]; s != nil {
			list = append(list, s)
		}
	}
	if len(list) == len(d.services) {
		return list
	}
	listed := map[*service]bool{}
	for _, s := range list {
		listed[s] = true
	}
	for _, s := range slices.SortedFunc(maps.Values(d.services), func(a, b *service) int { return cmp.Compare(a.index, b.index) }) {
		if !listed[s] {
			list = append(list, s)
		}
	}
	return list
}

// followReplies finds the replies of NAT backends whose routes now lead through another VLAN.
func (d *Datapath) followReplies(services []*service) error {
	if !d.have.haveReplies() {
		return nil
	}
	lookups := lookupsOf(services)
	if err := lookups.write(d.kernel, d.have, d.counting()); err != nil {
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
		image, err := d.imageOf(buffer, s, d.entries.alive)
		if err != nil {
			return err
		}
		buffer = image[:cap(image)]
		if set, named := namedSet(image); named {
			if err := d.sources.write(set, s.desired.SourceRanges, d.readers, d.counting()); err != nil {
				return fmt.Errorf("service %s: %w", s.desired.Name, err)
			}
		}
		if s.ring.lines == 0 || !bytes.Equal(image, d.rings.bytes(s.ring)) {
			next, err := d.nextRun(s, uint32(len(image)/abi.LineSize))
			if err != nil {
				return fmt.Errorf("service %s: %w", s.desired.Name, err)
			}
			copy(d.rings.bytes(next), image)
			d.sources.switched(d.ringOf(s), image)
			d.rings.switchTo(s.index, d.leave(s, next.lines), next)
			if s.key.port.Single() {
				d.fronts.switched(s.endpoint(), s.index)
			}
			s.ring = next
		} else {
			d.sources.switched(image, image)
		}
		if err := d.keepReserve(s); err != nil {
			return fmt.Errorf("service %s: %w", s.desired.Name, err)
		}
		// Count also for a ring that an earlier process left.
		s.settling, s.clean = countSettling(d.rings.bytes(s.ring)), nil
		s.changed = false
	}
	return nil
}

// nextRun is where a service's next ring goes.
func (d *Datapath) nextRun(s *service, lines uint32) (run, error) {
	next := s.reserve
	s.reserve = run{}
	if next.lines == lines {
		time.Sleep(rest - time.Since(s.left)) // no packet must still be in it
		return next, nil
	}
	d.rings.release(next)
	return d.rings.allocate(lines)
}

// leave returns the lines that a service's ring leaves: none if they are for the one after the next.
func (d *Datapath) leave(s *service, lines uint32) run {
	if len(s.desired.Tiers) < 2 || s.ring.lines != lines {
		return s.ring
	}
	s.reserve, s.left = s.ring, time.Now()
	return run{}
}

// keepReserve lets a service with tiers, and no other, have a place for its next ring.
func (d *Datapath) keepReserve(s *service) (err error) {
	switch tiers := len(s.desired.Tiers) > 1; {
	case tiers && s.reserve.lines == 0:
		s.reserve, err = d.rings.allocate(s.ring.lines)
	case !tiers:
		d.rings.release(s.reserve)
		s.reserve = run{}
	}
	return err
}

// imageOf writes a service's next ring, with what it has to take over from the present ring.
func (d *Datapath) imageOf(buffer []byte, s *service, alive func(index uint32) bool) (ringImage, error) {
	index := make([]uint32, len(s.order))
	for i, b := range s.order {
		index[i] = b.index
	}
	image, err := buildRing(buffer, s.desired, s.index, index)
	if err != nil {
		return nil, err
	}
	switch {
	case s.ring.lines > 0:
		if s.desired.Protocol == model.TCP {
			carryMemory(image, d.rings.bytes(s.ring))
		}
		carrySettling(image, d.rings.bytes(s.ring))
	case s.remembered:
		flagSettling(image, func(uint32) bool { return true }) // the ring by which they were placed is not known
	}
	flagSettling(image, func(owner uint32) bool { return !alive(owner) })
	header := (*abi.RingHeader)(unsafe.Pointer(&image[0]))
	if s.desired.KernelSources {
		header.Flags |= uint8(abi.RingFlagRING_KERNEL_SOURCES)
	}
	if s.desired.Quota {
		header.Flags |= uint8(abi.RingFlagRING_QUOTA)
	}
	if ranges := s.desired.SourceRanges; len(ranges) > 0 {
		header.Flags |= uint8(abi.RingFlagRING_SOURCES)
		header.Sources = d.sources.setFor(s.index, d.ringOf(s), ranges)
	}
	writeOwners(image)
	return image, nil
}

// ringOf is the ring that packets of a service read; nil: there is none.
func (d *Datapath) ringOf(s *service) ringImage {
	if s.ring.lines == 0 {
		return nil
	}
	return d.rings.bytes(s.ring)
}

// addLookups adds the keys of services that were not found before.
func (d *Datapath) addLookups(l *lookupChange) error {
	if err := l.write(d.kernel, d.have, d.counting()); err != nil {
		return err
	}
	if !l.part || d.fronts.rest() {
		d.fronts.add(l.all.services)
	} else if len(l.added.services) > 0 {
		d.fronts.add(l.added.services)
	}
	return nil
}

// retire takes out what the table no longer has: lookups, then services, then
// backends. Their indexes rest before they are used again.
func (d *Datapath) retire(c *change, l *lookupChange) error {
	if err := l.remove(d); err != nil {
		return err
	}
	gone := d.gone(c)
	for _, s := range gone {
		d.sources.leave(s.index)
		if err := d.refused.leave(s.index); err != nil {
			return err
		}
	}
	if err := d.refused.clean(); err != nil {
		return err
	}
	if d.retires(c, gone) {
		for _, index := range d.leaving(c, gone) {
			d.entries.disown(index)
		}
		if err := d.readers.wait(); err != nil {
			return err
		}
	}
	if err := d.sources.clean(); err != nil {
		return err
	}
	// Retire leftovers first, while those that are retired below still have their indexes: an index
	// that was left over and taken up again must not be released twice.
	d.retireLeftovers()
	for _, s := range c.touched() {
		if len(s.backends) > s.distinct {
			d.retireBackends(s)
		}
	}
	for _, s := range gone {
		s.order = nil
		d.retireBackends(s)
		d.passOn(s)
		d.rings.release(s.reserve)
		d.retireService(s.index, s.ring)
		delete(d.services, s.key)
	}
	if err := d.dropSNAT(&d.table); err != nil {
		return err
	}
	// Once more: what only the lookups that are gone needed is switched off.
	if err := d.configure(c, d.have.flags()); err != nil {
		return err
	}
	return d.closeEgress(c.all)
}

// gone are the services that are no longer in the table.
func (d *Datapath) gone(c *change) (gone []*service) {
	if len(d.services) == len(c.all) {
		return nil
	}
	wanted := make(map[*service]bool, len(c.all))
	for _, s := range c.all {
		wanted[s] = true
	}
	for _, s := range d.services {
		if !wanted[s] {
			gone = append(gone, s)
		}
	}
	return gone
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
		d.retireCounters(s, b.index)
		d.freeBackend(b.index)
		delete(s.backends, key)
	}
}

// retireCounters adds what was forwarded to a backend that goes to its service's sum.
func (d *Datapath) retireCounters(s *service, backend uint32) {
	if t, err := d.kernel.forwarded(backend); err == nil {
		s.retired = s.retired.plus(t)
		d.kernel.records.retire(s.index, s.retired)
	}
}

// passed is what services of a segment counted that are gone.
type passed struct {
	tally
	dropped uint64
}

// passOn adds what a service counted that goes to its segment's sums: these are counters, too, and do
// not become less.
func (d *Datapath) passOn(s *service) {
	dropped, err := readTally(d.kernel.ServiceDrops, s.index)
	if err != nil {
		dropped = tally{} // the status reports that error, too
	}
	was := d.passed[s.key.segment]
	d.passed[s.key.segment] = passed{was.plus(s.retired), was.dropped + dropped.packets}
}

// retires says whether there is something to take out.
func (d *Datapath) retires(c *change, gone []*service) bool {
	return !d.old.empty() || len(gone) > 0 || len(d.sources.left) > 0 ||
		slices.ContainsFunc(c.touched(), func(s *service) bool { return len(s.backends) > s.distinct })
}

// leaving are the backends that are taken out. What an earlier process left may be of any service
// of the table: while something is left, all services are touched.
func (d *Datapath) leaving(c *change, gone []*service) (leaving []uint32) {
	stay := map[uint32]bool{}
	for _, s := range c.touched() {
		for _, b := range s.order {
			stay[b.index] = true
		}
	}
	add := func(index uint32) {
		if !stay[index] {
			leaving, stay[index] = append(leaving, index), true
		}
	}
	for _, s := range slices.Concat(c.touched(), gone) {
		for _, b := range s.backends {
			add(b.index)
		}
	}
	for _, index := range d.old.backendIndexes() {
		add(index)
	}
	return leaving
}

// retireService frees what a service has once no lookup finds it any more.
func (d *Datapath) retireService(index uint32, ring run) {
	d.rings.switchTo(index, ring, run{})
	d.kernel.records.removeService(index)
	d.serviceIndexes.release(index)
}

// retireLeftovers frees what the process before had and the table has not.
func (d *Datapath) retireLeftovers() {
	if d.old.empty() {
		return
	}
	inUse, services := map[uint32]bool{}, map[uint32]*service{}
	for _, s := range d.services {
		services[s.index] = s
		for _, b := range s.backends {
			inUse[b.index] = true
		}
	}
	for _, index := range d.old.backendIndexes() {
		if inUse[index] {
			continue
		}
		if s := services[d.kernel.records.backends.Entries[index].service]; s != nil {
			d.retireCounters(s, index)
		}
		d.freeBackend(index)
	}
	for _, index := range d.old.serviceIndexes() {
		if services[index] == nil {
			d.retireService(index, d.rings.of(index))
		}
	}
	d.kernel.records.forgetBeyond(d.options.Limits)
	d.old = leftovers{lookups: newLookups(0)}
}

func (d *Datapath) freeBackend(index uint32) {
	d.entries.free(index)
	d.loads.forget(index)
	d.overlay.forgetBackend(index)
	delete(d.suspicions.until, index)
	d.kernel.records.removeBackend(index, d.entries.Entries[index].Epoch)
	d.backendIndexes.release(index)
}
