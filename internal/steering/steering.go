// Package steering has a host's NICs lead packets of the flows with the most packets to receive queues
// by which the director finds a flow's backend at once (bpf/director/pick/steered.h). Once a second it looks
// at how many packets flows have, chooses those that are worth a rule, and brings the rules of each NIC
// there.
//
// A rule decides only the queue, and the director's program chooses the backend. So a rule that is missing,
// late or left over leads no packet to a wrong backend. What the NIC says it has counts. Rules to other
// queues, or for other packets than those of one flow, are other users', and stay as they are.
package steering

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"weir.io/weir/internal/datapath"
	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
)

const (
	every       = time.Second      // between two looks
	readEvery   = 10 * time.Second // between two readings of rules that look as they were left
	refusedFor  = time.Minute      // a flow whose rule a NIC has refused is not chosen
	memoryRatio = 8                // flows that are followed, for each that may be steered

	steeredServices = 256 // as many as queues

	// sampledPart is which part of the packets that are worth a rule a flow has at least that is looked at.
	sampledPart = 4

	// otherFormFor is how long a NIC gets no rules of a kind that its driver lists in another form.
	otherFormFor = 10 * time.Minute
	missedLooks  = 5 // then the NIC does not follow a flow's rule

	insertFor = every / 2 // rules that a NIC does not take in that time wait for the next look
)

// Datapath is what the director's program needs to be told, and tells.
type Datapath interface {
	Steer(queues []datapath.SteeredQueue, flows []datapath.SteeredFlow) (left []datapath.SteeredFlow, err error)
	HeavyFlows(least float64) ([]datapath.HeavyFlow, error)
	SteeredFlows() []datapath.SteeredFlow
	SteeredPackets() uint64
}

// NIC is what an interface's NIC can do: device.NIC.
type NIC interface {
	// Able returns how many rules fit, and where there are some, of whichever user, if flows can be led
	// to queues.
	Able(queues []uint32) (device.RuleTable, error)
	// Rule returns the rule that lies somewhere; false: it is none for a single flow. The error is
	// device.ErrNoRule if there is none.
	Rule(location uint32) (device.Rule, bool, error)
	Insert(r device.Rule, chooses bool) (location uint32, err error)
	Delete(location uint32) error
	// Keep switches the flow table on, and keeps packets without a rule off queues.
	Keep(queues []uint32) error
	// GiveBack undoes Keep.
	GiveBack(queues []uint32) error
}

// Link is an interface whose NIC steers flows.
type Link struct {
	Name   string
	Index  int
	NIC    NIC
	Queues []uint32 // that only rules lead to
}

// Wanted is what a configuration asks for.
type Wanted struct {
	Links   []Link
	Flows   int     // on each NIC; 0: none is steered
	Packets float64 // per second: a flow that has fewer is not worth a rule
}

// Deps are what a controller works with.
type Deps struct {
	Datapath Datapath
	Wanted   func() Wanted // asked for each step
	// Kept are the queues that an earlier process kept for steered flows, by the index of their interface,
	// and LinkOf names an interface that has some.
	Kept   map[int][]uint32
	LinkOf func(index int) (Link, bool)
	// Note notes which queues are kept, by the index of their interface, beyond the process; nil: nobody does.
	Note func(kept map[int][]uint32) error
}

// Controller steers the flows of one director.
type Controller struct {
	deps   Deps
	wanted Wanted
	links  []*link
	flows  map[datapath.SteeredFlow]*flow
	last   time.Time // when the sample was last read
	begun  bool
	noted  map[int][]uint32 // as was last noted; nil: not yet

	told    bool  // the program knows of queues
	problem error // of the last step, of no interface
	status  atomic.Pointer[model.SteeringStatus]
}

// flow is what is known of a flow.
type flow struct {
	datapath.SteeredFlow
	rate    float64   // packets per second, of late
	missed  int       // looks, one after the other, in which it had packets, and none by its rule
	refused time.Time // when a NIC has last refused its rule
}

// New makes a controller that steers nothing yet.
func New(deps Deps) *Controller {
	return &Controller{deps: deps, flows: map[datapath.SteeredFlow]*flow{}}
}

// follow takes over what is wanted now. An interface that is no longer one of the links, or has other queues
// now, loses its rules with the next steps.
func (c *Controller) follow() {
	c.wanted = c.deps.Wanted()
	next := make([]*link, 0, len(c.wanted.Links))
	for _, l := range c.wanted.Links {
		at := slices.IndexFunc(c.links, func(o *link) bool { return !o.leaves && o.sameAs(l) })
		if at < 0 {
			next = append(next, c.newLink(l))
			continue
		}
		c.links[at].Link = l // it may have another name
		next = append(next, c.links[at])
	}
	for _, l := range c.links {
		if !slices.Contains(next, l) {
			l.leave(c.deps.LinkOf, next)
			next = append(next, l)
		}
	}
	c.links = next
	if !c.begun {
		c.begun = true
		c.inherit()
	}
}

// newLink makes a link. Of one that the interface had before, with other queues, it goes on with the rules to
// those that it has, too.
func (c *Controller) newLink(l Link) *link {
	next := newLink(l)
	for _, former := range c.links {
		if former.Index == l.Index && !former.leaves {
			next.adopts = slices.Collect(maps.Keys(former.placed))
			next.inserted, next.deleted, next.refused, next.lost = former.inserted, former.deleted, former.refused, former.lost
		}
	}
	return next
}

// inherit goes on with what an earlier process has left: rules to queues that are wanted still stay with
// their flows, others go.
func (c *Controller) inherit() {
	known := c.deps.Datapath.SteeredFlows()
	for _, f := range known {
		c.flows[f] = &flow{SteeredFlow: f, rate: c.wanted.Packets} // as long as it has not been counted
	}
	for index, queues := range c.deps.Kept {
		for _, l := range c.links {
			if l.Index == index && !l.leaves {
				l.adopts = known
				queues = slices.DeleteFunc(slices.Clone(queues), func(q uint32) bool { return slices.Contains(l.Queues, q) })
			}
		}
		c.told = true
		if left, found := c.deps.LinkOf(index); found && len(queues) > 0 {
			left.Queues = queues
			l := newLink(left)
			l.leaves = true
			c.links = append(c.links, l)
		}
	}
}

// Run steers until the context ends. Rules stay then, and the next process goes on with them.
func (c *Controller) Run(ctx context.Context) {
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
			c.Step(time.Now())
		}
	}
}

// Step looks at the flows, and brings the rules of all NICs to what it finds. Status says what fails.
func (c *Controller) Step(now time.Time) {
	c.follow()
	noted := c.note() // before a NIC keeps anything
	if c.problem = c.step(now); c.problem != nil {
		c.last = time.Time{} // what was counted meanwhile is of an unknown time
	}
	c.links = slices.DeleteFunc(c.links, func(l *link) bool {
		if l.gone { // RSS is that of the driver now, also of the queues of another link
			for _, other := range c.links {
				other.kept = other.kept && other.Index != l.Index
			}
		}
		return l.gone
	})
	c.problem = errors.Join(c.problem, noted, c.note())
	c.publish(now)
}

// note notes which queues are kept, for whoever has to give them back.
func (c *Controller) note() error {
	kept := map[int][]uint32{}
	for _, l := range c.links {
		kept[l.Index] = append(kept[l.Index], l.Queues...)
	}
	for index := range kept {
		slices.Sort(kept[index])
		kept[index] = slices.Compact(kept[index])
	}
	if c.deps.Note == nil || c.noted != nil && maps.EqualFunc(c.noted, kept, slices.Equal) {
		return nil
	}
	if err := c.deps.Note(kept); err != nil {
		return err
	}
	c.noted = kept
	return nil
}

func (c *Controller) step(now time.Time) error {
	if c.wanted.Flows > 0 {
		sample, err := c.deps.Datapath.HeavyFlows(c.wanted.Packets * now.Sub(c.last).Seconds() / sampledPart)
		if err != nil {
			return err
		}
		if !c.last.IsZero() { // the first sample is of an unknown time
			c.learn(sample, now.Sub(c.last))
		}
		c.last = now
	}
	for _, l := range c.links {
		l.fail(l.read(now))
	}
	chosen := c.choose(now)
	for _, l := range c.links {
		l.fail(l.delete(chosen))
	}
	for _, l := range c.links {
		l.place(chosen)
	}
	if c.wanted.Flows > 0 || c.told {
		left, err := c.deps.Datapath.Steer(c.queues(), c.placed())
		if c.wanted.Flows == 0 && errors.Is(err, datapath.ErrNotSteering) {
			err = nil // the program has no queues that it could be told to forget
		}
		if err != nil {
			return err
		}
		if c.told = len(c.links) > 0; !c.told { // the flows of today are not those of another day
			clear(c.flows)
			c.last = time.Time{}
		}
		for _, f := range left {
			c.refuse(f, now)
		}
	}
	for _, l := range c.links {
		l.insert(now, c.byRate(l.placed), func(f datapath.SteeredFlow) { c.refuse(f, now) })
	}
	return nil
}

// byRate are flows that are placed, those with the most packets first.
func (c *Controller) byRate(placed map[datapath.SteeredFlow]uint32) []datapath.SteeredFlow {
	return slices.SortedFunc(maps.Keys(placed), func(a, b datapath.SteeredFlow) int {
		rate := func(f datapath.SteeredFlow) float64 {
			if known := c.flows[f]; known != nil {
				return known.rate
			}
			return 0
		}
		return cmp.Or(cmp.Compare(rate(b), rate(a)), compareIDs(a, b))
	})
}

// refuse takes a flow out of the links that have no rule for it, for a while.
func (c *Controller) refuse(f datapath.SteeredFlow, now time.Time) {
	if known := c.flows[f]; known != nil {
		known.refused = now
	}
	for _, l := range c.links {
		if _, has := l.rules[f]; !has {
			delete(l.placed, f)
		}
	}
}

// learn takes over how many packets flows had in a time.
func (c *Controller) learn(sample []datapath.HeavyFlow, in time.Duration) {
	const weight = 0.3 // of the last sample
	for id, f := range c.flows {
		if f.rate *= 1 - weight; f.rate < 1 {
			delete(c.flows, id)
		}
	}
	for _, s := range sample {
		f := c.flows[s.SteeredFlow]
		if f == nil {
			f = &flow{SteeredFlow: s.SteeredFlow}
			c.flows[s.SteeredFlow] = f
		}
		f.rate += weight * float64(s.Packets) / max(in, time.Millisecond).Seconds()
		switch {
		case s.ByRule > 0 || !s.Steered:
			f.missed = 0
		case s.Packets > 0:
			f.missed++
		}
	}
	// A flood has a flow for each packet.
	if most := memoryRatio * c.wanted.Flows; len(c.flows) > most {
		for _, f := range byRate(c.flows)[most:] {
			delete(c.flows, f.SteeredFlow)
		}
	}
}

// choose returns the flows that are to be steered. A flow that is steered stays until another one has
// twice its packets, or until it has a quarter of what a rule is worth: rules do not come and go by chance.
func (c *Controller) choose(now time.Time) map[datapath.SteeredFlow]*flow {
	least := c.wanted.Packets
	worth := func(f *flow) float64 {
		if !c.isSteered(f.SteeredFlow) {
			return f.rate
		}
		return max(2*f.rate, min(4*f.rate, least))
	}
	var able []*flow
	for _, f := range c.flows {
		if worth(f) >= least && (f.refused.IsZero() || now.Sub(f.refused) >= refusedFor) {
			able = append(able, f)
		}
	}
	able = c.ofServices(able, worth)
	slices.SortFunc(able, func(a, b *flow) int { return cmp.Or(cmp.Compare(worth(b), worth(a)), compareFlows(a, b)) })
	chosen := map[datapath.SteeredFlow]*flow{}
	for _, f := range able[:min(len(able), c.room())] {
		chosen[f.SteeredFlow] = f
	}
	return chosen
}

// ofServices leaves out flows of services for which there are no queues: those with the fewest packets.
func (c *Controller) ofServices(flows []*flow, worth func(*flow) float64) []*flow {
	most, sums := c.mostServices(), map[model.ServiceID]float64{}
	for _, f := range flows {
		sums[f.Service] += worth(f)
	}
	services := slices.SortedFunc(maps.Keys(sums), func(a, b model.ServiceID) int {
		return cmp.Or(cmp.Compare(sums[b], sums[a]), compareServices(a, b))
	})
	if len(services) <= most {
		return flows
	}
	return slices.DeleteFunc(flows, func(f *flow) bool { return slices.Contains(services[most:], f.Service) })
}

// mostServices is for how many services every NIC has queues.
func (c *Controller) mostServices() int {
	most := steeredServices
	for _, l := range c.links {
		if !l.leaves {
			most = min(most, len(l.Queues))
		}
	}
	return most
}

// room is how many flows all NICs that work have room for.
func (c *Controller) room() int {
	room := c.wanted.Flows
	for _, l := range c.links {
		if l.works() {
			room = min(room, l.table.Size-len(l.others))
		}
	}
	return max(0, room)
}

func (c *Controller) isSteered(f datapath.SteeredFlow) bool {
	return slices.ContainsFunc(c.links, func(l *link) bool { _, is := l.placed[f]; return is })
}

// queues is what the program is told of receive queues: all that are kept, so that a later process knows
// them, too.
func (c *Controller) queues() (all []datapath.SteeredQueue) {
	for _, l := range c.links {
		for _, number := range l.Queues {
			all = append(all, datapath.SteeredQueue{Interface: l.Index, Queue: number, Service: l.queues[number]})
		}
	}
	return all
}

// placed are the flows that have a queue on some link.
func (c *Controller) placed() []datapath.SteeredFlow {
	all := map[datapath.SteeredFlow]bool{}
	for _, l := range c.links {
		for f := range l.placed {
			all[f] = true
		}
	}
	return slices.Collect(maps.Keys(all))
}

// byRate are flows, those with the most packets first.
func byRate(flows map[datapath.SteeredFlow]*flow) []*flow {
	return slices.SortedFunc(maps.Values(flows), func(a, b *flow) int {
		return cmp.Or(cmp.Compare(b.rate, a.rate), compareFlows(a, b))
	})
}

func compareFlows(a, b *flow) int { return compareIDs(a.SteeredFlow, b.SteeredFlow) }

func compareIDs(a, b datapath.SteeredFlow) int {
	return cmp.Or(a.Client.Compare(b.Client), compareServices(a.Service, b.Service))
}

func compareServices(a, b model.ServiceID) int {
	return cmp.Or(a.VIP.Compare(b.VIP), cmp.Compare(a.Port.First, b.Port.First), cmp.Compare(a.Protocol, b.Protocol))
}

// Status returns which flows are steered, as of the last step; nil: none should be.
func (c *Controller) Status() *model.SteeringStatus { return c.status.Load() }

// publish makes Status return what there is now.
func (c *Controller) publish(now time.Time) {
	if c.wanted.Flows == 0 && len(c.links) == 0 {
		c.status.Store(nil)
		return
	}
	s := &model.SteeringStatus{Flows: len(c.placed()), Most: c.room(), Packets: c.deps.Datapath.SteeredPackets(), Interfaces: []model.SteeredInterface{}}
	for f := range c.flows {
		if c.flows[f].missed >= missedLooks && c.isSteered(f) {
			s.Elsewhere++
		}
	}
	if c.problem != nil {
		s.Problem = c.problem.Error()
	}
	at := map[int]int{} // an interface may have a link that leaves, too
	for _, l := range c.links {
		one := l.status(now)
		if i, has := at[l.Index]; has {
			s.Interfaces[i] = together(s.Interfaces[i], one)
		} else {
			at[l.Index] = len(s.Interfaces)
			s.Interfaces = append(s.Interfaces, one)
		}
	}
	c.status.Store(s)
}

// together is the state of an interface and of its link that leaves.
func together(is, leaves model.SteeredInterface) model.SteeredInterface {
	is.Rules += leaves.Rules
	is.Others = min(is.Others, leaves.Others) // each takes the other's rules for another user's
	is.Deleted += leaves.Deleted
	is.Queues = append(is.Queues, leaves.Queues...)
	if is.Problem == "" {
		is.Problem = leaves.Problem
	}
	return is
}
