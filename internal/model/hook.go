package model

import (
	"net/netip"
	"time"
)

// Hook is a program, or a server, that is told which VIPs this director forwards: what sets
// routes where no router speaks BGP, in a cloud.
type Hook struct {
	Name      string   `json:"name"`
	Exec      []string `json:"exec,omitempty"`       // a program and its arguments
	URL       string   `json:"url,omitempty"`        // in its place: a server that is sent a POST
	TokenFile string   `json:"token-file,omitempty"` // what the server is to believe us by: Authorization: Bearer
	Timeout   Duration `json:"timeout,omitzero"`     // of one call
}

// What a hook's time-out is and may be, and how many hooks there may be.
const (
	DefaultHookTimeout = Duration(10 * time.Second)
	minHookTimeout     = Duration(100 * time.Millisecond)
	maxHookTimeout     = Duration(10 * time.Minute)
	maxHooks           = 16
)

// HookEvent is why a hook is called.
type HookEvent string

// Why hooks are called.
const (
	HookStart  HookEvent = "start"  // the director, or the hook, is new: nothing is known of what the hook knows
	HookChange HookEvent = "change" // VIPs came up, or went
	HookDrain  HookEvent = "drain"  // the director withdraws all of them, and will end
)

// HookCall is what a hook is told. Up is all that counts: a call may come twice, and changes
// that follow each other soon come as one.
type HookCall struct {
	Hook    string       `json:"hook"`
	Event   HookEvent    `json:"event"`
	Attempt int          `json:"attempt"` // 1, and more after calls that failed
	Up      []netip.Addr `json:"up"`      // the VIPs that this director forwards
	Came    []netip.Addr `json:"came"`    // of them, those that the hook has not taken yet
	Went    []netip.Addr `json:"went"`    // those that it was told of, and that are not up any more
}

// HookStatus is what has become of a hook's calls.
type HookStatus struct {
	Name     string    `json:"name"`
	Current  bool      `json:"current"`            // it has taken what is up now
	Running  bool      `json:"running"`            // a call is under way
	Up       int       `json:"up"`                 // VIPs that it is to be told
	Calls    uint64    `json:"calls"`              // that have ended, since the director started
	Failures uint64    `json:"failures"`           // those of them that failed
	Took     time.Time `json:"took,omitzero"`      // when it took what it was told last
	Problem  string    `json:"problem,omitempty"`  // of the last call, if that failed
	NextTry  time.Time `json:"next-try,omitzero"`  // after a failure
	Duration Duration  `json:"duration,omitempty"` // of the last call
}

// Announcement is what is told of the VIPs that a director forwards, and whom.
type Announcement struct {
	BGP    BGP
	Routes []Route // for BGP's neighbors
	Hooks  []Hook
	// Neighbor is where this director, one of the group, answers for VIPs itself.
	Neighbor Neighbor
	Group    []netip.Addr
	VIPs     []netip.Addr // for hooks and for hosts on the link: those that are up, in order
}
