package bgp

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"weir.io/weir/internal/model"
)

type netipAddr = netip.Addr

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// Whatever routes come and go, what the messages leave a neighbor with is what is wanted,
// and no message is longer than BGP allows, with the most that may be said of a route.
func TestChanges(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 1))
	var most model.BGPAttributes
	for i := range uint32(64) {
		most.Communities = append(most.Communities, model.Community{Large: true, Parts: [3]uint32{1 << 31, i, i}})
	}
	med := uint32(5)
	most.MED, most.Prepend = &med, 16
	w := &want{asn: ourAS, neighbor: model.BGPNeighbor{ASN: theirAS, Address: loopback}}
	p := &peer{families: []model.BGPFamily{model.BGPIPv4, model.BGPIPv6}}
	local := netip.MustParseAddr("2001:db8::1") // IPv4 routes, too, with an IPv6 next hop
	told, has := map[netip.Prefix]string{}, map[string]bool{}
	longest := 0
	for range 60 {
		w.neighbor.NextHop = nil
		if r.IntN(2) == 0 {
			w.neighbor.NextHop = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		}
		w.neighbor.Attributes = [...]model.BGPAttributes{{}, most}[r.IntN(2)]
		w.phase = [...]phase{announced, announced, announced, marked, withdrawn}[r.IntN(5)]
		w.routes = nil
		for i := range r.IntN(3000) {
			if r.IntN(2) == 0 {
				w.routes = append(w.routes, model.Route{Prefix: prefix(fmt.Sprintf("10.1.%d.%d/32", i/256, i%256))})
			} else {
				w.routes = append(w.routes, model.Route{Prefix: prefix(fmt.Sprintf("2001:db8:1::%x/128", i))})
			}
		}
		now := advertisements(w, p, local)
		for _, m := range changes(w, p, told, now) {
			text, err := m.Serialize()
			if err != nil {
				t.Fatal(err)
			}
			longest = max(longest, len(text))
			apply(t, has, message{gobgp.BGP_MSG_UPDATE, text[19:]})
		}
		want := map[string]bool{}
		if w.phase != withdrawn {
			for _, route := range w.routes {
				want[route.Prefix.String()] = true
			}
		}
		if !maps.Equal(has, want) {
			t.Fatalf("the neighbor has %d routes, want %d", len(has), len(want))
		}
		if again := changes(w, p, told, advertisements(w, p, local)); len(again) > 0 {
			t.Fatalf("told the same again, the neighbor gets %d messages", len(again))
		}
	}
	if longest > gobgp.BGP_MAX_MESSAGE_LENGTH || longest < gobgp.BGP_MAX_MESSAGE_LENGTH/2 {
		t.Errorf("the longest message has %d bytes", longest)
	}
}

// A prefix's attributes come before the neighbor's, and what one kind of session does not
// have is left out.
func TestAttributes(t *testing.T) {
	number := func(n uint32) *uint32 { return &n }
	community := func(n uint32) model.Community { return model.Community{Parts: [3]uint32{65001, n}} }
	neighbor := model.BGPAttributes{Communities: []model.Community{community(2), community(1)}, LocalPref: number(200), MED: number(1), Prepend: 3}
	route := model.Route{Attributes: model.BGPAttributes{Communities: []model.Community{community(2)}, MED: number(0), LocalPref: number(7)}}
	for name, test := range map[string]struct {
		asn   uint32
		phase phase
		want  string
	}{
		"another AS":             {theirAS, announced, "[65001:1 65001:2] <nil> 0 3"},
		"the same AS":            {ourAS, announced, "[65001:1 65001:2] 7 0 0"},
		"another AS, marked":     {theirAS, marked, "[65001:1 65001:2 graceful-shutdown] <nil> 0 3"},
		"the same AS, marked":    {ourAS, marked, "[65001:1 65001:2 graceful-shutdown] 0 0 0"},
		"the same AS by default": {ourAS, announced, "[] 100 <nil> 0"},
		"another AS, backup":     {theirAS, announced, "[65001:1 65001:2] <nil> 0 17"},
		"the same AS, backup":    {ourAS, announced, "[65001:1 65001:2] 0 0 0"},
		"by default, backup":     {ourAS, announced, "[] 0 <nil> 0"},
		"marked, backup":         {ourAS, marked, "[65001:1 65001:2 graceful-shutdown] 0 0 0"},
	} {
		w := &want{asn: ourAS, phase: test.phase, neighbor: model.BGPNeighbor{ASN: test.asn, Attributes: neighbor}}
		of := route
		if strings.Contains(name, "by default") {
			w.neighbor.Attributes, of = model.BGPAttributes{}, model.Route{}
		}
		of.Backup = strings.HasSuffix(name, "backup")
		a := attributes(w, &of)
		show := func(n *uint32) string {
			if n == nil {
				return "<nil>"
			}
			return fmt.Sprint(*n)
		}
		if got := fmt.Sprintf("%v %s %s %d", a.Communities, show(a.LocalPref), show(a.MED), a.Prepend); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}
