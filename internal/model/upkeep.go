package model

import "time"

// Upkeep is the state of one part of the host that weir maintains.
type Upkeep struct {
	Part     string          `json:"part"`               // as in docs/operate/upkeep.md
	Repairs  uint64          `json:"repairs"`            // since the process started
	Problems []UpkeepProblem `json:"problems,omitempty"` // the things that do not hold now
	Unknown  bool            `json:"unknown,omitempty" doc:"the last look could not compare the part yet: repairs and problems are those of earlier looks"`
}

// UpkeepProblem is one thing that should hold and does not.
type UpkeepProblem struct {
	What  string      `json:"what,omitempty"` // empty: the whole part, which cannot be read
	State UpkeepState `json:"state"`
	Found string      `json:"found"`           // what is there instead
	By    string      `json:"by,omitempty"`    // the process that changed it, if known
	Error string      `json:"error,omitempty"` // why it cannot be repaired, or read
	Since time.Time   `json:"since"`           // when it came to this state
}

// UpkeepState says what happened to a thing that did not hold.
type UpkeepState string

// The states. The first two are told once and then over; a problem has one of the others.
const (
	UpkeepRepaired  UpkeepState = "repaired"  // weir has put it right
	UpkeepHolds     UpkeepState = "holds"     // a problem is over
	UpkeepWaiting   UpkeepState = "waiting"   // weir cannot put it right, and waits for it
	UpkeepFailing   UpkeepState = "failing"   // putting it right fails, and is tried again each second
	UpkeepContested UpkeepState = "contested" // another program changes it back: weir has stopped
)
