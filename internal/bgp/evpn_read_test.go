package bgp

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"weir.io/weir/internal/model"
)

func vtep(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}) }

func mac(n int) model.MAC { return model.MAC{2, 0, 0, 0, byte(n >> 8), byte(n)} }

// unhex reads bytes as the tests write them: with spaces, and with notes in brackets.
func unhex(text string) []byte {
	for {
		begin := strings.IndexByte(text, '(')
		if begin < 0 {
			break
		}
		text = text[:begin] + text[begin+strings.IndexByte(text[begin:], ')')+1:]
	}
	b, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		panic(err)
	}
	return b
}

// path is an attribute.
func pathAttribute(flags, kind byte, value ...[]byte) []byte {
	var all []byte
	for _, v := range value {
		all = append(all, v...)
	}
	return append([]byte{flags | 0x10, kind, byte(len(all) >> 8), byte(len(all))}, all...)
}

// update is the body of an UPDATE with these attributes.
func update(attributes ...[]byte) []byte {
	body := []byte{0, 0, 0, 0}
	for _, a := range attributes {
		body = append(body, a...)
	}
	body[2], body[3] = byte((len(body)-4)>>8), byte(len(body)-4)
	return body
}

// The attributes of a route that is well, as a VTEP of AS 65002 tells it.
var (
	originIGP   = pathAttribute(0x40, 1, []byte{0})
	pathOf65002 = pathAttribute(0x40, 2, unhex("02 01 0000fdea"))
	vxlanOf5001 = pathAttribute(0xc0, 16, unhex("0002 fdea 00001389 (VXLAN) 030c 000000000008"))
	tunnel5001  = pathAttribute(0xc0, 22, unhex("00 06 001389 0a000002"))

	reachBegins = unhex("0019 46 04 0a000002 00")
	hostRoute   = unhex("02 25 (rd) 0001 0a000002 0002 (esi) 00000000000000000000 (tag) 00000000 30 020000000001 20 c0a80001 001389")
	macRoute    = unhex("02 21 (rd) 0001 0a000002 0002 (esi) 00000000000000000000 (tag) 00000000 30 020000000001 00 001389")
	host6Route  = unhex("02 31 (rd) 0001 0a000002 0002 (esi) 00000000000000000000 (tag) 00000000 30 020000000001 80 20010db8000000000000000000000001 001389")
	allRoute    = unhex("03 11 (rd) 0001 0a000002 0002 (tag) 00000000 20 0a000002")
)

func reachOf(routes ...[]byte) []byte {
	return pathAttribute(0x80, 14, append([][]byte{reachBegins}, routes...)...)
}

func unreachOf(routes ...[]byte) []byte {
	return pathAttribute(0x80, 15, append([][]byte{unhex("0019 46")}, routes...)...)
}

func readUpdate(t *testing.T, body []byte) (*evpnUpdate, error) {
	t.Helper()
	if err := violation(message{gobgp.BGP_MSG_UPDATE, body}); err != nil {
		t.Fatal("it is no UPDATE at all:", err)
	}
	return readEVPN(body, evpnContext{})
}

// What a VTEP tells is read: hosts with an address of either family and with none, and that it wants
// what is for all.
func TestReadEVPN(t *testing.T) {
	u, err := readUpdate(t, update(originIGP, pathOf65002, reachOf(hostRoute, macRoute, host6Route, allRoute), vxlanOf5001, tunnel5001,
		pathAttribute(0x80, 4, unhex("00000007"))))
	if err != nil || u.malformed > 0 || len(u.withdrawn) > 0 || u.end {
		t.Fatalf("it is read as %+v, %v", u, err)
	}
	var got []string
	for _, r := range u.announced {
		got = append(got, fmt.Sprintf("%d %v %v %v %d", r.kind, model.DistinguisherOf(r.distinguisher), r.mac, r.ip, r.label))
	}
	want := []string{"2 10.0.0.2:2 02:00:00:00:00:01 192.168.0.1 5001", "2 10.0.0.2:2 02:00:00:00:00:01 invalid IP 5001",
		"2 10.0.0.2:2 02:00:00:00:00:01 2001:db8::1 5001", "3 10.0.0.2:2  10.0.0.2 0"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the routes are %q, want %q", got, want)
	}
	p := u.path
	if p.nextHop != vtep(2) || fmt.Sprint(p.targets) != "[65002:5001]" || p.otherwise || p.asPath != 1 || p.med != 7 || p.localPref != 100 || p.sequence != 0 ||
		*p.pmsi != (evpnTunnel{kind: 6, label: 5001, endpoint: vtep(2)}) {
		t.Errorf("the attributes are %+v, %+v", p, p.pmsi)
	}
	if u, err = readUpdate(t, update(unreachOf(hostRoute))); err != nil || len(u.withdrawn) != 1 || u.withdrawn[0].ip != netip.MustParseAddr("192.168.0.1") || u.end {
		t.Errorf("a withdrawal is read as %+v, %v", u, err)
	}
	if u, err = readUpdate(t, update(unreachOf())); err != nil || !u.end {
		t.Errorf("the end of all routes is read as %+v, %v", u, err)
	}
	for name, other := range map[string][]byte{"nothing": update(), "an IPv6 route": update(originIGP, pathAttribute(0x80, 14, unhex("0002 01 04 0a000002 00")))} {
		if u, err = readUpdate(t, other); err != nil || u != nil {
			t.Errorf("%s is read as %+v, %v", name, u, err)
		}
	}
}

// Whatever is wrong with a route takes away that route, or all that the UPDATE says the same of; what
// nobody can tell apart any more disables EVPN in the session. Nothing wrong is taken for a route.
func TestMalformedEVPN(t *testing.T) {
	change := func(b []byte, at int, to string) []byte {
		changed := append([]byte{}, b...)
		copy(changed[at:], unhex(to))
		return changed
	}
	longer := func(b []byte, more string) []byte {
		changed := append(append([]byte{}, b...), unhex(more)...)
		changed[1] = byte(len(changed) - 2)
		return changed
	}
	whole := [][]byte{originIGP, pathOf65002, reachOf(hostRoute, allRoute), vxlanOf5001, tunnel5001}
	without := func(i int) []byte {
		left := append(append([][]byte{}, whole[:i]...), whole[i+1:]...)
		return update(left...)
	}
	with := func(i int, attribute []byte) []byte {
		other := append([][]byte{}, whole...)
		other[i] = attribute
		return update(other...)
	}
	routes := func(r ...[]byte) []byte { return with(2, reachOf(r...)) }
	const disabled, session = -1, -2
	for name, test := range map[string]struct {
		body                 []byte
		announced, withdrawn int // or how the rest of the session is
		says                 string
	}{
		"nothing wrong": {update(whole...), 2, 0, ""},
		// Routes.
		"MAC address of 47 bits":           {routes(change(hostRoute, 24, "2f"), allRoute), 1, 0, "47 bits"},
		"IP address of 31 bits":            {routes(change(hostRoute, 31, "1f"), allRoute), 1, 0, "31 bits"},
		"IP address of 128 bits, cut":      {routes(change(hostRoute, 31, "80"), allRoute), 1, 0, "128 bits"},
		"four bytes of labels":             {routes(longer(hostRoute, "00"), allRoute), 1, 1, "4 bytes of labels"},
		"nine bytes of labels":             {routes(longer(hostRoute, "000000000000"), allRoute), 1, 1, "9 bytes of labels"},
		"two labels":                       {routes(longer(hostRoute, "001770"), allRoute), 2, 0, ""},
		"no MAC address":                   {routes(change(hostRoute, 25, "000000000000"), allRoute), 1, 1, "000000000000"},
		"multicast MAC address":            {routes(change(hostRoute, 25, "01005e000001"), allRoute), 1, 1, "01005e000001"},
		"multicast IP address":             {routes(change(hostRoute, 32, "e0000001"), allRoute), 1, 1, "224.0.0.1"},
		"IPv4 in IPv6":                     {routes(change(host6Route, 32, "00000000000000000000ffffc0a80001"), allRoute), 1, 1, "::ffff:192.168.0.1"},
		"VNI 0":                            {routes(change(hostRoute, 36, "000000"), allRoute), 1, 1, "VNI 0"},
		"unknown kind of distinguisher":    {routes(change(hostRoute, 2, "0003"), allRoute), 1, 0, "kind 3"},
		"unknown kind of Ethernet segment": {routes(change(hostRoute, 10, "06"), allRoute), 1, 1, "type 6"},
		"Ethernet tag of 25 bits":          {routes(change(hostRoute, 20, "01000000"), allRoute), 1, 1, "16777216"},
		"VTEP of 0 bits":                   {routes(hostRoute, change(allRoute, 14, "00")), 1, 0, "0 bits"},
		"VTEP of 32 bits in 5 bytes":       {routes(hostRoute, longer(allRoute, "00")), 1, 1, "too many"},
		"a route of type 1":                {routes(hostRoute, unhex("01 19 0001 0a000002 0002 0100000000000000000000000000 000000"), allRoute), 2, 0, ""},
		"a route of type 99":               {routes(hostRoute, unhex("63 02 abcd"), allRoute), 2, 0, ""},
		"a short route of type 2":          {routes(unhex("02 02 abcd"), allRoute), 1, 0, "has 2 bytes"},
		"a short route of type 3":          {routes(hostRoute, unhex("03 02 abcd")), 1, 0, "has 2 bytes"},
		"a route beyond the attribute":     {routes(hostRoute, change(allRoute, 1, "12")), disabled, 0, "longer than its attribute"},
		"a route of one byte":              {routes(hostRoute, []byte{2}), disabled, 0, "longer than its attribute"},
		// The attributes of all of them.
		"no ORIGIN":                   {without(0), 0, 2, "attribute 1 is missing"},
		"no AS_PATH":                  {without(1), 0, 2, "attribute 2 is missing"},
		"no tunnel":                   {without(4), 1, 1, "no tunnel"},
		"ORIGIN 3":                    {with(0, pathAttribute(0x40, 1, []byte{3})), 0, 2, "attribute 1 is malformed"},
		"ORIGIN of two bytes":         {with(0, pathAttribute(0x40, 1, []byte{0, 0})), 0, 2, "attribute 1 is malformed"},
		"ORIGIN that is optional":     {with(0, pathAttribute(0xc0, 1, []byte{0})), 0, 2, "attribute 1 has the flags 0xd0"},
		"AS_PATH cut":                 {with(1, pathAttribute(0x40, 2, unhex("02 02 0000fdea"))), 0, 2, "attribute 2 is malformed"},
		"AS_PATH of an empty segment": {with(1, pathAttribute(0x40, 2, unhex("02 00"))), 0, 2, "attribute 2 is malformed"},
		"AS_PATH of kind 9":           {with(1, pathAttribute(0x40, 2, unhex("09 01 0000fdea"))), 0, 2, "attribute 2 is malformed"},
		"next hop of 5 bytes":         {with(2, pathAttribute(0x80, 14, unhex("0019 46 05 0a00000200 00"), hostRoute, allRoute)), 0, 2, "no address of a VTEP"},
		"next hop 0.0.0.0":            {with(2, pathAttribute(0x80, 14, unhex("0019 46 04 00000000 00"), hostRoute, allRoute)), 0, 2, "no address of a VTEP"},
		"next hop beyond the routes":  {with(2, pathAttribute(0x80, 14, unhex("0019 46 ff 0a000002 00"), hostRoute)), disabled, 0, "shorter than its next hop"},
		"MP_REACH without a next hop": {with(2, pathAttribute(0x80, 14, unhex("0019 46"))), disabled, 0, "shorter than its next hop"},
		"MP_REACH that is transitive": {with(2, pathAttribute(0xc0, 14, reachBegins, hostRoute)), 0, 1, "attribute 14 has the flags"},
		"MP_REACH twice":              {update(originIGP, pathOf65002, reachOf(hostRoute), reachOf(hostRoute), vxlanOf5001), session, 0, "attribute 14 twice"},
		"MP_UNREACH twice":            {update(unreachOf(hostRoute), unreachOf(hostRoute)), session, 0, "attribute 15 twice"},
		"communities of nine bytes":   {with(3, pathAttribute(0xc0, 16, unhex("0002 fdea 00001389 00"))), 0, 2, "attribute 16 is malformed"},
		"no communities in them":      {with(3, pathAttribute(0xc0, 16)), 0, 2, "attribute 16 is malformed"},
		"tunnel of 4 bytes":           {with(4, pathAttribute(0xc0, 22, unhex("00 06 0013"))), 0, 2, "attribute 22 is malformed"},
		"tunnel to 5 bytes":           {with(4, pathAttribute(0xc0, 22, unhex("00 06 001389 0a00000200"))), 0, 2, "attribute 22 is malformed"},
		"tunnel to nowhere":           {with(4, pathAttribute(0xc0, 22, unhex("00 06 001389 00000000"))), 0, 2, "attribute 22 is malformed"},
		"MED of 3 bytes":              {update(append(whole, pathAttribute(0x80, 4, unhex("000007")))...), 0, 2, "attribute 4 is malformed"},
		"an attribute cut":            {update(append(whole, unhex("c0 20 0c 00"))...), 0, 2, "longer than the list"},
		"an attribute of two bytes":   {update(append(whole, unhex("c0 20"))...), 0, 2, "longer than the list"},
		"LOCAL_PREF of another AS":    {update(append(whole, pathAttribute(0x40, 5, unhex("00")))...), 2, 0, ""},
		"ORIGIN twice":                {update(append(whole, pathAttribute(0x40, 1, []byte{9}))...), 2, 0, ""},
	} {
		u, err := readUpdate(t, test.body)
		got := fmt.Sprint(err)
		switch {
		case test.announced == disabled && !errors.As(err, new(unreadable)), test.announced == session && !errors.As(err, new(*fault)):
			t.Errorf("%s: the rest of the session is not affected as wanted: %+v, %v", name, u, err)
		case err != nil && test.announced >= 0:
			t.Errorf("%s: %v", name, err)
		case err == nil:
			got = u.problem
			if len(u.announced) != test.announced || len(u.withdrawn) != test.withdrawn || (u.malformed > 0) != (test.says != "") {
				t.Errorf("%s: %d routes are announced, %d withdrawn (malformed: %d, %s), want %d and %d", name, len(u.announced), len(u.withdrawn), u.malformed, u.problem, test.announced, test.withdrawn)
			}
		}
		if !strings.Contains(got, test.says) {
			t.Errorf("%s: %q, without %q", name, got, test.says)
		}
	}
}

// Cut at any byte, with all lengths around it as long as what is left, what a VTEP tells is no route.
func TestEVPNCutAnywhere(t *testing.T) {
	for name, route := range map[string][]byte{"host": hostRoute, "host without an IP address": macRoute, "host of IPv6": host6Route, "all": allRoute} {
		for cut := 2; cut < len(route); cut++ {
			short := append([]byte{}, route[:cut]...)
			short[1] = byte(cut - 2)
			u, err := readUpdate(t, update(originIGP, pathOf65002, reachOf(short), vxlanOf5001, tunnel5001))
			if err != nil || len(u.announced) > 0 || u.malformed != 1 {
				t.Errorf("%s, %d bytes of it, is read as %+v, %v", name, cut, u, err)
			}
			u, err = readUpdate(t, update(unreachOf(short)))
			if bare := cut == len(route)-3 && name != "all"; err != nil || u.malformed == 0 != bare { // without a label
				t.Errorf("%s, %d bytes of it, is withdrawn as %+v, %v", name, cut, u, err)
			}
		}
	}
	all := update(originIGP, pathOf65002, reachOf(hostRoute, allRoute), vxlanOf5001, tunnel5001)
	for cut := 4; cut < len(all); cut++ {
		short := append([]byte{}, all[:cut]...)
		short[2], short[3] = byte((cut-4)>>8), byte(cut-4)
		if u, err := readUpdate(t, short); err == nil && u != nil && len(u.announced) > 1 {
			t.Errorf("%d bytes of an UPDATE are read as %+v", cut, u)
		}
	}
}

// Whatever this director tells, it is read as it was meant, and no message is longer than BGP allows,
// with the most that may be said of a route.
func TestEVPNRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var most model.BGPAttributes
	for i := range uint32(64) {
		most.Communities = append(most.Communities, model.Community{Large: true, Parts: [3]uint32{1 << 31, i, i}})
	}
	med := uint32(5)
	most.MED, most.Prepend = &med, 16
	w := &want{asn: 4200000001, neighbor: model.BGPNeighbor{ASN: theirAS}}
	p := &peer{families: []model.BGPFamily{model.BGPEVPN}, old: true}
	told, has := map[evpnKey]string{}, map[evpnKey]string{}
	say := func(r evpnOwnRoute, hop netip.Addr, label, sequence uint32, targets []model.RouteTarget) string {
		return fmt.Sprint(hop, label, sequence, targets)
	}
	longest := 0
	for range 40 {
		w.neighbor.Attributes = [...]model.BGPAttributes{{}, most}[r.IntN(2)]
		w.phase = [...]phase{announced, announced, announced, marked, withdrawn}[r.IntN(5)]
		w.evpn = nil
		want := map[evpnKey]string{}
		for segment := range r.IntN(4) {
			common := evpnOwnRoute{vni: uint32(5000 + segment), vtep: vtep(1)}
			if segment == 2 {
				common.vtep = netip.MustParseAddr("2001:db8::1")
			}
			for i := range 1 + r.IntN(maxTargets) {
				common.targets = append(common.targets, model.NewRouteTarget(uint32(65000+1000*i), common.vni))
			}
			common.distinguisher = model.NewRouteDistinguisher(vtep(1), uint16(segment)).Bytes()
			all := common
			all.kind, all.ip = evpnMulticast, common.vtep
			w.evpn = append(w.evpn, all)
			for i := range r.IntN(300) {
				host := common
				host.kind, host.mac, host.sequence = evpnHost, mac(i/3), uint32(r.IntN(2))
				switch i % 3 {
				case 1:
					host.ip = netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
				case 2:
					host.ip = netip.AddrFrom16([16]byte{0x20, 1, 14: byte(i >> 8), 15: byte(i)})
				}
				w.evpn = append(w.evpn, host)
			}
		}
		if w.phase != withdrawn {
			for _, r := range w.evpn {
				want[r.evpnKey] = say(r, r.vtep, r.vni, r.sequence, r.targets)
			}
		}
		for _, m := range evpnChanges(w, p, told) {
			text, err := m.Serialize()
			if err != nil {
				t.Fatal(err)
			}
			longest = max(longest, len(text))
			u, err := readEVPN(text[19:], evpnContext{old: true})
			if err != nil || u.malformed > 0 {
				t.Fatalf("what is told is read as %+v, %v", u, err)
			}
			for _, key := range u.withdrawn {
				delete(has, key)
			}
			for _, r := range u.announced {
				label := r.label
				if r.kind == evpnMulticast {
					label = u.path.pmsi.label
				}
				has[r.evpnKey] = say(evpnOwnRoute{}, u.path.nextHop, label, u.path.sequence, u.path.targets)
			}
		}
		if !maps.Equal(has, want) {
			t.Fatalf("the neighbor has %d routes, want %d", len(has), len(want))
		}
		if again := evpnChanges(w, p, told); len(again) > 0 {
			t.Fatalf("told the same again, the neighbor gets %d messages", len(again))
		}
	}
	if longest > gobgp.BGP_MAX_MESSAGE_LENGTH || longest < gobgp.BGP_MAX_MESSAGE_LENGTH/2 {
		t.Errorf("the longest message has %d bytes", longest)
	}
}
