// Package steering has a host's NICs lead packets of the flows with the most packets to receive queues
// by which the director finds a flow's backend at once (bpf/director/pick/steered.h). Once a second it looks
// at how many packets flows have, chooses those that are worth a rule, and brings the rules of each NIC
// there.
//
// A rule decides only the queue, and the director's program chooses the backend. So a rule that is missing,
// late or left over leads no packet to a wrong backend. What the NIC says it has counts. Rules to other queues, or for other
// packets than those of one flow, are other users', and stay as they are.
package steering

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
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
)

// Datapath is what the director's program needs to be told, and tells.
type Datapath interface {
	Steer(queues []datapath.SteeredQueue, flows []datapath.SteeredFlow) (left []datapath.SteeredFlow, err error)
	HeavyFlows() ([]datapath.HeavyFlow, error)
}

// NIC is the flow table of an interface.
type NIC interface {
	// Table returns how many rules fit, and where there are some, of whichever user.
	Table() (device.RuleTable, error)
	// Rule returns the rule that lies somewhere; false: it is none for a single flow, or has gone.
	Rule(location uint32) (device.Rule, bool, error)
	Insert(r device.Rule, chooses bool) (location uint32, err error)
	Delete(location uint32) error
}

// Link is an interface whose NIC steers flows.
type Link struct {
	Name   string
	Index  int
	NIC    NIC
	Queues []uint32 // that only rules lead to
}

// Reporter lists what was asked for and does not run: problems.List.
type Reporter interface {
	Report(kind model.ProblemKind, part string, err error)
}

// Limits bound what is steered.
type Limits struct {
	Flows            int     // on each NIC
	PacketsPerSecond float64 // a flow that has fewer is not worth a rule
}

// Deps are what a controller works with.
type Deps struct {
	Datapath Datapath
	Limits   Limits
	Problems Reporter
}

// Controller steers the flows of one director.
type Controller struct {
	deps Deps

	mu    sync.Mutex
	links []*link
	flows map[datapath.SteeredFlow]*flow
	last  time.Time // when the sample was last read
}

// flow is what is known of a flow.
type flow struct {
	datapath.SteeredFlow
	rate    float64   // packets per second, of late
	refused time.Time // when a NIC has last refused its rule
}

// New makes a controller that steers nothing yet.
func New(deps Deps) *Controller {
	return &Controller{deps: deps, flows: map[datapath.SteeredFlow]*flow{}}
}

// SetLinks says on which interfaces flows are steered. An interface that is no longer one of them, or has
// other queues now, loses its rules with the next steps.
func (c *Controller) SetLinks(links []Link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := make([]*link, 0, len(links))
	for _, l := range links {
		if at := slices.IndexFunc(c.links, func(o *link) bool { return o.sameAs(l) }); at >= 0 {
			next = append(next, c.links[at])
		} else {
			next = append(next, newLink(l))
		}
	}
	for _, l := range c.links {
		if !slices.Contains(next, l) && len(l.rules) > 0 {
			l.leaves = true
			next = append(next, l)
		}
	}
	c.links = next
}

// Run steers until the context ends. Rules stay then, and the next process deletes them.
func (c *Controller) Run(ctx context.Context) {
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
			c.deps.Problems.Report(model.ProblemInterface, "steering", c.Step(time.Now()))
		}
	}
}

// Step looks at the flows, and brings the rules of all NICs to what it finds.
func (c *Controller) Step(now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	sample, err := c.deps.Datapath.HeavyFlows()
	if err != nil {
		return err
	}
	if !c.last.IsZero() { // the first sample is of an unknown time
		c.learn(sample, now.Sub(c.last))
	}
	c.last = now
	var errs []error
	for _, l := range c.links {
		errs = append(errs, l.read(now))
	}
	chosen := c.choose(now)
	for _, l := range c.links {
		errs = append(errs, l.delete(chosen))
	}
	for _, l := range c.links {
		l.place(chosen)
	}
	left, err := c.deps.Datapath.Steer(c.queues(), c.placed())
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, f := range left {
		c.refuse(f, now)
	}
	for _, l := range c.links {
		errs = append(errs, l.insert(func(f datapath.SteeredFlow) { c.refuse(f, now) }))
	}
	c.links = slices.DeleteFunc(c.links, func(l *link) bool { return l.leaves && len(l.rules) == 0 })
	return errors.Join(errs...)
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
	const weight = 0.5 // of the last sample
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
	}
	// A flood has a flow for each packet.
	if most := memoryRatio * c.deps.Limits.Flows; len(c.flows) > most {
		for _, f := range byRate(c.flows)[most:] {
			delete(c.flows, f.SteeredFlow)
		}
	}
}

// choose returns the flows that are to be steered. A flow that is steered stays until another one has
// twice its packets, or until it has a quarter of what a rule is worth: rules do not come and go by chance.
func (c *Controller) choose(now time.Time) map[datapath.SteeredFlow]*flow {
	least := c.deps.Limits.PacketsPerSecond
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
	room := c.deps.Limits.Flows
	for _, l := range c.links {
		if l.broken == nil && !l.leaves {
			room = min(room, l.table.Size-len(l.others))
		}
	}
	return max(0, room)
}

func (c *Controller) isSteered(f datapath.SteeredFlow) bool {
	return slices.ContainsFunc(c.links, func(l *link) bool { _, is := l.placed[f]; return is })
}

// queues is what the program is told of receive queues.
func (c *Controller) queues() (all []datapath.SteeredQueue) {
	for _, l := range c.links {
		for number, service := range l.queues {
			all = append(all, datapath.SteeredQueue{Interface: l.Index, Queue: number, Service: service})
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

func compareFlows(a, b *flow) int {
	return cmp.Or(a.Client.Compare(b.Client), compareServices(a.Service, b.Service))
}

func compareServices(a, b model.ServiceID) int {
	return cmp.Or(a.VIP.Compare(b.VIP), cmp.Compare(a.Port.First, b.Port.First), cmp.Compare(a.Protocol, b.Protocol))
}
