package datapath

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"sync/atomic"
	"time"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
)

// frontBits is FRONT_BITS: places of the front are so many bits of a key's hash.
const frontBits = 15

// fronts is the front of the services' hash maps (struct front): each key has one place, and the
// first key that comes has it. Changes are stores, without a system call.
type fronts struct {
	bpfload.Memory[abi.Front]
	since  map[uint32]time.Time // when a place was cleared: a packet may still look at it
	begins []uint64             // as in ringMemory
	now    func() time.Time
}

// frontService is the last word of struct front.
func frontService(index uint32, ring uint64) uint64 { return uint64(index) + 1 | ring<<32 }

// addressWords are the halves of struct address.
func addressWords(a netip.Addr) [2]uint64 {
	address := abi.AddressBytes(a)
	return [2]uint64{binary.NativeEndian.Uint64(address.Bytes[:8]), binary.NativeEndian.Uint64(address.Bytes[8:])}
}

// wordsAddress reads addressWords.
func wordsAddress(words [2]uint64, ipv6 bool) netip.Addr {
	var a abi.Address
	binary.NativeEndian.PutUint64(a.Bytes[:8], words[0])
	binary.NativeEndian.PutUint64(a.Bytes[8:], words[1])
	return abi.AddressOf(a, ipv6)
}

// frontOf returns the key of an endpoint and its place, as find_front in
// bpf/director/service.h computes them.
func frontOf(e endpoint) (key abi.Front, place uint32) {
	key.Address = addressWords(e.address)
	key.Key = uint64(e.segment) | uint64(abi.BigEndian16(e.port))<<32 | uint64(e.protocol)<<48
	if e.address.Is6() {
		key.Key |= 1 << 56
	}
	hash := (key.Address[0] ^ key.Address[1]*0x3c6ef372fe94f82b ^ key.Key) * 0xbb67ae8584caa73b
	return key, uint32(hash >> (64 - frontBits))
}

// adopt makes the places say what the map rings says. A process may have ended between its stores in
// both, and the lines of the ring that it has replaced are free for this one.
func (f *fronts) adopt() {
	for at := range f.Entries {
		place := &f.Entries[at]
		index := uint32(place.Service) - 1
		if place.Service == 0 {
			continue
		}
		if int(index) >= len(f.begins) {
			atomic.StoreUint64(&place.Service, 0)
		} else if now := frontService(index, f.begins[index]); place.Service != now {
			atomic.StoreUint64(&place.Service, now)
		}
	}
}

// add gives the services their places where they are free.
func (f *fronts) add(services map[endpoint]uint32) {
	maps.DeleteFunc(f.since, func(_ uint32, cleared time.Time) bool { return f.now().Sub(cleared) >= rest })
	for e, index := range services {
		if index == vipOnly {
			continue
		}
		key, at := frontOf(e)
		place := &f.Entries[at]
		switch {
		case place.Service == 0:
			if _, rests := f.since[at]; rests {
				continue
			}
			place.Address, place.Key = key.Address, key.Key
		case place.Address != key.Address || place.Key != key.Key:
			continue
		}
		atomic.StoreUint64(&place.Service, frontService(index, f.begins[index]))
	}
}

// switched makes packets that find the service in the front use the ring that it has now.
func (f *fronts) switched(e endpoint, index uint32) {
	key, at := frontOf(e)
	place := &f.Entries[at]
	if uint32(place.Service) == index+1 && place.Address == key.Address && place.Key == key.Key {
		atomic.StoreUint64(&place.Service, frontService(index, f.begins[index]))
	}
}

// remove clears the places of services that are no longer to be found.
func (f *fronts) remove(have, wanted map[endpoint]uint32) {
	for e := range have {
		if _, stays := wanted[e]; stays {
			continue
		}
		key, at := frontOf(e)
		place := &f.Entries[at]
		if place.Service != 0 && place.Address == key.Address && place.Key == key.Key {
			atomic.StoreUint64(&place.Service, 0)
			f.since[at] = f.now()
		}
	}
}

// rest says whether a place that was refused now may be free later.
func (f *fronts) rest() bool { return len(f.since) > 0 }
