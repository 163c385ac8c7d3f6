package datapath

import (
	"maps"
	"net/netip"
	"time"
)

// recheckRoutes is how often routes are read again without news. The kernel tells nobody of the
// exceptions to its routes that it keeps: path MTUs and redirects that somebody has told, and that
// end after minutes.
const recheckRoutes = 5 * time.Second

// recheckShare is how many times longer it rests than reading takes: a director may have thousands
// of backends.
const recheckShare = 50

// readAgain reads the routes that are used from time to time, and tells if one is another way.
func (r *resolver) readAgain() {
	rest := r.recheck
	for !r.wait(rest) {
		began := time.Now()
		if r.stale() {
			r.outdated(false)
			r.tell()
		}
		rest = max(r.recheck, recheckShare*time.Since(began))
	}
}

// stale says whether the kernel has another way to some address than the one that is known. It
// lets others at what is known between two questions.
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
