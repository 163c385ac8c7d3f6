package bfd

import "fmt"

// State is a session's state, or the one that its neighbor reports (RFC 5880 4.1, Sta).
type State uint8

// The states. A session is not used unless it is Up.
const (
	AdminDown State = iota // switched off on purpose: no reason to think that the path is gone
	Down
	Init // the neighbor is heard, but has not yet heard this end
	Up
)

var stateNames = [...]string{"admin-down", "down", "init", "up"}

// String returns the name that JSON and metrics use.
func (s State) String() string { return nameOf(stateNames[:], "state", uint8(s)) }

// Diagnostic is why a session last changed its state (RFC 5880 4.1, Diag).
type Diagnostic uint8

// The diagnostics.
const (
	NoDiagnostic            Diagnostic = iota
	DetectionExpired                   // nothing was heard from the neighbor in time
	EchoFailed                         // not used here
	NeighborDown                       // the neighbor says that the session is down
	ForwardingReset                    // the datapath is not there
	PathDown                           // the link is down
	ConcatenatedDown                   // not used here
	AdministrativelyDown               // the session is switched off
	ReverseConcatenatedDown            // not used here
)

var diagnosticNames = [...]string{"none", "detection-expired", "echo-failed", "neighbor-down", "forwarding-reset",
	"path-down", "concatenated-path-down", "administratively-down", "reverse-concatenated-path-down"}

// String returns the name that JSON and metrics use.
func (d Diagnostic) String() string { return nameOf(diagnosticNames[:], "diagnostic", uint8(d)) }

// Discard is why a packet changes nothing.
type Discard uint8

// The reasons to discard a packet, and Accepted.
const (
	Accepted Discard = iota
	DiscardLength
	DiscardVersion
	DiscardMultiplier
	DiscardMultipoint
	DiscardMine
	DiscardStateless // it names no session of this end, in a state that needs one
	DiscardYours     // it names a session that this end does not have
	DiscardTTL       // a router may have passed it on, and the session is over one hop
	DiscardPeer      // there is no session with its sender
	DiscardAuth      // it is not authenticated as the session wants, or not at all
	DiscardDoubted   // it does not name the session, while other packets do: see Machine.Receive
	discardReasons   // how many there are
)

var discardNames = [...]string{"accepted", "length", "version", "multiplier", "multipoint", "my-discriminator",
	"state-without-session", "your-discriminator", "ttl", "unknown-peer", "authentication", "doubted"}

// String returns the name that JSON and metrics use.
func (d Discard) String() string { return nameOf(discardNames[:], "discard", uint8(d)) }

func nameOf(names []string, kind string, number uint8) string {
	if int(number) < len(names) {
		return names[number]
	}
	return fmt.Sprintf("%s(%d)", kind, number)
}
