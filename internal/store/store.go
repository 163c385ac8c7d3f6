// Package store keeps desired state: the sets of services, each with its owner, and
// the log of generations of every service. [File] keeps it for one director, [Etcd] for
// a group.
//
// A state changes by a [Change], a pure function that the store calls inside its transaction, again
// if another writer was first. So what depends on the earlier state, such as a service's log, is
// never made from a stale one.
package store

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"iter"
	"maps"
	"reflect"
	"slices"

	"weir.io/weir/internal/model"
)

// State is all desired state at one revision. It is shared: read it only.
type State struct {
	// Revision grows by one with every change; 0 is the empty state before the first.
	Revision uint64
	Sets     map[string]Set // by owner
}

// Set is what one owner wants, in the order in which the owner gave it.
type Set struct {
	Documents []Document
	// Given says that the client that puts the set writes its logs, for several directors: this
	// director never adds generations to them or removes any.
	Given bool
}

// Document is one service with its history.
type Document = model.Document

// Change returns the state that follows another. It is pure: a store may call it several times and
// takes the last result. It leaves Revision to the store, and does not change its argument.
type Change func(State) (State, error)

// The owners as which weir itself writes.
const (
	OwnerFile = "file" // a director's own configuration file
	OwnerCLI  = "cli"  // weir apply, without an owner
)

// Owners returns the owners of sets in the order of their names.
func (s State) Owners() []string { return slices.Sorted(maps.Keys(s.Sets)) }

// Documents returns the documents of all sets, by owner: the same order on every
// director.
func (s State) Documents() []Document {
	var all []Document
	for d := range s.All() {
		all = append(all, *d)
	}
	return all
}

// All yields pointers to what Documents returns: there may be 65,536 documents, and each is large.
func (s State) All() iter.Seq[*Document] {
	return func(yield func(*Document) bool) {
		for _, owner := range s.Owners() {
			documents := s.Sets[owner].Documents
			for i := range documents {
				if !yield(&documents[i]) {
					return
				}
			}
		}
	}
}

// Count returns how many services all sets have.
func (s State) Count() (services int) {
	for _, set := range s.Sets {
		services += len(set.Documents)
	}
	return services
}

// Tended is the state without the sets whose logs are given.
func (s State) Tended() State {
	tended := State{Revision: s.Revision, Sets: map[string]Set{}}
	for owner, set := range s.Sets {
		if !set.Given {
			tended.Sets[owner] = set
		}
	}
	return tended
}

// with returns the state in which an owner has another set.
func (s State) with(owner string, set Set) State {
	sets := maps.Clone(s.Sets)
	if sets == nil {
		sets = map[string]Set{}
	}
	sets[owner] = set
	return State{Revision: s.Revision, Sets: sets}
}

// equal reports whether two sets are equal; that is quick if they are the same memory.
func (s Set) equal(o Set) bool {
	return s.Given == o.Given && (model.SameMemory(s.Documents, o.Documents) || reflect.DeepEqual(s.Documents, o.Documents))
}

// changed returns the owners whose sets differ between two states, in order.
func changed(from, to State) []string {
	owners := map[string]bool{}
	for owner, set := range to.Sets {
		if before, had := from.Sets[owner]; !had || !before.equal(set) {
			owners[owner] = true
		}
	}
	for owner := range from.Sets {
		if _, has := to.Sets[owner]; !has {
			owners[owner] = true
		}
	}
	return slices.Sorted(maps.Keys(owners))
}

// tagLength is how many characters of a digest make a tag: no two sets will share one.
const tagLength = 32

// Services returns the set's services, without their logs.
func (s Set) Services() []model.Service {
	services := make([]model.Service, len(s.Documents))
	for i, d := range s.Documents {
		services[i] = d.Service
	}
	return services
}

// Tag returns the tag of the set's services: see TagOf.
func (s Set) Tag() string { return TagOf(s.Services()) }

// TagOf returns a tag that differs for different services: the same services in the same order have
// the same tag on every director of one version, whatever their logs are. The tag does not reveal
// the services.
func TagOf(services []model.Service) string {
	digest := sha256.New()
	encoder := json.NewEncoder(digest)
	for i := range services {
		if err := encoder.Encode((*model.StoredService)(&services[i])); err != nil {
			panic("a service cannot be written: " + err.Error()) // valid services can
		}
	}
	return hex.EncodeToString(digest.Sum(nil))[:tagLength]
}
