package bgp

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"weir.io/weir/internal/model"
)

// The types of routes that are read (RFC 7432 7). Others are passed over by their length, also those
// that are yet to be defined (RFC 7606 5.4).
const (
	evpnHost      = gobgp.EVPN_ROUTE_TYPE_MAC_IP_ADVERTISEMENT
	evpnMulticast = gobgp.EVPN_INCLUSIVE_MULTICAST_ETHERNET_TAG
)

// evpnKey is what tells the routes of a neighbor apart.
type evpnKey struct {
	kind          uint8
	distinguisher [8]byte
	tag           uint32
	mac           model.MAC  // of a host
	ip            netip.Addr // of a host, or of the VTEP that wants what is for all
}

// evpnRoute is a route as an UPDATE has it.
type evpnRoute struct {
	evpnKey
	label uint32
}

// evpnPath is what an UPDATE says of all its routes.
type evpnPath struct {
	nextHop    netip.Addr
	targets    []model.RouteTarget
	otherwise  bool // packets are wanted in something else than VXLAN
	sequence   uint32
	static     bool
	pmsi       *evpnTunnel
	localPref  uint32
	asPath     int // its length
	origin     uint8
	med        uint32
	originator netip.Addr // behind a route reflector
	clusters   int
}

// evpnTunnel is how a VTEP wants what is for all (RFC 6514 5).
type evpnTunnel struct {
	kind     uint8
	label    uint32
	endpoint netip.Addr // of ingress replication
}

// evpnUpdate is what an UPDATE says of EVPN.
type evpnUpdate struct {
	withdrawn []evpnKey
	announced []evpnRoute
	path      evpnPath
	end       bool   // it is the end of all routes (RFC 4724 2)
	malformed int    // routes that could not be read, or whose attributes could not
	problem   string // what is wrong with one of them
}

// unreadable is why the rest of a session has no EVPN (RFC 4760 7): nobody knows any more which
// routes the neighbor has told. Its other families go on.
type unreadable struct{ text string }

// Error says what was sent.
func (u unreadable) Error() string { return u.text }

// evpnContext is what the meaning of an UPDATE depends on.
type evpnContext struct {
	internal bool // the neighbor is in this AS
	old      bool // it writes AS numbers in 16 bits
}

// attribute is a path attribute (RFC 4271 4.3).
type attribute struct {
	flags, kind uint8
	value       []byte
}

// nextAttribute takes an attribute off the list; ok is false if it is longer than the list.
func nextAttribute(list []byte) (a attribute, rest []byte, ok bool) {
	if len(list) < 3 {
		return a, nil, false
	}
	a.flags, a.kind = list[0], list[1]
	length, rest := int(list[2]), list[3:]
	if a.flags&byte(gobgp.BGP_ATTR_FLAG_EXTENDED_LENGTH) != 0 {
		if len(list) < 4 {
			return a, nil, false
		}
		length, rest = int(binary.BigEndian.Uint16(list[2:])), list[4:]
	}
	if length > len(rest) {
		return a, nil, false
	}
	a.value = rest[:length]
	return a, rest[length:], true
}

// readEVPN reads what an UPDATE says of EVPN, nil if that is nothing. What is wrong takes away the
// routes that it is about (treat-as-withdraw, RFC 7606); the error is a fault, or unreadable.
func readEVPN(body []byte, in evpnContext) (*evpnUpdate, error) {
	withdrawn := 2 + int(binary.BigEndian.Uint16(body))
	length := int(binary.BigEndian.Uint16(body[withdrawn:]))
	list := body[withdrawn+2 : withdrawn+2+length]
	if !mentionsEVPN(list) {
		return nil, nil
	}
	u := &evpnUpdate{}
	u.path.localPref = 100
	wrong := "" // why all routes of the UPDATE are withdrawn
	seen := map[uint8]bool{}
	for len(list) > 0 {
		a, rest, ok := nextAttribute(list)
		if !ok {
			wrong = "an attribute is longer than the list of attributes"
			break
		}
		list = rest
		twice := seen[a.kind]
		seen[a.kind] = true
		if isMP := a.kind == byte(gobgp.BGP_ATTR_TYPE_MP_REACH_NLRI) || a.kind == byte(gobgp.BGP_ATTR_TYPE_MP_UNREACH_NLRI); twice && isMP {
			return nil, newFault(gobgp.BGP_ERROR_UPDATE_MESSAGE_ERROR, gobgp.BGP_ERROR_SUB_MALFORMED_ATTRIBUTE_LIST,
				"it sends an UPDATE with attribute %d twice", a.kind)
		}
		if twice {
			continue // the first one counts (RFC 7606 3)
		}
		problem, err := u.attribute(a, in)
		if err != nil {
			return nil, err
		}
		if wrong == "" {
			wrong = problem
		}
	}
	if wrong == "" && len(u.announced) > 0 {
		wrong = missing(seen)
	}
	if wrong != "" {
		u.withdraw(wrong, func(evpnRoute) bool { return true })
	} else if u.path.pmsi == nil {
		u.withdraw("a route of type 3 says no tunnel (attribute 22)", func(r evpnRoute) bool { return r.kind == evpnMulticast })
	}
	u.end = len(seen) == 1 && seen[byte(gobgp.BGP_ATTR_TYPE_MP_UNREACH_NLRI)] && len(u.withdrawn) == 0 && u.malformed == 0
	return u, nil
}

// mentionsEVPN reports whether EVPN's family is in a list of attributes.
func mentionsEVPN(list []byte) bool {
	for len(list) > 0 {
		a, rest, ok := nextAttribute(list)
		if !ok {
			return false
		}
		switch gobgp.BGPAttrType(a.kind) {
		case gobgp.BGP_ATTR_TYPE_MP_REACH_NLRI, gobgp.BGP_ATTR_TYPE_MP_UNREACH_NLRI:
			if isEVPN(a.value) {
				return true
			}
		}
		list = rest
	}
	return false
}

func isEVPN(value []byte) bool {
	return len(value) >= 3 && binary.BigEndian.Uint16(value) == gobgp.AFI_L2VPN && value[2] == gobgp.SAFI_EVPN
}

// missing says which attribute there has to be, and is not.
func missing(seen map[uint8]bool) string {
	for _, kind := range []gobgp.BGPAttrType{gobgp.BGP_ATTR_TYPE_ORIGIN, gobgp.BGP_ATTR_TYPE_AS_PATH} {
		if !seen[byte(kind)] {
			return fmt.Sprintf("attribute %d is missing", kind)
		}
	}
	return ""
}

// withdraw takes some of the routes of the UPDATE for withdrawn, because of what it says of them.
func (u *evpnUpdate) withdraw(why string, these func(evpnRoute) bool) {
	stay := u.announced[:0]
	for _, r := range u.announced {
		if !these(r) {
			stay = append(stay, r)
			continue
		}
		u.withdrawn = append(u.withdrawn, r.evpnKey)
		u.wrong(1, why)
	}
	u.announced = stay
}

func (u *evpnUpdate) wrong(routes int, why string) {
	u.malformed += routes
	if u.problem == "" {
		u.problem = why
	}
}

// The flags that attributes have (RFC 4271 5).
const (
	wellKnown  = byte(gobgp.BGP_ATTR_FLAG_TRANSITIVE)
	optional   = byte(gobgp.BGP_ATTR_FLAG_OPTIONAL)
	transitive = optional | wellKnown
)

// attribute reads an attribute. It returns what is wrong with the routes of the UPDATE.
func (u *evpnUpdate) attribute(a attribute, in evpnContext) (wrong string, err error) {
	v, n := a.value, len(a.value)
	flags, malformed := wellKnown, false
	switch gobgp.BGPAttrType(a.kind) {
	case gobgp.BGP_ATTR_TYPE_ORIGIN:
		if malformed = n != 1 || v[0] > gobgp.BGP_ORIGIN_ATTR_TYPE_INCOMPLETE; !malformed {
			u.path.origin = v[0]
		}
	case gobgp.BGP_ATTR_TYPE_AS_PATH:
		u.path.asPath, malformed = asPathLength(v, in.old)
	case gobgp.BGP_ATTR_TYPE_MULTI_EXIT_DISC:
		flags = optional
		if malformed = n != 4; !malformed {
			u.path.med = binary.BigEndian.Uint32(v)
		}
	case gobgp.BGP_ATTR_TYPE_LOCAL_PREF:
		if !in.internal {
			return "", nil // RFC 7606 7.5: it is not for this AS
		}
		if malformed = n != 4; !malformed {
			u.path.localPref = binary.BigEndian.Uint32(v)
		}
	case gobgp.BGP_ATTR_TYPE_ORIGINATOR_ID:
		if flags = optional; !in.internal {
			return "", nil // RFC 7606 7.9
		}
		if malformed = n != 4; !malformed {
			u.path.originator = netip.AddrFrom4([4]byte(v))
		}
	case gobgp.BGP_ATTR_TYPE_CLUSTER_LIST:
		if flags = optional; !in.internal {
			return "", nil
		}
		u.path.clusters, malformed = n/4, n == 0 || n%4 != 0
	case gobgp.BGP_ATTR_TYPE_EXTENDED_COMMUNITIES:
		flags = transitive
		if malformed = n == 0 || n%8 != 0; !malformed {
			u.path.communities(v)
		}
	case gobgp.BGP_ATTR_TYPE_PMSI_TUNNEL:
		flags = transitive
		u.path.pmsi, malformed = readTunnel(v)
	case gobgp.BGP_ATTR_TYPE_MP_REACH_NLRI:
		if !isEVPN(v) {
			return "", nil
		}
		flags = optional
		if wrong, err = u.reach(v); wrong != "" || err != nil {
			return wrong, err
		}
	case gobgp.BGP_ATTR_TYPE_MP_UNREACH_NLRI:
		if !isEVPN(v) {
			return "", nil
		}
		flags = optional
		if err := u.unreach(v); err != nil {
			return "", err
		}
	default:
		return "", nil
	}
	switch {
	case malformed:
		return fmt.Sprintf("attribute %d is malformed", a.kind), nil
	case a.flags&transitive != flags:
		return fmt.Sprintf("attribute %d has the flags %#x", a.kind, a.flags), nil
	}
	return "", nil
}

// asPathLength returns how many ASes a path has as routes are compared: a set counts as one, and a
// confederation's as none (RFC 4271 9.1.2.2, RFC 5065 5.3).
func asPathLength(path []byte, old bool) (length int, malformed bool) {
	size := 4
	if old {
		size = 2
	}
	for len(path) > 0 {
		if len(path) < 2 {
			return 0, true
		}
		kind, n := path[0], int(path[1])
		if n == 0 || len(path) < 2+n*size {
			return 0, true
		}
		switch kind {
		case gobgp.BGP_ASPATH_ATTR_TYPE_SET:
			length++
		case gobgp.BGP_ASPATH_ATTR_TYPE_SEQ:
			length += n
		case gobgp.BGP_ASPATH_ATTR_TYPE_CONFED_SEQ, gobgp.BGP_ASPATH_ATTR_TYPE_CONFED_SET:
		default:
			return 0, true
		}
		path = path[2+n*size:]
	}
	return length, false
}

// communities reads extended communities: targets, the encapsulation (RFC 9012 4.1), mobility (RFC 7432
// 7.7).
func (p *evpnPath) communities(list []byte) {
	named, vxlan := false, false
	for ; len(list) >= 8; list = list[8:] {
		c := [8]byte(list)
		if t, is := model.ReadRouteTarget(c); is {
			p.targets = append(p.targets, t)
			continue
		}
		switch binary.BigEndian.Uint16(c[:]) {
		case uint16(gobgp.EC_TYPE_TRANSITIVE_OPAQUE)<<8 | uint16(gobgp.EC_SUBTYPE_ENCAPSULATION):
			named = true
			vxlan = vxlan || binary.BigEndian.Uint16(c[6:]) == uint16(gobgp.TUNNEL_TYPE_VXLAN)
		case uint16(gobgp.EC_TYPE_EVPN)<<8 | uint16(gobgp.EC_SUBTYPE_MAC_MOBILITY):
			p.static = p.static || c[2]&1 != 0
			p.sequence = max(p.sequence, binary.BigEndian.Uint32(c[4:]))
		}
	}
	p.otherwise = named && !vxlan
}

// readTunnel reads a PMSI tunnel attribute.
func readTunnel(v []byte) (t *evpnTunnel, malformed bool) {
	if len(v) < 5 {
		return nil, true
	}
	t = &evpnTunnel{kind: v[1], label: number24(v[2:])}
	if t.kind == uint8(gobgp.PMSI_TUNNEL_TYPE_INGRESS_REPL) {
		endpoint, _ := netip.AddrFromSlice(v[5:])
		t.endpoint = endpoint.Unmap()
		return t, !canBeVTEP(t.endpoint)
	}
	return t, false
}

func number24(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }

// reach reads the routes of MP_REACH_NLRI.
func (u *evpnUpdate) reach(v []byte) (wrong string, err error) {
	if len(v) < 5 || len(v) < 5+int(v[3]) {
		return "", unreadable{"MP_REACH_NLRI is shorter than its next hop"}
	}
	hop, list := v[4:4+int(v[3])], v[5+int(v[3]):]
	if err := eachRoute(list, func(kind uint8, body []byte) { u.route(kind, body, false) }); err != nil {
		return "", err
	}
	nextHop, is := netip.AddrFromSlice(hop)
	u.path.nextHop = nextHop.Unmap()
	if !is || !canBeVTEP(u.path.nextHop) {
		return fmt.Sprintf("the next hop [% x] is no address of a VTEP", hop), nil
	}
	return "", nil
}

// canBeVTEP reports whether packets can be sent to an address.
func canBeVTEP(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() && !a.IsLinkLocalUnicast() &&
		a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// unreach reads the routes of MP_UNREACH_NLRI.
func (u *evpnUpdate) unreach(v []byte) error {
	return eachRoute(v[3:], func(kind uint8, body []byte) { u.route(kind, body, true) })
}

// eachRoute takes a list of routes apart. Where a route is longer than the list, nobody knows which
// one it is.
func eachRoute(list []byte, do func(kind uint8, body []byte)) error {
	for len(list) > 0 {
		if len(list) < 2 || len(list)-2 < int(list[1]) {
			return unreadable{"a route is longer than its attribute"}
		}
		do(list[0], list[2:2+int(list[1])])
		list = list[2+int(list[1]):]
	}
	return nil
}

// route reads a route. One of which it can be told which one it is, and whose rest is wrong, is
// withdrawn.
func (u *evpnUpdate) route(kind uint8, body []byte, withdrawn bool) {
	var r evpnRoute
	var wrong string
	known := false
	switch kind {
	case evpnHost:
		r, known, wrong = readHost(body, withdrawn)
	case evpnMulticast:
		r, known, wrong = readMulticast(body)
	default:
		return
	}
	switch {
	case wrong != "":
		u.wrong(1, wrong)
		if known {
			u.withdrawn = append(u.withdrawn, r.evpnKey)
		}
	case withdrawn:
		u.withdrawn = append(u.withdrawn, r.evpnKey)
	default:
		u.announced = append(u.announced, r)
	}
}

// readHost reads a MAC/IP advertisement route (RFC 7432 7.2). known is whether its key is read.
func readHost(b []byte, withdrawn bool) (r evpnRoute, known bool, wrong string) {
	const before = 30 // the IP address
	if len(b) < before {
		return r, false, fmt.Sprintf("a route of type 2 has %d bytes", len(b))
	}
	r.kind, r.distinguisher, r.tag = evpnHost, [8]byte(b), binary.BigEndian.Uint32(b[18:])
	if b[22] != 48 {
		return r, false, fmt.Sprintf("a route of type 2 has a MAC address of %d bits", b[22])
	}
	r.mac = model.MAC(b[23:])
	ip, rest, ok := readIP(b[29], b[before:])
	if !ok {
		return r, false, fmt.Sprintf("a route of type 2 with %d bytes has an IP address of %d bits", len(b), b[29])
	}
	r.ip = ip
	if len(rest) >= 3 {
		r.label = number24(rest)
	}
	switch {
	case !distinguishes(r.distinguisher):
		return r, false, fmt.Sprintf("a route of type 2 has a distinguisher of kind %d", binary.BigEndian.Uint16(b))
	case len(rest) != 3 && len(rest) != 6 && !(withdrawn && len(rest) == 0):
		wrong = fmt.Sprintf("a route of type 2 has %d bytes of labels", len(rest))
	case withdrawn:
	case b[8] > byte(gobgp.ESI_AS): // of types 0 to 5 (RFC 7432 5)
		wrong = fmt.Sprintf("a route of type 2 has an Ethernet segment of type %d", b[8])
	case r.tag > model.MaxVNI:
		wrong = fmt.Sprintf("a route of type 2 has the Ethernet tag %d", r.tag)
	case r.mac.IsZero() || r.mac[0]&1 != 0:
		wrong = fmt.Sprintf("a route of type 2 has the MAC address %x", b[23:29])
	case ip.IsValid() && (ip.IsUnspecified() || ip.IsMulticast() || ip.IsLoopback() || ip.Is4In6()):
		wrong = fmt.Sprintf("a route of type 2 has the IP address %v", ip)
	case r.label == 0:
		wrong = "a route of type 2 has VNI 0"
	}
	return r, true, wrong
}

// readMulticast reads an Inclusive Multicast Ethernet Tag route (RFC 7432 7.3).
func readMulticast(b []byte) (r evpnRoute, known bool, wrong string) {
	const before = 13 // the IP address
	if len(b) < before {
		return r, false, fmt.Sprintf("a route of type 3 has %d bytes", len(b))
	}
	r.kind, r.distinguisher, r.tag = evpnMulticast, [8]byte(b), binary.BigEndian.Uint32(b[8:])
	ip, rest, ok := readIP(b[12], b[before:])
	switch r.ip = ip; {
	case !ok || !ip.IsValid():
		return r, false, fmt.Sprintf("a route of type 3 with %d bytes has an IP address of %d bits", len(b), b[12])
	case !distinguishes(r.distinguisher):
		return r, false, fmt.Sprintf("a route of type 3 has a distinguisher of kind %d", binary.BigEndian.Uint16(b))
	case len(rest) > 0:
		wrong = fmt.Sprintf("a route of type 3 has %d bytes too many", len(rest))
	case r.tag > model.MaxVNI:
		wrong = fmt.Sprintf("a route of type 3 has the Ethernet tag %d", r.tag)
	}
	return r, true, wrong
}

// distinguishes reports whether a distinguisher is of a known kind (RFC 4364 4.2).
func distinguishes(d [8]byte) bool {
	return binary.BigEndian.Uint16(d[:]) <= gobgp.BGP_RD_FOUR_OCTET_AS
}

// readIP reads an address of none, 32 or 128 bits.
func readIP(bits uint8, b []byte) (a netip.Addr, rest []byte, ok bool) {
	n := int(bits / 8)
	if bits != 0 && bits != 32 && bits != 128 || len(b) < n {
		return a, nil, false
	}
	if n > 0 {
		a, _ = netip.AddrFromSlice(b[:n])
	}
	return a, b[n:], true
}
