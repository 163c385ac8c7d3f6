package model

import (
	"fmt"
	"slices"
	"strings"
)

// Protocol is an IP protocol number (IANA) that weir balances.
type Protocol uint8

// The protocols that weir balances.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// Datagrams reports whether only packets that came before tell whose a flow is: no socket that a
// program can look up, and no state that directors read of packets. SCTP's associations are such
// flows, too: Linux has no lookup of their sockets for BPF.
func (p Protocol) Datagrams() bool { return p == UDP || p == SCTP }

// BackendState is which connections may go to a backend. The numbers are those of enum
// backend_state; 0 is not a state.
type BackendState uint8

// The states of a backend.
const (
	Active   BackendState = 1 // gets new connections
	Draining BackendState = 2 // keeps its connections, gets no new ones
	Down     BackendState = 3 // gets nothing
	Suspect  BackendState = 4 // down by a director's checks: keeps its connections for a while; no configuration has it
)

// suspect is the name of a state that the error need not list.
const suspect = "suspect"

// names maps an enum to its one spelling in YAML, JSON, flags and labels.
type names[T comparable] struct {
	kind string
	list []name[T]
}

type name[T comparable] struct {
	value T
	text  string
}

func (n names[T]) text(v T) string {
	for _, e := range n.list {
		if e.value == v {
			return e.text
		}
	}
	return fmt.Sprintf("%s(%d)", n.kind, any(v)) // not %v, which would call String again
}

func (n names[T]) texts() []string {
	texts := make([]string, len(n.list))
	for i, e := range n.list {
		texts[i] = e.text
	}
	return texts
}

// read sets a value by its name. The error lists the known ones.
func (n names[T]) read(to *T, text []byte) error {
	for _, e := range n.list {
		if e.text == string(text) {
			*to = e.value
			return nil
		}
	}
	return n.unknown(string(text))
}

func (n names[T]) unknown(text string) *UnknownName {
	known := slices.Sorted(slices.Values(n.texts()))
	return &UnknownName{n.kind, text, known, Meant(n.kind, text, slices.Values(known))}
}

// UnknownName says that a text is none of an enum's names: a mistake, or a name that a later
// version of weir has.
type UnknownName struct {
	Kind, Name string
	Known      []string // in order
	Meant      string   // what the text must mean; empty: none of the known ones is near
}

// Error lists the known ones.
func (e *UnknownName) Error() string {
	if e.Meant != "" {
		return fmt.Sprintf("unknown %s %q; did you mean %s? (one of %s)", e.Kind, e.Name, e.Meant, strings.Join(e.Known, ", "))
	}
	if instead := Instead(e.Kind, e.Name); instead != "" {
		return fmt.Sprintf("unknown %s %q: %s (one of %s)", e.Kind, e.Name, instead, strings.Join(e.Known, ", "))
	}
	return fmt.Sprintf("unknown %s %q (one of %s)", e.Kind, e.Name, strings.Join(e.Known, ", "))
}

var (
	protocolNames = names[Protocol]{kind: "protocol", list: []name[Protocol]{{TCP, "tcp"}, {UDP, "udp"}, {SCTP, "sctp"}}}
	stateNames    = names[BackendState]{kind: "state", list: []name[BackendState]{{Active, "active"}, {Draining, "draining"}, {Down, "down"}}}
)

// String returns the name that YAML, JSON and metrics use.
func (p Protocol) String() string { return protocolNames.text(p) }

// Names returns all names.
func (Protocol) Names() []string { return protocolNames.texts() }

// MarshalText writes the name that YAML, JSON and metrics use.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads the name; the error lists the known ones.
func (p *Protocol) UnmarshalText(text []byte) error { return protocolNames.read(p, text) }

// Alive reports whether new packets go to the backend: it is neither down nor suspect.
func (s BackendState) Alive() bool { return s == Active || s == Draining }

// String returns the name that YAML, JSON and metrics use.
func (s BackendState) String() string {
	if s == Suspect {
		return suspect
	}
	return stateNames.text(s)
}

// Names returns all names.
func (BackendState) Names() []string { return append(stateNames.texts(), suspect) }

// MarshalText writes the name that YAML, JSON and metrics use.
func (s BackendState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the name; the error lists the known ones.
func (s *BackendState) UnmarshalText(text []byte) error {
	if string(text) == suspect {
		*s = Suspect
		return nil
	}
	return stateNames.read(s, text)
}
