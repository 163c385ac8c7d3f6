package pool_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"weir.io/weir/kube/pool"
)

// The cost of a change does not grow with the number of Services: 5,000 that come one by one are
// looked at once each, and for one that goes and comes again an address is found without a look at
// all others.
func TestAllocationsLookAtWhatChanges(t *testing.T) {
	const many = 5000
	b := pool.NewAllocations()
	b.Pools([]pool.Pool{{Name: "public", Addresses: ranges(t, "10.64.0.0/16", "2001:db8::/112")}})
	claim := func(change pool.Change) {
		for x, holders := range change.Claim {
			b.Claim(x, holders)
		}
	}
	named := func(i int) pool.Service { return pool.Service{Namespace: "x", Name: fmt.Sprint(i)} }
	for i := range many {
		b.Request(int64(i), pool.Request{Service: named(i), Families: both})
		change := b.Assign()
		if len(change.Services) != 1 || len(change.Claim) != 2 {
			t.Fatalf("Service %d changes %v and claims %v", i, change.Services, change.Claim)
		}
		claim(change)
	}
	claim(b.Assign())
	if limit := 20 * many; b.Looked > limit {
		t.Errorf("%d Services that come one by one cost %d looks, more than %d", many, b.Looked, limit)
	}

	b.Looked = 0
	b.Forget(named(17))
	change := b.Assign()
	if len(change.Release) != 2 || len(change.Services) != 0 {
		t.Fatalf("one that goes releases %v and changes %v", change.Release, change.Services)
	}
	free := change.Release[0].Address
	b.Claim(free, nil)
	b.Request(many, pool.Request{Service: named(many), Families: only4})
	claim(b.Assign())
	if of, problems := b.Of(named(many)); !slices.Equal(of, []netip.Addr{free}) || problems != nil {
		t.Errorf("the next one gets %v, problems %v; %s is free", of, problems, free)
	}
	if b.Looked > 40 {
		t.Errorf("one that goes and one that comes cost %d looks", b.Looked)
	}

	b.Looked = 0
	if change := b.Assign(); b.Looked > 10 || len(change.Services) != 0 || len(change.Claim) != 0 {
		t.Errorf("nothing new costs %d looks, and changes %+v", b.Looked, change)
	}
}
