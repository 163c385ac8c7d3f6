package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// BGP is how a director tells routers which VIPs it forwards. The zero value: it tells none.
type BGP struct {
	ASN      uint32       `json:"asn"`
	RouterID netip.Addr   `json:"router-id"`        // IPv4; unique among speakers
	Listen   []netip.Addr `json:"listen,omitempty"` // for passive neighbors; empty: sessions are only opened
	// GracefulShutdown is how long a director that drains marks its routes before it withdraws them
	// (RFC 8326); 0: it withdraws them at once.
	GracefulShutdown Duration      `json:"graceful-shutdown,omitzero"`
	Neighbors        []BGPNeighbor `json:"neighbors"`
	Prefixes         []BGPPrefix   `json:"prefixes,omitempty"`
}

// Given reports whether there are neighbors to tell.
func (b *BGP) Given() bool { return b.ASN != 0 || b.RouterID.IsValid() || len(b.Neighbors) > 0 }

// IsZero reports whether no key is given.
func (b BGP) IsZero() bool {
	return !b.Given() && len(b.Listen)+len(b.Prefixes) == 0 && b.GracefulShutdown == 0
}

// BGPNeighbor is a router, or a route reflector, with what it is told and how.
type BGPNeighbor struct {
	Address         netip.Addr  `json:"address,omitzero"`    // a link-local one has its interface as its zone
	Interface       string      `json:"interface,omitempty"` // instead of the address: the router that advertises itself there (RFC 4861)
	VRF             string      `json:"vrf,omitempty"`       // a VRF's device, or another interface, that the session is bound to; empty: none
	Segment         Segment     `json:"segment,omitzero"`    // whose VIPs it is told: only these
	ASN             uint32      `json:"asn"`
	Port            uint16      `json:"port,omitempty"`
	Passive         bool        `json:"passive,omitempty"`       // it opens the session
	Source          *netip.Addr `json:"source,omitempty"`        // of the session; nil: by the kernel's routes
	PasswordFile    string      `json:"password-file,omitempty"` // TCP MD5 (RFC 2385)
	TTL             uint8       `json:"ttl,omitempty"`           // of packets to it: more than 1 for an eBGP neighbor behind routers
	TTLSecurity     uint8       `json:"ttl-security,omitempty"`  // hops at most, by the TTL of its packets (RFC 5082); 0: not checked
	HoldTime        Duration    `json:"hold-time,omitzero"`
	Keepalive       Duration    `json:"keepalive,omitzero"` // 0: a third of the hold time
	GracefulRestart *bool       `json:"graceful-restart,omitempty"`
	RestartTime     Duration    `json:"restart-time,omitzero"` // how long it keeps the routes of a process that is gone
	// KeepWhenSilent says that the neighbor also keeps the routes of a director that it has not
	// heard from for the hold time (RFC 8538): of a lost host, then, as of a process that hangs.
	KeepWhenSilent bool            `json:"keep-when-silent,omitempty"`
	BFD            *BGPNeighborBFD `json:"bfd,omitempty"` // nil: only keepalives show that the way is there
	Families       []BGPFamily     `json:"families,omitempty"`
	NextHop        []netip.Addr    `json:"next-hop,omitempty"` // one per family; none: the address of this end of the session
	Attributes     BGPAttributes   `json:"attributes,omitzero"`
}

// Name is what the neighbor is called: its interface, if it is known by that, or its address, as
// 10.0.0.1%red in a VRF. No two neighbors have the same.
func (n *BGPNeighbor) Name() string { return neighborName(n.Interface, n.Address, n.VRF) }

func neighborName(on string, address netip.Addr, vrf string) string {
	if on != "" {
		return on
	}
	return InVRF(address, vrf)
}

// InVRF writes an address in a VRF as ss(8) does: 10.0.0.1%red. An address with a zone is in none.
func InVRF(address netip.Addr, vrf string) string {
	if vrf == "" {
		return address.String()
	}
	return address.String() + "%" + vrf
}

// On returns the interface of a neighbor that is known by its interface, or by a link-local
// address; "" for others.
func (n *BGPNeighbor) On() string {
	if n.Interface != "" {
		return n.Interface
	}
	return n.Address.Zone()
}

// Restarts reports whether the neighbor is asked to keep routes (graceful restart).
func (n *BGPNeighbor) Restarts() bool { return n.GracefulRestart == nil || *n.GracefulRestart }

// KeepaliveOrDefault returns the time between two keepalives.
func (n *BGPNeighbor) KeepaliveOrDefault() time.Duration {
	if n.Keepalive == 0 {
		return time.Duration(n.HoldTime) / 3
	}
	return time.Duration(n.Keepalive)
}

// The defaults of a neighbor's keys.
const (
	DefaultBGPPort     = 179
	DefaultHoldTime    = Duration(9 * time.Second)
	DefaultRestartTime = Duration(2 * time.Minute)
)

func (b *BGP) setDefaults() {
	for i := range b.Neighbors {
		b.Neighbors[i].setDefaults()
	}
	for i := range b.Prefixes {
		b.Prefixes[i].Announce = cmp.Or(b.Prefixes[i].Announce, AnnounceHosts)
	}
	if b.Given() && b.Neighbors == nil {
		b.Neighbors = []BGPNeighbor{}
	}
}

func (n *BGPNeighbor) setDefaults() {
	n.Port = cmp.Or(n.Port, DefaultBGPPort)
	n.HoldTime = cmp.Or(n.HoldTime, DefaultHoldTime)
	n.RestartTime = cmp.Or(n.RestartTime, DefaultRestartTime)
	if len(n.Families) == 0 && n.On() != "" {
		n.Families = []BGPFamily{BGPIPv4, BGPIPv6}
	}
	if len(n.Families) == 0 && n.Address.IsValid() {
		n.Families = []BGPFamily{FamilyOf(n.Address)}
	}
	if n.BFD != nil {
		timersOrDefaults(&n.BFD.Interval, &n.BFD.Multiplier)
		n.BFD.Authentication.setDefaults()
	}
}

// BGPAttributes are the attributes of routes.
type BGPAttributes struct {
	Communities []Community `json:"communities,omitempty"`
	LocalPref   *uint32     `json:"local-pref,omitempty"` // to neighbors in the same AS only
	MED         *uint32     `json:"med,omitempty"`
	Prepend     uint8       `json:"prepend,omitempty"` // how often the own AS is added to the path, to neighbors in other ASes
}

// IsZero reports whether there are no attributes.
func (a BGPAttributes) IsZero() bool {
	return len(a.Communities) == 0 && a.LocalPref == nil && a.MED == nil && a.Prepend == 0
}

// Over returns the attributes of a route when these are given for its prefix and others for the
// neighbor: the prefix's win, and communities add up.
func (a BGPAttributes) Over(b BGPAttributes) BGPAttributes {
	both := append(append([]Community{}, a.Communities...), b.Communities...)
	a.Communities = uniqueCommunities(both)
	a.LocalPref = cmp.Or(a.LocalPref, b.LocalPref)
	a.MED = cmp.Or(a.MED, b.MED)
	a.Prepend = cmp.Or(a.Prepend, b.Prepend)
	return a
}

// BGPPrefix says how the VIPs in a prefix are announced.
type BGPPrefix struct {
	Prefix     netip.Prefix  `json:"prefix"`
	Segment    Segment       `json:"segment,omitzero"`
	Announce   Announce      `json:"announce,omitempty"`
	Attributes BGPAttributes `json:"attributes,omitzero"`
}

// Announce is which part of a prefix is announced.
type Announce string

// What may be announced.
const (
	AnnounceHosts   Announce = "hosts"   // each VIP in it that is up, by itself
	AnnouncePrefix  Announce = "prefix"  // all of it, while a VIP in it is up
	AnnounceNothing Announce = "nothing" // none of it
)

var announceNames = names[Announce]{kind: "announcement", list: []name[Announce]{{AnnounceHosts, "hosts"}, {AnnouncePrefix, "prefix"}, {AnnounceNothing, "nothing"}}}

// Names returns all names.
func (Announce) Names() []string { return announceNames.texts() }

// BGPFamily is an address family of routes.
type BGPFamily string

// The families.
const (
	BGPIPv4 BGPFamily = "ipv4"
	BGPIPv6 BGPFamily = "ipv6"
	BGPEVPN BGPFamily = "evpn" // who is where in overlays: [EVPN]
)

var bgpFamilyNames = names[BGPFamily]{kind: "family", list: []name[BGPFamily]{{BGPIPv4, "ipv4"}, {BGPIPv6, "ipv6"}, {BGPEVPN, "evpn"}}}

// Names returns all names.
func (BGPFamily) Names() []string { return bgpFamilyNames.texts() }

// FamilyOf returns the family of routes to an address.
func FamilyOf(a netip.Addr) BGPFamily {
	if a.Is4() {
		return BGPIPv4
	}
	return BGPIPv6
}

// Route is a prefix that routers of a segment are told to send to this director.
type Route struct {
	Segment    Segment
	Prefix     netip.Prefix
	Attributes BGPAttributes // they override the neighbor's
	Backup     bool          // another director announces it, too, and is to be preferred
}

// BGPStatus is what is announced to which neighbors.
type BGPStatus struct {
	ASN       uint32              `json:"asn,omitempty"` // 0: there is no bgp in the configuration
	RouterID  netip.Addr          `json:"router-id"`
	Draining  bool                `json:"draining"` // routes are marked or withdrawn, because the director ends
	Listen    []BGPListenerStatus `json:"listen,omitempty"`
	Neighbors []BGPNeighborStatus `json:"neighbors"`
	Routes    []RouteStatus       `json:"routes"` // that neighbors of their families are told
	EVPN      []EVPNStatus        `json:"evpn,omitempty"`
}

// BGPListenerStatus is an address that passive neighbors connect to.
type BGPListenerStatus struct {
	Address netip.Addr `json:"address"`
	Problem string     `json:"problem,omitempty"` // why neighbors, or some of them, cannot connect
}

// SessionState is the state of a session with a neighbor.
type SessionState string

// The states of a session.
const (
	SessionConnecting  SessionState = "connecting"  // no connection
	SessionOpening     SessionState = "opening"     // connected; both sides send OPEN messages
	SessionEstablished SessionState = "established" // routes are told
)

// BGPNeighborStatus is the session with one neighbor.
type BGPNeighborStatus struct {
	Address         netip.Addr   `json:"address"`             // zero: it is not known yet which router is on the interface
	Interface       string       `json:"interface,omitempty"` // by which it is known
	VRF             string       `json:"vrf,omitempty"`       // that the session is bound to
	Segment         Segment      `json:"segment,omitzero"`    // whose VIPs it is told
	ASN             uint32       `json:"asn"`
	State           SessionState `json:"state"`
	Since           time.Time    `json:"since"`              // of the state
	RouterID        netip.Addr   `json:"router-id"`          // the neighbor's, while established
	Local           netip.Addr   `json:"local"`              // this end of the session
	HoldTime        Duration     `json:"hold-time,omitzero"` // that both ends agreed on
	Families        []BGPFamily  `json:"families"`           // that both ends support
	GracefulRestart bool         `json:"graceful-restart"`   // the neighbor keeps routes for restart-time
	Announced       int          `json:"announced"`          // routes that it has been told, without those of EVPN
	BFD             string       `json:"bfd,omitempty"`      // state of the BFD session; empty: none is asked for
	// EVPN is what goes between both ends of that; nil: it is not in the neighbor's families.
	EVPN    *BGPEVPNStatus `json:"evpn,omitempty"`
	Losses  uint64         `json:"losses"`            // sessions that ended since the director started
	Problem string         `json:"problem,omitempty"` // why there is no session, or what it lacks
	Own     bool           `json:"own,omitempty"`     // the problem is on this host, such as a password that cannot be read
}

// Name is what the neighbor is called, as [BGPNeighbor.Name] says.
func (n *BGPNeighborStatus) Name() string { return neighborName(n.Interface, n.Address, n.VRF) }

// RouteStatus is one route.
type RouteStatus struct {
	Segment    Segment       `json:"segment,omitzero"` // whose neighbors are told
	Prefix     netip.Prefix  `json:"prefix"`
	Attributes BGPAttributes `json:"attributes,omitzero"`
	Neighbors  int           `json:"neighbors"` // that have been told
	// EVPN is how many neighbors of the family evpn are told of it with the segment's hosts.
	EVPN int `json:"evpn,omitempty"`
}

// Community is a BGP community: two numbers of 16 bits (RFC 1997), or three of 32 (RFC 8092).
type Community struct {
	Large bool
	Parts [3]uint32 // only large communities have the third
}

// GracefulShutdown is the community of routes that are about to be withdrawn (RFC 8326).
var GracefulShutdown = Community{Parts: [3]uint32{65535, 0}}

// wellKnown are the communities that have a name (IANA, BGP Well-known Communities).
var wellKnown = []struct {
	name  string
	value Community
}{
	{"graceful-shutdown", GracefulShutdown},
	{"no-export", Community{Parts: [3]uint32{65535, 0xff01}}},
	{"no-advertise", Community{Parts: [3]uint32{65535, 0xff02}}},
	{"no-export-subconfed", Community{Parts: [3]uint32{65535, 0xff03}}},
	{"no-peer", Community{Parts: [3]uint32{65535, 0xff04}}},
}

// String returns "65000:100", "65000:1:2" or a name.
func (c Community) String() string {
	for _, known := range wellKnown {
		if known.value == c {
			return known.name
		}
	}
	if c.Large {
		return fmt.Sprintf("%d:%d:%d", c.Parts[0], c.Parts[1], c.Parts[2])
	}
	return fmt.Sprintf("%d:%d", c.Parts[0], c.Parts[1])
}

// MarshalText writes what String returns.
func (c Community) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads what String returns.
func (c *Community) UnmarshalText(text []byte) error {
	for _, known := range wellKnown {
		if known.name == string(text) {
			*c = known.value
			return nil
		}
	}
	parts := strings.Split(string(text), ":")
	read := Community{Large: len(parts) == 3}
	bits := 16
	if read.Large {
		bits = 32
	}
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, bits)
		if err != nil || len(parts) < 2 || len(parts) > 3 {
			return fmt.Errorf("%q is not a community; write 65000:100, 65000:1:2 for a large one, or no-export, no-advertise, no-peer", text)
		}
		read.Parts[i] = uint32(n)
	}
	*c = read
	return nil
}

// compare orders communities as they are sent.
func (c Community) compare(o Community) int {
	if c.Large != o.Large {
		if c.Large {
			return 1
		}
		return -1
	}
	return slices.Compare(c.Parts[:], o.Parts[:])
}

// uniqueCommunities sorts a list and leaves out duplicates; nil for none.
func uniqueCommunities(list []Community) []Community {
	if len(list) == 0 {
		return nil
	}
	slices.SortFunc(list, Community.compare)
	return slices.Compact(list)
}

// The largest numbers that BGP's messages have room for, and what is sensible.
const (
	minHoldTime    = 3 * time.Second
	maxHoldTime    = 65535 * time.Second
	maxRestartTime = 4095 * time.Second // RFC 4724: 12 bits
	maxShutdown    = time.Hour
	maxPrepend     = 16
	maxNeighbors   = 64
	asTrans        = 23456 // RFC 6793: stands for others
)

// bgp checks how routers are told about VIPs.
func (v *validation) bgp() {
	b := &v.config.BGP
	if b.IsZero() {
		return
	}
	v.asn("bgp.asn", b.ASN)
	switch {
	case !b.RouterID.IsValid():
		v.errs.add("bgp.router-id", "is required (an IPv4 address of this director's)")
	case !b.RouterID.Is4() || b.RouterID.IsUnspecified():
		v.errs.add("bgp.router-id", "%s is not an IPv4 address of a host", b.RouterID)
	}
	if b.GracefulShutdown != 0 {
		v.duration("bgp.graceful-shutdown", b.GracefulShutdown, Duration(time.Second), Duration(maxShutdown))
	}
	for i, a := range b.Listen {
		if problem := addressProblem(a); problem != "" {
			v.errs.add(fmt.Sprintf("bgp.listen[%d]", i), "%s %s", a, problem)
		}
	}
	if n := len(b.Neighbors); n == 0 || n > maxNeighbors {
		v.errs.add("bgp.neighbors", "are %d, not 1 to %d", n, maxNeighbors)
	}
	seen := map[string]int{}
	for i := range b.Neighbors {
		n := &b.Neighbors[i]
		v.neighbor(i, n)
		if !n.Address.IsValid() && n.Interface == "" {
			continue
		}
		key := "address"
		if n.Interface != "" {
			key = "interface"
		}
		if first, dup := seen[n.Name()]; dup {
			v.errs.addWithOther(neighborPath(i, key), neighborPath(first, key), "%s is a neighbor twice", n.Name())
			continue
		}
		seen[n.Name()] = i
	}
	v.bgpPrefixes()
}

func neighborPath(i int, field string) string { return fmt.Sprintf("bgp.neighbors[%d].%s", i, field) }

func (v *validation) asn(path string, asn uint32) {
	if asn == 0 || asn == asTrans || asn == 65535 || asn == 1<<32-1 {
		v.errs.add(path, "%d is not the number of an AS", asn)
	}
}

func (v *validation) neighbor(i int, n *BGPNeighbor) {
	at := func(field string) string { return neighborPath(i, field) }
	if !v.neighborAddress(i, n) {
		return
	}
	v.asn(at("asn"), n.ASN)
	v.fromRoot(at("password-file"), n.PasswordFile)
	if n.Passive && len(v.config.BGP.Listen) == 0 {
		v.errs.addWithOther(at("passive"), "bgp.listen", "needs an address in bgp.listen that the neighbor connects to")
	}
	if n.Source != nil && n.On() != "" {
		v.errs.add(at("source"), "cannot be chosen: a link-local neighbor is reached from the interface's own link-local address")
	} else if n.Source != nil {
		switch problem := addressProblem(*n.Source); {
		case problem != "":
			v.errs.add(at("source"), "%s %s", n.Source, problem)
		case FamilyOf(*n.Source) != FamilyOf(n.Address):
			v.errs.addWithOther(at("source"), at("address"), "%s is not of the neighbor's family", n.Source)
		}
	}
	v.vrf(at("vrf"), n.VRF, n.On())
	if n.TTL != 0 && n.TTLSecurity != 0 {
		v.errs.addWithOther(at("ttl-security"), at("ttl"), "sends with 255 as its TTL: give one of both")
	}
	v.neighborTimes(i, n)
	v.neighborFamilies(i, n)
	v.attributes(at("attributes"), &n.Attributes)
	internal := n.ASN == v.config.BGP.ASN
	if internal && n.Attributes.Prepend > 0 {
		v.errs.addWithOther(at("attributes.prepend"), at("asn"), "is for neighbors in other ASes: this one would take its own AS for a loop")
	}
	if !internal && n.Attributes.LocalPref != nil {
		v.errs.addWithOther(at("attributes.local-pref"), at("asn"), "is for neighbors in the same AS: others are not told")
	}
}

// vrf checks a VRF's name. A neighbor on a link is reached there, whatever VRF the link is in.
func (v *validation) vrf(path, vrf, on string) {
	switch {
	case vrf == "":
	case on != "":
		v.errs.add(path, "is not for a link-local neighbor: it is reached on %s, which may be in a VRF", on)
	default:
		if problem := interfaceProblem(vrf); problem != "" {
			v.errs.add(path, "%s", problem)
		}
	}
}

// neighborAddress checks the address or the interface of a neighbor.
func (v *validation) neighborAddress(i int, n *BGPNeighbor) bool {
	at := func(field string) string { return neighborPath(i, field) }
	switch {
	case n.Interface == "" && !n.Address.IsValid():
		v.errs.add(at("address"), "is required (an IP address), or interface")
	case n.Interface != "" && n.Address.IsValid():
		v.errs.addWithOther(at("interface"), at("address"), "is in place of an address: give one of both, or the address as fe80::1%%%s", n.Interface)
	case n.Interface != "" && n.Passive:
		v.errs.addWithOther(at("passive"), at("interface"), "is for neighbors with an address: to one that is known by its interface, this director opens the session")
	case n.Interface != "":
		if problem := interfaceProblem(n.Interface); problem != "" {
			v.errs.add(at("interface"), "%s", problem)
		}
		return true
	default:
		problem := routerProblem(n.Address)
		if problem == "" {
			return true
		}
		v.errs.add(at("address"), "%s", withAddress(n.Address, problem))
	}
	return false
}

// routerProblem says why an address cannot be a router's, or nothing. Routers on the link may have
// only link-local ones.
func routerProblem(a netip.Addr) string {
	switch {
	case !a.Is6() || !a.IsLinkLocalUnicast():
		return addressProblem(a)
	case a.Zone() == "":
		return "is link-local: write the interface behind it, " + a.String() + "%eth0, say"
	}
	return ""
}

func (v *validation) neighborTimes(i int, n *BGPNeighbor) {
	at := func(field string) string { return neighborPath(i, field) }
	v.duration(at("hold-time"), n.HoldTime, Duration(minHoldTime), Duration(maxHoldTime))
	v.wholeSeconds(at("hold-time"), n.HoldTime)
	if n.Keepalive != 0 && (time.Duration(n.Keepalive) < 100*time.Millisecond || n.Keepalive > n.HoldTime/3) {
		v.errs.addWithOther(at("keepalive"), at("hold-time"), "%s is not between 100ms and a third of the hold time, %s", n.Keepalive, n.HoldTime)
	}
	v.duration(at("restart-time"), n.RestartTime, Duration(time.Second), Duration(maxRestartTime))
	v.wholeSeconds(at("restart-time"), n.RestartTime)
	if n.KeepWhenSilent && !n.Restarts() {
		v.errs.addWithOther(at("keep-when-silent"), at("graceful-restart"), "is a part of graceful-restart, which is off")
	}
}

func (v *validation) wholeSeconds(path string, d Duration) {
	if time.Duration(d)%time.Second != 0 {
		v.errs.add(path, "%s is not a number of whole seconds", d)
	}
}

// neighborFamilies checks that routes of each family have a next hop.
func (v *validation) neighborFamilies(i int, n *BGPNeighbor) {
	seen := map[BGPFamily]int{}
	nextHops := map[BGPFamily]int{}
	for j, a := range n.NextHop {
		path := neighborPath(i, fmt.Sprintf("next-hop[%d]", j))
		if problem := addressProblem(a); problem != "" {
			v.errs.add(path, "%s", withAddress(a, problem))
			continue
		}
		if first, dup := nextHops[FamilyOf(a)]; dup {
			v.errs.addWithOther(path, neighborPath(i, fmt.Sprintf("next-hop[%d]", first)), "%s is the second of its family", a)
		}
		nextHops[FamilyOf(a)] = j
	}
	for j, family := range n.Families {
		path := neighborPath(i, fmt.Sprintf("families[%d]", j))
		oneOf(v, path, bgpFamilyNames, family)
		_, hasNextHop := nextHops[family]
		switch _, dup := seen[family]; {
		case dup:
			v.errs.add(path, "%s is there twice", family)
		case family == BGPIPv6 && n.Address.Is4() && !hasNextHop:
			v.errs.addWithOther(path, neighborPath(i, "address"), "needs an IPv6 address of this director's in next-hop: the session is over IPv4")
		case family == BGPEVPN && n.Segment != (Segment{}):
			v.errs.addWithOther(path, neighborPath(i, "segment"), "is for neighbors in no segment: it is told of all overlays, in the network that carries them")
		}
		seen[family] = j
	}
}

func (v *validation) attributes(path string, a *BGPAttributes) {
	if a.Prepend > maxPrepend {
		v.errs.add(path+".prepend", "%d is more than %d", a.Prepend, maxPrepend)
	}
	seen := map[Community]bool{}
	for i, c := range a.Communities {
		at := fmt.Sprintf("%s.communities[%d]", path, i)
		if c == GracefulShutdown {
			v.errs.add(at, "%s is for a director that drains: see bgp.graceful-shutdown", c)
		}
		if seen[c] {
			v.errs.add(at, "%s is there twice", c)
		}
		seen[c] = true
	}
	if len(a.Communities) > 64 {
		v.errs.add(path+".communities", "%d are more than 64", len(a.Communities))
	}
}

func (v *validation) bgpPrefixes() {
	type place struct {
		segment Segment
		prefix  netip.Prefix
	}
	seen := map[place]int{}
	for i := range v.config.BGP.Prefixes {
		p := &v.config.BGP.Prefixes[i]
		at := fmt.Sprintf("bgp.prefixes[%d]", i)
		nothing := p.Prefix.IsValid() && p.Prefix.Bits() == 0 && p.Announce == AnnounceNothing // of all addresses
		if problem := prefixProblem(p.Prefix); problem != "" && !nothing {
			v.errs.add(at+".prefix", "%s %s", prefixText(p.Prefix), problem)
			continue
		}
		here := place{p.Segment, p.Prefix}
		if first, dup := seen[here]; dup {
			v.errs.addWithOther(at+".prefix", fmt.Sprintf("bgp.prefixes[%d].prefix", first), "%s is there twice", p.Prefix)
		}
		seen[here] = i
		oneOf(v, at+".announce", announceNames, p.Announce)
		v.attributes(at+".attributes", &p.Attributes)
	}
}
