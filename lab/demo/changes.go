package demo

import (
	"fmt"
	"slices"

	"weir.io/weir/internal/model"
)

// member is a backend of every service at some time.
type member struct {
	backend int // from 0
	weight  uint16
	state   model.BackendState
}

func (m member) name() string { return fmt.Sprintf("backend%d", m.backend+1) }

// stage is the membership between two edits of the files.
type stage struct {
	edit    string // what changed, in a user's words
	members []member
}

// stages returns the memberships that the demo goes through: backends are added,
// drained and removed, and get another weight. The last one is no edit: a backend is lost.
func stages() []stage {
	active := func(backend int, weight uint16) member { return member{backend, weight, model.Active} }
	draining := func(backend int, weight uint16) member { return member{backend, weight, model.Draining} }
	return []stage{
		{"begin with backend1 and backend2", []member{active(0, 100), active(1, 200)}},
		{"add backend3", []member{active(0, 100), active(1, 200), active(2, 300)}},
		{"drain backend1", []member{draining(0, 100), active(1, 200), active(2, 300)}},
		{"remove backend1", []member{active(1, 200), active(2, 300)}},
		{"add backend1", []member{active(0, 100), active(1, 200), active(2, 300)}},
		{"give backend2 half its weight", []member{active(0, 100), active(1, 100), active(2, 300)}},
		{"drain backend3", []member{active(0, 100), active(1, 100), draining(2, 300)}},
		{"remove backend3", []member{active(0, 100), active(1, 100)}},
		{"add backend3", []member{active(0, 100), active(1, 100), active(2, 300)}},
		{"lose backend3", []member{active(0, 100), active(1, 100)}},
	}
}

// has reports whether the backend is a member.
func (s stage) has(backend int) bool {
	return slices.ContainsFunc(s.members, func(m member) bool { return m.backend == backend })
}

// share returns the part of new connections that each backend should get.
func (s stage) share() [backends]float64 {
	var share [backends]float64
	total := 0.0
	for _, m := range s.members {
		if m.state == model.Active {
			share[m.backend] = float64(m.weight)
			total += float64(m.weight)
		}
	}
	for i := range share {
		share[i] /= total
	}
	return share
}
