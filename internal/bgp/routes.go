package bgp

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"weir.io/weir/internal/model"
)

// How many prefixes a message has room for beside the most attributes that validation allows: 4,096
// bytes, 5 for each IPv4 prefix and 17 for each IPv6 one.
const (
	perMessage4 = 400
	perMessage6 = 120
)

// advertisement is how routes with the same attributes are advertised to one neighbor.
type advertisement struct {
	family     model.BGPFamily
	nextHop    netip.Addr
	attributes model.BGPAttributes
}

// key says what neighbors know about a route, so that it is advertised again when that differs.
func (t advertisement) key() string {
	a := t.attributes
	text := fmt.Sprintf("%s %v %d", t.nextHop, a.Communities, a.Prepend)
	if a.LocalPref != nil {
		text += fmt.Sprintf(" local-pref %d", *a.LocalPref)
	}
	if a.MED != nil {
		text += fmt.Sprintf(" med %d", *a.MED)
	}
	return text
}

// advertisements returns what to advertise to the neighbor about each prefix.
func advertisements(w *want, p *peer, local netip.Addr) map[netip.Prefix]advertisement {
	all := map[netip.Prefix]advertisement{}
	if w.phase == withdrawn {
		return all
	}
	for i := range w.routes {
		r := &w.routes[i]
		family := model.FamilyOf(r.Prefix.Addr())
		if r.Segment != w.neighbor.Segment || !slices.Contains(p.families, family) {
			continue
		}
		all[r.Prefix] = advertisement{family, nextHop(&w.neighbor, family, local), attributes(w, r)}
	}
	return all
}

// nextHop returns the address to which the neighbor should send packets.
func nextHop(n *model.BGPNeighbor, family model.BGPFamily, local netip.Addr) netip.Addr {
	for _, a := range n.NextHop {
		if model.FamilyOf(a) == family {
			return a
		}
	}
	return local.WithZone("")
}

// attributes returns a route's attributes for this neighbor, without those for the other kind of
// session.
func attributes(w *want, r *model.Route) model.BGPAttributes {
	a := r.Attributes.Over(w.neighbor.Attributes)
	internal := w.neighbor.ASN == w.asn
	if r.Backup {
		a = behind(a)
	}
	if w.phase == marked {
		a.Communities = append(slices.Clone(a.Communities), model.GracefulShutdown)
	}
	switch {
	case !internal:
		a.LocalPref = nil
	case w.phase == marked:
		a.LocalPref, a.Prepend = new(uint32), 0
	default:
		a.Prepend = 0
		if a.LocalPref == nil {
			usual := uint32(100)
			a.LocalPref = &usual
		}
	}
	return a
}

// behindPrepend is how often a backup's route has the own AS in its path: more often than a
// configuration may ask for (maxPrepend in internal/model).
const behindPrepend = 17

// behind makes a route less preferred than the same route of another director, whatever attributes
// each of the two has.
func behind(a model.BGPAttributes) model.BGPAttributes {
	a.LocalPref, a.Prepend = new(uint32), behindPrepend
	return a
}

// changes returns the messages that change what was advertised to the neighbor (keys of advertisements) to
// what should be advertised, and notes that. Withdrawals come first.
func changes(w *want, p *peer, advertised map[netip.Prefix]string, now map[netip.Prefix]advertisement) []*gobgp.BGPMessage {
	var messages []*gobgp.BGPMessage
	gone := map[model.BGPFamily][]netip.Prefix{}
	for prefix := range advertised {
		if _, stays := now[prefix]; !stays {
			family := model.FamilyOf(prefix.Addr())
			gone[family] = append(gone[family], prefix)
			delete(advertised, prefix)
		}
	}
	for _, family := range p.families {
		for some := range inMessages(family, gone[family]) {
			messages = append(messages, withdrawal(family, some))
		}
	}
	type group struct {
		advertisement
		prefixes []netip.Prefix
	}
	groups := map[string]*group{}
	for prefix, t := range now {
		key := t.key()
		if advertised[prefix] == key {
			continue
		}
		advertised[prefix] = key
		of := string(t.family) + " " + key
		if groups[of] == nil {
			groups[of] = &group{advertisement: t}
		}
		groups[of].prefixes = append(groups[of].prefixes, prefix)
	}
	for _, of := range slices.Sorted(maps.Keys(groups)) {
		g := groups[of]
		for some := range inMessages(g.family, g.prefixes) {
			messages = append(messages, announcement(w, p, g.advertisement, some))
		}
	}
	return messages
}

// inMessages divides prefixes, in their order, into parts that each fit into a message.
func inMessages(family model.BGPFamily, prefixes []netip.Prefix) func(func([]gobgp.PathNLRI) bool) {
	slices.SortFunc(prefixes, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	room := perMessage6
	if family == model.BGPIPv4 {
		room = perMessage4
	}
	return func(yield func([]gobgp.PathNLRI) bool) {
		for some := range slices.Chunk(prefixes, room) {
			list := make([]gobgp.PathNLRI, len(some))
			for i, prefix := range some {
				// Its only error is an invalid prefix.
				list[i].NLRI, _ = gobgp.NewIPAddrPrefix(prefix)
			}
			if !yield(list) {
				return
			}
		}
	}
}

func withdrawal(family model.BGPFamily, prefixes []gobgp.PathNLRI) *gobgp.BGPMessage {
	if family == model.BGPIPv4 {
		return gobgp.NewBGPUpdateMessage(prefixes, nil, nil)
	}
	gone, _ := gobgp.NewPathAttributeMpUnreachNLRI(families[family], prefixes) // never an error
	return gobgp.NewBGPUpdateMessage(nil, []gobgp.PathAttributeInterface{gone}, nil)
}

// announcement tells prefixes. Attributes are in the order of their numbers.
func announcement(w *want, p *peer, t advertisement, prefixes []gobgp.PathNLRI) *gobgp.BGPMessage {
	path, whole := asPath(w, p, t)
	all := []gobgp.PathAttributeInterface{gobgp.NewPathAttributeOrigin(gobgp.BGP_ORIGIN_ATTR_TYPE_IGP), path}
	classic := t.family == model.BGPIPv4 && t.nextHop.Is4()
	if classic {
		hop, _ := gobgp.NewPathAttributeNextHop(t.nextHop) // never an error: it is an address
		all = append(all, hop)
	}
	if t.attributes.MED != nil {
		all = append(all, gobgp.NewPathAttributeMultiExitDisc(*t.attributes.MED))
	}
	if t.attributes.LocalPref != nil {
		all = append(all, gobgp.NewPathAttributeLocalPref(*t.attributes.LocalPref))
	}
	small, large := communities(t.attributes.Communities)
	if len(small) > 0 {
		all = append(all, gobgp.NewPathAttributeCommunities(small))
	}
	if !classic {
		reach, _ := gobgp.NewPathAttributeMpReachNLRI(families[t.family], prefixes, t.nextHop) // never an error: there are some
		all = append(all, reach)
		prefixes = nil
	}
	if whole != nil {
		all = append(all, whole)
	}
	if len(large) > 0 {
		all = append(all, gobgp.NewPathAttributeLargeCommunities(large))
	}
	return gobgp.NewBGPUpdateMessage(nil, all, prefixes)
}

// asPath returns the path of ASes. For neighbors that know only 16-bit numbers, if one in it is
// larger, it also returns the whole path in AS4_PATH, which they pass on (RFC 6793 4.2.2).
func asPath(w *want, p *peer, t advertisement) (path, whole gobgp.PathAttributeInterface) {
	if w.neighbor.ASN == w.asn {
		return gobgp.NewPathAttributeAsPath(nil), nil
	}
	as := slices.Repeat([]uint32{w.asn}, 1+int(t.attributes.Prepend))
	all := gobgp.NewAs4PathParam(gobgp.BGP_ASPATH_ATTR_TYPE_SEQ, as)
	if !p.old {
		return gobgp.NewPathAttributeAsPath([]gobgp.AsPathParamInterface{all}), nil
	}
	short := slices.Repeat([]uint16{as16(w.asn)}, len(as))
	path = gobgp.NewPathAttributeAsPath([]gobgp.AsPathParamInterface{gobgp.NewAsPathParam(gobgp.BGP_ASPATH_ATTR_TYPE_SEQ, short)})
	if w.asn > math.MaxUint16 {
		whole = gobgp.NewPathAttributeAs4Path([]*gobgp.As4PathParam{all})
	}
	return path, whole
}

// communities returns both kinds in the form of messages.
func communities(list []model.Community) (small []uint32, large []*gobgp.LargeCommunity) {
	for _, c := range list {
		if c.Large {
			large = append(large, gobgp.NewLargeCommunity(c.Parts[0], c.Parts[1], c.Parts[2]))
		} else {
			small = append(small, c.Parts[0]<<16|c.Parts[1])
		}
	}
	return small, large
}
