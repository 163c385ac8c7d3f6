package pool

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"
)

// Allocations are which Service has which address. They follow pools, claims and requests as these
// change. A Service keeps what it has claimed, unless it requests something else: also an address
// that no pool has any more, because another address would break its clients. The answers are the
// same as if everything were given anew, but only Services that a change may concern are looked at.
type Allocations struct {
	pools    []Pool
	requests map[Service]ranked
	claims   Claims
	owned    map[Service][]netip.Addr // in order
	byKey    map[string][]netip.Addr  // the addresses shared with the key, in order
	next     cursors                  // where the search for unclaimed addresses begins

	touched map[Service]bool // Services to be looked at
	open    map[Service]bool // Services that have something to claim or to give back
	lacking map[Service]bool // Services that lack an address that they ask for
	results map[Service]*kept

	// Looked counts the requests and addresses that were looked at.
	Looked int
}

type ranked struct {
	Request
	rank int64
}

// result is the outcome of a request while the request is looked at.
type result struct {
	of       [2]netip.Addr // one per family; invalid: none
	problems []string      // the addresses that it does not get, and why
}

// kept is the final outcome of a request.
type kept struct {
	of       []netip.Addr // in the order of its families
	problems []string
}

// Change is what an Assign has changed, and what is to be done.
type Change struct {
	// Services are the Services whose addresses or problems have changed.
	Services []Service
	// Claim has the claims that have not been made yet, or were made with another key or other
	// ports. Other claims of the same addresses stay.
	Claim Claims
	// Release are claims that are not needed any more. Their addresses may be given to others only
	// when no director forwards them.
	Release []Share
}

// NewAllocations returns allocations without pools, claims and requests.
func NewAllocations() *Allocations {
	return &Allocations{requests: map[Service]ranked{}, claims: Claims{}, owned: map[Service][]netip.Addr{}, byKey: map[string][]netip.Addr{},
		touched: map[Service]bool{}, open: map[Service]bool{}, lacking: map[Service]bool{}, results: map[Service]*kept{}}
}

// Pools says which pools there are, in the order in which addresses are taken from them.
func (b *Allocations) Pools(pools []Pool) {
	if reflect.DeepEqual(pools, b.pools) {
		return
	}
	b.pools, b.next = slices.Clone(pools), make(cursors, len(pools))
	for s := range b.requests {
		b.touched[s] = true
	}
}

// Request says what a Service wants. If several want the same address, the one with the lowest rank
// gets it, and among equal ranks the first by name.
func (b *Allocations) Request(rank int64, r Request) {
	if before, is := b.requests[r.Service]; is && before.rank == rank && reflect.DeepEqual(before.Request, r) {
		return
	}
	b.requests[r.Service] = ranked{r, rank}
	b.touched[r.Service] = true
}

// Forget says that a Service wants nothing any more.
func (b *Allocations) Forget(s Service) {
	if _, is := b.requests[s]; is {
		delete(b.requests, s)
		b.touched[s] = true
	}
}

// Claim says which Services hold an address; none: it is free.
func (b *Allocations) Claim(x netip.Addr, now Holders) {
	before := b.claims[x]
	if slices.EqualFunc(before, now, Holder.Same) {
		return
	}
	for _, h := range before {
		b.touched[h.Service] = true
		remove(b.owned, h.Service, x)
		if h.Key != "" {
			remove(b.byKey, h.Key, x)
		}
	}
	for _, h := range now {
		b.touched[h.Service] = true
		insert(b.owned, h.Service, x)
		if h.Key != "" {
			insert(b.byKey, h.Key, x)
		}
	}
	if b.claims[x] = now; len(now) == 0 {
		delete(b.claims, x)
		b.next.free(b.pools, x)
	}
}

// insert and remove keep the lists of a map sorted.
func insert[K comparable](of map[K][]netip.Addr, key K, x netip.Addr) {
	if at, is := slices.BinarySearchFunc(of[key], x, netip.Addr.Compare); !is {
		of[key] = slices.Insert(of[key], at, x)
	}
}

func remove[K comparable](of map[K][]netip.Addr, key K, x netip.Addr) {
	if at, is := slices.BinarySearchFunc(of[key], x, netip.Addr.Compare); is {
		of[key] = slices.Delete(of[key], at, at+1)
	}
	if len(of[key]) == 0 {
		delete(of, key)
	}
}

// Of returns the addresses that a Service has by the last Assign, in the order of its families, and
// what is wrong. Some of the addresses may have to be claimed first.
func (b *Allocations) Of(s Service) (addresses []netip.Addr, problems []string) {
	if r := b.results[s]; r != nil {
		return slices.Clone(r.of), r.problems
	}
	return nil, nil
}

// Assign chooses addresses for all that lack some, after what has been said since the last one.
func (b *Allocations) Assign() Change {
	list := b.concerned()
	for i := range b.pools { // pass claimed addresses once for all requests
		for _, family := range []Family{IPv4, IPv6} {
			b.next.first(b.pools, i, family, func(x netip.Addr) bool { return b.has(b.claims, x) })
		}
	}
	a := &assigner{Allocations: b, chosen: Claims{}, claim: Claims{}, shared: map[string][]netip.Addr{}, next: slices.Clone(b.next)}
	results, done := make([]result, len(list)), make([][2]bool, len(list))
	// First the requests without a free choice, so that no free choice takes their address.
	for _, free := range []bool{false, true} {
		for i, r := range list {
			a.now = &results[i]
			for j, family := range r.Families[:min(2, len(r.Families))] {
				b.Looked++
				if done[i][j] || !free && a.chooses(r.Request, family) {
					continue
				}
				done[i][j] = true
				a.now.of[j] = a.one(r.Request, family)
			}
		}
	}
	change := Change{Claim: a.claim}
	for i, r := range list {
		b.note(r.Request, &results[i], &change)
	}
	clear(b.touched)
	slices.SortFunc(change.Release, func(a, b Share) int {
		return cmp.Or(a.Address.Compare(b.Address), a.Service.Compare(b.Service))
	})
	return change
}

func (b *Allocations) has(claims Claims, x netip.Addr) bool {
	b.Looked++
	return len(claims[x]) > 0
}

// concerned returns the requests that are to be looked at, in order. A request whose Service is
// gone asks for nothing, and may have something to give back.
func (b *Allocations) concerned() []ranked {
	if len(b.touched) > 0 { // Services that lack something may get it now
		maps.Copy(b.touched, b.lacking)
	}
	maps.Copy(b.touched, b.open)
	list := make([]ranked, 0, len(b.touched))
	for s := range b.touched {
		r, is := b.requests[s]
		if !is {
			r.Service = s
		}
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), a.Service.Compare(b.Service))
	})
	return list
}

// note keeps the outcome of a request, and adds it to the change.
func (b *Allocations) note(r Request, now *result, change *Change) {
	var of []netip.Addr
	for _, x := range now.of {
		if x.IsValid() {
			of = append(of, x)
		}
	}
	todo := false
	for _, x := range of {
		h := r.holder()
		if has, is := b.claims[x].Of(r.Service); !is || !has.Same(h) {
			todo = true
		}
	}
	for _, x := range b.owned[r.Service] {
		if !slices.Contains(of, x) && r.Service != (Service{}) { // an address without a Service is given back already
			change.Release = append(change.Release, Share{x, r.Service})
			todo = true
		}
	}
	set(b.open, r.Service, todo)
	set(b.lacking, r.Service, len(now.problems) > 0)
	before := b.results[r.Service]
	if _, is := b.requests[r.Service]; !is {
		delete(b.results, r.Service)
		return
	}
	if before == nil || !slices.Equal(before.of, of) || !slices.Equal(before.problems, now.problems) {
		change.Services = append(change.Services, r.Service)
	}
	b.results[r.Service] = &kept{of, now.problems}
}

func set(of map[Service]bool, s Service, is bool) {
	if is {
		of[s] = true
	} else {
		delete(of, s)
	}
}
