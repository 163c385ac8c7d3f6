package group

import (
	"fmt"
	"hash/fnv"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"weir.io/weir/internal/model"
)

// Taken is how far a director is with what its group forwards.
type Taken struct {
	// Version is the newest resourceVersion of the group's DirectorSets that the director forwards
	// by; empty: it forwards by none.
	Version string `json:"version,omitempty"`
	// Not says why some of the director's sets are not as the DirectorSets have them.
	Not map[int32]string `json:"not,omitempty"`
}

// Lacks says why a director does not have a Service of one of its sets that was written in a
// version of a DirectorSet; empty: it has it. A director that is too old to say what it has taken
// is believed to have it.
func (t *Taken) Lacks(set int32, version string) string {
	if t == nil {
		return ""
	}
	if why := t.Not[set]; why != "" {
		return why
	}
	if t.Version == "" {
		return "forwards nothing of the group yet"
	}
	if order, err := resourceversion.CompareResourceVersion(t.Version, version); err == nil && order < 0 {
		return "has not said that it has it"
	}
	return ""
}

// Fronts hashes what a Service is reached at: its addresses, protocols and ports. A director that
// forwards the Service forwards all of these; what changes behind them does not concern its
// clients.
func Fronts(documents []model.Document) uint64 {
	h := fnv.New64a()
	for i := range documents {
		id := documents[i].Service.ID()
		fmt.Fprintf(h, "%v %v %v\n", id.VIP, id.Protocol, id.Port)
	}
	return h.Sum64()
}
