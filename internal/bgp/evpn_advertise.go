package bgp

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"weir.io/weir/internal/model"
)

// perMessageEVPN is how many EVPN routes a message has room for, of 52 bytes at most, beside the most
// attributes that validation allows and maxTargets route targets.
const perMessageEVPN = 40

// evpnAdvertisement is how EVPN routes with the same attributes are advertised to one neighbor.
type evpnAdvertisement struct {
	*evpnOwnRoute // one of them
	attributes    model.BGPAttributes
}

// key says what neighbors know about a route, so that it is advertised again when that differs. The
// routes of a message have the same key.
func (t evpnAdvertisement) key() string {
	common := advertisement{nextHop: t.vtep, attributes: t.attributes}
	return fmt.Sprintf("%d %d %v %d %s", t.kind, t.vni, t.targets, t.sequence, common.key())
}

// evpnChanges returns the messages that change what EVPN routes were advertised to the neighbor (keys of
// advertisements) to what should be advertised, and notes that. Withdrawals come first.
func evpnChanges(w *want, p *peer, advertised map[evpnKey]string) (messages []*gobgp.BGPMessage) {
	now := map[evpnKey]*evpnOwnRoute{}
	if w.phase != withdrawn {
		for i := range w.evpn {
			now[w.evpn[i].evpnKey] = &w.evpn[i]
		}
	}
	var gone []evpnOwnRoute
	for key := range advertised {
		if now[key] == nil {
			gone = append(gone, evpnOwnRoute{evpnKey: key})
			delete(advertised, key)
		}
	}
	for some := range inEVPNMessages(gone) {
		unreach, _ := gobgp.NewPathAttributeMpUnreachNLRI(gobgp.RF_EVPN, some) // never an error
		messages = append(messages, gobgp.NewBGPUpdateMessage(nil, []gobgp.PathAttributeInterface{unreach}, nil))
	}
	common := attributes(w, &model.Route{})
	groups := map[string][]evpnOwnRoute{}
	for key, r := range now {
		is := evpnAdvertisement{r, common}.key()
		if advertised[key] != is {
			advertised[key] = is
			groups[is] = append(groups[is], *r)
		}
	}
	for _, is := range slices.Sorted(maps.Keys(groups)) {
		for some := range inEVPNMessages(groups[is]) {
			messages = append(messages, evpnAnnouncement(w, p, evpnAdvertisement{&groups[is][0], common}, some))
		}
	}
	return messages
}

// inEVPNMessages divides routes into parts that each fit into a message.
func inEVPNMessages(routes []evpnOwnRoute) func(func([]gobgp.PathNLRI) bool) {
	slices.SortFunc(routes, func(a, b evpnOwnRoute) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), slices.Compare(a.distinguisher[:], b.distinguisher[:]),
			slices.Compare(a.mac[:], b.mac[:]), a.ip.Compare(b.ip))
	})
	return func(yield func([]gobgp.PathNLRI) bool) {
		for some := range slices.Chunk(routes, perMessageEVPN) {
			list := make([]gobgp.PathNLRI, len(some))
			for i := range some {
				list[i].NLRI = some[i].nlri()
			}
			if !yield(list) {
				return
			}
		}
	}
}

// nlri writes the route. Its one segment has no Ethernet tag (RFC 7432 6.1), and this VTEP is the only
// way to its hosts, so there is no Ethernet segment.
func (r *evpnOwnRoute) nlri() gobgp.NLRI {
	distinguisher := gobgp.GetRouteDistinguisher(r.distinguisher[:])
	if r.kind == evpnMulticast {
		return gobgp.NewEVPNNLRI(evpnMulticast, &gobgp.EVPNMulticastEthernetTagRoute{
			RD: distinguisher, IPAddressLength: uint8(r.ip.BitLen()), IPAddress: r.ip})
	}
	return gobgp.NewEVPNNLRI(evpnHost, &gobgp.EVPNMacIPAdvertisementRoute{
		RD: distinguisher, MacAddressLength: 48, MacAddress: net.HardwareAddr(r.mac[:]),
		IPAddressLength: uint8(r.ip.BitLen()), IPAddress: r.ip, Labels: []uint32{r.vni}})
}

// evpnAnnouncement tells routes. Attributes are in the order of their numbers.
func evpnAnnouncement(w *want, p *peer, t evpnAdvertisement, routes []gobgp.PathNLRI) *gobgp.BGPMessage {
	path, whole := asPath(w, p, advertisement{attributes: t.attributes})
	all := []gobgp.PathAttributeInterface{gobgp.NewPathAttributeOrigin(gobgp.BGP_ORIGIN_ATTR_TYPE_IGP), path}
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
	reach, _ := gobgp.NewPathAttributeMpReachNLRI(gobgp.RF_EVPN, routes, t.vtep) // never an error: there are some
	all = append(all, reach, gobgp.NewPathAttributeExtendedCommunities(t.extended()))
	if whole != nil {
		all = append(all, whole)
	}
	if t.kind == evpnMulticast {
		endpoint, _ := gobgp.NewIngressReplTunnelID(t.vtep) // never an error: it is an address
		all = append(all, gobgp.NewPathAttributePmsiTunnel(gobgp.PMSI_TUNNEL_TYPE_INGRESS_REPL, false, t.vni, endpoint))
	}
	if len(large) > 0 {
		all = append(all, gobgp.NewPathAttributeLargeCommunities(large))
	}
	return gobgp.NewBGPUpdateMessage(nil, all, nil)
}

// extended returns the extended communities: the targets, VXLAN as the encapsulation, and the mobility of
// an address that has moved. An address that may move again is not static.
func (t evpnAdvertisement) extended() (list []gobgp.ExtendedCommunityInterface) {
	for _, target := range t.targets {
		b := target.Bytes()
		list = append(list, gobgp.NewUnknownExtended(gobgp.ExtendedCommunityAttrType(b[0]), b[1:]))
	}
	list = append(list, gobgp.NewEncapExtended(gobgp.TUNNEL_TYPE_VXLAN))
	if t.sequence > 0 {
		list = append(list, gobgp.NewMacMobilityExtended(t.sequence, false))
	}
	return list
}
