package datapath

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/contents"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/checks"
	"weir.io/weir/internal/model"
)

// A director that is a VTEP has maps of its own beside the others (bpf/director/vtep/maps.h). What says where
// hosts of tenants' networks are comes with the table (Table.Segments), or from SetHosts and SetVNIs, which follow
// other sources without a new table.

// overlay is a director's part as a VTEP. The zero value: it is none.
type overlay struct {
	places   bpfload.Memory[abi.VtepPlace]
	backends bpfload.Memory[abi.VtepBackend]
	self     bpfload.Memory[abi.VtepSelf]
	indexes  *indexes
	place    map[placeKey]*place
	known    atomic.Pointer[knownInside]
	egress   func(ifindex uint32) error // lets packets leave by an interface, before a place names it
	twins    []uint32                   // places that an earlier process left, with the key of another one
	amiss    amissInside
	unset    error // why the program does not know where clients' hosts are; nil: it does
	maps     struct{ networks, peers, hosts, own, standIns *ebpf.Map }
	// What these maps have. Nil: it is not known, because nothing was written yet, or not all of it.
	wrote struct {
		networks map[uint32]abi.VtepNetwork
		peers    map[abi.VtepPeer]uint8
		hosts    map[abi.VtepAddress]abi.VtepHost
		own      map[abi.VtepAddress]abi.VtepOwn
	}
}

// Limits of a VTEP's maps. A place is a VTEP with a network, and in OVN a port of it.
const (
	mostNetworks  = 1 << 16
	mostPeers     = 1 << 16
	mostHosts     = 2 * model.MaxSegmentHosts // with gateways, and so that other hosts can come before those that go
	mostOwn       = 1 << 17
	mostStandIns  = 1 << 16 // that have addresses of this host's
	placesForRest = 1 << 12 // besides those of backends and hosts: places rest before they are used again
)

// isVTEP says whether the director has addresses in tenants' networks, as a VTEP or in VLANs.
func (o Options) isVTEP() bool { return o.VTEP.Given() || o.InVLANs }

// addVTEP puts the program of a VTEP in the place of the director's, with its maps.
func (o Options) addVTEP(spec *ebpf.CollectionSpec) error {
	if !o.isVTEP() {
		return nil
	}
	vtep, err := loadVtep()
	if err != nil {
		return fmt.Errorf("read VTEP program: %w", err)
	}
	clear(vtep.Variables) // this_vtep is written through its map
	for name, m := range vtep.Maps {
		if spec.Maps[name] == nil {
			spec.Maps[name] = m
		}
	}
	program := vtep.Programs[vtepProgDirectorVtep]
	program.Name = directorProgDirector // by which others know it
	spec.Programs[directorProgDirector] = program
	return nil
}

// vtepSizes are how many entries a VTEP's maps have.
func (o Options) vtepSizes() map[string]uint32 {
	if !o.isVTEP() {
		return map[string]uint32{vtepMapVtepNetworks: 1, vtepMapVtepPeers: 1, vtepMapVtepPlaces: 1, vtepMapVtepBackends: 1, vtepMapVtepHosts: 1, vtepMapVtepOwnAddresses: 1, vtepMapVtepStandIns: 1}
	}
	return map[string]uint32{
		vtepMapVtepNetworks: mostNetworks, vtepMapVtepPeers: mostPeers, vtepMapVtepHosts: mostHosts, vtepMapVtepOwnAddresses: mostOwn, vtepMapVtepStandIns: mostStandIns,
		vtepMapVtepPlaces: o.Limits.Backends + mostHosts + placesForRest, vtepMapVtepBackends: o.Limits.Backends + 1,
	}
}

// open maps the kernel's memory, and takes over what an earlier process has left there.
func (o *overlay) open(k *kernel, options Options) (err error) {
	if !options.isVTEP() {
		return nil
	}
	if o.places, err = bpfload.Map[abi.VtepPlace](k.all[vtepMapVtepPlaces]); err != nil {
		return err
	}
	if o.backends, err = bpfload.Map[abi.VtepBackend](k.all[vtepMapVtepBackends]); err != nil {
		return err
	}
	if o.self, err = bpfload.Map[abi.VtepSelf](k.all[abi.VTEP]); err != nil {
		return err
	}
	o.maps.networks, o.maps.peers = k.all[vtepMapVtepNetworks], k.all[vtepMapVtepPeers]
	o.maps.hosts, o.maps.own, o.maps.standIns = k.all[vtepMapVtepHosts], k.all[vtepMapVtepOwnAddresses], k.all[vtepMapVtepStandIns]
	o.indexes = newIndexes(1, uint32(len(o.places.Entries))-1)
	o.place = map[placeKey]*place{}
	o.known.Store(&knownInside{vtep: options.VTEP})
	o.adoptPlaces()
	return nil
}

func (o *overlay) close() error {
	return errors.Join(o.places.Close(), o.backends.Close(), o.self.Close())
}

// on says whether the director is a VTEP.
func (o *overlay) on() bool { return o.indexes != nil }

// wayOf says at which VTEP a backend is, and its network with the VNI on the wire; the zero values: it is in none.
func (o *overlay) wayOf(backend uint32) (vtep netip.Addr, wire model.Segment) {
	if !o.on() || int(backend) >= len(o.backends.Entries) {
		return netip.Addr{}, model.Segment{}
	}
	b := &o.backends.Entries[backend]
	if b.Place == 0 || int(b.Place) >= len(o.places.Entries) {
		return netip.Addr{}, model.Segment{}
	}
	p := &o.places.Entries[b.Place]
	wire = model.Segment{Kind: model.SegmentVXLAN, ID: bigEndian32(p.Vni) >> 8}
	if p.Flags&uint8(abi.VtepPlaceFlagVTEP_PLACE_GENEVE) != 0 {
		wire.Kind = model.SegmentGeneve
	}
	return abi.AddressOf(p.Vtep, p.Flags&uint8(abi.VtepPlaceFlagVTEP_PLACE_IPV6) != 0), wire
}

// onWire is a network with the VNI that it has on the wire; the zero value: it is not known.
func (o *overlay) onWire(segment model.Segment) model.Segment {
	if !o.on() {
		return model.Segment{}
	}
	if wire, known := o.known.Load().wire(segment); known {
		return wire
	}
	return model.Segment{}
}

// overlaySegments are the segments in VXLAN and Geneve that the table names.
func (d *Datapath) overlaySegments() map[model.Segment]bool {
	all := map[model.Segment]bool{}
	for segment := range d.overlay.known.Load().segments {
		if segment.IsOverlay() {
			all[segment] = true
		}
	}
	for i := range d.table.Services {
		s := &d.table.Services[i]
		if s.Segment.IsOverlay() {
			all[s.Segment] = true
		}
		for j := range s.Backends {
			if segment := s.Backends[j].Segment; segment.IsOverlay() {
				all[segment] = true
			}
		}
	}
	return all
}

// standIn makes answers to health checks, from hosts whose addresses this host has, too, come from the addresses
// that the checks' sockets have in their place.
func (o *overlay) standIn(targets map[model.VIP]netip.Addr) error {
	if !o.on() {
		return nil
	}
	wanted := make(map[abi.VtepAddress]abi.VtepStandIn, len(targets))
	for host, stand := range targets {
		wanted[insideKey(host.Segment, host.Address)] = abi.VtepStandIn{Address: abi.AddressBytes(stand)}
	}
	if _, err := contents.Replace(o.maps.standIns, wanted, nil); err != nil {
		return fmt.Errorf("hosts of tenants that are probed: %w", err)
	}
	return nil
}

// isInside says whether some backend of a service is in VXLAN or Geneve.
func (s *service) isInside() bool {
	return slices.ContainsFunc(s.order, func(b *backend) bool { return b.desired.Segment.IsOverlay() })
}

// configureOverlay writes what the program has to know of tenants' networks. What the maps have no room for, and hosts
// that cannot be written, are problems of their segments, and the rest runs.
func (d *Datapath) configureOverlay() error {
	o := &d.overlay
	if !o.on() || !d.begun {
		return nil
	}
	o.amiss = amissInside{}
	networks, own, hosts, peers := d.networks(), d.ownInside(), d.hostsInside(), d.peersOf()
	changed := !maps.Equal(networks, o.wrote.networks) || !maps.Equal(peers, o.wrote.peers)
	failed := writeInside(d, vtepMapVtepPeers, o.maps.peers, peers, &o.wrote.peers)
	o.unset = writeInside(d, vtepMapVtepHosts, o.maps.hosts, hosts, &o.wrote.hosts)
	err := errors.Join(failed,
		writeInside(d, vtepMapVtepOwnAddresses, o.maps.own, own, &o.wrote.own),
		writeInside(d, vtepMapVtepNetworks, o.maps.networks, networks, &o.wrote.networks))
	if o.unset != nil {
		o.amiss.add(model.Segment{}, "not all clients in VXLAN and Geneve get replies: %v", o.unset)
	}
	_, mark := checks.Names(d.options.Pin)
	o.writeSelf(changed, mark) // also after an error: what CPUs have found out may be of a VTEP that is gone
	if err != nil {
		return fmt.Errorf("networks of tenants: %w", err)
	}
	return nil
}

// writeInside makes a map what it must be, and notes that it is. After an error it may have some of both.
func writeInside[K, V comparable](d *Datapath, name string, m *ebpf.Map, want map[K]V, wrote *map[K]V) error {
	byHand, err := contents.Replace(m, want, *wrote)
	d.countHands(name, byHand)
	if *wrote = want; err != nil {
		*wrote = nil
	}
	return err
}

// writeSelf writes the VTEP's own addresses and ports. What CPUs have found out counts no longer if what they
// found it out from has changed.
func (o *overlay) writeSelf(changed bool, mark uint32) {
	self, vtep := &o.self.Entries[0], &o.known.Load().vtep
	want := selfOf(vtep)
	want.Generation, want.CheckMark = self.Generation, mark
	if changed || *self != want || self.Generation == 0 {
		storeSelf(self, &want)
		atomic.StoreUint32(&self.Generation, max(1, (self.Generation+1)&math.MaxUint32))
	}
}

// selfWords is a VTEP's own entry as stored.
type selfWords = [unsafe.Sizeof(abi.VtepSelf{}) / 4]uint32

// storeSelf writes the words that differ: programs read them at any time.
func storeSelf(self, want *abi.VtepSelf) {
	stored, fresh := (*selfWords)(unsafe.Pointer(self)), (*selfWords)(unsafe.Pointer(want))
	for i := range fresh {
		if stored[i] != fresh[i] {
			atomic.StoreUint32(&stored[i], fresh[i])
		}
	}
}

// amissInside is what does not run of tenants' networks.
type amissInside struct {
	found []model.SegmentProblem
	of    map[model.Segment]int // how many there are
}

// mostAmiss bounds how many problems of a segment are told one by one, and mostSegmentsAmiss of how many segments.
const (
	mostAmiss         = 20
	mostSegmentsAmiss = 200
)

func (a *amissInside) add(segment model.Segment, text string, args ...any) {
	if a.of == nil {
		a.of = map[model.Segment]int{}
	}
	if a.of[segment]++; a.of[segment] <= mostAmiss && len(a.of) <= mostSegmentsAmiss {
		a.found = append(a.found, model.SegmentProblem{Segment: segment, Text: fmt.Sprintf(text, args...)})
	}
}

// SegmentProblems returns what does not run of tenants' networks: hosts to which there is no way, and what there is no
// room for. It names some of it.
func (d *Datapath) SegmentProblems() []model.SegmentProblem {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed() || !d.overlay.on() {
		return nil
	}
	a := &d.overlay.amiss
	found := slices.Clone(a.found)
	for _, segment := range slices.SortedFunc(maps.Keys(a.of), model.Segment.Compare) {
		if told := slices.ContainsFunc(found, func(p model.SegmentProblem) bool { return p.Segment == segment }); !told {
			found = append(found, model.SegmentProblem{Text: fmt.Sprintf("%s and more segments have such problems: %d have some", segment, len(a.of))})
			break
		}
		if more := a.of[segment] - mostAmiss; more > 0 {
			found = append(found, model.SegmentProblem{Segment: segment, Text: fmt.Sprintf("and %d more of its hosts and addresses", more)})
		}
	}
	return found
}

// selfOf is a VTEP as programs know it.
func selfOf(vtep *model.VTEP) abi.VtepSelf {
	self := abi.VtepSelf{VxlanPort: abi.BigEndian16(vtep.VXLANPort), GenevePort: abi.BigEndian16(vtep.GenevePort)}
	if a := vtep.Address(false); a.IsValid() {
		self.Address4 = abi.BigEndianAddress(a)
	}
	if a := vtep.Address(true); a.IsValid() {
		self.Address6 = abi.AddressBytes(a)
	}
	if vtep.VLAN != 0 {
		self.Segment = model.Segment{Kind: model.SegmentVLAN, ID: uint32(vtep.VLAN)}.Key()
	}
	return self
}

// networks are the networks whose packets are taken, by kind and VNI on the wire.
func (d *Datapath) networks() map[uint32]abi.VtepNetwork {
	networks := map[uint32]abi.VtepNetwork{}
	add := func(segment model.Segment, learned bool) {
		known := d.overlay.known.Load()
		wire, is := known.wire(segment)
		if _, of := known.vnis[segment]; !is || (of && !known.configuredVNI(segment)) != learned {
			return
		}
		_, taken := networks[wire.Key()]
		if taken && learned {
			return // what is configured counts, and internal/segments reports it
		}
		if !taken && len(networks) == mostNetworks {
			d.overlay.amiss.add(segment, "no packets are taken from it: a director has at most %d networks in VXLAN and Geneve", mostNetworks)
			return
		}
		network := abi.VtepNetwork{Segment: segment.Key(), Mac: known.macIn(segment)}
		if settings := known.segments[segment]; settings != nil {
			if len(settings.Peers) > 0 {
				network.Flags |= uint16(abi.VtepNetworkFlagVTEP_NETWORK_PEERS)
			}
		}
		networks[wire.Key()] = network
	}
	all := slices.SortedFunc(maps.Keys(d.overlaySegments()), func(a, b model.Segment) int { return cmp.Compare(a.Key(), b.Key()) })
	for _, learned := range []bool{false, true} {
		for _, segment := range all {
			add(segment, learned)
		}
	}
	return networks
}

// peersOf are the VTEPs from which packets are taken: those that are configured, and those of hosts that are
// known. Those that come first get room first.
func (d *Datapath) peersOf() map[abi.VtepPeer]uint8 {
	o, known := &d.overlay, d.overlay.known.Load()
	peers := map[abi.VtepPeer]uint8{}
	add := func(segment model.Segment, p netip.Prefix, network uint32) {
		key := abi.VtepPeer{PrefixLen: 64 + uint32(p.Bits()), Network: network, Address: abi.AddressBytes(p.Addr())}
		if p.Addr().Is6() {
			key.Ipv6 = 1
		}
		if peers[key] == 0 && len(peers) == mostPeers {
			o.amiss.add(segment, "no packets are taken from VTEP %v: a director knows at most %d VTEPs", p, mostPeers)
			return
		}
		peers[key] = 1
	}
	for _, p := range d.table.VTEP.Peers {
		add(model.Segment{}, p, 0)
	}
	host := func(segment model.Segment, a netip.Addr) {
		if a.IsValid() {
			add(segment, netip.PrefixFrom(a, a.BitLen()), 0)
		}
	}
	for i := range d.table.Segments {
		s := &d.table.Segments[i]
		if wire, known := known.wire(s.ID); known {
			for _, p := range s.Peers {
				add(s.ID, p, wire.Key())
			}
		}
	}
	for i := range d.table.Services {
		for j := range d.table.Services[i].Backends {
			b := &d.table.Services[i].Backends[j]
			host(b.Segment, b.Place.VTEP)
		}
	}
	for i := range known.hosts {
		host(known.hosts[i].segment, known.hosts[i].VTEP)
	}
	for i := range known.other {
		host(known.other[i].segment, known.other[i].VTEP)
	}
	for _, a := range known.vteps {
		host(model.Segment{}, a)
	}
	return peers
}

// hostsInside are the hosts of tenants' networks to which replies go, each with its place. Those that come first get
// room first.
func (d *Datapath) hostsInside() map[abi.VtepAddress]abi.VtepHost {
	o, known := &d.overlay, d.overlay.known.Load()
	hosts := map[abi.VtepAddress]abi.VtepHost{}
	add := func(segment model.Segment, at abi.VtepAddress, h *model.SegmentHost, what string) {
		b := model.TableBackend{Address: h.Address, Segment: segment, Place: *h, Mode: model.L2DSR}
		hop := d.hops.Resolve(b, d.own)
		number, err := o.placeOf(&hop)
		switch {
		case err != nil:
			o.amiss.add(segment, "no packets go to %s %v: %v", what, h.Address, err)
			return
		case number == 0:
			o.amiss.add(segment, "no packets go to %s %v: %s", what, h.Address, cmp.Or(hop.Problem, "there is no way to it"))
			return
		case hop.Outer.MAC.IsZero():
			o.amiss.add(segment, "no packets go to %s %v: nothing answers on the way to VTEP %v", what, h.Address, h.VTEP)
		}
		hosts[at] = abi.VtepHost{Place: number, Mac: h.MAC, SourceMac: hop.Source, Mtu: uint32(max(0, hop.MTU))}
	}
	for i := range d.table.Segments {
		s := &d.table.Segments[i]
		for _, gateway := range s.Gateway {
			h, known := known.hostIn(s.ID, gateway)
			switch {
			case !known:
				o.amiss.add(s.ID, "no packets go to gateway %v: nothing says at which VTEP it is", gateway)
			case len(hosts) == mostHosts-model.MaxSegmentHosts:
				o.amiss.add(s.ID, "no packets go to gateway %v: a director knows at most %d gateways", gateway, mostHosts-model.MaxSegmentHosts)
			default:
				add(s.ID, abi.VtepAddress{Segment: s.ID.Key(), Ipv6: uint32(truth(gateway.Is6()))}, &h, "gateway")
			}
		}
	}
	for i := range known.hosts {
		h := &known.hosts[i]
		if i >= model.MaxSegmentHosts {
			o.amiss.add(h.segment, "no packets go to host %v: %s", h.Address, model.TooManyHosts(len(known.hosts)))
			continue
		}
		add(h.segment, insideKey(h.segment, h.Address), &h.SegmentHost, "host")
	}
	return hosts
}

func insideKey(segment model.Segment, a netip.Addr) abi.VtepAddress {
	return abi.VtepAddress{Segment: segment.Key(), Ipv6: uint32(truth(a.Is6())), Address: abi.AddressBytes(a)}
}

// ownInside are the addresses that this director has in tenants' networks.
func (d *Datapath) ownInside() map[abi.VtepAddress]abi.VtepOwn {
	own, known := map[abi.VtepAddress]abi.VtepOwn{}, d.overlay.known.Load()
	add := func(segment model.Segment, a netip.Addr, mac model.MAC, flags abi.VtepOwnFlag) {
		key := insideKey(segment, a)
		if _, is := own[key]; !is && len(own) == mostOwn {
			d.overlay.amiss.add(segment, "this director is not found at %v: it has at most %d addresses in tenants' networks", a, mostOwn)
			return
		}
		own[key] = abi.VtepOwn{Flags: own[key].Flags | uint16(flags), Mac: mac}
	}
	for i := range d.table.Services {
		if s := &d.table.Services[i]; s.Segment.IsOverlay() {
			add(s.Segment, s.VIP, known.macIn(s.Segment), abi.VtepOwnFlagVTEP_OWN_ANSWERS)
		}
	}
	for i := range d.table.Segments {
		s := &d.table.Segments[i]
		mac := known.macIn(s.ID)
		if !s.ID.IsOverlay() {
			mac = d.macInVLAN(s)
		}
		if mac.IsZero() { // there will be an event about its interface
			if len(s.Addresses) > 0 {
				d.overlay.amiss.add(s.ID, "this director is not found at %v: there is no interface by which packets leave for it", s.Addresses[0])
			}
			continue
		}
		for _, a := range s.Addresses {
			add(s.ID, a, mac, abi.VtepOwnFlagVTEP_OWN_ANSWERS|abi.VtepOwnFlagVTEP_OWN_HOST)
		}
		for _, a := range s.SNATAddresses {
			add(s.ID, a, mac, abi.VtepOwnFlagVTEP_OWN_ANSWERS|abi.VtepOwnFlagVTEP_OWN_SNAT)
		}
		for _, a := range d.table.SNAT.Addresses {
			if s.ID.IsOverlay() && !s.SNATAddressOf(a.Is6()).IsValid() {
				add(s.ID, a, mac, abi.VtepOwnFlagVTEP_OWN_ANSWERS)
			}
		}
	}
	return own
}

// macInVLAN is the MAC address of the interface by which packets leave for a VLAN.
func (d *Datapath) macInVLAN(s *model.SegmentSettings) model.MAC {
	for _, a := range s.Addresses {
		b := model.TableBackend{Address: a, Segment: s.ID, Interface: s.Interface, MAC: model.MAC{2}, Mode: model.L2DSR}
		return d.hops.Resolve(b, d.own).Source
	}
	return model.MAC{}
}

// followHosts gives backends their places again. The lock is held.
func (d *Datapath) followHosts() error {
	d.beginChange(d.whole)
	for _, s := range d.inOrder() {
		if s.isInside() {
			d.writeBackends(s)
		}
	}
	if err := errors.Join(d.configureOverlay(), d.overlay.unset); err != nil {
		return err
	}
	d.tidyPlaces()
	return nil
}

// tryHostsAgain writes where clients' hosts are if that has failed.
func (d *Datapath) tryHostsAgain() {
	if d.closed() || d.overlay.unset == nil {
		return
	}
	if err := d.followHosts(); err == nil {
		d.log.Info("clients in VXLAN and Geneve get replies again")
	}
}
