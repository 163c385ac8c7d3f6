package model

import (
	"net/netip"
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

// Name is what the neighbor is called: its interface, if it is known by that, or its address.
func (n *BGPNeighbor) Name() string {
	if n.Interface != "" {
		return n.Interface
	}
	return n.Address.String()
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
	if a.LocalPref == nil {
		a.LocalPref = b.LocalPref
	}
	if a.MED == nil {
		a.MED = b.MED
	}
	if a.Prepend == 0 {
		a.Prepend = b.Prepend
	}
	return a
}

// BGPPrefix says how the VIPs in a prefix are announced.
type BGPPrefix struct {
	Prefix     netip.Prefix  `json:"prefix"`
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

// BGPFamily is an address family of routes.
type BGPFamily string

// The families.
const (
	BGPIPv4 BGPFamily = "ipv4"
	BGPIPv6 BGPFamily = "ipv6"
)

// FamilyOf returns the family of routes to an address.
func FamilyOf(a netip.Addr) BGPFamily {
	if a.Is4() {
		return BGPIPv4
	}
	return BGPIPv6
}

// Route is a prefix that routers are told to send to this director.
type Route struct {
	Prefix     netip.Prefix
	Attributes BGPAttributes // they override the neighbor's
}
