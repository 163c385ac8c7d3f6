package model

import (
	"net/netip"
	"time"
)

// Hook is a program, or a server, that is told which VIPs this director forwards: it sets routes
// where no router speaks BGP, in a cloud.
type Hook struct {
	Name      string   `json:"name"`
	Exec      []string `json:"exec,omitempty"`       // a program and its arguments
	URL       string   `json:"url,omitempty"`        // instead: a server that is sent a POST
	TokenFile string   `json:"token-file,omitempty"` // the secret for the server: Authorization: Bearer
	Timeout   Duration `json:"timeout,omitzero"`     // of one call
}

// The default and the bounds of a hook's time-out, and the largest number of hooks.
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
	HookStart  HookEvent = "start"  // the director or the hook is new: what the hook knows is unknown
	HookChange HookEvent = "change" // VIPs came up, or went
	HookDrain  HookEvent = "drain"  // the director withdraws all of them, and will end
)

// HookCall is what a hook is told. Only Up counts: a call may come twice, and changes that follow
// each other quickly come as one.
type HookCall struct {
	Hook    string       `json:"hook"`
	Event   HookEvent    `json:"event"`
	Attempt int          `json:"attempt"` // 1, and more after calls that failed
	Up      []netip.Addr `json:"up"`      // the VIPs that this director forwards
	Came    []netip.Addr `json:"came"`    // VIPs among these that the hook has not taken yet
	Went    []netip.Addr `json:"went"`    // VIPs that the hook was told of and that are no longer up
}

// HookStatus is what became of a hook's calls.
type HookStatus struct {
	Name     string    `json:"name"`
	Current  bool      `json:"current"`            // the hook has taken the current state
	Running  bool      `json:"running"`            // a call is under way
	Up       int       `json:"up"`                 // VIPs that it is to be told
	Calls    uint64    `json:"calls"`              // that have ended, since the director started
	Failures uint64    `json:"failures"`           // those of them that failed
	Took     time.Time `json:"took,omitzero"`      // when it took the last state that it was told
	Problem  string    `json:"problem,omitempty"`  // of the last call, if that failed
	NextTry  time.Time `json:"next-try,omitzero"`  // after a failure
	Duration Duration  `json:"duration,omitempty"` // of the last call
}

// Announcement is what is announced of the VIPs that a director forwards, and to which neighbors
// and hooks.
type Announcement struct {
	BGP    BGP
	Routes []Route // for BGP neighbors
	Hooks  []Hook
	// Neighbor is where this director, as one of the group, answers for VIPs itself.
	Neighbor Neighbor
	Group    []netip.Addr
	VIPs     []netip.Addr // for hooks and for hosts on the link: those that are up, in order
}
