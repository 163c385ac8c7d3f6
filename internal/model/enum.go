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
	TCP Protocol = 6
	UDP Protocol = 17
)

// Mode is how a packet reaches its backend. The numbers are those of the BPF
// programs (enum mode in bpf/abi/types.h).
type Mode uint8

// The forwarding modes.
const (
	L2DSR    Mode = iota // rewrite the destination MAC; the backend answers directly
	IPIP                 // add an outer IP header
	GUE                  // add an outer IP, UDP and GUE header
	NAT                  // rewrite the destination; replies come back through a director
	Redirect             // hand the connection over at its SYN
)

// Policy is how a new connection is placed. The numbers are those of enum policy.
type Policy uint8

// The placement policies.
const (
	Maglev Policy = iota
	Random
	RoundRobin
	LeastConn
	P2C
)

// AmongAll reports whether a new connection may go to any backend. No row says which backend has
// it, so directors must remember it. With p2c it depends on the mode: [Service.AmongAll].
func (p Policy) AmongAll() bool { return p == Random || p == RoundRobin || p == LeastConn }

// AmongAll reports whether the service's policy places new connections on any backend. p2c does,
// except in gue: there it chooses between the two that packets can name.
func (s *Service) AmongAll() bool { return s.Policy.AmongAll() || s.Policy == P2C && s.Mode != GUE }

// AmongAll is [Service.AmongAll], for the policy in the table: a p2c that has turns.
func (s *TableService) AmongAll() bool {
	return s.Policy.AmongAll() || s.Policy == P2C && len(s.Ring.Turns) > 0
}

// ByLoad reports whether the policy compares the loads of backends.
func (p Policy) ByLoad() bool { return p == LeastConn || p == P2C }

// Affinity is which fields of a packet choose its slot. The numbers are those of enum affinity.
type Affinity uint8

// The affinities.
const (
	AffinityFlow     Affinity = iota // segment, addresses, ports and protocol
	AffinitySourceIP                 // the source address only
)

// Affinities are all of them.
var Affinities = []Affinity{AffinityFlow, AffinitySourceIP}

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
	// The names that other balancers use, in lower case, with weir's name for each.
	elsewhere map[string]string
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

func (n names[T]) parse(text []byte) (T, error) {
	for _, e := range n.list {
		if e.text == string(text) {
			return e.value, nil
		}
	}
	var zero T
	known := n.texts()
	slices.Sort(known)
	return zero, &UnknownName{n.kind, string(text), known, n.meant(string(text))}
}

// meant returns the name that a wrong name must mean, or nothing.
func (n names[T]) meant(text string) string {
	text = strings.ToLower(text)
	if ours, ok := n.elsewhere[text]; ok {
		return ours
	}
	return Nearest(text, slices.Values(n.texts()))
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
	return fmt.Sprintf("unknown %s %q (one of %s)", e.Kind, e.Name, strings.Join(e.Known, ", "))
}

// The words of other balancers are from ipvsadm(8), keepalived.conf(5), HAProxy's configuration
// manual, Octavia's API or Kubernetes' Service.
var (
	protocolNames = names[Protocol]{kind: "protocol", list: []name[Protocol]{{TCP, "tcp"}, {UDP, "udp"}}}
	modeNames     = names[Mode]{
		kind: "mode",
		list: []name[Mode]{{L2DSR, "l2dsr"}, {IPIP, "ipip"}, {GUE, "gue"}, {NAT, "nat"}, {Redirect, "redirect"}},
		elsewhere: map[string]string{"dr": "l2dsr", "dsr": "l2dsr", "gatewaying": "l2dsr",
			"tun": "ipip", "tunnel": "ipip", "ipip6": "ipip", "l3dsr": "ipip",
			"masq": "nat", "masquerading": "nat", "dnat": "nat"},
	}
	policyNames = names[Policy]{
		kind: "policy",
		list: []name[Policy]{{Maglev, "maglev"}, {Random, "random"}, {RoundRobin, "round-robin"},
			{LeastConn, "least-conn"}, {P2C, "p2c"}},
		elsewhere: map[string]string{"mh": "maglev", "hash": "maglev",
			"rr": "round-robin", "wrr": "round-robin", "roundrobin": "round-robin", "round_robin": "round-robin",
			"lc": "least-conn", "wlc": "least-conn", "leastconn": "least-conn", "least_connections": "least-conn"},
	}
	affinityNames = names[Affinity]{
		kind:      "affinity",
		list:      []name[Affinity]{{AffinityFlow, "flow"}, {AffinitySourceIP, "source-ip"}},
		elsewhere: map[string]string{"none": "flow", "source": "source-ip", "source_ip": "source-ip", "clientip": "source-ip", "sh": "source-ip"},
	}
	stateNames = names[BackendState]{
		kind:      "state",
		list:      []name[BackendState]{{Active, "active"}, {Draining, "draining"}, {Down, "down"}},
		elsewhere: map[string]string{"up": "active", "enabled": "active", "ready": "active", "drain": "draining", "disabled": "down", "maint": "down"},
	}
)

// String returns the name that YAML, JSON and metrics use.
func (p Protocol) String() string { return protocolNames.text(p) }

// Names returns all names.
func (Protocol) Names() []string { return protocolNames.texts() }

// MarshalText writes the name that YAML, JSON and metrics use.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads the name; the error lists the known ones.
func (p *Protocol) UnmarshalText(text []byte) (err error) {
	*p, err = protocolNames.parse(text)
	return err
}

// String returns the name that YAML, JSON and metrics use.
func (m Mode) String() string { return modeNames.text(m) }

// Names returns all names.
func (Mode) Names() []string { return modeNames.texts() }

// MarshalText writes the name that YAML, JSON and metrics use.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads the name; the error lists the known ones.
func (m *Mode) UnmarshalText(text []byte) (err error) {
	*m, err = modeNames.parse(text)
	return err
}

// String returns the name that YAML, JSON and metrics use.
func (p Policy) String() string { return policyNames.text(p) }

// Names returns all names.
func (Policy) Names() []string { return policyNames.texts() }

// MarshalText writes the name that YAML, JSON and metrics use.
func (p Policy) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads the name; the error lists the known ones.
func (p *Policy) UnmarshalText(text []byte) (err error) {
	*p, err = policyNames.parse(text)
	return err
}

// String returns the name that YAML, JSON and metrics use.
func (a Affinity) String() string { return affinityNames.text(a) }

// Names returns all names.
func (Affinity) Names() []string { return affinityNames.texts() }

// MarshalText writes the name that YAML, JSON and metrics use.
func (a Affinity) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads the name; the error lists the known ones.
func (a *Affinity) UnmarshalText(text []byte) (err error) {
	*a, err = affinityNames.parse(text)
	return err
}

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
func (s *BackendState) UnmarshalText(text []byte) (err error) {
	if string(text) == suspect {
		*s = Suspect
		return nil
	}
	*s, err = stateNames.parse(text)
	return err
}
