package track

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/process"
	"weir.io/weir/lab/traffic"
)

// Where full NAT's source addresses begin: beyond the balancer's own addresses.
var snat4, snat6 = netip.MustParseAddr("10.1.255.2"), netip.MustParseAddr("fd00:1::1:2")

// snatPorts are the ports of each address.
var snatPorts = model.PortRange{First: 10000, Last: 59999}

// startWeir makes the balancer forward by a real director, and tells the sink which backend each
// flow belongs to. The process ends before measurements, unless it is needed: packets do not need
// it. It would meter the work of all CPUs a tenth of the time, and with several tracks up, each
// process would meter the others' work.
func startWeir(ctx context.Context, t *Track) error {
	if err := t.StartDirector(ctx); err != nil {
		return err
	}
	before := t.placement(t.config(t.set))
	if t.Moves {
		t.closers = append(t.closers, t.StopDirector)
		return t.sink.Expect(before, nil)
	}
	if t.Swaps {
		t.closers = append(t.closers, t.StopDirector)
		return t.sink.Expect(before, t.placement(t.config(upperSet)))
	}
	after, err := t.share(ctx)
	if t.Routed {
		t.closers = append(t.closers, t.StopDirector)
	}
	if t.Steered > 0 { // the process ends when it has seen the flows: see steer
		return errors.Join(err, t.sink.Expect(before, after))
	}
	if err := errors.Join(err, t.StopDirector()); err != nil || !t.Subject.places {
		return err
	}
	return t.sink.Expect(before, after)
}

// StartDirector returns when a director's process runs on the balancer and forwards.
func (t *Track) StartDirector(ctx context.Context) error {
	var err error
	if t.Steered > 0 {
		return t.startSteering(ctx)
	}
	if t.Older != "" {
		t.director, err = process.StartOlderDirector(t.balancer, t.Older, t.bareConfig(wholeSet))
	} else {
		t.director, err = process.StartDirector(t.balancer, t.config(t.set))
	}
	if err != nil {
		return err
	}
	return t.director.Forwards(ctx)
}

// StopDirector ends the process; packets are still forwarded.
func (t *Track) StopDirector() error { return t.director.Stop() }

// FlowsInserted is how many flows the director's flow memory has taken, and how many it had no place
// for.
func (t *Track) FlowsInserted(ctx context.Context) (inserted, refused uint64, err error) {
	if err := t.StartDirector(ctx); err != nil {
		return 0, 0, err
	}
	status, err := api.NewClient(t.director.Socket).Status(ctx)
	if err = errors.Join(err, t.StopDirector()); err != nil {
		return 0, 0, err
	}
	for _, event := range status.Flows.Events {
		switch event.Name {
		case "flow_inserted":
			inserted = event.Count
		case "flow_refused":
			refused = event.Count
		}
	}
	return inserted, refused, nil
}

// config is the director's configuration: every VIP is a service, with its backends in the set.
func (t *Track) config(set backendSet) model.Config {
	c := t.bareConfig(set)
	c.SetDefaults()
	return c
}

// bareConfig leaves defaults out.
func (t *Track) bareConfig(set backendSet) model.Config {
	c := model.Config{
		Director: model.Director{Interfaces: []string{t.in.Name}, XDP: t.Subject.attach, Limits: model.Limits{Backends: uint32(t.Backends * t.Traffic.Tenants())}},
		Services: make([]model.Service, t.Traffic.VIPs*t.Traffic.Tenants()),
	}
	t.overlay(&c)
	if t.Subject.SNAT {
		c.Director.SNAT = model.SNAT{Ports: snatPorts, Addresses: t.snatAddresses()}
	} else {
		c.Director.Limits.Flows = uint32(t.FlowRoom)
	}
	if t.Steered > 0 {
		c.Director.Steering = model.Steering{Queues: t.steeredQueues(), Flows: uint32(t.Steered), Packets: 1}
	}
	if t.FanOut {
		c.Director.FanOut = model.FanOut{CPUs: 1} // the last one of two
	}
	if t.Moves {
		c.Director.Limits.Backends *= 4 // as with swaps
	}
	if t.Swaps {
		c.Director.Limits.Backends *= 4 // entries of removed backends rest for a while before they are used again
		c.Coalesce = model.Duration(time.Millisecond)
	}
	for n := range c.Services {
		tenant, vip := n/t.Traffic.VIPs, n%t.Traffic.VIPs
		first, end := set.of(t.Traffic.BackendsOf(vip, t.Backends))
		c.Services[n] = t.Subject.Service(t.Traffic, vip, first, end)
		t.inTenant(&c.Services[n], tenant, first)
		if t.Traffic.VLAN != 0 && t.Older == "" { // a trunk: older versions went by routes
			for b := range c.Services[n].Backends {
				c.Services[n].Backends[b].Interface = t.out.Name
			}
		}
	}
	return c
}

// snatAddresses returns as many addresses as have ports for all of the flows, or for all that there is to
// be room for, or as many as weir takes.
func (t *Track) snatAddresses() []netip.Addr {
	const most = 62
	ports := int(snatPorts.Last-snatPorts.First) + 1
	address := snat4
	if t.Traffic.IPv6 {
		address = snat6
	}
	var addresses []netip.Addr
	for range min(most, (max(t.Traffic.Flows, t.FlowRoom)+ports-1)/ports) {
		addresses = append(addresses, address)
		address = address.Next()
	}
	return addresses
}

// placement returns the backend that any director must choose for each flow.
func (t *Track) placement(c model.Config) func(flow int) int {
	table, _ := engine.Plan(c, nil, nil)
	numbers := map[netip.Addr]int{}
	for n := range t.Backends {
		numbers[traffic.Backend(n, t.Subject.ipv6(t.Traffic))] = n
	}
	all := t.Traffic.VIPs * t.Traffic.Tenants()
	services := make([]*model.TableService, all)
	backends := make([][]int, all) // the backends' numbers, of each service
	for n := range services {
		tenant, vip := n/t.Traffic.VIPs, n%t.Traffic.VIPs
		at := slices.IndexFunc(table.Services, func(s model.TableService) bool {
			return s.Segment == t.Traffic.SegmentOf(tenant) && s.VIP == traffic.VIP(vip, t.Traffic.IPv6)
		})
		services[n] = &table.Services[at]
		for _, b := range services[n].Backends {
			backends[n] = append(backends[n], numbers[b.Address])
		}
	}
	return func(flow int) int {
		n := t.Traffic.Tenant(flow)*t.Traffic.VIPs + t.Traffic.VIPOf(flow)
		s := services[n]
		slot := s.Ring.SlotOf(t.Traffic.Flow(flow).Hash(s.Salt, s.Affinity))
		return backends[n][s.Ring.Slots[slot].Owner]
	}
}

// drains are the changes that make that percentage of the slots shared: in each change a part of
// every VIP's backends drains, from one share of them up to another.
//
// A slot is shared when its owner or its backup has changed: not only when one of them drains,
// because Maglev moves a few of the others' slots, too. If one half drains and then the other, no
// backend keeps a slot.
var drains = map[int][][2]float64{
	0:   nil,
	25:  {{0, 0.096}},
	100: {{0, 0.5}, {0.5, 1}},
}

// sharedWithin is by how many percent of the slots the result may differ from the request.
const sharedWithin = 3

// drained is the configuration after one of these changes.
func (t *Track) drained(part [2]float64) model.Config {
	c := t.config(wholeSet)
	for n := range c.Services {
		backends := c.Services[n].Backends
		for b := int(part[0] * float64(len(backends))); b < int(part[1]*float64(len(backends))); b++ {
			backends[b].State = model.Draining
		}
	}
	return c
}

// share makes as many slots shared as the options say, and returns the backend of each flow that
// begins then; nil: nothing changed.
func (t *Track) share(ctx context.Context) (func(flow int) int, error) {
	changes, known := drains[t.Shared]
	if !known {
		return nil, fmt.Errorf("%d %% of the slots cannot be shared", t.Shared)
	}
	var placement func(int) int
	for n, part := range changes {
		c := t.drained(part)
		if err := t.director.Write(c); err != nil {
			return nil, err
		}
		if err := t.director.Await(ctx, "follow its file", func() error { return t.generations(ctx, n+2) }); err != nil {
			return nil, err
		}
		placement = t.placement(c)
	}
	return placement, t.checkShared(ctx)
}

var errNotFollowed = errors.New("a change has not arrived")

// generations checks that every service's log has that many generations.
func (t *Track) generations(ctx context.Context, want int) error {
	services, err := api.NewClient(t.director.Socket).Services(ctx)
	if err != nil {
		return err
	}
	for _, s := range services {
		if s.Log.Generations != want {
			return errNotFollowed
		}
	}
	return nil
}

// checkShared checks that the director reports as many shared slots.
func (t *Track) checkShared(ctx context.Context) error {
	if t.Older != "" {
		return nil // an older version may not report it
	}
	services, err := api.NewClient(t.director.Socket).Services(ctx)
	if err != nil {
		return err
	}
	for _, s := range services {
		percent := 100 * s.Log.Shared / s.Slots
		if percent < t.Shared-sharedWithin || percent > t.Shared+sharedWithin {
			return fmt.Errorf("%d of %d slots of %s are shared, want %d %%", s.Log.Shared, s.Slots, s.Name, t.Shared)
		}
	}
	return nil
}

// backendSet is which of a VIP's backends its service has. Each set has two thirds: with each swap
// a third of the backends leaves, another third comes, and most flows move.
type backendSet int

// The sets. A director whose backends will be swapped begins with the lower one.
const (
	wholeSet backendSet = iota
	lowerSet
	upperSet
)

func (s backendSet) of(first, end int) (int, int) {
	third := (end - first) / 3
	switch s {
	case lowerSet:
		return first, end - third
	case upperSet:
		return first + third, end
	}
	return first, end
}

// ErrNotSwapped says that packets did not follow a swap.
var ErrNotSwapped = errors.New("no packet came to the new backends")

// Swaps is the outcome of swapping backends.
type Swaps struct {
	Seen int // swaps that packets were seen to follow

	first, last time.Time // when they were
}

// PerSecond is how often packets followed a swap, from the first time to the last: the time until
// the first swap would make it less. NaN for fewer than two.
func (s Swaps) PerSecond() float64 {
	if s.Seen < 2 {
		return math.NaN()
	}
	return float64(s.Seen-1) / s.last.Sub(s.first).Seconds()
}

// KeepSwapping edits the director's file at that interval until the context ends, which needs
// [Options.Swaps]. Traffic must be under way: an edit that is due waits until packets have followed
// the one before. Otherwise a director with little CPU time would read two edits at once, which
// cancel out, and swap nothing.
func (t *Track) KeepSwapping(ctx context.Context, interval time.Duration) (swaps Swaps, err error) {
	ticks, looks := time.NewTicker(interval), time.NewTicker(5*time.Millisecond)
	defer ticks.Stop()
	defer looks.Stop()
	watch := setWatch{track: t, now: t.set}
	due := false
	for err == nil {
		select {
		case <-ctx.Done():
			return swaps, nil
		case <-ticks.C:
			due = true
		case <-looks.C:
			var followed bool
			if followed, err = watch.look(); followed {
				swaps.saw(time.Now())
			}
		}
		if due && err == nil && watch.now == t.set {
			due, err = false, t.swap()
		}
	}
	return swaps, fmt.Errorf("swap backends: %w", err)
}

func (s *Swaps) saw(at time.Time) {
	if s.Seen == 0 {
		s.first = at
	}
	s.Seen++
	s.last = at
}

// swap changes to the other set.
func (t *Track) swap() error {
	next := upperSet
	if t.set == upperSet {
		next = lowerSet
	}
	t.set = next
	return t.director.Write(t.config(next))
}

// setWatch sees when packets change to the other set.
type setWatch struct {
	track        *Track
	now          backendSet
	lower, upper uint64 // packets that came to the backends which only this set has
}

// look is whether packets changed to the other set since the last look.
func (w *setWatch) look() (bool, error) {
	first, end := w.track.Traffic.BackendsOf(0, w.track.Backends)
	third := (end - first) / 3
	lower, err := w.track.sink.At(first, third)
	if err != nil {
		return false, err
	}
	upper, err := w.track.sink.At(end-third, third)
	if err != nil {
		return false, err
	}
	now := w.now
	switch {
	case w.lower+w.upper == 0: // the first look
	case lower > w.lower && upper == w.upper:
		now = lowerSet
	case upper > w.upper && lower == w.lower:
		now = upperSet
	}
	followed := now != w.now
	w.now, w.lower, w.upper = now, lower, upper
	return followed, nil
}
