package datapath

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/model"
)

// Checks lead health checks to backends by the way of clients' packets: to the VIP, in the headers
// that the director's program would give them (bpf/small/check.bpf.c). They need no pinned object
// and no table: backends are checked before they are in one. Close removes what Set has made.
type Checks struct {
	hops  *resolver
	pin   string
	limit uint32 // of ways
	log   *slog.Logger

	mu        sync.Mutex
	device    *checkDevice // nil: it was not needed yet, or cannot be made
	claims    *claims      // nil: they were not needed yet
	confirmed confirmed
	problem   string // why there is no device, as it was logged last
	ways      map[model.Target]*checkWay
	last      wayNumber // the number that was given last
}

// checkEntry is struct check_way, made of the director's own types.
type checkEntry struct {
	To       directorBackend
	Settings directorSettings
}

// The two are the same structure: this does not compile when they differ in size.
const _ = -(unsafe.Sizeof(checkEntry{}) ^ unsafe.Sizeof(checkCheckWay{}))

// checkWay is the way to one backend.
type checkWay struct {
	number wayNumber // in the kernel; no other way ever has the same
	since  time.Time
	from   netip.Addr
	entry  checkEntry // as the kernel has it
	way    model.Way
}

// Checks returns the Checks that lead probes by the way of this datapath's packets.
func (d *Datapath) Checks() *Checks {
	return &Checks{hops: d.hops, pin: d.options.Pin, limit: d.options.Limits.Backends, log: d.log, ways: map[model.Target]*checkWay{}}
}

// Set makes ways for these checks and forgets all others. A check without a way of its own goes to
// the backend's address.
func (c *Checks) Set(checks []model.Check) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wanted, vips := map[model.Target]bool{}, map[netip.Addr]bool{}
	for i := range checks {
		check := &checks[i]
		if check.Way == nil || !c.open() {
			continue
		}
		wanted[check.Target], vips[check.Way.VIP] = true, true
		if c.ways[check.Target] == nil {
			c.last++
			c.ways[check.Target] = &checkWay{number: c.last, since: time.Now()}
		}
		c.hops.resolve(check.Way.Backend, c.hops.current(check.Way.Interfaces)) // so that the kernel looks for the neighbor now
	}
	for target, w := range c.ways {
		if !wanted[target] {
			delete(c.ways, target)
			_ = c.device.ways.Delete(w.number) // it may not have been written yet
		}
	}
	if c.claims != nil {
		c.claims.forget(func(vip netip.Addr) bool { return vips[vip] })
	}
}

// open makes the device when it is first needed, and says whether there is one.
func (c *Checks) open() bool {
	if c.device != nil {
		return true
	}
	if err := c.make(); err != nil {
		if c.problem != err.Error() {
			c.log.Error("health checks do not take the way of clients' packets, but go to backends' own addresses", "error", err)
		}
		c.problem = err.Error()
		return false
	}
	c.problem = ""
	return true
}

func (c *Checks) make() (err error) {
	if c.claims == nil {
		if c.claims, err = openClaims(); err != nil {
			return err
		}
	}
	c.device, err = openCheckDevice(c.pin, c.limit)
	return err
}

// Close removes the device. All checks must have ended before.
func (c *Checks) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	if c.device != nil {
		err = c.device.close()
	}
	if c.claims != nil {
		err = errors.Join(err, c.claims.close())
	}
	c.device, c.claims, c.ways = nil, nil, map[model.Target]*checkWay{}
	return err
}

// Sent returns what has become of packets on their way, by the names of enum check_verdict.
func (c *Checks) Sent() ([]model.Tallied, error) {
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
func (c *Checks) Way(check *model.Check) model.Way {
	direct := model.Way{To: check.To}
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.ways[check.Target]
	if check.Way == nil || w == nil {
		return direct
	}
	hop := c.hops.resolve(check.Way.Backend, c.hops.current(check.Way.Interfaces))
	if hop.local || c.hops.isOwn(check.Way.VIP) || leavesSegment(check.Way, hop) {
		return direct
	}
	if hop.mac.IsZero() || hop.ifindex == 0 {
		direct.Later = time.Since(w.since) < firstHop
		return direct
	}
	if c.isClaimed(check.Way, hop) {
		direct.Fault = model.FaultARP
		direct.Detail = fmt.Sprintf("%v answers ARP for %v: raise arp_ignore there", check.Way.Backend.Address, check.Way.VIP)
		return direct
	}
	if err := c.lead(w, check, hop); err != nil {
		c.log.Error("lead a health check", "backend", check.Backend, "error", err)
		return direct
	}
	return w.way
}

// isClaimed says whether a backend answers ARP for the VIP, if the VIP is on the backend's link.
func (c *Checks) isClaimed(way *model.CheckWay, hop nextHop) bool {
	if !way.VIP.Is4() {
		return false
	}
	link, own, on := c.hops.linkOf(way.VIP)
	return on && c.claims.by(hop.mac, neighbor{link, way.VIP}, own)
}

// leavesSegment says that this host has no address in the backend's network from which to probe it.
func leavesSegment(way *model.CheckWay, hop nextHop) bool {
	return way.Backend.Mode == model.L2DSR && way.Segment != (model.Segment{}) && hop.vlan == 0
}

// lead writes the way if it differs from what it should be.
func (c *Checks) lead(w *checkWay, check *model.Check, hop nextHop) error {
	entry, err := checkEntryOf(check.Way, hop)
	if err != nil {
		return err
	}
	to := netip.AddrPortFrom(check.Way.VIP, check.To.Port())
	from := c.hops.addressFor(check.Way.Backend.Address, to.Addr().Is6())
	if entry == w.entry && from == w.from && to == w.way.To {
		return nil
	}
	if err := c.device.ways.Update(w.number, entry, ebpf.UpdateAny); err != nil {
		return fmt.Errorf("write way %d: %w", w.number, err)
	}
	mtu := hop.mtu - check.Way.Backend.Mode.Overhead(check.Way.Backend.Address)
	w.entry, w.from = entry, from
	alike := checkSocket{mark: c.device.mark, from: from, mtu: mtu, six: to.Addr().Is6(), tcp: check.Target.Service.Protocol == model.TCP}
	number := w.number
	w.way = model.Way{To: to, MTU: mtu, Alike: alike,
		Prepare: func(fd int) error { return alike.prepare(fd, number) },
		Again:   func(fd int) error { return alike.again(fd, number) }}
	return nil
}

// checkEntryOf is the way as the program knows it.
func checkEntryOf(way *model.CheckWay, hop nextHop) (checkEntry, error) {
	var entry checkEntry
	b := way.Backend
	entry.To = entryOf(&model.TableService{VIP: way.VIP}, 0, b, hop)
	if b.Mode == model.L2DSR {
		return entry, nil
	}
	source, err := outerSource(way, hop)
	if err != nil {
		return entry, err
	}
	setTunnelSource(&entry.Settings, source)
	return entry, nil
}

// outerSource is the configured tunnel source of the backend's family, or this host's address.
func outerSource(way *model.CheckWay, hop nextHop) (netip.Prefix, error) {
	i := slices.IndexFunc(way.TunnelSource, func(p netip.Prefix) bool { return p.Addr().Is4() == way.Backend.Address.Is4() })
	if i >= 0 {
		return way.TunnelSource[i], nil
	}
	own := ownAddress(hop, way.Directors)
	if !own.IsValid() {
		return netip.Prefix{}, errors.New("this host has no address to send tunnels from")
	}
	return netip.PrefixFrom(own, own.BitLen()), nil
}
