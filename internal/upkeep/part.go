package upkeep

import "errors"

// The parts whose problems have kinds of their own: those of the whole configuration, and of
// interfaces and the programs at them.
const (
	Configuration = "configuration"
	Interfaces    = "interfaces"
	XDP           = "xdp"
)

// Lock is the part that keeps a second process out of a network namespace: weir works without it.
const Lock = "lock"

// MACs is the difference in part Interfaces when the host's MAC addresses are not known:
// packets go on.
const MACs = "MAC addresses"

// ErrUnknown says that a look could not find the differences, and that the next one may: a
// ledger leaves all as it is, and says so if that lasts for a Window.
var ErrUnknown = errors.New("not known yet what differs")

// Part is one part of the host; its owner knows how it should be.
type Part struct {
	Name string // as in docs/operate/upkeep.md
	// Look returns what differs now from what should hold; nothing: all holds. It reads the
	// host each time. An error says that the part could not be read. ErrUnknown: only this time.
	Look func() ([]Difference, error)
}

// Difference is one thing that should hold and does not.
type Difference struct {
	What  string // which thing, the same each time: "192.0.2.10 on lo"
	Found string // what is there instead: "is not there", "is 0 instead of 1"
	By    string // the process that changed it, if known: "process 4711 (ip)"
	// Repair makes it hold again. Nil: weir cannot, and waits for it.
	Repair func() error
}
