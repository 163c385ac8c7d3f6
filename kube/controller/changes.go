package controller

import (
	"net/netip"
	"sync"

	"weir.io/weir/kube/pool"
)

// news is what may have changed.
type news struct {
	services  map[pool.Service]bool // that changed, or whose EndpointSlices did
	pods      map[pool.Service]bool // whose weights changed
	addresses map[netip.Addr]bool   // that are or were claimed
	nodes     bool
	resources bool // custom resources, and namespaces, by whose labels they select
	sets      bool // what is written for groups of directors
	gateways  bool // objects of Gateway API, and namespaces
	all       bool
}

// changes collects news until it is taken. What has changed twice is reported once.
type changes struct {
	wake func() // called with each change

	mu  sync.Mutex
	got news
}

func newNews() news {
	return news{services: map[pool.Service]bool{}, pods: map[pool.Service]bool{}, addresses: map[netip.Addr]bool{}}
}

func newChanges(wake func()) *changes { return &changes{wake: wake, got: newNews()} }

// note adds to the news.
func (c *changes) note(f func(*news)) {
	c.mu.Lock()
	f(&c.got)
	c.mu.Unlock()
	c.wake()
}

// take returns the news and forgets it.
func (c *changes) take() news {
	c.mu.Lock()
	defer c.mu.Unlock()
	got := c.got
	c.got = newNews()
	return got
}
