// Package schedule makes the events of a chaos run: which directors and backends
// come, go, die and change, and when. The same options give the same schedule.
package schedule

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// State is the state of a backend.
type State string

// The states of a backend. A dead one is still in the configuration.
const (
	Absent   State = "absent"
	Active   State = "active"
	Draining State = "draining"
	Dead     State = "dead"
)

// Backend is a backend of the pool.
type Backend struct {
	State  State
	Weight uint16
}

// Group is everything that events change.
type Group struct {
	Announced []bool // per director of the pool: the router sends packets to it
	Backends  []Backend
	RingSize  uint32
	Queues    int // of each director's uplink
	// TierFailed says that the checks of all backends of the first tier fail, and their connections go on.
	TierFailed bool

	DirectorVersions []Version // per director of the pool: what it runs, or will run
	AgentVersions    []Version // per backend of the pool
}

// Clone returns a copy that shares nothing.
func (g Group) Clone() Group {
	g.Announced, g.Backends = slices.Clone(g.Announced), slices.Clone(g.Backends)
	g.DirectorVersions, g.AgentVersions = slices.Clone(g.DirectorVersions), slices.Clone(g.AgentVersions)
	return g
}

// Kind is the kind of an event.
type Kind string

// The kinds of events. Blind: only one director no longer sees a backend; Sees ends that. A crash
// kills the process, which starts again; a kill takes the host. An upgrade replaces the process
// with another version, or with this one again.
const (
	DirectorAdded     Kind = "director-added"
	DirectorRemoved   Kind = "director-removed"
	DirectorKilled    Kind = "director-killed"
	DirectorCrashed   Kind = "director-crashed"
	DirectorRestarted Kind = "director-restarted"
	DirectorBlind     Kind = "director-blind"
	DirectorSees      Kind = "director-sees"
	DirectorUpgraded  Kind = "director-upgraded"
	AgentUpgraded     Kind = "agent-upgraded"
	QueuesChanged     Kind = "queues-changed"
	StoreMemberLost   Kind = "store-member-lost"
	StoreMemberBack   Kind = "store-member-back"

	BackendsAdded    Kind = "backends-added"
	BackendsDrained  Kind = "backends-drained"
	BackendsReturned Kind = "backends-returned"
	BackendsRemoved  Kind = "backends-removed"
	BackendsKilled   Kind = "backends-killed"
	BackendsMixed    Kind = "backends-mixed"
	WeightsChanged   Kind = "weights-changed"
	RingResized      Kind = "ring-resized"

	TierFailed Kind = "tier-failed"
	TierBack   Kind = "tier-back"
)

// Tier is the tier of a backend of the pool, in a run with tiers: every third is in tier 1.
func Tier(backend int) uint8 {
	if backend%3 == 2 {
		return 1
	}
	return 0
}

// OfDirectors reports whether the event changes the set of directors, as half of a double change
// does.
func (k Kind) OfDirectors() bool {
	return k == DirectorAdded || k == DirectorRemoved || k == DirectorKilled
}

// OfBackends reports whether the event changes the directors' configuration.
func (k Kind) OfBackends() bool {
	switch k {
	case BackendsAdded, BackendsDrained, BackendsReturned, BackendsRemoved, BackendsKilled, BackendsMixed, WeightsChanged, RingResized:
		return true
	}
	return false
}

// Event is an event of a run.
type Event struct {
	At       time.Duration // since the beginning
	Kind     Kind
	Director int   // of the pool, if the event is about one director
	Backends []int // of the pool, if the event is about backends
	Member   int   // of the directors' store, if the event is about one
	Double   bool  // within a second of an event of the other kind
	After    Group // the group after the event
}

// OfOneDirector reports whether the event is about Director.
func (e Event) OfOneDirector() bool { return strings.HasPrefix(string(e.Kind), "director-") }

// String describes the event in one line, without the time.
func (e Event) String() string {
	var b strings.Builder
	b.WriteString(string(e.Kind))
	if e.OfOneDirector() {
		fmt.Fprintf(&b, " director%d", e.Director+1)
	}
	for _, i := range e.Backends {
		fmt.Fprintf(&b, " backend%d", i+1)
		if e.Kind == BackendsMixed || e.Kind == WeightsChanged {
			fmt.Fprintf(&b, "(%s,%d)", e.After.Backends[i].State, e.After.Backends[i].Weight)
		}
	}
	switch e.Kind {
	case RingResized:
		fmt.Fprintf(&b, " %d slots", e.After.RingSize)
	case QueuesChanged:
		fmt.Fprintf(&b, " %d", e.After.Queues)
	case DirectorUpgraded:
		fmt.Fprintf(&b, " %s", e.After.DirectorVersions[e.Director])
	case AgentUpgraded:
		fmt.Fprintf(&b, " %s", e.After.AgentVersions[e.Backends[0]])
	case StoreMemberLost, StoreMemberBack:
		fmt.Fprintf(&b, " etcd%d", e.Member+1)
	}
	return b.String()
}
