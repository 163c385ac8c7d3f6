package group

import (
	"encoding/json"
	"fmt"
)

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
func (p AgentPresence) String() string {
	text, err := json.Marshal(p)
	if err != nil {
		panic(err) // it has only texts
	}
	return string(text)
}

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
