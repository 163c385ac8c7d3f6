package node

import (
	"slices"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/v1alpha1"
)

// state is the state of a node in its group.
type state int

const (
	standby  state = iota // it forwards nothing, and announces nothing
	active                // it is a director
	draining              // it was a director: it forwards, and no longer announces
)

// role is what the node is, and since when. A new process assumes that the node has been a
// director: what is there may be forwarded for a while, and is then removed.
type role struct {
	state   state
	known   bool
	group   *v1alpha1.DirectorGroup // its last version, when it no longer exists
	drain   time.Duration
	until   time.Time // while it drains
	emptied bool      // its director has nothing of the group any more
	leaves  []string  // the sources that its director's file leaves to the kernel at node ports
}

// is takes in the current group; nil: it no longer exists. It reports whether the node has just
// begun to drain.
func (r *role) is(g *v1alpha1.DirectorGroup, node string, now time.Time) (drains bool) {
	if g != nil {
		r.group, r.drain = g, drainOf(g)
	}
	if g != nil && slices.ContainsFunc(g.Status.Directors, func(d v1alpha1.Director) bool { return d.Node == node }) {
		r.state, r.known, r.emptied = active, true, false
		return false
	}
	switch {
	case r.state == active || !r.known:
		r.state, r.until, drains = draining, now.Add(r.drain), r.state == active
	case r.state == draining && !now.Before(r.until):
		r.state = standby
	}
	r.known = true
	return drains
}

// defaultDrain is the schema's default.
const defaultDrain = time.Minute

func drainOf(g *v1alpha1.DirectorGroup) time.Duration {
	var d model.Duration
	if g.Spec.Drain == nil || d.UnmarshalText([]byte(*g.Spec.Drain)) != nil {
		return defaultDrain
	}
	return time.Duration(d)
}

// unfit says why the node should not be a director, when its weir run has not answered for that
// long. An active director's process is waited for: forwarding goes on without it, and it may only
// be restarting.
func (r *role) unfit(silent time.Duration) string {
	if r.state == active && silent < group.Silence {
		return ""
	}
	return "weir run does not answer"
}
