package model

import (
	"net/netip"
	"slices"
	"time"
)

// BFDTimers are how fast the loss of the way to a neighbour is to be found, by both ends
// (RFC 5880): after Multiplier packets have not come, each of which was due within Interval
// of the one before. The neighbour may want it slower.
type BFDTimers struct {
	Interval   Duration `json:"interval,omitzero"`
	Multiplier uint8    `json:"multiplier,omitempty"`
}

// What a key of BFD that is not given means, and what it may be. RFC 7419 has 100 ms
// and 50 ms among the intervals that everybody should offer; below 10 ms, a packet's
// time would be less than what an ordinary kernel may keep a process waiting.
const (
	DefaultBFDInterval   = Duration(100 * time.Millisecond)
	DefaultBFDMultiplier = 3
	MinBFDInterval       = Duration(10 * time.Millisecond)
	MaxBFDInterval       = Duration(time.Minute)
)

// BFD are the neighbours that are to know at once when a director's datapath is gone, and
// have no BGP session with it: routers with static routes to it, say.
type BFD struct {
	RestartTime Duration      `json:"restart-time,omitzero"` // how long sessions outlive the process
	Neighbors   []BFDNeighbor `json:"neighbors,omitempty"`
}

// DefaultBFDRestartTime is how long sessions outlive the process, where it is not given,
// and what is between its bounds.
const (
	DefaultBFDRestartTime = Duration(2 * time.Minute)
	MinBFDRestartTime     = Duration(5 * time.Second)
	MaxBFDRestartTime     = Duration(time.Hour)
)

// BFDNeighbor is one of them.
type BFDNeighbor struct {
	Address    netip.Addr  `json:"address"`
	Source     *netip.Addr `json:"source,omitempty"` // nil: the one that the host sends from
	Multihop   bool        `json:"multihop,omitempty"`
	Interfaces []string    `json:"interfaces,omitempty"` // none: the director's
	Interval   Duration    `json:"interval,omitzero"`
	Multiplier uint8       `json:"multiplier,omitempty"`
	// TTLSecurity is how many hops away it is at most, by the TTL of its packets (RFC 5082); 0:
	// over one hop 1, over several any number.
	TTLSecurity    uint8              `json:"ttl-security,omitempty"`
	Authentication *BFDAuthentication `json:"authentication,omitempty"` // nil: packets are not signed
}

// IsZero reports whether no key is given.
func (b BFD) IsZero() bool { return len(b.Neighbors) == 0 && b.RestartTime == 0 }

// BGPNeighborBFD is how the way to a BGP neighbour is watched. The addresses, and how long
// a session outlives the process, are those of the BGP session.
type BGPNeighborBFD struct {
	Multihop   *bool    `json:"multihop,omitempty"`   // nil: if the neighbour's TTLs allow for routers in between
	Interfaces []string `json:"interfaces,omitempty"` // none: the director's
	Interval   Duration `json:"interval,omitzero"`
	Multiplier uint8    `json:"multiplier,omitempty"`
	// TTLSecurity is that of [BFDNeighbor]; 0: the BGP session's.
	TTLSecurity    uint8              `json:"ttl-security,omitempty"`
	Authentication *BFDAuthentication `json:"authentication,omitempty"` // nil: packets are not signed
}

// BFDAuthentication is how both ends of a session know each other's packets (RFC 5880 6.7).
type BFDAuthentication struct {
	Type         BFDAuthenticationType `json:"type,omitempty"`
	KeyID        uint8                 `json:"key-id,omitempty"`
	PasswordFile string                `json:"password-file"` // its first line is the key, the same at both ends
}

// BFDAuthenticationType is how packets are signed.
type BFDAuthenticationType string

// The types. What is not meticulous lets a packet be sent again by somebody else until the next
// one comes. MD5 is for routers that have nothing better.
const (
	KeyedMD5            BFDAuthenticationType = "keyed-md5"
	MeticulousKeyedMD5  BFDAuthenticationType = "meticulous-keyed-md5"
	KeyedSHA1           BFDAuthenticationType = "keyed-sha1"
	MeticulousKeyedSHA1 BFDAuthenticationType = "meticulous-keyed-sha1"
)

// What a key of authentication that is not given means.
const (
	DefaultBFDAuthenticationType       = MeticulousKeyedSHA1
	DefaultBFDKeyID              uint8 = 1
)

func (a *BFDAuthentication) setDefaults() {
	if a == nil {
		return
	}
	if a.Type == "" {
		a.Type = DefaultBFDAuthenticationType
	}
	if a.KeyID == 0 {
		a.KeyID = DefaultBFDKeyID
	}
}

// AsksForBFD reports whether a neighbour of either kind does.
func (c *Config) AsksForBFD() bool {
	return len(c.BFD.Neighbors) > 0 || slices.ContainsFunc(c.BGP.Neighbors, func(n BGPNeighbor) bool { return n.BFD != nil })
}

// BFDSessions returns the sessions that the neighbours of both kinds ask for. Of those that are
// known by an interface, routers say which address the router there has; without it there is no
// session yet.
func (c *Config) BFDSessions(routers map[string]netip.Addr) []BFDSession {
	var sessions []BFDSession
	for i := range c.BGP.Neighbors {
		n := c.BGP.Neighbors[i]
		if n.Interface != "" {
			n.Address = routers[n.Interface]
		}
		if n.BFD != nil && n.Address.IsValid() {
			sessions = append(sessions, n.bfdSession(c.Director.Interfaces))
		}
	}
	for i := range c.BFD.Neighbors {
		session := c.BFD.Neighbors[i].bfdSession(c.Director.Interfaces)
		session.RestartTime = c.BFD.RestartTime
		sessions = append(sessions, session)
	}
	return sessions
}

// bfdSession returns the session that a neighbour asks for, but for its restart time.
func (n *BFDNeighbor) bfdSession(interfaces []string) BFDSession {
	session := BFDSession{Neighbor: n.Address, Multihop: n.Multihop, Interfaces: n.Interfaces, Timers: BFDTimers{n.Interval, n.Multiplier},
		TTLSecurity: n.TTLSecurity, Authentication: n.Authentication}
	if n.Source != nil {
		session.Source = *n.Source
	}
	return session.in(interfaces)
}

// bfdSession returns the session that a BGP neighbour asks for. It lasts as long as its
// routes do, and a little at least: the neighbour, not BFD, ends what lasts less.
func (n *BGPNeighbor) bfdSession(interfaces []string) BFDSession {
	session := BFDSession{Neighbor: n.Address, Multihop: n.BFDMultihop(), Interfaces: n.BFD.Interfaces,
		Timers: BFDTimers{n.BFD.Interval, n.BFD.Multiplier}, RestartTime: max(n.RestartTime, MinBFDRestartTime),
		TTLSecurity: n.BFD.TTLSecurity, Authentication: n.BFD.Authentication}
	if session.TTLSecurity == 0 && session.Multihop {
		session.TTLSecurity = n.TTLSecurity
	}
	if n.Source != nil {
		session.Source = *n.Source
	}
	return session.in(interfaces)
}

// BFDMultihop reports whether there may be routers on the way to a neighbour that asks
// for BFD.
func (n *BGPNeighbor) BFDMultihop() bool {
	if n.BFD.Multihop != nil {
		return *n.BFD.Multihop
	}
	return n.TTL > 1 || n.TTLSecurity > 1
}

// in returns a session that names no interfaces as one of these: of the one that a link-local
// neighbour is on, if that is among them.
func (s BFDSession) in(interfaces []string) BFDSession {
	zone := s.Neighbor.Zone()
	switch {
	case len(s.Interfaces) > 0:
	case slices.Contains(interfaces, zone):
		s.Interfaces = []string{zone}
	default:
		s.Interfaces = interfaces
	}
	return s
}

// BFDSession is a neighbour that is to know at once when this director's datapath is
// gone.
type BFDSession struct {
	Neighbor netip.Addr `json:"neighbor"`
	Source   netip.Addr `json:"source,omitzero"`    // zero: the one that the host sends from
	Multihop bool       `json:"multihop,omitempty"` // there are routers in between
	// Interfaces are those by which the neighbour sends what this director forwards.
	// The session is up only while one of them is, and while the program is attached to
	// each of them that is.
	Interfaces  []string  `json:"interfaces"`
	Timers      BFDTimers `json:"timers"`
	TTLSecurity uint8     `json:"ttl-security,omitempty"` // hops at most; 0: over one hop 1, over several any number
	// Authentication is how packets are signed; nil: they are not.
	Authentication *BFDAuthentication `json:"authentication,omitempty"`
	RestartTime    Duration           `json:"restart-time,omitzero"` // how long it goes on without a sign of life of who asks for it
}

// BFDStatus is what the process that speaks BFD says about itself.
type BFDStatus struct {
	Version  string             `json:"version"`
	PID      int                `json:"pid"`
	Socket   string             `json:"socket,omitempty"` // that it answers on; empty: it is of a version that did not say so
	Started  time.Time          `json:"started"`
	Deadline time.Time          `json:"deadline,omitzero"` // when it ends, if nobody tells it to go on
	Realtime bool               `json:"realtime"`          // it runs before all that is not
	Late     Duration           `json:"late,omitzero"`     // the most that a packet of it has left after its time
	Problem  string             `json:"problem,omitempty"` // why there is no such process, or it does not answer, as weir run finds
	Sessions []BFDSessionStatus `json:"sessions"`
	Discards []Tallied          `json:"discards"` // packets that changed nothing, by why
}

// BFDSessionStatus is one session. Names of states and diagnostics are those of
// internal/bfd.
type BFDSessionStatus struct {
	Neighbor         netip.Addr `json:"neighbor"`
	Source           netip.Addr `json:"source"` // as it was asked for; zero: the one that the host sends from
	Multihop         bool       `json:"multihop"`
	State            string     `json:"state"`
	Since            time.Time  `json:"since"`
	Diagnostic       string     `json:"diagnostic"` // why the state is so
	RemoteState      string     `json:"remote-state"`
	RemoteDiagnostic string     `json:"remote-diagnostic"`
	Interval         Duration   `json:"interval,omitzero"`    // between packets of this end, as agreed upon
	Detection        Duration   `json:"detection,omitzero"`   // how long the neighbour may be silent
	Discriminator    uint32     `json:"discriminator"`        // this end's name for the session
	Remote           uint32     `json:"remote-discriminator"` // the neighbour's; 0: it is not heard
	Held             string     `json:"held,omitempty"`       // why this end keeps it down: what it stands for is not there
	// TTLSecurity and Authentication are what the process does of what was asked for: one of an
	// older version does neither.
	TTLSecurity    uint8                 `json:"ttl-security,omitempty"`
	Authentication BFDAuthenticationType `json:"authentication,omitempty"`
	Changes        uint64                `json:"changes"`             // of the state
	Losses         uint64                `json:"losses"`              // how often it was up and then was not, because of a failure
	LastLoss       string                `json:"last-loss,omitempty"` // the diagnostic of the last of them
	Sent           uint64                `json:"sent"`
	Received       uint64                `json:"received"`
	Problem        string                `json:"problem,omitempty"` // why no packets can be sent or received
	Refused        string                `json:"refused,omitempty"` // why the last packet of the neighbour's was not taken, while it is not up
}
