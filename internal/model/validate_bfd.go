package model

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// timersOrDefaults replaces keys that are not given by their defaults.
func timersOrDefaults(interval *Duration, multiplier *uint8) {
	if *interval == 0 {
		*interval = DefaultBFDInterval
	}
	if *multiplier == 0 {
		*multiplier = DefaultBFDMultiplier
	}
}

// setDefaults leaves a file without neighbors as it is.
func (b *BFD) setDefaults() {
	if len(b.Neighbors) == 0 {
		return
	}
	if b.RestartTime == 0 {
		b.RestartTime = DefaultBFDRestartTime
	}
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
	multihop bool
}

type bfdPlace struct {
	source netip.Addr // zero: any
	at     string
}

// note remembers where a session is asked for, and says where another one was asked for whose
// packets could not be told from its own.
func (s bfdSeen) note(session BFDSession, at string) (first string, dup bool) {
	way := bfdWay{session.Neighbor, session.Multihop}
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
	switch a.Type {
	case KeyedMD5, MeticulousKeyedMD5, KeyedSHA1, MeticulousKeyedSHA1:
	default:
		v.errs.add(at+".type", "unknown type %q (one of %s, %s, %s, %s)", a.Type, KeyedMD5, KeyedSHA1, MeticulousKeyedMD5, MeticulousKeyedSHA1)
	}
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
