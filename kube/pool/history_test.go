package pool_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/kube/pool"
)

// anything returns what a Service may ask for.
func anything(random *rand.Rand, s pool.Service) pool.Request {
	r := pool.Request{Service: s, Families: [][]pool.Family{only4, only6, both}[random.IntN(3)]}
	if random.IntN(3) == 0 {
		r.Pool = "b"
	}
	if random.IntN(2) == 0 {
		r.Key = []string{"k", "l"}[random.IntN(2)]
	}
	for _, port := range []string{"443/TCP", "53/UDP", "80/TCP"} {
		if random.IntN(3) == 0 {
			r.Ports = append(r.Ports, port)
		}
	}
	return r
}

// told tells allocations what there is, in any order.
func told(b *pool.Allocations, claims pool.Claims, requests []pool.Request) {
	for i := range 12 {
		s := pool.Service{Namespace: "x", Name: fmt.Sprint(i)}
		if !slices.ContainsFunc(requests, func(r pool.Request) bool { return r.Service == s }) {
			b.Forget(s)
		}
	}
	for _, prefix := range []string{"203.0.113.0/29", "2001:db8::/125", "198.51.100.0/30"} {
		p := netip.MustParsePrefix(prefix)
		for x := p.Addr(); p.Contains(x); x = x.Next() {
			b.Claim(x, claims[x])
		}
	}
	for _, r := range requests {
		b.Request(0, r) // of the same rank: by name
	}
}

// Whatever Services come, go and ask for something, and in whatever order claims and releases
// become true: two Services that do not share an address never have the same one, two never have
// the same port of one, no address is lost, and a Service's address does not change unless it asks
// for another. Allocations that are told of changes say the same as those that are told everything anew.
func TestAssignOverRandomHistories(t *testing.T) {
	pools := []pool.Pool{{Name: "a", Addresses: ranges(t, "203.0.113.0/29", "2001:db8::/125")}, {Name: "b", Addresses: ranges(t, "198.51.100.0/30"), OnRequest: true}}
	shared := 0
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 8))
		claims := pool.Claims{}
		requests := map[pool.Service]pool.Request{}
		before := map[pool.Service][]netip.Addr{}
		allocations := pool.NewAllocations()
		allocations.Pools(pools)
		for range 60 {
			s := pool.Service{Namespace: "x", Name: fmt.Sprint(random.IntN(12))}
			if delete(requests, s); random.IntN(4) > 0 {
				requests[s] = anything(random, s)
			}
			var list []pool.Request
			for _, name := range slices.SortedFunc(maps.Keys(requests), func(a, b pool.Service) int { return strings.Compare(a.Name, b.Name) }) {
				r := requests[name]
				r.Had = before[name] // as its status says
				list = append(list, r)
			}
			a := assign(pools, claims, list)
			told(allocations, claims, list)
			b := read(allocations, allocations.Assign(), list)
			a.Services, b.Services = nil, nil // allocations that are told everything anew name all
			if want, got := fmt.Sprintf("%+v", a), fmt.Sprintf("%+v", b); got != want {
				t.Fatalf("seed %d: who is told of changes says\n%s\nand who is told all anew\n%s", seed, got, want)
			}
			for x, holders := range a.Claim {
				for _, h := range holders {
					claims[x] = claims[x].With(h)
				}
			}
			of := map[netip.Addr][]pool.Request{}
			for owner, list := range a.Of {
				for _, x := range list {
					for _, other := range of[x] {
						if shared++; other.Key == "" || other.Key != requests[owner].Key || slices.ContainsFunc(other.Ports, func(p string) bool { return slices.Contains(requests[owner].Ports, p) }) {
							t.Fatalf("seed %d: %s is of %+v and %+v", seed, x, other, requests[owner])
						}
					}
					for _, h := range claims[x] {
						if h.Service != owner && (h.Key == "" || h.Key != requests[owner].Key) {
							t.Fatalf("seed %d: %s is claimed by %v and given to %s", seed, x, h, owner)
						}
					}
					if _, claimed := claims[x].Of(owner); !claimed {
						t.Fatalf("seed %d: %s is %s's and claimed by %v", seed, x, owner, claims[x])
					}
					of[x] = append(of[x], requests[owner])
				}
			}
			for owner, had := range before {
				if _, still := requests[owner]; still && owner != s && !slices.Equal(had, a.Of[owner]) && len(had) == len(requests[owner].Families) {
					t.Fatalf("seed %d: %s had %v and has %v, and asked for nothing else", seed, owner, had, a.Of[owner])
				}
			}
			for _, share := range a.Release {
				if slices.Contains(a.Of[share.Service], share.Address) {
					t.Fatalf("seed %d: %s is released and used", seed, share)
				}
				if random.IntN(3) == 0 { // a process may end before it has released everything
					continue
				}
				if claims[share.Address] = claims[share.Address].Without(share.Service); len(claims[share.Address]) == 0 {
					delete(claims, share.Address)
				}
			}
			before = a.Of
		}
		left := 0
		for _, holders := range claims {
			left += len(holders)
		}
		if a := assign(pools, claims, nil); len(a.Release) != left {
			t.Fatalf("seed %d: nobody is there, and %d of %d claims are released", seed, len(a.Release), left)
		}
	}
	if shared == 0 {
		t.Error("no address was ever shared")
	}
}
