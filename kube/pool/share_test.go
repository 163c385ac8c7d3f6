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
			requests: []pool.Request{sharing("x/a:k:80/TCP"), sharing("x/b:k:443/TCP,80/UDP"), sharing("x/c:k:53/UDP")},
			of:       "x/a=203.0.113.1 x/b=203.0.113.1 x/c=203.0.113.1",
			claim:    "203.0.113.1=x/a:k:80/TCP 203.0.113.1=x/b:k:443/TCP,80/UDP 203.0.113.1=x/c:k:53/UDP"},
		{name: "a key that another namespace has, too",
			requests: []pool.Request{sharing("x/a:k:80/TCP"), sharing("y/b:k:443/TCP"), sharing("y/c:k:53/UDP")},
			of:       "x/a=203.0.113.1 y/b=203.0.113.2 y/c=203.0.113.2"},
		{name: "the address that one of another namespace asks for",
			requests: []pool.Request{asking("x/a:k:80/TCP", "203.0.113.1"), asking("y/b:k:81/TCP", "203.0.113.1")},
			of:       "x/a=203.0.113.1", problem: "the address 203.0.113.1 that it asks for is shared by x/a with its own namespace alone"},
		{name: "a namespace that the first one names, and what that says counts alone",
			requests: []pool.Request{with(sharing("x/a:k:80/TCP"), "y"), with(sharing("y/b:k:443/TCP"), "*"), sharing("z/c:k:53/UDP"), sharing("x/d:k:81/TCP")},
			of:       "x/a=203.0.113.1 y/b=203.0.113.1 z/c=203.0.113.2 x/d=203.0.113.1"},
		{name: "all namespaces",
			requests: []pool.Request{with(sharing("x/a:k:80/TCP"), "*"), sharing("y/b:k:443/TCP")},
			of:       "x/a=203.0.113.1 y/b=203.0.113.1"},
		{name: "the first one names nobody any more: who has joined stays, and nobody else joins",
			claims:   "203.0.113.1=x/a:k:80/TCP 203.0.113.1=y/b:k:81/TCP",
			requests: []pool.Request{sharing("x/a:k:80/TCP"), sharing("y/b:k:81/TCP"), sharing("y/c:k:82/TCP")},
			of:       "x/a=203.0.113.1 y/b=203.0.113.1 y/c=203.0.113.2"},
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

func with(r pool.Request, namespaces ...string) pool.Request {
	r.With = namespaces
	return r
}

// A pool may say that its addresses are shared across namespaces, whatever their holders say.
func TestShareAcrossNamespaces(t *testing.T) {
	pools := []pool.Pool{{Name: "public", Addresses: ranges(t, "203.0.113.1-203.0.113.3"), AcrossNamespaces: true}}
	assignTest{requests: []pool.Request{sharing("x/a:k:80/TCP"), sharing("y/b:k:443/TCP"), sharing("z/c:l:53/UDP")},
		of: "x/a=203.0.113.1 y/b=203.0.113.1 z/c=203.0.113.2"}.run(t, pools)
}

// A guessed key gives no Service a port of another namespace's address.
func TestGuessedKey(t *testing.T) {
	bank := pool.Holder{Service: service("bank/www"), Key: "public", Ports: []string{"443/TCP"}}
	evil := pool.Holder{Service: service("evil/acme"), Key: "public", Ports: []string{"53/UDP", "80/TCP"}, With: []string{"*"}}
	if got, want := (pool.Holders{bank}).Refuse(evil), "is shared by bank/www with its own namespace alone"; got != want {
		t.Errorf("evil/acme may join the address of bank/www: %q, want %q", got, want)
	}
	bank.With = []string{"evil"}
	if got := (pool.Holders{bank}).Refuse(evil); got != "" {
		t.Errorf("whom bank/www names is refused: %q", got)
	}
}
