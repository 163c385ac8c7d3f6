package datapath

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/nexthop"
	"weir.io/weir/internal/model"
)

// Places are where hosts of tenants' networks are, as packets read them (struct vtep_place): a VTEP with a network, and in
// OVN a port of it.

// placeKey is what does not change of a place.
type placeKey struct {
	kind    model.SegmentKind
	vni     uint32
	vtep    netip.Addr
	options model.GeneveOptions
}

// place is a place in the kernel.
type place struct {
	index uint32
}

// adoptPlaces takes over the places that an earlier process has left. One that it has freed still says where it was, and
// another one may have the same key since: the one that is used stays, and tidyPlaces frees the other.
func (o *overlay) adoptPlaces() {
	var taken []uint32
	for i := 1; i < len(o.places.Entries); i++ {
		entry := &o.places.Entries[i]
		if entry.Ifindex == 0 && entry.Vni == 0 && entry.Vtep == (abi.Address{}) {
			continue
		}
		index := uint32(i)
		taken = append(taken, index)
		key := keyOfPlace(entry)
		other := o.place[key]
		switch {
		case other == nil:
			o.place[key] = &place{index: index}
		case o.places.Entries[other.index].Ifindex == 0:
			o.twins = append(o.twins, other.index)
			other.index = index
		default:
			o.twins = append(o.twins, index)
		}
	}
	o.indexes.occupy(taken)
}

func keyOfPlace(entry *abi.VtepPlace) placeKey {
	key := placeKey{kind: model.SegmentVXLAN, vni: bigEndian32(entry.Vni) >> 8, vtep: abi.AddressOf(entry.Vtep, entry.Flags&uint8(abi.VtepPlaceFlagVTEP_PLACE_IPV6) != 0)}
	if entry.Flags&uint8(abi.VtepPlaceFlagVTEP_PLACE_GENEVE) != 0 {
		key.kind = model.SegmentGeneve
	}
	options := unsafe.Slice((*byte)(unsafe.Pointer(&entry.Option)), len(entry.Option)*4)
	key.options = model.GeneveOptions(options[:min(int(entry.Options), len(options))])
	return key
}

// bigEndian32 is a number as __be32 fields hold it, and back.
func bigEndian32(v uint32) uint32 {
	return uint32(abi.BigEndian16(uint16(v>>16))) | uint32(abi.BigEndian16(uint16(v)))<<16
}

// entry is a place as it should be now.
func (key placeKey) entry(outer *nexthop.Outer, ifindex int) abi.VtepPlace {
	entry := abi.VtepPlace{Mac: outer.MAC, Vlan: abi.BigEndian16(outer.VLAN), SourceMac: outer.Source, Options: uint8(len(key.options)),
		Vtep: abi.AddressBytes(key.vtep), Vni: bigEndian32(key.vni << 8), Ifindex: uint32(ifindex)}
	if outer.MAC.IsZero() {
		entry.Ifindex = 0
	}
	if key.vtep.Is6() {
		entry.Flags |= uint8(abi.VtepPlaceFlagVTEP_PLACE_IPV6)
	}
	if key.kind == model.SegmentGeneve {
		entry.Flags |= uint8(abi.VtepPlaceFlagVTEP_PLACE_GENEVE)
	}
	if key.options.Critical() {
		entry.Flags |= uint8(abi.VtepPlaceFlagVTEP_PLACE_CRITICAL)
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&entry.Option)), len(entry.Option)*4), key.options)
	return entry
}

// placeWords is a place as stored: what changes are the words with MAC addresses and with the interface.
type placeWords = [8]uint64

var changingPlace = [...]int{0, 1, 4}

// placeOf returns the index of the place that a hop leads to, up to date; 0: it leads to none.
func (o *overlay) placeOf(hop *nexthop.Hop) (uint32, error) {
	if hop.Outer.Kind == model.SegmentNone {
		return 0, nil
	}
	key := placeKey{hop.Outer.Kind, hop.Outer.VNI, hop.Outer.VTEP, hop.Outer.Options}
	entry := key.entry(&hop.Outer, hop.Ifindex)
	if entry.Ifindex != 0 {
		if err := o.egress(entry.Ifindex); err != nil {
			return 0, err
		}
	}
	at := o.place[key]
	if at == nil {
		index, err := o.indexes.allocate()
		if err != nil {
			return 0, fmt.Errorf("VTEP %v has no place: %w", key.vtep, err)
		}
		at = &place{index: index}
		o.place[key] = at
		// No packet finds the place yet.
		o.places.Entries[index] = entry
	}
	stored, fresh := (*placeWords)(unsafe.Pointer(&o.places.Entries[at.index])), (*placeWords)(unsafe.Pointer(&entry))
	for _, i := range changingPlace {
		if stored[i] != fresh[i] {
			atomic.StoreUint64(&stored[i], fresh[i])
		}
	}
	return at.index, nil
}

// setBackend writes in which networks a backend and its clients are.
func (o *overlay) setBackend(index uint32, service model.Segment, b *model.TableBackend, hop *nexthop.Hop) error {
	if !o.on() {
		return nil
	}
	entry := abi.VtepBackend{}
	if service.IsOverlay() {
		entry.ServiceSegment = service.Key()
	}
	if b.Segment.IsOverlay() {
		number, err := o.placeOf(hop)
		if err != nil {
			return err
		}
		entry.Place, entry.Segment = number, b.Segment.Key()
	}
	if source, use := o.sourceInside(b); source.IsValid() {
		entry.Uses, entry.Source = uint32(use), abi.AddressBytes(source)
	}
	stored, fresh := (*backendWords)(unsafe.Pointer(&o.backends.Entries[index])), (*backendWords)(unsafe.Pointer(&entry))
	storeBackend(stored, fresh)
	return nil
}

// backendWords is a VTEP's entry of a backend as stored. The second word says what the source is for, which the last two
// are.
type backendWords = [4]uint64

// storeBackend writes the words that differ while packets read them: what the source is for after the source, and that
// there is none any more before it.
func storeBackend(stored, fresh *backendWords) {
	order := [...]int{3, 2, 1, 0}
	if (*abi.VtepBackend)(unsafe.Pointer(fresh)).Uses == 0 {
		order = [...]int{1, 3, 2, 0}
	}
	for _, i := range order {
		if stored[i] != fresh[i] {
			atomic.StoreUint64(&stored[i], fresh[i])
		}
	}
}

// sourceInside is this director's source in a tenant's network for what it sends to a backend there, and for what:
// tunnels of ipip and gue, or full NAT; invalid: the same as to any other backend.
func (o *overlay) sourceInside(b *model.TableBackend) (netip.Addr, abi.VtepSource) {
	settings := o.known.Load().segments[b.Segment]
	switch {
	case settings == nil:
	case tunnels(b.Mode):
		return settings.AddressOf(b.TunnelEnd().Is6()), abi.VtepSourceVTEP_SOURCE_TUNNEL
	case b.Mode == model.NAT && b.SNAT:
		return settings.SNATAddressOf(b.Address.Is6()), abi.VtepSourceVTEP_SOURCE_SNAT
	}
	return netip.Addr{}, abi.VtepSourceVTEP_SOURCE_NONE
}

// snatInside is full NAT's source for a backend in a tenant's network; invalid: it is the same as for any other.
func (o *overlay) snatInside(backend uint32, six bool) netip.Addr {
	if !o.on() {
		return netip.Addr{}
	}
	if in := &o.backends.Entries[backend]; in.Uses == uint32(abi.VtepSourceVTEP_SOURCE_SNAT) {
		return abi.AddressOf(in.Source, six)
	}
	return netip.Addr{}
}

// forgetBackend clears what setBackend has written, once no packet finds the backend.
func (o *overlay) forgetBackend(index uint32) {
	if o.on() {
		o.backends.Entries[index] = abi.VtepBackend{}
	}
}

// tidyPlaces frees the places that nothing names any more. Packets may hold them: they rest.
func (d *Datapath) tidyPlaces() {
	o := &d.overlay
	if !o.on() {
		return
	}
	named := map[uint32]bool{}
	for _, s := range d.services {
		for _, b := range s.backends {
			named[o.backends.Entries[b.index].Place] = true
		}
	}
	if o.wrote.hosts == nil {
		return // what the map names is not known
	}
	for _, h := range o.wrote.hosts {
		named[h.Place] = true
	}
	twins := o.twins
	o.twins = nil
	for _, index := range twins {
		if named[index] {
			o.twins = append(o.twins, index)
			continue
		}
		o.freePlace(index)
	}
	for key, at := range o.place {
		if !named[at.index] {
			delete(o.place, key)
			o.freePlace(at.index)
		}
	}
}

// freePlace frees a place. It still says where it was: packets may be on their way there.
func (o *overlay) freePlace(index uint32) {
	atomic.StoreUint32(&o.places.Entries[index].Ifindex, 0)
	o.indexes.release(index)
}
