package pool_test

import (
	"testing"

	"weir.io/weir/kube/pool"
)

func TestShare(t *testing.T) {
	pools := []pool.Pool{
		{Name: "public", Addresses: ranges(t, "203.0.113.1-203.0.113.3", "2001:db8::1-2001:db8::2")},
		{Name: "asked", Addresses: ranges(t, "198.51.100.9"), OnRequest: true},
	}
	asking := func(text, address string) pool.Request {
		r := sharing(text)
		r.Wanted = addresses(address)
		return r
	}
	alone := pool.Request{Service: service("x/alone"), Families: only4}
	dual := sharing("x/dual:k:443/TCP")
	dual.Families = both
	for _, test := range []assignTest{
		{name: "the same key, other ports",
			requests: []pool.Request{sharing("x/a:k:80/TCP"), sharing("y/b:k:443/TCP,80/UDP"), sharing("x/c:k:53/UDP")},
			of:       "x/a=203.0.113.1 y/b=203.0.113.1 x/c=203.0.113.1",
			claim:    "203.0.113.1=x/a:k:80/TCP 203.0.113.1=x/c:k:53/UDP 203.0.113.1=y/b:k:443/TCP,80/UDP"},
		{name: "the same key and the same port",
			requests: []pool.Request{sharing("x/a:k:80/TCP"), sharing("x/b:k:443/TCP,80/TCP")},
			of:       "x/a=203.0.113.1 x/b=203.0.113.2"},
		{name: "another key, and none",
			requests: []pool.Request{sharing("x/a:k:80/TCP"), sharing("x/b:l:81/TCP"), alone},
			of:       "x/a=203.0.113.1 x/b=203.0.113.2 x/alone=203.0.113.3"},
		{name: "an address that one has, before one that is free and lower",
			claims:   "203.0.113.2=x/a:k:80/TCP",
			requests: []pool.Request{sharing("x/b:k:81/TCP"), sharing("x/a:k:80/TCP")},
			of:       "x/a=203.0.113.2 x/b=203.0.113.2", claim: "203.0.113.2=x/b:k:81/TCP"},
		{name: "the address that both ask for",
			requests: []pool.Request{asking("x/a:k:80/TCP", "198.51.100.9"), asking("x/b:k:81/TCP", "198.51.100.9")},
			of:       "x/a=198.51.100.9 x/b=198.51.100.9"},
		{name: "an address of a pool that has to be asked for is not joined unasked",
			requests: []pool.Request{asking("x/a:k:80/TCP", "198.51.100.9"), sharing("x/b:k:81/TCP")},
			of:       "x/a=198.51.100.9 x/b=203.0.113.1"},
		{name: "the address that it asks for, with a port that the other has",
			requests: []pool.Request{asking("x/a:k:80/TCP", "203.0.113.1"), asking("x/b:k:80/TCP", "203.0.113.1")},
			of:       "x/a=203.0.113.1", problem: "the address 203.0.113.1 that it asks for is shared with x/a, which has port 80/TCP of it"},
		{name: "the address that it asks for, of one with another key",
			requests: []pool.Request{asking("x/a:k:80/TCP", "203.0.113.1"), asking("x/b:l:81/TCP", "203.0.113.1")},
			of:       "x/a=203.0.113.1", problem: "the address 203.0.113.1 that it asks for belongs to x/a"},
		{name: "both families, one of them shared",
			claims:   "203.0.113.3=x/a:k:80/TCP",
			requests: []pool.Request{sharing("x/a:k:80/TCP"), dual},
			of:       "x/a=203.0.113.3 x/dual=2001:db8::1,203.0.113.3"},
		{name: "one that leaves takes nothing with it",
			claims:   "203.0.113.1=x/gone:k:80/TCP 203.0.113.1=x/a:k:81/TCP",
			requests: []pool.Request{sharing("x/a:k:81/TCP")},
			of:       "x/a=203.0.113.1", release: "203.0.113.1=x/gone"},
		{name: "the port of one that leaves is free only after it",
			claims:   "203.0.113.1=x/gone:k:80/TCP 203.0.113.1=x/a:k:81/TCP",
			requests: []pool.Request{sharing("x/a:k:81/TCP"), sharing("x/b:k:80/TCP")},
			of:       "x/a=203.0.113.1 x/b=203.0.113.2", release: "203.0.113.1=x/gone"},
		{name: "a port more, that nobody has",
			claims:   "203.0.113.1=x/a:k:80/TCP 203.0.113.1=x/b:k:81/TCP",
			requests: []pool.Request{sharing("x/a:k:80/TCP,82/TCP"), sharing("x/b:k:81/TCP")},
			of:       "x/a=203.0.113.1 x/b=203.0.113.1", claim: "203.0.113.1=x/a:k:80/TCP,82/TCP"},
		{name: "a port more, that the other has: who asked for it goes, also if it is older",
			claims:   "203.0.113.1=x/a:k:80/TCP 203.0.113.1=x/b:k:81/TCP",
			requests: []pool.Request{sharing("x/a:k:80/TCP,81/TCP"), sharing("x/b:k:81/TCP")},
			of:       "x/a=203.0.113.2 x/b=203.0.113.1", release: "203.0.113.1=x/a", problem: "it cannot keep 203.0.113.1, which is shared with x/b, which has port 81/TCP of it"},
		{name: "no key any more: who shared goes",
			claims:   "203.0.113.1=x/alone:k:80/TCP 203.0.113.1=x/b:k:81/TCP",
			requests: []pool.Request{alone, sharing("x/b:k:81/TCP")},
			of:       "x/alone=203.0.113.2 x/b=203.0.113.1", release: "203.0.113.1=x/alone", problem: "it cannot keep 203.0.113.1, which belongs to x/b"},
		{name: "no key any more, and nobody shares: it stays",
			claims:   "203.0.113.1=x/alone:k:80/TCP",
			requests: []pool.Request{alone},
			of:       "x/alone=203.0.113.1", claim: "203.0.113.1=x/alone::"},
		{name: "a key for what was its own",
			claims:   "203.0.113.1=x/a",
			requests: []pool.Request{sharing("x/a:k:80/TCP"), sharing("x/b:k:81/TCP")},
			of:       "x/a=203.0.113.1 x/b=203.0.113.1"},
		{name: "a port that one gives up and the other takes at once",
			claims:   "203.0.113.1=x/a:k:80/TCP,82/TCP 203.0.113.1=x/b:k:81/TCP",
			requests: []pool.Request{sharing("x/b:k:81/TCP,82/TCP"), sharing("x/a:k:80/TCP")},
			of:       "x/a=203.0.113.1 x/b=203.0.113.1"},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, pools) })
	}
}
