package datapath

import (
	"maps"
	"net/netip"
	"time"
)

// recheckRoutes is how often routes are read again without news. The kernel does not report the
// exceptions to its routes: path MTUs and redirects that other hosts have sent, and that end after
// minutes. Nor does it report MAC addresses that interfaces of other network namespaces add.
const recheckRoutes = 5 * time.Second

// recheckShare is how many times longer the pause is than the reading before it: a director may
// have thousands of backends.
const recheckShare = 50

// readAgain reads the routes in use from time to time, and tells run if one has changed.
func (r *resolver) readAgain() {
	rest := r.recheck
	for !r.wait(rest) {
		began := time.Now()
		if r.ownMACsDiffer() || r.stale() {
			r.outdated(false)
			r.tell()
		}
		rest = max(r.recheck, recheckShare*time.Since(began))
	}
}

// stale says whether the kernel's way to some address has changed. It frees the lock between two
// questions.
func (r *resolver) stale() bool {
	r.mu.Lock()
	known := maps.Clone(r.routes)
	r.mu.Unlock()
	for address, way := range known {
		if r.wait(0) {
			return false
		}
		if r.differs(address, way) {
			return true
		}
	}
	return false
}

func (r *resolver) differs(address netip.Addr, way route) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lookup(address) != way
}
