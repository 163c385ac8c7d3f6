package kube

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"weir.io/weir/internal/api"
	"weir.io/weir/kube/test/site"
)

// Pods are behind a VXLAN, which leaves them 1450 bytes of the links' 1500, and the DirectorGroup
// does not mention that. In gue packets go to pods by their nodes, not through the VXLAN: requests
// and answers of some megabytes get through in both families, pods see the client, no host gets an
// error about a packet that was too large, and none fragments one.
func TestPodsBehindAnOverlay(t *testing.T) {
	s := newPodSiteOf(t, site.Options{Slots: 3, Overlay: true})
	ctx := t.Context()
	pods := startPods(t, s, "web", 4)
	pods = append(pods, startPodOn(t, s, s.Edges[0].Node, "web"))
	vip, vip6 := netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:1::10")
	if _, err := s.MakeService(ctx, "gue", "web", vip, inMode("gue"), inBoth(vip, vip6), site.ByEdge); err != nil {
		t.Fatal(err)
	}

	// Packets between pods of two nodes go through the VXLAN.
	caller := startPodOn(t, s, s.Nodes[0], "caller")
	before := overlaid(t, s.Nodes[0])
	if a := caller.Call(ctx, pods[1]); a.Err != nil || a.Pod != pods[1].Name || a.Seen != caller.Address {
		t.Errorf("a pod of another node answers %+v", a)
	}
	if overlaid(t, s.Nodes[0]) == before {
		t.Error("pods of two nodes do not reach each other through the VXLAN")
	}
	before = 0
	for _, e := range s.Edges {
		before += overlaid(t, e.Node)
	}

	for _, at := range []netip.Addr{vip, vip6} {
		answered(t, pods, func(ctx context.Context) site.Answer { return s.Ask(ctx, at) })
	}
	counted := countSizes(t, s) // the router may have reported earlier that it had no route
	for _, at := range []netip.Addr{vip, vip6} {
		if seen := transfers(t, s, pods, at); len(seen) != 1 || seen[clientIn(at)] == 0 {
			t.Errorf("in large transfers at %s pods see %v for the client %s", at, seen, clientIn(at))
		}
	}
	for _, e := range s.Edges {
		before -= overlaid(t, e.Node)
	}
	if through := -before; through > site.LargeSize/site.OverlayMTU/10 { // the sidecars look for routes to pods
		t.Errorf("directors have sent %d packets through the VXLAN", through)
	}
	nothingTooLarge(t, s, counted, "forward_gue")
}

// clientIn is the client's address of an address' family.
func clientIn(at netip.Addr) netip.Addr {
	if at.Is6() {
		return site.Client6
	}
	return site.Client
}

// transfers makes large requests, and requests for large answers, until each pod has had one of
// both, and returns the clients that pods have seen.
func transfers(t *testing.T, s *site.Site, pods []*site.Pod, at netip.Addr) map[netip.Addr]int {
	t.Helper()
	// When another director comes, the router may send it the packets of an open full NAT
	// connection.
	waitFor(t, "the router to send to all directors", func() bool {
		hops, err := s.NextHops(at)
		return err == nil && len(hops) == len(s.Edges)
	})
	all := map[netip.Addr]int{}
	for what, ask := range map[string]func(context.Context, netip.Addr) site.Answer{"answers": s.AskLarge, "requests": s.SendLarge} {
		for who, n := range answered(t, pods, func(ctx context.Context) site.Answer {
			a := ask(ctx, at)
			if a.Err != nil {
				t.Errorf("of large %s at %s one failed after %v: %v\n%s", what, at, a.Took, a.Err, reasonsOf(t, s))
			}
			return a
		}) {
			all[who] += n
		}
	}
	return all
}

// reasonsOf are the directors' counters.
func reasonsOf(t *testing.T, s *site.Site) string {
	t.Helper()
	var text strings.Builder
	for _, e := range s.Edges {
		status, err := api.NewClient(e.Socket()).Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, "%s: %v\n", e.Name, status.Reasons)
	}
	return text.String()
}

// overlaid is how many packets a node has sent through the VXLAN.
func overlaid(t *testing.T, n *site.Node) int {
	t.Helper()
	sent, err := n.Overlaid(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return int(sent)
}

// startPodOn makes a ready pod on a node.
func startPodOn(t *testing.T, s *site.Site, n *site.Node, app string) *site.Pod {
	t.Helper()
	p, err := s.StartPod(t.Context(), n, app)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

// countSizes returns kernels' counters of packets that do not fit: packets that were fragmented, or
// reassembled, and errors about them.
func countSizes(t *testing.T, s *site.Site) map[string]int {
	t.Helper()
	hosts := map[string]func(context.Context, string) (int, error){"the client": s.ClientCount}
	for _, n := range s.AllNodes() {
		hosts[n.Name] = n.Count
	}
	counted := map[string]int{}
	for who, count := range hosts {
		for _, what := range []string{"Ip FragCreates", "Ip FragFails", "Ip ReasmReqds", "Icmp InDestUnreachs"} {
			n, err := count(t.Context(), what)
			if err != nil {
				t.Fatal(err)
			}
			counted[who+" of "+what] = n
		}
	}
	return counted
}

// nothingTooLarge checks that every packet fit: directors have dropped and answered none as too
// large, and since the count no host has fragmented or reassembled one, or got an error about one.
func nothingTooLarge(t *testing.T, s *site.Site, counted map[string]int, reason string) {
	t.Helper()
	for _, e := range s.Edges {
		status, err := api.NewClient(e.Socket()).Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		forwarded := false
		for _, c := range status.Reasons {
			forwarded = forwarded || c.Name == reason && c.Packets > 0
			if (strings.Contains(c.Name, "too_big") || c.Name == "drop_super_frame" || strings.Contains(c.Name, "fragment")) && c.Packets > 0 {
				t.Errorf("%s counts %d packets %s", e.Name, c.Packets, c.Name)
			}
		}
		if !forwarded {
			t.Errorf("%s counts nothing as %s: %v", e.Name, reason, status.Reasons)
		}
	}
	for what, n := range countSizes(t, s) {
		if more := n - counted[what]; more > 0 {
			t.Errorf("%s: %d more", what, more)
		}
	}
}

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
