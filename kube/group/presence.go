package group

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"time"

	"weir.io/weir/internal/model"
)

// A node with a director of a group, or a pod that is one, says so in a Lease, which it renews. A
// Lease that has not been renewed for Silence, by the clock of the controller that looks, is of a
// node that is gone. Silence is longer than a controller holds on to its own Lease without an API
// server, so an API server that was away takes no director out: the controller that leads
// afterwards has begun to look anew.
const (
	Renew   = 3 * time.Second
	Silence = 15 * time.Second
)

// AnnotationDirector is where the Lease says what the node is: a Presence in JSON.
const AnnotationDirector = "weir.io/director"

// Presence is what a node says of itself.
type Presence struct {
	Node      string   `json:"node"`                // its name, or the pod's
	Addresses []string `json:"addresses,omitempty"` // one per family
	Unfit     string   `json:"unfit,omitempty"`     // why it is not to be a director
	// Ways are how the node reaches the pods that the group's status names: what is in the way;
	// empty: nothing.
	Ways  map[string]string `json:"ways,omitempty"`
	Taken *Taken            `json:"taken,omitempty"` // nil: it does not say
	// Peers are the BGPPeers that the node speaks with, by name, and why it has no session with
	// one; empty: it has one.
	Peers map[string]string `json:"peers,omitempty"`
	// NodePorts says why the node's director does not have all node ports that it is to have;
	// empty: it has them.
	NodePorts string `json:"nodePorts,omitempty"`
}

// LeaseName returns the name of a node's Lease for a group.
func LeaseName(group, node string) string { return fmt.Sprintf("weir.%s.%s", group, node) }

// String writes the presence as the annotation has it.
func (p Presence) String() string {
	text, err := json.Marshal(p)
	if err != nil {
		panic(err) // it has only texts
	}
	return string(text)
}

// nodeName matches names of nodes and pods, by the API server's rule.
var nodeName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

const longestName = 253

// ReadPresence reads the annotation of a Lease of a group's. A client that may write Leases may
// write anything into them, so a Lease that does not say what a sidecar would say is an error. It
// may be only of the node that its name has. A value that the group's status cannot have would keep
// the status from being written at all.
func ReadPresence(group, lease, text string) (p Presence, err error) {
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return p, fmt.Errorf("annotation %s: %w", AnnotationDirector, err)
	}
	if len(p.Node) > longestName || !nodeName.MatchString(p.Node) {
		return p, fmt.Errorf("annotation %s: %q is the name of no node", AnnotationDirector, p.Node)
	}
	if lease != LeaseName(group, p.Node) {
		return p, fmt.Errorf("annotation %s: node %s of group %s has another Lease", AnnotationDirector, p.Node, group)
	}
	four, six := 0, 0
	for _, text := range p.Addresses {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return p, fmt.Errorf("annotation %s: %w", AnnotationDirector, err)
		}
		if why := model.AddressProblem(a); why != "" {
			return p, fmt.Errorf("annotation %s: %s %s", AnnotationDirector, a, why)
		}
		if a.Is4() {
			four++
		} else {
			six++
		}
	}
	if four > 1 || six > 1 {
		return p, fmt.Errorf("annotation %s: has %d addresses, and not one of a family", AnnotationDirector, len(p.Addresses))
	}
	return p, nil
}
