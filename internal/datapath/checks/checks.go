// Package checks leads health checks to backends by the way of clients' packets, and asks links for
// backends that do not answer, or that answer for VIPs.
package checks

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/datapath/nexthop"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/upkeep"
)

// Deps is what Ways work with.
type Deps struct {
	Log   *slog.Logger
	Hops  *nexthop.Resolver
	Pin   string // the datapath's directory, after which the device is named
	Limit uint32 // of ways
	// Entry is a way as the program knows it: struct check_way, which must be comparable. Packets have these
	// addresses; invalid: those of their socket.
	Entry func(way *model.CheckWay, hop nexthop.Hop, source, target netip.Addr) (any, error)
	// Hears says whether answers from tenants' networks come: the director's program gives them to sockets.
	Hears func() bool
	// StandIn makes answers of these hosts, whose addresses are this host's own, too, come from the others. It
	// replaces what it was given before.
	StandIn func(targets map[model.VIP]netip.Addr) error
	// Expect is told what the host knows of tenants' networks: backends are checked before they are in a table.
	Expect func(host *model.CheckHost)
}

// EntrySize is the size of struct check_way.
const EntrySize = unsafe.Sizeof(checkCheckWay{})

// Ways lead health checks to backends by the way of clients' packets: to the VIP, in the headers
// that the director's program would give them (bpf/small/check.bpf.c). They need no pinned object
// and no table: backends are checked before they are in one. Close removes what Set has made.
type Ways struct {
	Deps

	mu        sync.Mutex
	device    *checkDevice // nil: it was not needed yet, or cannot be made
	bindings  *bindings    // nil: they were not needed yet
	confirmed confirmed
	problem   string // why there is no device, as it was logged last
	ways      map[model.Target]*checkWay
	last      wayNumber                // the number that was given last
	standIns  map[model.VIP]netip.Addr // of hosts of tenants' networks whose addresses are this host's own, too
	lastStand uint32                   // the number of the one that was given last
}

// checkWay is the way to one backend.
type checkWay struct {
	number wayNumber // in the kernel; no other way ever has the same
	since  time.Time
	from   netip.Addr
	host   model.VIP // that has a stand-in; zero: none has
	entry  any       // as the kernel has it
	way    model.Way
}

// New makes no device yet.
func New(deps Deps) *Ways { return &Ways{Deps: deps, ways: map[model.Target]*checkWay{}} }

// Set makes ways for these checks and forgets all others. A check without a way of its own goes to
// the backend's address.
func (c *Ways) Set(checks []model.Check) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wanted, vips := map[model.Target]bool{}, map[netip.Addr]bool{}
	var host *model.CheckHost // all have the same
	for i := range checks {
		check := &checks[i]
		if check.Way == nil || !c.open() {
			continue
		}
		if check.Way.CheckHost != host {
			host = check.Way.CheckHost
			c.Expect(host)
		}
		wanted[check.Target], vips[check.Way.VIP] = true, true
		if c.ways[check.Target] == nil {
			c.last++
			c.ways[check.Target] = &checkWay{number: c.last, since: time.Now()}
		}
		c.Hops.Resolve(check.Way.Backend, c.Hops.CurrentNames(check.Way.Interfaces)) // so that the kernel looks for the neighbor now
	}
	for target, w := range c.ways {
		if !wanted[target] {
			delete(c.ways, target)
			_ = c.device.ways.Delete(w.number) // it may not have been written yet
		}
	}
	c.forgetStandIns()
	if c.bindings != nil {
		c.bindings.forget(func(vip netip.Addr) bool { return vips[vip] })
	}
}

// open makes the device when it is first needed, and says whether there is one.
func (c *Ways) open() bool {
	if c.device != nil {
		return true
	}
	if err := c.make(); err != nil {
		if c.problem != err.Error() {
			c.Log.Error("health checks do not take the way of clients' packets, but go to backends' own addresses", "error", err)
		}
		c.problem = err.Error()
		return false
	}
	c.problem = ""
	return true
}

func (c *Ways) make() (err error) {
	if c.bindings == nil {
		if c.bindings, err = openBindings(); err != nil {
			return err
		}
	}
	c.device, err = openCheckDevice(c.Pin, c.Limit)
	return err
}

// Close removes the device. All checks must have ended before.
func (c *Ways) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	if c.device != nil {
		err = c.device.close()
	}
	if c.bindings != nil {
		err = errors.Join(err, c.bindings.close())
	}
	c.device, c.bindings, c.ways = nil, nil, map[model.Target]*checkWay{}
	return err
}

// Sent returns what has become of packets on their way, by the names of enum check_verdict.
func (c *Ways) Sent() ([]model.Tallied, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.device == nil {
		return nil, nil
	}
	return tallies(c.device.verdicts, c.device.names)
}

// firstHop is how long a new way waits for the kernel to find its next hop.
const firstHop = 200 * time.Millisecond

// Way returns how the next probe of a check gets to its backend. It goes to the backend's own
// address where packets do not leave this host, or where the next hop is not known: then the kernel
// looks for the next hop, and what it finds decides the probe.
func (c *Ways) Way(check *model.Check) model.Way {
	direct := model.Way{To: check.To}
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.ways[check.Target]
	inside := check.Way != nil && check.Way.Backend.Segment != (model.Segment{})
	if w == nil && inside { // the host's routes lead to another network
		direct.Fault, direct.Detail = model.FaultUnreachable, cmp.Or(c.problem, "its checks have no way yet")
		return direct
	}
	if check.Way == nil || w == nil {
		return direct
	}
	hop := c.Hops.Resolve(check.Way.Backend, c.Hops.CurrentNames(check.Way.Interfaces))
	if !inside && (hop.Local || c.Hops.IsOwn(check.Way.VIP)) {
		return direct
	}
	if hop.MAC.IsZero() || hop.Ifindex == 0 {
		direct.Later = time.Since(w.since) < firstHop
		if inside && !direct.Later {
			direct.Fault, direct.Detail = model.FaultUnreachable, cmp.Or(hop.Problem, fmt.Sprintf("nothing answers for %v in %s", check.Way.Backend.Address, check.Way.Backend.Segment))
		}
		return direct
	}
	if inside && !c.source(check, hop).IsValid() {
		direct.Fault = model.FaultNoAddress
		direct.Detail = fmt.Sprintf("this director has no %s address in %s to probe it from: give one in segments", family(check.To.Addr()), check.Way.Backend.Segment)
		return direct
	}
	if inside && !c.onLink(check, hop).IsValid() && !c.Hears() {
		direct.Later = true
		return direct
	}
	if !inside && c.answersARP(check.Way, hop) {
		direct.Fault = model.FaultARP
		direct.Detail = fmt.Sprintf("%v answers ARP for %v: raise arp_ignore there", check.Way.Backend.Address, check.Way.VIP)
		return direct
	}
	if err := c.lead(w, check, hop); err != nil {
		c.Log.Error("lead a health check", "backend", check.Backend, "error", err)
		if inside {
			direct.Fault, direct.Detail = model.FaultUnreachable, err.Error()
		}
		return direct
	}
	return w.way
}

// answersARP says whether a backend answers ARP for the VIP, if the VIP is on the backend's link.
func (c *Ways) answersARP(way *model.CheckWay, hop nexthop.Hop) bool {
	if !way.VIP.Is4() {
		return false
	}
	link, own, on := c.Hops.LinkOf(way.VIP)
	return on && c.bindings.by(hop.MAC, nexthop.Neighbor{Ifindex: link, Address: way.VIP}, own)
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// source is the address from which a backend in a tenant's network is probed: this host's own on the link there,
// else the one that the director has in the segment. Invalid: there is none.
func (c *Ways) source(check *model.Check, hop nexthop.Hop) netip.Addr {
	six := c.target(check).Is6()
	if own := c.onLink(check, hop); own.IsValid() {
		return own
	}
	for _, own := range check.Way.Own {
		if own.Is6() == six {
			return own
		}
	}
	return netip.Addr{}
}

// onLink is this host's own address on the interface of a backend's VLAN; invalid: it has none.
func (c *Ways) onLink(check *model.Check, hop nexthop.Hop) netip.Addr {
	if b := &check.Way.Backend; b.Segment.IsOverlay() || !hop.Routed && b.Interface == "" {
		return netip.Addr{}
	}
	return c.Hops.AddressOn(hop.Link, c.target(check).Is6())
}

// target is where a probe goes.
func (c *Ways) target(check *model.Check) netip.Addr {
	if check.Way.Direct {
		return check.To.Addr()
	}
	return check.Way.VIP
}

// lead writes the way if it differs from what it should be.
func (c *Ways) lead(w *checkWay, check *model.Check, hop nexthop.Hop) error {
	to := netip.AddrPortFrom(c.target(check), check.To.Port())
	var from, wire, target, stand netip.Addr
	w.host = model.VIP{}
	switch in := check.Way.Backend.Segment; {
	case in != (model.Segment{}):
		if from = c.onLink(check, hop); !from.IsValid() {
			// No interface has the address: the socket has one of this host's own.
			wire, from = c.source(check, hop), checkAddress(in, to.Addr().Is6())
			if err := c.device.haveInside(); err != nil {
				return err
			}
			if c.Hops.IsOwn(to.Addr()) {
				var err error
				w.host = model.VIP{Segment: in, Address: to.Addr()}
				if stand, err = c.standIn(w.host); err != nil {
					return err
				}
				target = to.Addr()
			}
		}
	case check.Way.Backend.OffRoutes():
		from = c.Hops.AddressOn(hop.Link, to.Addr().Is6())
	default:
		from = c.Hops.AddressFor(check.Way.Backend.Address, to.Addr().Is6())
	}
	entry, err := c.Entry(check.Way, hop, wire, target)
	if err != nil {
		return err
	}
	var named netip.AddrPort
	if stand.IsValid() {
		named, to = to, netip.AddrPortFrom(stand, to.Port())
	}
	if entry == w.entry && from == w.from && to == w.way.To {
		return nil
	}
	if err := c.device.ways.Update(w.number, entry, ebpf.UpdateAny); err != nil {
		return fmt.Errorf("write way %d: %w", w.number, err)
	}
	mtu := hop.MTU
	if !check.Way.Direct {
		mtu -= check.Way.Backend.Mode.Overhead(check.Way.Backend.Address)
	}
	w.entry, w.from = entry, from
	alike := checkSocket{mark: c.device.mark, from: from, mtu: mtu, six: to.Addr().Is6(), over: check.How.Over(check.Target.Service.Protocol)}
	number := w.number
	w.way = model.Way{To: to, Named: named, MTU: mtu, Alike: alike,
		Prepare: func(fd int) error { return alike.prepare(fd, number) },
		Again:   func(fd int) error { return alike.again(fd, number) }}
	if check.Way.Direct {
		w.way.MTU = 0
	}
	return nil
}

// standIn is the address that sockets have in the place of a host's in a tenant's network, which is this host's own,
// too: the kernel keeps what is sent to that.
func (c *Ways) standIn(host model.VIP) (netip.Addr, error) {
	if stand, has := c.standIns[host]; has {
		return stand, nil
	}
	c.lastStand++
	stand := standIn(c.lastStand, host.Address.Is6())
	all := maps.Clone(c.standIns)
	if all == nil {
		all = map[model.VIP]netip.Addr{}
	}
	all[host] = stand
	if err := c.StandIn(all); err != nil {
		return netip.Addr{}, err
	}
	c.standIns = all
	return stand, nil
}

// forgetStandIns forgets those that no way has any more.
func (c *Ways) forgetStandIns() {
	used := map[model.VIP]netip.Addr{}
	for _, w := range c.ways {
		if stand, has := c.standIns[w.host]; has {
			used[w.host] = stand
		}
	}
	if len(used) == len(c.standIns) {
		return
	}
	if err := c.StandIn(used); err != nil {
		c.Log.Error("forget hosts that were probed", "error", err)
		return
	}
	c.standIns = used
}

// Part is the part of this host that leads health checks by the way of clients' packets.
func (c *Ways) Part(by upkeep.By) upkeep.Part {
	return upkeep.Part{Name: "checks", Look: func() ([]upkeep.Difference, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.device == nil {
			return nil, nil
		}
		text, index := c.device.problem()
		if text == "" {
			return nil, nil
		}
		return []upkeep.Difference{{What: c.device.name, Found: text, By: by.OfLink(index), Repair: c.mend}}, nil
	}}
}

func (c *Ways) mend() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.device == nil {
		return nil // closed meanwhile
	}
	return c.device.mend(c.Pin)
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
