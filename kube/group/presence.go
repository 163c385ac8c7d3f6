package group

import (
	"encoding/json"
	"fmt"
	"time"
)

// A node with a director of a group, or a pod that is one, says so in a Lease, which it renews. One that has not been
// renewed for Silence, by the clock of whoever looks, is of a node that is gone. That is longer
// than a controller holds on to its own Lease without an API server, so that an API server that
// was away takes no director out: whoever leads then has begun to look anew.
const (
	Renew   = 3 * time.Second
	Silence = 15 * time.Second
)

// AnnotationDirector is where the Lease says what the node is: a Presence in JSON.
const AnnotationDirector = "weir.io/director"

// Presence is what a node says of itself.
type Presence struct {
	Node      string   `json:"node"`                // its name, or the pod's
	Addresses []string `json:"addresses,omitempty"` // one of a family
	Unfit     string   `json:"unfit,omitempty"`     // why it is not to be a director
}

// LeaseName returns the name of a node's Lease for a group.
func LeaseName(group, node string) string { return fmt.Sprintf("weir.%s.%s", group, node) }

// String writes the presence as the annotation has it.
func (p Presence) String() string {
	text, err := json.Marshal(p)
	if err != nil {
		panic(err) // there are only texts in it
	}
	return string(text)
}

// ReadPresence reads the annotation.
func ReadPresence(text string) (p Presence, err error) {
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return p, fmt.Errorf("annotation %s: %w", AnnotationDirector, err)
	}
	if p.Node == "" {
		return p, fmt.Errorf("annotation %s: names no node", AnnotationDirector)
	}
	return p, nil
}
