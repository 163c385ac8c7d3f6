package datapath

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"weir.io/weir/internal/datapath/nexthop"
	"weir.io/weir/internal/model"
)

// What is known of tenants' networks: a table says it, and what was learned comes from SetHosts, SetMACs, SetVTEPs and
// SetVNIs.

// knownInside is what is known of tenants' networks. It does not change: another one takes its place, because
// next hops are looked for at any time.
type knownInside struct {
	begun    bool // a table has said it
	vtep     model.VTEP
	segments map[model.Segment]*model.SegmentSettings         // of the table
	ordered  []model.SegmentSettings                          // the same in its order
	learned  map[model.Segment][]model.SegmentHost            // of SetHosts
	macs     map[model.Segment]map[model.MAC]model.SegmentMAC // of SetMACs
	vteps    []netip.Addr                                     // of SetVTEPs
	vnis     map[model.Segment]uint32                         // on the wire: of SetVNIs

	// Made of these: the hosts, in the order in which they get room, and by their addresses.
	hosts []insideHost
	at    map[insideAddress]model.SegmentHost
	other []insideHost // learned, of addresses that the configuration says are elsewhere
}

// insideHost is a host of a tenant's network.
type insideHost struct {
	segment model.Segment
	model.SegmentHost
}

// insideAddress is an address in a tenant's network.
type insideAddress struct {
	segment model.Segment
	address netip.Addr
}

// list makes hosts, at and other: of each address what the configuration says counts, else what was learned.
func (o *knownInside) list() {
	o.hosts, o.other, o.at = nil, nil, map[insideAddress]model.SegmentHost{}
	add := func(segment model.Segment, hosts []model.SegmentHost) {
		for _, h := range hosts {
			key := insideAddress{segment, h.Address}
			if _, is := o.at[key]; is {
				o.other = append(o.other, insideHost{segment, h})
				continue
			}
			o.at[key] = h
			o.hosts = append(o.hosts, insideHost{segment, h})
		}
	}
	for i := range o.ordered {
		add(o.ordered[i].ID, o.ordered[i].Hosts)
	}
	for _, segment := range slices.SortedFunc(maps.Keys(o.learned), model.Segment.Compare) {
		add(segment, o.learned[segment])
	}
}

// learn makes another of what is known, which takes its place. Others may learn something else at the same time, so
// change may run several times; it returns false if nothing changes.
func (o *overlay) learn(change func(*knownInside) bool) (before, now *knownInside) {
	for {
		before = o.known.Load()
		next := *before
		if !change(&next) {
			return before, before
		}
		if o.known.CompareAndSwap(before, &next) {
			return before, &next
		}
	}
}

// inside says where a backend of a tenant's network is: as its configuration says, else as what knows the
// network's hosts does.
func (o *overlay) inside(b model.TableBackend) (in nexthop.Inside, problem string) {
	return o.known.Load().inside(b)
}

func (o *knownInside) inside(b model.TableBackend) (in nexthop.Inside, problem string) {
	settings := o.segments[b.Segment]
	in.Source = o.macIn(b.Segment)
	if settings != nil {
		in.MTU = int(settings.MTU)
	}
	if wire, known := o.wire(b.Segment); known {
		in.VNI = wire.ID
	}
	host, known := b.Place, b.Place.VTEP.IsValid()
	if !known {
		host, known = o.hostIn(b.Segment, b.Address)
	}
	if !b.MAC.IsZero() && (!known || host.MAC != b.MAC) {
		if at, is := o.macs[b.Segment][b.MAC]; is {
			host, known = model.SegmentHost{Address: b.Address, VTEP: at.VTEP, VNI: at.VNI}, true
		}
	}
	if !known && settings != nil && settings.Network != "" {
		return in, fmt.Sprintf("OVN has no port with this address on a host in network %s, which %s is", settings.Network, b.Segment)
	}
	if !known {
		at := fmt.Sprintf("nothing says at which VTEP it is in %s: ", b.Segment)
		const help = "the director's administrator gives it vtep and mac, or names it in the segment's hosts"
		switch told := len(o.macs[b.Segment]) > 0; {
		case told && !b.MAC.IsZero():
			return in, fmt.Sprintf("%sEVPN has told neither its address nor its mac, %s: %s", at, b.MAC, help)
		case told:
			return in, at + "EVPN has told MAC addresses there, but none with this address: give its mac; or " + help
		}
		return in, at + help
	}
	if !b.MAC.IsZero() {
		host.MAC = b.MAC
	}
	if in.Host, in.VNI = host, cmp.Or(host.VNI, in.VNI); in.VNI == 0 && o.nameless(b.Segment) {
		return in, fmt.Sprintf("OVN has not said which VNI %s has", b.Segment)
	}
	return in, ""
}

// wire is a segment's kind with the VNI that its packets have: the configured one, else the one that was
// learned, else the ID's. That of a network of OVN is known when OVN has said it, because another network may have
// the ID's.
func (o *knownInside) wire(segment model.Segment) (wire model.Segment, known bool) {
	settings := o.segments[segment]
	if settings != nil && settings.VNI != 0 {
		return settings.Wire(), true
	}
	if vni, learned := o.vnis[segment]; learned {
		return model.Segment{Kind: segment.Kind, ID: vni}, true
	}
	return segment, !o.nameless(segment)
}

// configuredVNI says whether a segment's VNI is configured.
func (o *knownInside) configuredVNI(segment model.Segment) bool {
	settings := o.segments[segment]
	return settings != nil && settings.VNI != 0
}

// nameless says whether a segment's VNI is not known.
func (o *knownInside) nameless(segment model.Segment) bool {
	settings := o.segments[segment]
	_, learned := o.vnis[segment]
	return settings != nil && settings.Network != "" && settings.VNI == 0 && !learned
}

// hostIn finds a host of a segment: as the configuration says, else as it was learned.
func (o *knownInside) hostIn(segment model.Segment, a netip.Addr) (model.SegmentHost, bool) {
	host, known := o.at[insideAddress{segment, a}]
	return host, known
}

// macIn is the director's own MAC address in a segment: the configured one, or a locally administered one
// that other directors do not have.
func (o *knownInside) macIn(segment model.Segment) model.MAC {
	if settings := o.segments[segment]; settings != nil {
		return settings.MACAt(&o.vtep)
	}
	return model.VTEPMAC(o.vtep.Addresses, segment)
}

// beginOverlay notes what a table says of tenants' networks, before next hops are looked for. It returns whether that
// is something else than before: then backends in them may be elsewhere, although their services are the same.
func (d *Datapath) beginOverlay() (moved bool) {
	o := &d.overlay
	if !o.on() {
		return false
	}
	before, known := o.learn(func(known *knownInside) bool {
		known.know(&d.table.VTEP, d.table.Segments, true)
		return true
	})
	for id, settings := range known.segments {
		if was := before.segments[id]; before.begun && was != nil && !slices.Equal(was.SNATAddresses, settings.SNATAddresses) {
			d.log.Warn("full NAT's sources in a segment have changed: connections from the former ones end", "segment", id, "addresses", settings.SNATAddresses)
		}
	}
	return !reflect.DeepEqual(before.vtep, known.vtep) || !reflect.DeepEqual(before.segments, known.segments)
}

// expect notes what will be known of tenants' networks, until a table says it.
func (o *overlay) expect(host *model.CheckHost) {
	if !o.on() {
		return
	}
	o.learn(func(known *knownInside) bool {
		if known.begun {
			return false
		}
		known.know(&host.VTEP, host.Segments, false)
		return true
	})
}

// know notes what a table says, or will say, beside what was learned.
func (o *knownInside) know(vtep *model.VTEP, segments []model.SegmentSettings, begun bool) {
	o.begun, o.vtep = begun, *vtep
	if o.at != nil && model.SameMemory(o.ordered, segments) {
		return
	}
	o.ordered, o.segments = segments, map[model.Segment]*model.SegmentSettings{}
	for i := range segments {
		o.segments[segments[i].ID] = &segments[i]
	}
	o.list()
}

// SetHosts replaces what was learned of where hosts of tenants' networks are. Packets follow at once.
func (d *Datapath) SetHosts(hosts map[model.Segment][]model.SegmentHost) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed() || !d.overlay.on() {
		return nil
	}
	d.overlay.learn(func(known *knownInside) bool {
		known.learned = maps.Clone(hosts)
		known.list()
		return true
	})
	if !d.begun {
		return nil
	}
	return d.followHosts()
}

// SetMACs replaces what was learned of where MAC addresses are. A backend whose address is that of no host is found by
// its own.
func (d *Datapath) SetMACs(macs map[model.Segment][]model.SegmentMAC) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed() || !d.overlay.on() {
		return nil
	}
	at := make(map[model.Segment]map[model.MAC]model.SegmentMAC, len(macs))
	for id, of := range macs {
		at[id] = make(map[model.MAC]model.SegmentMAC, len(of))
		for _, m := range of {
			if _, is := at[id][m.MAC]; !is {
				at[id][m.MAC] = m
			}
		}
	}
	before, _ := d.overlay.learn(func(known *knownInside) bool {
		known.macs = at
		return true
	})
	if !d.begun || !d.anyBackendMoves(before.macs, at) {
		return nil
	}
	return d.followHosts()
}

// anyBackendMoves reports whether the MAC address of some backend is elsewhere in one of two than in the other.
func (d *Datapath) anyBackendMoves(before, now map[model.Segment]map[model.MAC]model.SegmentMAC) bool {
	for _, s := range d.services {
		for _, b := range s.backends {
			if id, mac := b.desired.Segment, b.desired.MAC; !mac.IsZero() && before[id][mac] != now[id][mac] {
				return true
			}
		}
	}
	return false
}

// SetVTEPs replaces what was learned of VTEPs that are in this director's networks: they are peers, also where
// nothing is known of the hosts behind them.
func (d *Datapath) SetVTEPs(vteps []netip.Addr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed() || !d.overlay.on() {
		return nil
	}
	vteps = slices.Clone(vteps)
	d.overlay.learn(func(known *knownInside) bool {
		known.vteps = vteps
		return true
	})
	if !d.begun {
		return nil
	}
	return d.configureOverlay()
}

// SetVNIs replaces what was learned of the VNIs that networks have on the wire. A configured one counts before it.
func (d *Datapath) SetVNIs(vnis map[model.Segment]uint32) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed() || !d.overlay.on() {
		return nil
	}
	vnis = maps.Clone(vnis)
	d.overlay.learn(func(known *knownInside) bool {
		known.vnis = vnis
		return true
	})
	if !d.begun {
		return nil
	}
	return d.followHosts()
}
