package model

import (
	"cmp"
	"fmt"
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

var bfdAuthenticationNames = names[BFDAuthenticationType]{kind: "type", list: []name[BFDAuthenticationType]{
	{KeyedMD5, "keyed-md5"}, {MeticulousKeyedMD5, "meticulous-keyed-md5"}, {KeyedSHA1, "keyed-sha1"}, {MeticulousKeyedSHA1, "meticulous-keyed-sha1"}}}

// Names returns all names.
func (BFDAuthenticationType) Names() []string { return bfdAuthenticationNames.texts() }

// The default of a key of authentication.
const (
	DefaultBFDAuthenticationType       = MeticulousKeyedSHA1
	DefaultBFDKeyID              uint8 = 1
)

func (a *BFDAuthentication) setDefaults() {
	if a == nil {
		return
	}
	a.Type, a.KeyID = cmp.Or(a.Type, DefaultBFDAuthenticationType), cmp.Or(a.KeyID, DefaultBFDKeyID)
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
	session := BFDSession{Neighbor: n.Address, VRF: n.VRF, Multihop: n.BFDMultihop(), Interfaces: n.BFD.Interfaces,
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
	VRF      string     `json:"vrf,omitempty"`      // whose device its packets come and go by; empty: none
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
	VRFs     bool               `json:"vrfs,omitempty"`    // it keeps sessions in VRFs apart; a process of an older version does not
	Late     Duration           `json:"late,omitzero"`     // the longest delay of a packet that it sent
	Problem  string             `json:"problem,omitempty"` // why there is no such process, or it does not answer, as weir run finds
	Sessions []BFDSessionStatus `json:"sessions"`
	Discards []Tallied          `json:"discards"` // packets that changed nothing, by why
}

// BFDSessionStatus is one session. Names of states and diagnostics are those of
// internal/bfd.
type BFDSessionStatus struct {
	Neighbor         netip.Addr `json:"neighbor"`
	VRF              string     `json:"vrf,omitempty"`
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

// Name is what the session's neighbor is called: 10.0.0.1, or 10.0.0.1%red in a VRF.
func (s *BFDSession) Name() string { return InVRF(s.Neighbor, s.VRF) }

// Name is what the session's neighbor is called, as [BFDSession.Name] says.
func (s *BFDSessionStatus) Name() string { return InVRF(s.Neighbor, s.VRF) }

// For reports whether the status is that of a session that is asked for.
func (s *BFDSessionStatus) For(w *BFDSession) bool {
	return s.Neighbor == w.Neighbor && s.VRF == w.VRF && s.Source == w.Source && s.Multihop == w.Multihop
}

// timersOrDefaults replaces keys that are not given by their defaults.
func timersOrDefaults(interval *Duration, multiplier *uint8) {
	*interval, *multiplier = cmp.Or(*interval, DefaultBFDInterval), cmp.Or(*multiplier, DefaultBFDMultiplier)
}

// setDefaults leaves a file without neighbors as it is.
func (b *BFD) setDefaults() {
	if len(b.Neighbors) == 0 {
		return
	}
	b.RestartTime = cmp.Or(b.RestartTime, DefaultBFDRestartTime)
	for i := range b.Neighbors {
		timersOrDefaults(&b.Neighbors[i].Interval, &b.Neighbors[i].Multiplier)
		b.Neighbors[i].Authentication.setDefaults()
	}
}

// bfd checks the sessions of both kinds of neighbors. BGP's are checked first, so that a duplicate
// is reported where it is not needed.
func (v *validation) bfd() {
	seen := bfdSeen{}
	for i := range v.config.BGP.Neighbors {
		if n := &v.config.BGP.Neighbors[i]; n.BFD != nil && (n.Address.IsValid() || n.Interface != "") {
			at := neighborPath(i, "bfd")
			v.bfdKeys(at, n.BFD.Interval, n.BFD.Interfaces)
			v.bfdProof(at, n.BFDMultihop(), n.BFD.TTLSecurity, n.BFD.Authentication)
			if n.On() != "" && n.BFDMultihop() {
				v.errs.add(at+".multihop", "a link-local neighbor is one hop away")
			}
			if n.Address.IsValid() {
				seen.note(n.bfdSession(nil), at)
			}
		}
	}
	b := &v.config.BFD
	v.duration("bfd.restart-time", b.RestartTime, MinBFDRestartTime, MaxBFDRestartTime)
	for i := range b.Neighbors {
		n := &b.Neighbors[i]
		at := fmt.Sprintf("bfd.neighbors[%d]", i)
		if problem := routerProblem(n.Address); problem != "" {
			v.errs.add(at+".address", "%s", withAddress(n.Address, problem))
			continue
		}
		if n.Address.Zone() != "" && n.Multihop {
			v.errs.add(at+".multihop", "a link-local neighbor is one hop away")
		}
		v.bfdSource(at+".source", n)
		v.bfdKeys(at, n.Interval, n.Interfaces)
		v.bfdProof(at, n.Multihop, n.TTLSecurity, n.Authentication)
		if first, dup := seen.note(n.bfdSession(nil), at); dup {
			v.errs.addWithOther(at, first, "there is a session with %s already", n.Address)
		}
	}
}

// bfdSeen are the places where sessions were asked for.
type bfdSeen map[bfdWay][]bfdPlace

// bfdWay is what a neighbor's packet that names no session yet tells about it, besides the
// destination address.
type bfdWay struct {
	neighbor netip.Addr
	vrf      string
	multihop bool
}

type bfdPlace struct {
	source netip.Addr // zero: any
	at     string
}

// note remembers where a session is asked for, and says where another one was asked for whose
// packets could not be told from its own.
func (s bfdSeen) note(session BFDSession, at string) (first string, dup bool) {
	way := bfdWay{session.Neighbor, session.VRF, session.Multihop}
	for _, other := range s[way] {
		if other.source == session.Source || !other.source.IsValid() || !session.Source.IsValid() {
			return other.at, true
		}
	}
	s[way] = append(s[way], bfdPlace{session.Source, at})
	return "", false
}

// bfdKeys checks the keys that both kinds of neighbors have.
func (v *validation) bfdKeys(at string, interval Duration, interfaces []string) {
	v.duration(at+".interval", interval, MinBFDInterval, MaxBFDInterval)
	if time.Duration(interval)%time.Microsecond != 0 {
		v.errs.add(at+".interval", "%s is not a whole number of microseconds, in which packets say it", interval)
	}
	v.interfaces(at+".interfaces", interfaces)
	for i, name := range interfaces {
		if !slices.Contains(v.config.Director.Interfaces, name) {
			v.errs.addWithOther(fmt.Sprintf("%s.interfaces[%d]", at, i), "director.interfaces",
				"%q is none of the director's, so the session would never be up", name)
		}
	}
}

// bfdProof checks the keys that authenticate a neighbor's packets.
func (v *validation) bfdProof(at string, multihop bool, security uint8, a *BFDAuthentication) {
	if !multihop && security > 1 {
		v.errs.addWithOther(at+".ttl-security", at+".multihop", "%d hops are more than the one of a session that is not multihop", security)
	}
	if a == nil {
		return
	}
	at += ".authentication"
	oneOf(v, at+".type", bfdAuthenticationNames, a.Type)
	v.fromRoot(at+".password-file", a.PasswordFile)
}

func (v *validation) bfdSource(path string, n *BFDNeighbor) {
	if n.Source == nil {
		return
	}
	switch problem := addressProblem(*n.Source); {
	case n.Address.Zone() != "":
		v.errs.add(path, "cannot be chosen: a link-local neighbor is reached from the interface's own link-local address")
	case problem != "":
		v.errs.add(path, "%s %s", n.Source, problem)
	case n.Source.Is4() != n.Address.Is4():
		v.errs.add(path, "%s is of another family than the neighbor, %s", n.Source, n.Address)
	case *n.Source == n.Address:
		v.errs.add(path, "%s is the neighbor itself", n.Source)
	}
}
