package model

import (
	"net/netip"
	"slices"
	"time"
)

// BFDTimers are how fast both ends find that the way to a neighbor is lost (RFC 5880): after
// Multiplier packets in a row have not come, each due within Interval of the one before. The
// neighbor may ask for slower timers.
type BFDTimers struct {
	Interval   Duration `json:"interval,omitzero"`
	Multiplier uint8    `json:"multiplier,omitempty"`
}

// Defaults and bounds of BFD's keys. RFC 7419 has 100 ms and 50 ms among the intervals that every
// implementation should offer; an interval below 10 ms would be shorter than an ordinary kernel may
// keep a process waiting.
const (
	DefaultBFDInterval   = Duration(100 * time.Millisecond)
	DefaultBFDMultiplier = 3
	MinBFDInterval       = Duration(10 * time.Millisecond)
	MaxBFDInterval       = Duration(time.Minute)
)

// BFD are the neighbors that must learn at once when a director's datapath is gone, and that have
// no BGP session with it: routers with static routes to it, say.
type BFD struct {
	RestartTime Duration      `json:"restart-time,omitzero"` // how long sessions outlive the process
	Neighbors   []BFDNeighbor `json:"neighbors,omitempty"`
}

// DefaultBFDRestartTime is how long sessions outlive the process by default; the others are the
// bounds.
const (
	DefaultBFDRestartTime = Duration(2 * time.Minute)
	MinBFDRestartTime     = Duration(5 * time.Second)
	MaxBFDRestartTime     = Duration(time.Hour)
)

// BFDNeighbor is one neighbor of BFD.
type BFDNeighbor struct {
	Address    netip.Addr  `json:"address"`
	Source     *netip.Addr `json:"source,omitempty"` // nil: the one that the host sends from
	Multihop   bool        `json:"multihop,omitempty"`
	Interfaces []string    `json:"interfaces,omitempty"` // none: the director's
	Interval   Duration    `json:"interval,omitzero"`
	Multiplier uint8       `json:"multiplier,omitempty"`
	// TTLSecurity is how many hops away the neighbor is at most, by the TTL of its packets (RFC
	// 5082); 0: 1 for a neighbor on the link, any number for one behind routers.
	TTLSecurity    uint8              `json:"ttl-security,omitempty"`
	Authentication *BFDAuthentication `json:"authentication,omitempty"` // nil: packets are not signed
}

// IsZero reports whether no key is given.
func (b BFD) IsZero() bool { return len(b.Neighbors) == 0 && b.RestartTime == 0 }

// BGPNeighborBFD is how the way to a BGP neighbor is watched. The addresses, and the time that a
// session outlives the process, are those of the BGP session.
type BGPNeighborBFD struct {
	Multihop   *bool    `json:"multihop,omitempty"`   // nil: if the neighbor's TTLs allow routers in between
	Interfaces []string `json:"interfaces,omitempty"` // none: the director's
	Interval   Duration `json:"interval,omitzero"`
	Multiplier uint8    `json:"multiplier,omitempty"`
	// TTLSecurity is as in [BFDNeighbor]; 0: the BGP session's.
	TTLSecurity    uint8              `json:"ttl-security,omitempty"`
	Authentication *BFDAuthentication `json:"authentication,omitempty"` // nil: packets are not signed
}

// BFDAuthentication is how both ends of a session recognize each other's packets (RFC 5880 6.7).
type BFDAuthentication struct {
	Type         BFDAuthenticationType `json:"type,omitempty"`
	KeyID        uint8                 `json:"key-id,omitempty"`
	PasswordFile string                `json:"password-file"` // its first line is the key, the same at both ends
}

// BFDAuthenticationType is how packets are signed.
type BFDAuthenticationType string

// The types. With a type that is not meticulous, an attacker can replay a packet until the next one
// comes. MD5 is for routers that have nothing better.
const (
	KeyedMD5            BFDAuthenticationType = "keyed-md5"
	MeticulousKeyedMD5  BFDAuthenticationType = "meticulous-keyed-md5"
	KeyedSHA1           BFDAuthenticationType = "keyed-sha1"
	MeticulousKeyedSHA1 BFDAuthenticationType = "meticulous-keyed-sha1"
)

// The default of a key of authentication.
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

// AsksForBFD reports whether a neighbor of either kind asks for BFD.
func (c *Config) AsksForBFD() bool {
	return len(c.BFD.Neighbors) > 0 || slices.ContainsFunc(c.BGP.Neighbors, func(n BGPNeighbor) bool { return n.BFD != nil })
}

// BFDSessions returns the sessions that the neighbors of both kinds ask for. For a neighbor that is
// known by an interface, routers has the address of the router there; without it there is no
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

// bfdSession returns the session that a neighbor asks for, except its restart time.
func (n *BFDNeighbor) bfdSession(interfaces []string) BFDSession {
	session := BFDSession{Neighbor: n.Address, Multihop: n.Multihop, Interfaces: n.Interfaces, Timers: BFDTimers{n.Interval, n.Multiplier},
		TTLSecurity: n.TTLSecurity, Authentication: n.Authentication}
	if n.Source != nil {
		session.Source = *n.Source
	}
	return session.in(interfaces)
}

// bfdSession returns the session that a BGP neighbor asks for. It lasts as long as the neighbor
// keeps the routes, and a little at least: the neighbor, not BFD, ends a shorter one.
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

// BFDMultihop reports whether there may be routers on the way to a neighbor that asks for BFD.
func (n *BGPNeighbor) BFDMultihop() bool {
	if n.BFD.Multihop != nil {
		return *n.BFD.Multihop
	}
	return n.TTL > 1 || n.TTLSecurity > 1
}

// in gives these interfaces to a session that names none; to that of a link-local neighbor only its
// own, if it is among them.
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

// BFDSession is a neighbor that must learn at once when this director's datapath is gone.
type BFDSession struct {
	Neighbor netip.Addr `json:"neighbor"`
	Source   netip.Addr `json:"source,omitzero"`    // zero: the one that the host sends from
	Multihop bool       `json:"multihop,omitempty"` // there are routers in between
	// Interfaces are those by which the neighbor sends what this director forwards. The session is
	// up only while one of them is up, and while the program is attached to each one that is up.
	Interfaces  []string  `json:"interfaces"`
	Timers      BFDTimers `json:"timers"`
	TTLSecurity uint8     `json:"ttl-security,omitempty"` // hops at most; 0: 1 on the link, any number behind routers
	// Authentication is how packets are signed; nil: they are not signed.
	Authentication *BFDAuthentication `json:"authentication,omitempty"`
	RestartTime    Duration           `json:"restart-time,omitzero"` // how long it goes on without a sign of life from the process that asks for it
}

// BFDStatus is what the BFD process says about itself.
type BFDStatus struct {
	Version  string             `json:"version"`
	PID      int                `json:"pid"`
	Socket   string             `json:"socket,omitempty"` // that it answers on; empty: the process's version does not say so
	Started  time.Time          `json:"started"`
	Deadline time.Time          `json:"deadline,omitzero"` // when it ends, unless it is told to go on
	Realtime bool               `json:"realtime"`          // it runs before all other processes
	Late     Duration           `json:"late,omitzero"`     // the longest delay of a packet that it sent
	Problem  string             `json:"problem,omitempty"` // why there is no such process, or it does not answer, as weir run finds
	Sessions []BFDSessionStatus `json:"sessions"`
	Discards []Tallied          `json:"discards"` // packets that changed nothing, by why
}

// BFDSessionStatus is one session. Names of states and diagnostics are those of
// internal/bfd.
type BFDSessionStatus struct {
	Neighbor         netip.Addr `json:"neighbor"`
	Source           netip.Addr `json:"source"` // the address that was asked for; zero: the host chooses it
	Multihop         bool       `json:"multihop"`
	State            string     `json:"state"`
	Since            time.Time  `json:"since"`
	Diagnostic       string     `json:"diagnostic"` // why the state is so
	RemoteState      string     `json:"remote-state"`
	RemoteDiagnostic string     `json:"remote-diagnostic"`
	Interval         Duration   `json:"interval,omitzero"`    // as agreed, between packets of this end
	Detection        Duration   `json:"detection,omitzero"`   // how long the neighbor may be silent
	Discriminator    uint32     `json:"discriminator"`        // this end's name for the session
	Remote           uint32     `json:"remote-discriminator"` // the neighbor's; 0: the neighbor is not heard
	Held             string     `json:"held,omitempty"`       // why this end keeps it down: this director's datapath is not there
	// TTLSecurity and Authentication are what the process does of what the configuration asks for:
	// a process of an older version does neither.
	TTLSecurity    uint8                 `json:"ttl-security,omitempty"`
	Authentication BFDAuthenticationType `json:"authentication,omitempty"`
	Changes        uint64                `json:"changes"`             // of the state
	Losses         uint64                `json:"losses"`              // how often it went down because of a failure
	LastLoss       string                `json:"last-loss,omitempty"` // the diagnostic of the last of them
	Sent           uint64                `json:"sent"`
	Received       uint64                `json:"received"`
	Problem        string                `json:"problem,omitempty"` // why no packets can be sent or received
	Refused        string                `json:"refused,omitempty"` // why the neighbor's last packet was not taken, while the session is not up
}
