package model

import (
	"fmt"
	"net/netip"
	"time"
)

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
		_, hasNextHop := nextHops[family]
		switch _, dup := seen[family]; {
		case family != BGPIPv4 && family != BGPIPv6:
			v.errs.add(path, "unknown family %q (one of ipv4, ipv6)", family)
		case dup:
			v.errs.add(path, "%s is there twice", family)
		case family == BGPIPv6 && n.Address.Is4() && !hasNextHop:
			v.errs.addWithOther(path, neighborPath(i, "address"), "needs an IPv6 address of this director's in next-hop: the session is over IPv4")
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
	seen := map[netip.Prefix]int{}
	for i := range v.config.BGP.Prefixes {
		p := &v.config.BGP.Prefixes[i]
		at := fmt.Sprintf("bgp.prefixes[%d]", i)
		nothing := p.Prefix.IsValid() && p.Prefix.Bits() == 0 && p.Announce == AnnounceNothing // of all addresses
		if problem := prefixProblem(p.Prefix); problem != "" && !nothing {
			v.errs.add(at+".prefix", "%s %s", prefixText(p.Prefix), problem)
			continue
		}
		if first, dup := seen[p.Prefix]; dup {
			v.errs.addWithOther(at+".prefix", fmt.Sprintf("bgp.prefixes[%d].prefix", first), "%s is there twice", p.Prefix)
		}
		seen[p.Prefix] = i
		switch p.Announce {
		case AnnounceHosts, AnnouncePrefix, AnnounceNothing:
		default:
			v.errs.add(at+".announce", "unknown announcement %q (one of hosts, nothing, prefix)", p.Announce)
		}
		v.attributes(at+".attributes", &p.Attributes)
	}
}
