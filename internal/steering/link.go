package steering

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/datapath"
	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
)

// link is what is known of one NIC.
type link struct {
	Link
	leaves bool                   // its rules are to go, and its queues to be given back
	gone   bool                   // they have
	anew   bool                   // rules are to be inserted again: of old ones a driver may not tell its NIC (macb)
	kept   bool                   // packets without a rule are kept off its queues
	adopts []datapath.SteeredFlow // whose rules an earlier process may have left
	table  device.RuleTable
	rules  map[datapath.SteeredFlow]device.Rule // of this director, that the NIC has
	fresh  map[datapath.SteeredFlow]bool        // rules that were inserted since all were last read
	others map[uint32]bool                      // where other users' rules lie, and those that do not go
	wholly time.Time                            // when all rules were last read
	// queues are the services that queues are of, as the program is told.
	queues map[uint32]model.ServiceID
	placed map[datapath.SteeredFlow]uint32 // the queues of flows that have a rule, or get one
	broken error                           // why the NIC steers no flows; nil: it does
	// forms say how the driver lists rules of a kind.
	forms map[kind]form

	failed    error // of the last step
	refusal   error // why it has last refused a rule, and when
	refusedAt time.Time

	inserted, deleted, refused, lost uint64
}

// kind is what drivers treat rules differently by.
type kind struct {
	protocol uint8
	ipv6     bool
}

// form is how a driver lists rules.
type form struct {
	same bool // one was listed as it was inserted
	// why it is not so: then those rules could not be told from others', and it is not given more of them until
	// it is tried again; nil: that has not been seen.
	other error
	since time.Time
}

func kindOf(f datapath.SteeredFlow) kind {
	return kind{uint8(f.Service.Protocol), f.Service.VIP.Is6()}
}

func newLink(l Link) *link {
	return &link{Link: l, forms: map[kind]form{}, rules: map[datapath.SteeredFlow]device.Rule{}, fresh: map[datapath.SteeredFlow]bool{}, others: map[uint32]bool{}, queues: map[uint32]model.ServiceID{}, placed: map[datapath.SteeredFlow]uint32{}}
}

// leave has the rules go, but for those to queues that the interface has still. It may have another name by now.
func (l *link) leave(linkOf func(index int) (Link, bool), next []*link) {
	if !l.leaves {
		l.leaves, l.deleted = true, 0 // the next link counts on
		for _, other := range next {
			if other.Index == l.Index {
				l.Queues = slices.DeleteFunc(slices.Clone(l.Queues), func(q uint32) bool { return slices.Contains(other.Queues, q) })
			}
		}
		maps.DeleteFunc(l.placed, func(_ datapath.SteeredFlow, queue uint32) bool { return !slices.Contains(l.Queues, queue) })
		maps.DeleteFunc(l.rules, func(_ datapath.SteeredFlow, r device.Rule) bool { return !slices.Contains(l.Queues, r.Queue) })
		maps.DeleteFunc(l.queues, func(queue uint32, _ model.ServiceID) bool { return !slices.Contains(l.Queues, queue) })
	}
	now, found := linkOf(l.Index)
	if l.gone = l.gone || !found; found {
		l.Name, l.NIC = now.Name, now.NIC
	}
}

func (l *link) sameAs(o Link) bool { return l.Index == o.Index && slices.Equal(l.Queues, o.Queues) }

// works says whether flows may be steered there.
func (l *link) works() bool { return l.broken == nil && !l.leaves }

// fail notes what has failed in a step. What a step does first clears it.
func (l *link) fail(err error) { l.failed = errors.Join(l.failed, err) }

func (l *link) status(now time.Time) model.SteeredInterface {
	s := model.SteeredInterface{Name: l.Name, Works: l.works(), Leaves: l.leaves, Rules: len(l.rules), Room: l.table.Size, Others: len(l.others),
		Inserted: l.inserted, Deleted: l.deleted, Refused: l.refused, Lost: l.lost, Queues: []model.SteeredQueue{}}
	err := l.failed
	if err == nil && l.refusal != nil && now.Sub(l.refusedAt) < refusedFor {
		err = l.refusal
	}
	if err != nil {
		s.Problem = err.Error()
	}
	flows := map[uint32]int{}
	for _, queue := range l.placed {
		flows[queue]++
	}
	for _, queue := range slices.Sorted(maps.Keys(l.queues)) {
		s.Queues = append(s.Queues, model.SteeredQueue{Queue: queue, ID: l.queues[queue], Flows: flows[queue]})
	}
	return s
}

// ruleOf is what a flow's packets have.
func ruleOf(f datapath.SteeredFlow) device.RuleFlow {
	return device.RuleFlow{Protocol: uint8(f.Service.Protocol), Source: f.Client, Destination: netip.AddrPortFrom(f.Service.VIP, f.Service.Port.First)}
}

// read finds out which rules the NIC has: all of them if there are others than it was left with, or from
// time to time.
func (l *link) read(now time.Time) error {
	l.failed = nil
	queues := l.Queues
	if l.leaves {
		queues = nil // it may have fewer by now
	}
	table, err := l.NIC.Able(queues)
	off := errors.Is(err, device.ErrRulesOff)
	if !l.leaves && (off || err == nil && (!l.kept || now.Sub(l.wholly) >= readEvery)) {
		err = l.NIC.Keep(l.Queues) // again from time to time: a NIC that is reset forgets it
		l.kept = err == nil
		if off && err == nil {
			table, err = l.NIC.Able(queues)
			l.wholly, l.anew = time.Time{}, true
		}
	}
	if l.broken = err; err != nil && l.leaves && hasNoTable(err) {
		// What rules there are lead nothing anywhere.
		if err = l.NIC.GiveBack(l.Queues); err == nil || errors.Is(err, device.ErrGone) {
			l.gone = true
			return nil
		}
	}
	if err != nil {
		if l.leaves {
			return fmt.Errorf("rules of %s to queues %v are left: %w", l.Name, l.Queues, err)
		}
		return fmt.Errorf("no flow is steered: %w", err)
	}
	l.table = table
	if l.wholly.IsZero() || now.Sub(l.wholly) >= readEvery || !l.isAsLeft(table.Locations) {
		err = l.readAll(now)
	}
	if useless := l.useless(); useless != nil && !l.leaves {
		l.broken = useless
		return fmt.Errorf("%s steers no flows: %w", l.Name, useless)
	}
	if l.leaves && err == nil && len(l.rules) == 0 {
		if err = l.NIC.GiveBack(l.Queues); err == nil {
			l.gone = true
		}
	}
	return err
}

// useless says why a flow table is of no use for this director; nil: it is.
func (l *link) useless() error {
	if len(l.others) >= l.table.Size && len(l.rules) == 0 {
		return fmt.Errorf("all %d rules that fit are other users'", l.table.Size)
	}
	return nil
}

// hasNoTable says whether an error means that no rule is followed: the interface has gone, or has no flow table,
// or that is off.
func hasNoTable(err error) bool {
	return errors.Is(err, device.ErrGone) || errors.Is(err, device.ErrNoRules) || errors.Is(err, device.ErrRulesOff)
}

// isAsLeft says whether there are the rules that there were.
func (l *link) isAsLeft(locations []uint32) bool {
	known := maps.Clone(l.others)
	for _, r := range l.rules {
		known[r.Location] = true
	}
	return len(known) == len(locations) && !slices.ContainsFunc(locations, func(at uint32) bool { return !known[at] })
}

// reading is what the NIC's list of rules comes to.
type reading struct {
	own    map[uint32]datapath.SteeredFlow      // whose rules lay where, as they were left
	have   map[datapath.SteeredFlow]device.Rule // that are still there
	others map[uint32]bool
	errs   []error
}

// readAll takes the rules as the NIC has them. One that leads to this director's queues, and not where its
// flow was placed, is what an earlier process or an earlier step left, and goes.
func (l *link) readAll(now time.Time) error {
	seen := reading{own: make(map[uint32]datapath.SteeredFlow, len(l.rules)), have: map[datapath.SteeredFlow]device.Rule{}, others: map[uint32]bool{}}
	for f, r := range l.rules {
		seen.own[r.Location] = f
	}
	for _, location := range l.table.Locations {
		l.readAt(location, &seen, now)
	}
	for f := range l.rules {
		if _, has := seen.have[f]; !has {
			l.lost++
		}
	}
	l.rules, l.others, l.wholly, l.adopts, l.anew = seen.have, seen.others, now, nil, false
	clear(l.fresh)
	return some(seen.errs)
}

// readAt says whose the rule at a location is, and deletes it if it is this director's and leads wrong.
func (l *link) readAt(location uint32, seen *reading, now time.Time) {
	r, single, err := l.NIC.Rule(location)
	none := errors.Is(err, device.ErrNoRule) // it has gone since the rules were listed, or is not shown
	left, was := seen.own[location]
	_, twice := seen.have[left]
	switch {
	case was && l.fresh[left] && (none || err == nil && !single && slices.Contains(l.Queues, r.Queue)):
		l.inOtherForm(location, left, seen, now)
	case err != nil && !none && was && !twice: // perhaps it is there
		seen.errs, seen.have[left] = append(seen.errs, err), l.rules[left]
	case err != nil && !none:
		seen.errs, seen.others[location] = append(seen.errs, err), true
	case none || !single || !slices.Contains(l.Queues, r.Queue):
		seen.others[location] = true
	case l.goesOn(r, seen):
	default:
		if _, err := l.takeOut(location); err != nil {
			seen.errs, seen.others[location] = append(seen.errs, err), true
		}
	}
}

// goesOn says whether a rule leads its flow where it was placed, or an earlier process did.
func (l *link) goesOn(r device.Rule, seen *reading) bool {
	f, known := l.flowOf(r)
	if !known {
		f, known = l.adopt(r)
	}
	if _, twice := seen.have[f]; !known || twice || l.anew {
		return false
	}
	seen.have[f], l.forms[kindOf(f)] = r, form{same: true}
	return true
}

// inOtherForm deletes a rule that was inserted, and is not listed as it was.
func (l *link) inOtherForm(location uint32, f datapath.SteeredFlow, seen *reading, now time.Time) {
	there, err := l.takeOut(location)
	if err != nil {
		seen.errs, seen.have[f] = append(seen.errs, err), l.rules[f]
	} else if k := kindOf(f); there && !l.forms[k].same {
		l.forms[k] = form{other: fmt.Errorf("the driver lists rule %d in another form than it was inserted in", location), since: now}
	}
}

// takeOut deletes a rule, and says whether it was there. One that has gone meanwhile is none to delete.
func (l *link) takeOut(location uint32) (there bool, err error) {
	if err = l.NIC.Delete(location); err == nil {
		l.deleted++
		return true, nil
	}
	if _, _, readErr := l.NIC.Rule(location); errors.Is(readErr, device.ErrNoRule) {
		return false, nil
	}
	return false, err
}

// some is the first of errors, and how many more there are: each flow may have one.
func some(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) > 1 {
		return fmt.Errorf("%w (and %d more errors)", errs[0], len(errs)-1)
	}
	return errors.Join(errs...)
}

// adopt goes on with a rule of an earlier process; false: its flow is not known, or its queue is another
// service's.
func (l *link) adopt(r device.Rule) (f datapath.SteeredFlow, known bool) {
	at := slices.IndexFunc(l.adopts, func(f datapath.SteeredFlow) bool { return ruleOf(f) == r.Flow })
	if at < 0 || l.leaves {
		return f, false
	}
	f = l.adopts[at]
	if of, taken := l.queues[r.Queue]; taken && of != f.Service {
		return f, false
	}
	if _, placed := l.placed[f]; placed {
		return f, false
	}
	l.queues[r.Queue], l.placed[f] = f.Service, r.Queue
	return f, true
}

// flowOf is the flow of a rule; false: none was placed where the rule leads.
func (l *link) flowOf(r device.Rule) (f datapath.SteeredFlow, known bool) {
	service, is := l.queues[r.Queue]
	f = datapath.SteeredFlow{Service: service, Client: r.Flow.Source}
	queue, placed := l.placed[f]
	return f, is && placed && queue == r.Queue && ruleOf(f) == r.Flow
}

// delete takes out the rules of flows that are no longer chosen. A flow whose rule does not go stays where it
// is.
func (l *link) delete(chosen map[datapath.SteeredFlow]*flow) error {
	var errs []error
	for f := range l.placed {
		if chosen[f] == nil || l.leaves || l.broken != nil {
			errs = append(errs, l.remove(f))
		}
	}
	return some(errs)
}

// remove takes a flow and its rule out.
func (l *link) remove(f datapath.SteeredFlow) error {
	if r, has := l.rules[f]; has {
		// Another user may have a rule there by now, if the NIC has lost this one or never had it.
		is, single, err := l.NIC.Rule(r.Location)
		none := errors.Is(err, device.ErrNoRule)
		if err != nil && !none {
			return err
		}
		// One that has not been listed yet may be listed in another form.
		if !none && is.Queue == r.Queue && (single && is.Flow == r.Flow || !single && l.fresh[f]) || none && l.fresh[f] {
			if _, err := l.takeOut(r.Location); err != nil {
				return err
			}
		}
		delete(l.rules, f)
	}
	delete(l.placed, f)
	return nil
}

// place gives each chosen flow a queue of its service: the one with the fewest packets.
func (l *link) place(chosen map[datapath.SteeredFlow]*flow) {
	load, used := map[uint32]float64{}, map[uint32]bool{}
	for f, queue := range l.placed {
		used[queue] = true
		if known := chosen[f]; known != nil {
			load[queue] += known.rate
		}
	}
	maps.DeleteFunc(l.queues, func(queue uint32, _ model.ServiceID) bool { return !used[queue] })
	if !l.works() {
		return
	}
	for _, f := range byRate(chosen) {
		if _, is := l.placed[f.SteeredFlow]; is {
			continue
		}
		queue, found := l.leastOf(f.Service, load)
		// Another queue of its own is better than one with packets, where no service lacks one.
		if free, is := l.freeQueue(); is && (!found || load[queue] > 0 && l.spare(chosen)) {
			queue, found = free, true
			l.queues[free] = f.Service
		}
		if !found {
			l.makeRoom(load) // with the next step
			continue
		}
		load[queue] += f.rate
		l.placed[f.SteeredFlow] = queue
	}
}

// spare says whether there are more free queues than services without one.
func (l *link) spare(chosen map[datapath.SteeredFlow]*flow) bool {
	lack := map[model.ServiceID]bool{}
	for f := range chosen {
		lack[f.Service] = true
	}
	for _, service := range l.queues {
		delete(lack, service)
	}
	return len(l.Queues)-len(l.queues) > len(lack)
}

// leastOf is the queue of a service with the fewest packets.
func (l *link) leastOf(service model.ServiceID, load map[uint32]float64) (least uint32, found bool) {
	for _, queue := range l.Queues {
		if s, taken := l.queues[queue]; taken && s == service && (!found || load[queue] < load[least]) {
			least, found = queue, true
		}
	}
	return least, found
}

func (l *link) freeQueue() (uint32, bool) {
	for _, queue := range l.Queues {
		if _, taken := l.queues[queue]; !taken {
			return queue, true
		}
	}
	return 0, false
}

// makeRoom takes a queue from a service that has several, for one that has none: the one with the fewest
// packets.
func (l *link) makeRoom(load map[uint32]float64) {
	have := map[model.ServiceID]int{}
	for _, service := range l.queues {
		have[service]++
	}
	least, found := uint32(0), false
	for _, queue := range l.Queues {
		if have[l.queues[queue]] > 1 && (!found || load[queue] < load[least]) {
			least, found = queue, true
		}
	}
	if !found {
		return
	}
	for f, queue := range l.placed {
		if queue == least {
			_ = l.remove(f) // a rule that does not go is tried again: its flow stays placed
		}
	}
}

// insert adds the rules that are missing, of flows in this order. Whether the NIC has them is seen when they
// are next read. refuse is told of flows whose rules the NIC does not take.
func (l *link) insert(now time.Time, flows []datapath.SteeredFlow, refuse func(datapath.SteeredFlow)) {
	if !l.works() {
		return
	}
	taken := maps.Clone(l.others)
	for _, r := range l.rules {
		taken[r.Location] = true
	}
	for began := time.Now(); len(flows) > 0 && time.Since(began) < insertFor; flows = flows[1:] {
		f := flows[0]
		if _, has := l.rules[f]; has {
			continue
		}
		location, free := freeLocation(taken, l.table)
		if !free {
			refuse(f)
			continue
		}
		r := device.Rule{Flow: ruleOf(f), Queue: l.placed[f], Location: location}
		if form := l.forms[kindOf(f)]; form.other != nil && now.Sub(form.since) < otherFormFor {
			l.refusal, l.refusedAt = form.other, now
			refuse(f)
			continue
		}
		at, err := l.NIC.Insert(r, l.table.Chooses)
		if err != nil {
			l.refused++
			l.refusal, l.refusedAt = err, now
			refuse(f)
			continue
		}
		l.inserted++
		r.Location = at
		taken[at], l.rules[f], l.fresh[f] = true, r, true
	}
}

// freeLocation is the last free one, because a NIC may look at low locations first, and other users begin
// there.
func freeLocation(taken map[uint32]bool, table device.RuleTable) (uint32, bool) {
	for at := table.Size - 1; at >= 0; at-- {
		if !taken[uint32(at)] {
			return uint32(at), true
		}
	}
	return 0, false
}

// Clear takes the rules to queues out of NICs, and gives the queues back: those of a director that ends for
// good. Interfaces are named by linkOf.
func Clear(kept map[int][]uint32, linkOf func(index int) (Link, bool)) error {
	var errs []error
	for index, queues := range kept {
		of, found := linkOf(index)
		if !found {
			continue // it has gone, and its rules with it
		}
		of.Queues = queues
		l := newLink(of)
		l.leaves = true
		if err := l.read(time.Now()); err != nil && !l.gone {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
