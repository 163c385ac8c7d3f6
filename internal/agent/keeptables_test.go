package agent

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

// keptMaps are all maps that an agent writes by its file, and that nothing else writes.
var keptMaps = []string{"pods_here", "pod_names", "pod_ends", "namespaces", "services", "peers", "sources", "endpoints", "ranges", "tunnel_ends",
	"redirect_ports", "redirect_services", "redirect_prefixes", "redirect_names", "redirect_here", "redirect_vips", "guard_sources", "guards"}

// TestContentsAreKept takes an entry out of each map, or makes it another one: the next look puts it
// back, and names the map.
func TestContentsAreKept(t *testing.T) {
	c := testConfig()
	c.Services = append(c.Services, redirectConfig().Services...)
	for i := range c.Services {
		if s := &c.Services[i]; s.Name == "four" {
			s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
		}
	}
	k := newKept(t, false, c)
	var names []string
	for _, m := range k.a.compared() {
		names = append(names, m.Name)
		k.now = k.now.Add(time.Hour)
		if m.Name == "redirect_ports" { // there is no bridge here
			must(t, m.Kernel[0].Put(uint32(77), uint32(78)))
		} else {
			spoil(t, m.Kernel[0])
		}
		if told, want := k.look(t), []string{"tables repaired: map " + m.Name}; !slices.Equal(told, want) {
			t.Errorf("it tells %q, want %q", told, want)
		}
		if told := k.look(t); told != nil {
			t.Errorf("map %s: after it was repaired it tells %q", m.Name, told)
		}
	}
	if !slices.Equal(names, keptMaps) {
		t.Errorf("the maps that are compared are %q, want %q", names, keptMaps)
	}
}

// A backend that somebody else adds to a service's, or one of before that somebody makes one of
// now, is none.
func TestPeersOfNobodyAreRemoved(t *testing.T) {
	c := testConfig()
	k := newKept(t, false, c)
	c.Services[0].Backends = c.Services[0].Backends[:1]
	do(t, k.host, "set", func() error { return k.a.Set(c) })
	index := k.a.tables.indexes[k.a.plan.services[0].identity()]
	former := bpfHostPeer{Service: index, Address: address(peer4)}
	if _, is := k.a.former[former]; !is {
		t.Fatalf("%+v is not a former backend of %v: then this test shows nothing", former, k.a.former)
	}
	strange := bpfHostPeer{Service: index, Address: address(third4)}
	must(t, k.a.objects.Peers.Put(strange, currentPeer))
	must(t, k.a.objects.Peers.Put(former, currentPeer))
	if told, want := k.look(t), []string{"tables repaired: map peers"}; !slices.Equal(told, want) {
		t.Errorf("it tells %q, want %q", told, want)
	}
	var flags uint32
	if err := k.a.objects.Peers.Lookup(strange, &flags); err == nil {
		t.Error("somebody else's backend is still there")
	}
	if must(t, k.a.objects.Peers.Lookup(former, &flags)); flags != formerPeer {
		t.Errorf("the former backend has flags %d", flags)
	}
}

// spoil removes the first entry of a map; of an array it makes others of all.
func spoil(t *testing.T, m *ebpf.Map) {
	t.Helper()
	var key, value []byte
	entries := m.Iterate()
	for n := 0; entries.Next(&key, &value); n++ {
		if m.Type() != ebpf.Array {
			must(t, m.Delete(key))
			return
		}
		must(t, m.Put(key, bytes.Repeat([]byte{0xff}, len(value))))
	}
	if must(t, entries.Err()); m.Type() != ebpf.Array {
		t.Fatalf("map %s is empty", m)
	}
}
