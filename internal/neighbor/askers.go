package neighbor

import (
	"hash/maphash"
	"time"
)

// Answers per second on one interface and of one protocol. A host asks for a VIP at most once a
// second, and less than twice a minute when it knows the answer; a router may ask for all VIPs.
const (
	answersPerSecond = 2000 // shared by all askers
	answersPerAsker  = 16   // more, for one asker alone
)

// askers bounds the answers: each asker has a few of its own, and shares the others with all. So one
// that asks without end leaves the rest answered. Askers are told apart by a hash of their Ethernet
// address: a host that forges many addresses can use up everything, and that is bounded, too.
type askers struct {
	seed   maphash.Seed // nobody can choose addresses that share another asker's place
	own    [256]limiter
	shared *limiter
}

func newAskers(now time.Duration) *askers {
	a := &askers{seed: maphash.MakeSeed(), shared: newLimiter(answersPerSecond, now)}
	for i := range a.own {
		a.own[i] = limiter{rate: answersPerAsker, room: answersPerAsker, most: answersPerAsker, since: now}
	}
	return a
}

// allow reports whether one more question of an asker may be answered now.
func (a *askers) allow(from mac, now time.Duration) bool {
	return a.own[maphash.Bytes(a.seed, from[:])%uint64(len(a.own))].allow(now) || a.shared.allow(now)
}
