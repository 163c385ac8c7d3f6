package kube

import (
	"context"
	"net/netip"
	"testing"

	"weir.io/weir/kube/test/site"
)

// Pods are behind a VXLAN, and their nodes drop packets that come by it from sources that are not
// routed there (rp_filter), as on some distributions. In nat directors send from their addresses in
// the VXLAN, and receive the replies there, which are super-packets: requests and answers of some
// megabytes get through in both families, and no node needs an agent.
func TestNATBackByAnOverlay(t *testing.T) {
	s := newPodSiteOf(t, site.Options{Slots: 3, Overlay: true, OverlayBack: true}, "node1", "node2", "edge1", "edge2")
	ctx := t.Context()
	pods := append(startPods(t, s, "web", 4), startPodOn(t, s, s.Edges[0].Node, "web"))
	vip, vip6 := netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:1::10")
	if _, err := s.MakeService(ctx, "nat", "web", vip, inMode("nat"), inBoth(vip, vip6), site.ByEdge); err != nil {
		t.Fatal(err)
	}
	own := map[netip.Addr]bool{}
	for _, e := range s.Edges {
		own[e.OverlayAddress()], own[e.OverlayAddress6()] = true, true
	}
	for _, at := range []netip.Addr{vip, vip6} {
		answered(t, pods, func(ctx context.Context) site.Answer { return s.Ask(ctx, at) })
		seen := transfers(t, s, pods, at)
		for who := range seen {
			if !own[who] {
				t.Errorf("in large transfers at %s pods see %v, which is not where the directors are in the overlay", at, seen)
			}
		}
	}
	before := overlaid(t, s.Nodes[0])
	answered(t, pods, func(ctx context.Context) site.Answer { return s.Ask(ctx, vip) })
	if overlaid(t, s.Nodes[0]) == before {
		t.Error("pods do not answer through the VXLAN")
	}
}
