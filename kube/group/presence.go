package group

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

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
	// OVN says why the node's director does not follow the group's OVN, or is not known to its hosts;
	// empty: it does and is. Nil: it does not say, as those do not that know no OVN, or are to follow none.
	OVN *string `json:"ovn,omitempty"`
}

// LeaseName returns the name of a node's Lease for a group.
func LeaseName(group, node string) string { return fmt.Sprintf("weir.%s.%s", group, node) }

// String writes the presence as the annotation has it.
func (p Presence) String() string { return annotation(p) }

func annotation(p any) string {
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

// Taken is how far a director is with what its group forwards.
type Taken struct {
	// Version is the newest resourceVersion of the group's DirectorSets that the director forwards
	// by; empty: it forwards by none.
	Version string `json:"version,omitempty"`
	// Not says why some of the director's sets are not as the DirectorSets have them.
	Not map[int32]string `json:"not,omitempty"`
	// Without says why the director does not have some Services of other sets as the DirectorSets
	// have them, by their names.
	Without map[string]string `json:"without,omitempty"`
}

// mostWithout bounds the Services that a Lease names.
const mostWithout = 100

// Some returns as many as a Lease names.
func Some(without map[string]string) map[string]string {
	if len(without) <= mostWithout {
		return without
	}
	some := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(without))[:mostWithout] {
		some[name] = without[name]
	}
	return some
}

// Lacks says why a director does not have a Service, by its name, of one of its sets that was written
// in a version of a DirectorSet; empty: it has it. A director that is too old to say what it has taken
// is believed to have it.
func (t *Taken) Lacks(set int32, name, version string) string {
	if t == nil {
		return ""
	}
	if why := t.Without[name]; why != "" {
		return why
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

// Fronts hashes what a Service is reached at: its addresses with their segments, protocols and ports. A director that
// forwards the Service forwards all of these; what changes behind them does not concern its
// clients.
func Fronts(documents []model.Document) uint64 {
	h := fnv.New64a()
	for i := range documents {
		id := documents[i].Service.ID()
		if id.Segment != (model.Segment{}) {
			fmt.Fprintf(h, "%v ", id.Segment)
		}
		fmt.Fprintf(h, "%v %v %v\n", id.VIP, id.Protocol, id.Port)
	}
	return h.Sum64()
}

// AnnotationAgent is where the Lease of a node's agent says how it is: an AgentPresence in JSON. It
// is renewed, and taken for silent, as a director's Lease is.
const AnnotationAgent = "weir.io/agent"

// AgentPresence is what a node says of its weir agent.
type AgentPresence struct {
	Node  string `json:"node"`            // its name
	Unfit string `json:"unfit,omitempty"` // why it learns of no more pods, but keeps those it knows
}

// AgentLeaseName returns the name of a node's Lease. No name of a director's Lease begins so.
func AgentLeaseName(node string) string { return "weir-agent." + node }

// String writes the presence as the annotation has it.
func (p AgentPresence) String() string { return annotation(p) }

// ReadAgentPresence reads the annotation.
func ReadAgentPresence(text string) (p AgentPresence, err error) {
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return p, fmt.Errorf("annotation %s: %w", AnnotationAgent, err)
	}
	if p.Node == "" {
		return p, fmt.Errorf("annotation %s: names no node", AnnotationAgent)
	}
	return p, nil
}
