package bgp

import (
	"testing"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/memlab"
)

// FuzzEVPN: whatever a neighbor tells of EVPN, what is kept of it are routes that could be told, in no
// more memory than its bytes allow, and a choice can be made among them.
func FuzzEVPN(f *testing.F) {
	f.Add(update(originIGP, pathOf65002, reachOf(hostRoute, macRoute, host6Route, allRoute), vxlanOf5001, tunnel5001), false)
	f.Add(update(originIGP, reachOf(unhex("63 02 abcd"), hostRoute), vxlanOf5001), true)
	f.Add(update(unreachOf(hostRoute, allRoute)), false)
	f.Add(update(unreachOf()), true)
	f.Add(update(pathAttribute(0xc0, 16, unhex("0600 0100 00000007 0600 0000 ffffffff"))), false)
	config := &model.EVPN{Segments: []model.EVPNSegment{{VNI: 5001, VTEP: vtep(1), Entries: []model.EVPNEntry{{MAC: mac(1)}}},
		{VNI: 5002, VTEP: vtep(1), Import: []model.RouteTarget{model.NewRouteTarget(65002, 5001)}}}}
	f.Fuzz(func(t *testing.T, body []byte, old bool) {
		if len(body) > gobgp.BGP_MAX_MESSAGE_LENGTH-gobgp.BGP_HEADER_LENGTH || len(body) < 4 || violation(message{gobgp.BGP_MSG_UPDATE, body}) != nil {
			return // it ends the session
		}
		in := evpnContext{internal: old, old: old}
		var u *evpnUpdate
		var err error
		memlab.Bound{PerByte: 100, AtLeast: 1 << 20}.Check(t, len(body), func() { u, err = readEVPN(body, in) })
		if err != nil || u == nil {
			return
		}
		table := newEVPNTable()
		table.limit = 8
		table.set(importsOf(config, vtep(9)))
		feed := table.begin(evpnPeer{name: "a", refreshes: true})
		feed.apply(u)
		feed.apply(u)
		own := &evpnOwn{places: map[evpnPlace]bool{{5001, mac(1)}: true}}
		learned := table.choose(own).learned
		if kept := table.status("a").Received; kept > table.limit || kept > len(u.announced) {
			t.Fatalf("%d routes are kept of %d", kept, len(u.announced))
		}
		for _, h := range learned.Hosts {
			if h.MAC.IsZero() || h.MAC[0]&1 != 0 || !canBeVTEP(h.VTEP) || h.VTEP == vtep(1) || h.Label == 0 || h.IP.IsValid() && h.IP.IsMulticast() {
				t.Fatalf("a host is learned that cannot be: %+v", h)
			}
		}
		for _, v := range learned.VTEPs {
			if !canBeVTEP(v.VTEP) || v.VTEP == vtep(1) {
				t.Fatalf("a VTEP is learned that cannot be: %+v", v)
			}
		}
		feed.finish(0)
		if left := table.choose(own); len(left.learned.Hosts)+len(left.learned.VTEPs) > 0 || left.learned.Complete {
			t.Fatalf("without the session there are still %+v", left.learned)
		}
	})
}
