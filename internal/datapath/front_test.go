package datapath

import (
	"net/netip"
	"testing"
	"time"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

// TestFrontFindsServices: the program finds services in the front alone, and no
// longer when they are gone.
func TestFrontFindsServices(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	const services, backends = 60, 2
	for i := range backends {
		addNeighbor(t, netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + i)}))
	}
	d := openTest(t, model.Limits{})
	table := tableOf(services, backends, 0)
	for i := range table.Services {
		if i%2 == 1 {
			vip := netip.MustParseAddr("2001:db8:1::").As16()
			vip[15] = byte(i)
			table.Services[i].VIP = netip.AddrFrom16(vip)
		}
	}
	must(t, d.Set(table))
	places := map[uint32]bool{}
	for i := range table.Services {
		s := &table.Services[i]
		e := endpoint{0, s.VIP, uint8(s.Protocol), 80}
		_, place := frontOf(e)
		// As if the hash maps had lost it.
		must(t, deleteEndpoint(d.kernel.Services4, d.kernel.Services6, e))
		if found := isForwarded(t, d, s); found == places[place] {
			t.Errorf("%s: found in the front alone: %t, while its place was taken before: %t", s.Name, found, places[place])
		}
		places[place] = true
	}
	if len(places) < services-2 {
		t.Errorf("%d services share %d places", services, len(places))
	}
	gone := table
	gone.Services = table.Services[1:]
	must(t, d.Set(gone))
	if isForwarded(t, d, &table.Services[0]) {
		t.Error("a service that is gone is still found")
	}
}

// isForwarded says whether the program sends a packet of the service elsewhere.
func isForwarded(t *testing.T, d *Datapath, s *model.TableService) bool {
	t.Helper()
	client := netip.MustParseAddr("192.0.2.9")
	if s.VIP.Is6() {
		client = netip.MustParseAddr("2001:db8:2::9")
	}
	frame := build(ip(client, s.VIP), l4(model.TCP, 40000, 80))
	return destination(t, d, frame) != [6]byte(frame[:6])
}

// TestPlaceOfTheFrontRests: the first key that comes has the place until it is
// gone, and no key has it until packets that saw the first one are gone, too.
func TestPlaceOfTheFrontRests(t *testing.T) {
	clock := time.Unix(0, 0)
	f := &fronts{Memory: bpfload.Memory[abi.Front]{Entries: make([]abi.Front, 1<<frontBits)}, since: map[uint32]time.Time{}, begins: []uint64{10, 11, 12, 13, 14, 15, 16, 17}, now: func() time.Time { return clock }}
	first := endpoint{address: netip.MustParseAddr("192.0.2.1"), protocol: 6, port: 80}
	key, place := frontOf(first)
	second := first
	for other := ^place; other != place; _, other = frontOf(second) {
		second.port++
		if second.port == first.port {
			second.address = second.address.Next()
		}
	}
	secondKey, _ := frontOf(second)
	has := func(want abi.Front, service uint64) {
		t.Helper()
		if want.Service = service; service != 0 {
			want.Service |= f.begins[service-1] << 32
		}
		if f.Entries[place] != want {
			t.Fatalf("the place has %+v, want %+v", f.Entries[place], want)
		}
	}
	f.add(map[endpoint]uint32{first: 0})
	has(key, 1)
	f.add(map[endpoint]uint32{second: 7})
	has(key, 1)
	f.add(map[endpoint]uint32{first: 3, {address: first.address, protocol: icmp4}: vipOnly})
	has(key, 4)
	f.begins[3], f.begins[7] = 23, 27
	f.switched(second, 7)
	f.switched(first, 2)
	if f.Entries[place].Service>>32 != 13 {
		t.Fatal("another service's ring is in the place")
	}
	f.switched(first, 3)
	has(key, 4)
	f.begins[3] = 33 // by a process that ended before it switched the front
	f.adopt()
	has(key, 4)
	f.Entries[place].Service = uint64(len(f.begins)) + 1 // of no service that there can be
	f.adopt()
	has(key, 0)
	f.add(map[endpoint]uint32{first: 3})
	has(key, 4)
	f.remove(map[endpoint]uint32{second: 7}, nil)
	has(key, 4)
	f.remove(map[endpoint]uint32{first: 3}, map[endpoint]uint32{second: 7})
	has(key, 0)
	f.add(map[endpoint]uint32{second: 7})
	has(key, 0)
	clock = clock.Add(rest)
	f.add(map[endpoint]uint32{second: 7})
	has(secondKey, 8)
}
