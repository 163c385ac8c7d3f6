package pool_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.io/weir/kube/pool"
)

func ranges(t *testing.T, texts ...string) (list []pool.Range) {
	t.Helper()
	for _, text := range texts {
		r, err := pool.ParseRange(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	return list
}

func addresses(texts ...string) (list []netip.Addr) {
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

func service(name string) pool.Service {
	namespace, name, _ := strings.Cut(name, "/")
	return pool.Service{Namespace: namespace, Name: name}
}

// holder reads NAMESPACE/NAME, or NAMESPACE/NAME:KEY:PORT,PORT.
func holder(text string) pool.Holder {
	name, share, shares := strings.Cut(text, ":")
	h := pool.Holder{Service: service(name)}
	if shares {
		key, ports, _ := strings.Cut(share, ":")
		h.Key, h.Ports = key, strings.Split(ports, ",")
	}
	return h
}

// sharing returns a request for an IPv4 address that is shared.
func sharing(text string) pool.Request {
	h := holder(text)
	return pool.Request{Service: h.Service, Families: only4, Key: h.Key, Ports: h.Ports}
}

var (
	only4 = []pool.Family{pool.IPv4}
	only6 = []pool.Family{pool.IPv6}
	both  = []pool.Family{pool.IPv6, pool.IPv4}
)

// assignTest is one assignment.
type assignTest struct {
	name     string
	claims   string // ADDRESS=HOLDER, as holder reads it
	requests []pool.Request
	of       string // NAMESPACE/NAME=ADDRESS
	claim    string // ADDRESS=HOLDER; empty: not compared
	release  string // ADDRESS=NAMESPACE/NAME
	problem  string
}

// assignment is the outcome of requests that are all new.
type assignment struct {
	pool.Change
	Of       map[pool.Service][]netip.Addr
	Problems map[pool.Service][]string
}

// assign assigns addresses at once; the requests' order is their rank.
func assign(pools []pool.Pool, claims pool.Claims, requests []pool.Request) assignment {
	b := pool.NewAllocations()
	b.Pools(pools)
	for x, holders := range claims {
		b.Claim(x, holders)
	}
	for rank, r := range requests {
		b.Request(int64(rank), r)
	}
	return read(b, b.Assign(), requests)
}

// read returns what allocations say of all requests.
func read(b *pool.Allocations, change pool.Change, requests []pool.Request) assignment {
	a := assignment{Change: change, Of: map[pool.Service][]netip.Addr{}, Problems: map[pool.Service][]string{}}
	for _, r := range requests {
		of, problems := b.Of(r.Service)
		if a.Of[r.Service] = of; len(problems) > 0 {
			a.Problems[r.Service] = problems
		}
	}
	return a
}

func TestAssign(t *testing.T) {
	pools := []pool.Pool{
		{Name: "public", Addresses: ranges(t, "203.0.113.0-203.0.113.2", "2001:db8::1-2001:db8::2"), AvoidBuggy: true},
		{Name: "team", Addresses: ranges(t, "192.0.2.0/31"), Namespaces: []string{"team"}},
		{Name: "asked", Addresses: ranges(t, "198.51.100.9"), OnRequest: true},
	}
	for _, test := range []assignTest{
		{name: "the lowest that is free, the oldest request first",
			requests: []pool.Request{{Service: service("x/b"), Families: only4}, {Service: service("x/a"), Families: only4}},
			of:       "x/b=203.0.113.1 x/a=203.0.113.2"},
		{name: "one of each family, in the order of families",
			requests: []pool.Request{{Service: service("x/a"), Families: both}},
			of:       "x/a=2001:db8::1,203.0.113.1"},
		{name: "what it has claimed stays",
			claims:   "203.0.113.2=x/a",
			requests: []pool.Request{{Service: service("x/a"), Families: only4}, {Service: service("x/b"), Families: only4}},
			of:       "x/a=203.0.113.2 x/b=203.0.113.1"},
		{name: "what its status says is taken again, before others choose",
			requests: []pool.Request{{Service: service("x/b"), Families: only4}, {Service: service("x/a"), Families: only4, Had: addresses("203.0.113.1")}},
			of:       "x/a=203.0.113.1 x/b=203.0.113.2"},
		{name: "what its status says and another one has claimed is the other one's",
			claims:   "203.0.113.1=x/b",
			requests: []pool.Request{{Service: service("x/a"), Families: only4, Had: addresses("203.0.113.1")}, {Service: service("x/b"), Families: only4}},
			of:       "x/b=203.0.113.1 x/a=203.0.113.2"},
		{name: "of two claims the one that its status says",
			claims:   "203.0.113.1=x/a 203.0.113.2=x/a",
			requests: []pool.Request{{Service: service("x/a"), Families: only4, Had: addresses("203.0.113.2")}},
			of:       "x/a=203.0.113.2", release: "203.0.113.1=x/a"},
		{name: "what is claimed by a Service that is gone is released, and not given away before that",
			claims:   "203.0.113.1=x/gone",
			requests: []pool.Request{{Service: service("x/a"), Families: only4}},
			of:       "x/a=203.0.113.2", release: "203.0.113.1=x/gone"},
		{name: "a family that is not wanted any more is released",
			claims:   "203.0.113.1=x/a 2001:db8::1=x/a",
			requests: []pool.Request{{Service: service("x/a"), Families: only6}},
			of:       "x/a=2001:db8::1", release: "203.0.113.1=x/a"},
		{name: "the address that it asks for, also of a pool that gives none by itself",
			requests: []pool.Request{{Service: service("x/a"), Families: only4, Wanted: addresses("198.51.100.9")}},
			of:       "x/a=198.51.100.9"},
		{name: "another address than it has",
			claims:   "203.0.113.1=x/a",
			requests: []pool.Request{{Service: service("x/a"), Families: only4, Wanted: addresses("203.0.113.2"), Had: addresses("203.0.113.1")}},
			of:       "x/a=203.0.113.2", release: "203.0.113.1=x/a"},
		{name: "an address that another one has",
			claims:   "203.0.113.1=x/b",
			requests: []pool.Request{{Service: service("x/b"), Families: only4}, {Service: service("x/a"), Families: only4, Wanted: addresses("203.0.113.1")}},
			of:       "x/b=203.0.113.1", problem: "the address 203.0.113.1 that it asks for belongs to x/b"},
		{name: "two that ask for the same",
			requests: []pool.Request{{Service: service("x/a"), Families: only4, Wanted: addresses("203.0.113.1")}, {Service: service("x/b"), Families: only4, Wanted: addresses("203.0.113.1")}},
			of:       "x/a=203.0.113.1", problem: "the address 203.0.113.1 that it asks for belongs to x/a"},
		{name: "an address that somebody chose comes after one that is asked for",
			requests: []pool.Request{{Service: service("x/a"), Families: only4}, {Service: service("x/b"), Families: only4, Wanted: addresses("203.0.113.1")}},
			of:       "x/b=203.0.113.1 x/a=203.0.113.2"},
		{name: "an address of no pool",
			requests: []pool.Request{{Service: service("x/a"), Families: only4, Wanted: addresses("10.0.0.1")}},
			problem:  "the address 10.0.0.1 that it asks for is in no pool"},
		{name: "an address that the pool avoids",
			requests: []pool.Request{{Service: service("x/a"), Families: only4, Wanted: addresses("203.0.113.0")}},
			problem:  "the address 203.0.113.0 that it asks for is in no pool"},
		{name: "a pool by name",
			requests: []pool.Request{{Service: service("x/a"), Families: only4, Pool: "asked"}},
			of:       "x/a=198.51.100.9"},
		{name: "another pool than it has an address of",
			claims:   "203.0.113.1=x/a",
			requests: []pool.Request{{Service: service("x/a"), Families: only4, Pool: "asked", Had: addresses("203.0.113.1")}},
			of:       "x/a=198.51.100.9", release: "203.0.113.1=x/a"},
		{name: "pools that give none unasked",
			requests: []pool.Request{{Service: service("x/a"), Families: only4, Not: map[string]string{"public": "Services with its labels"}}},
			problem:  "no pool gives addresses to it: each is for others, or has to be asked for by name"},
		{name: "a pool that is not there",
			requests: []pool.Request{{Service: service("x/a"), Families: only4, Pool: "none"}},
			problem:  `there is no pool "none" that it asks for`},
		{name: "a pool of another namespace",
			requests: []pool.Request{{Service: service("x/a"), Families: only4, Pool: "team"}},
			problem:  `pool "team" that it asks for is not for namespace x`},
		{name: "an address of another namespace's pool",
			requests: []pool.Request{{Service: service("x/a"), Families: only4, Wanted: addresses("192.0.2.1")}},
			problem:  `is in pool "team", which is not for namespace x`},
		{name: "a pool that is not for what has its labels, by name",
			requests: []pool.Request{{Service: service("x/a"), Families: only4, Pool: "asked", Not: map[string]string{"asked": "Services with its labels"}}},
			problem:  `pool "asked" that it asks for is not for Services with its labels`},
		{name: "an address of a pool that is not for what has its labels",
			requests: []pool.Request{{Service: service("x/a"), Families: only4, Wanted: addresses("198.51.100.9"), Not: map[string]string{"asked": "Services with its labels"}}},
			problem:  `is in pool "asked", which is not for Services with its labels`},
		{name: "the next pool when the first is not for what has its labels",
			requests: []pool.Request{{Service: service("team/a"), Families: only4, Not: map[string]string{"public": "Services with its labels"}}},
			of:       "team/a=192.0.2.0"},
		{name: "what it has of a pool that is no longer for what has its labels",
			claims:   "203.0.113.2=x/a",
			requests: []pool.Request{{Service: service("x/a"), Families: only4, Not: map[string]string{"public": "Services with its labels"}}},
			of:       "x/a=203.0.113.2"},
		{name: "the next pool when the first is used up",
			claims:   "203.0.113.1=x/a 203.0.113.2=x/b",
			requests: []pool.Request{{Service: service("x/a"), Families: only4}, {Service: service("x/b"), Families: only4}, {Service: service("team/c"), Families: only4}},
			of:       "x/a=203.0.113.1 x/b=203.0.113.2 team/c=192.0.2.0"},
		{name: "nothing is left, for the youngest",
			requests: []pool.Request{{Service: service("x/a"), Families: only4}, {Service: service("x/b"), Families: only4}, {Service: service("x/c"), Families: both}},
			of:       "x/a=203.0.113.1 x/b=203.0.113.2 x/c=2001:db8::1", problem: "no IPv4 address is free in the pools that it may use: public"},
		{name: "an address that no pool has any more stays",
			claims:   "10.9.9.9=x/a",
			requests: []pool.Request{{Service: service("x/a"), Families: only4}},
			of:       "x/a=10.9.9.9", problem: "it keeps 10.9.9.9, which no pool has any more"},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, pools) })
	}
}

func (test assignTest) run(t *testing.T, pools []pool.Pool) {
	claims := pool.Claims{}
	for _, text := range strings.Fields(test.claims) {
		text, owner, _ := strings.Cut(text, "=")
		address := netip.MustParseAddr(text)
		claims[address] = append(claims[address], holder(owner))
	}
	a := assign(pools, claims, test.requests)
	of := map[string]string{}
	for s, list := range a.Of {
		if len(list) > 0 {
			of[s.String()] = strings.ReplaceAll(strings.Trim(fmt.Sprint(list), "[]"), " ", ",")
		}
	}
	want := map[string]string{}
	for _, text := range strings.Fields(test.of) {
		s, list, _ := strings.Cut(text, "=")
		want[s] = list
	}
	if d := cmp.Diff(want, of); d != "" {
		t.Error("addresses (-want +got):", d)
	}
	if test.claim != "" {
		var list []string
		for address, holders := range a.Claim {
			for _, h := range holders {
				list = append(list, fmt.Sprintf("%s=%s:%s:%s", address, h.Service, h.Key, strings.Join(h.Ports, ",")))
			}
		}
		slices.Sort(list)
		if got := strings.Join(list, " "); got != test.claim {
			t.Errorf("claims %s, want %s", got, test.claim)
		}
	}
	if release := strings.Trim(fmt.Sprint(a.Release), "[]"); release != test.release {
		t.Errorf("releases %q, want %q", release, test.release)
	}
	if problems := fmt.Sprint(a.Problems); !strings.Contains(problems, test.problem) || (test.problem == "") != (len(a.Problems) == 0) {
		t.Errorf("problems %s, want %q", problems, test.problem)
	}
}
