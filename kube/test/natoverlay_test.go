package kube

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/kube/test/site"
)

// Full NAT needs no agents, and this site has none. The directors' kernels send to pods through the
// VXLAN, into which XDP cannot send, and replies come by the nodes' network. Every pod answers in
// both families, in large transfers, too, and sees a director, or, in a director's own network, the
// client. While one pod replaces another, no request fails, and no long answer breaks.
func TestNATBehindAnOverlay(t *testing.T) {
	s := newPodSiteOf(t, site.Options{Slots: 3, Overlay: true}, "node1", "node2", "edge1", "edge2")
	ctx := t.Context()
	pods := startPods(t, s, "web", 4)
	onEdge, err := s.StartHostPod(ctx, s.Edges[0].Node, "web", 8090)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := onEdge.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	own := startPodOn(t, s, s.Edges[0].Node, "web") // it answers its node by its own interface
	all := append(slices.Clone(pods), own, onEdge)
	vip, vip6 := netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:1::10")
	if _, err := s.MakeService(ctx, "nat", "web", vip, inMode("nat"), inBoth(vip, vip6), site.ByEdge); err != nil {
		t.Fatal(err)
	}
	before := 0
	for _, e := range s.Edges {
		before -= overlaid(t, e.Node)
	}
	for _, at := range []netip.Addr{vip, vip6} {
		var directors []netip.Addr
		for _, e := range s.Edges {
			directors = append(directors, map[bool]netip.Addr{false: e.Address, true: e.Address6}[at.Is6()])
		}
		answered(t, all, func(ctx context.Context) site.Answer { return s.Ask(ctx, at) })
		client := false
		waitFor(t, "the pod in a director's own network to see the client", func() bool {
			a := s.Ask(ctx, at)
			ofClient := a.Pod == onEdge.Name && a.Seen == clientIn(at)
			if a.Err != nil || !ofClient && !slices.Contains(directors, a.Seen) {
				t.Errorf("asked at %s, %s answers %+v, and the directors are %v", at, a.Pod, a, directors)
			}
			client = client || ofClient
			return client
		})
	}
	counted := countSizes(t, s) // the router may have reported earlier that it had no route
	for _, at := range []netip.Addr{vip, vip6} {
		transfers(t, s, all, at)
	}
	nothingTooLarge(t, s, counted, "forward_nat")
	through := before
	for _, e := range s.Edges {
		through += overlaid(t, e.Node)
	}
	// Each pod of a node has had a large request in both families, in packets that the kernel
	// merges.
	if least := 2 * len(pods) * site.LargeSize >> 16; through < least {
		t.Errorf("directors have sent %d packets through the VXLAN, want %d at least", through, least)
	}
	reachedByKernel(t, s, pods)
	if said := eventsOf(t, s.Cluster, "nat"); strings.Contains(said, "NoWay") || strings.Contains(said, "NoAgent") {
		t.Errorf("of pods that full NAT reaches events say\n%s", said)
	}

	short := site.Request(ctx, 10*time.Millisecond, func(ctx context.Context) site.Answer { return s.Ask(ctx, vip) })
	long := site.Request(ctx, 100*time.Millisecond, func(ctx context.Context) site.Answer { return s.AskLong(ctx, vip6) })
	rolled, err := site.Loaded(ctx, short, long, func() error {
		_, err := s.Roll(ctx, "web", pods[:1], 3*time.Second)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d of %d requests failed, and %d of %d long answers", rolled.Failed, rolled.Made, rolled.Broken, rolled.Long)
	if rolled.Failed > 0 || rolled.Broken > 0 || rolled.Made == 0 || rolled.Long == 0 {
		t.Errorf("%d of %d requests failed, and %d of %d long answers: %v", rolled.Failed, rolled.Made, rolled.Broken, rolled.Long, rolled.Stories)
	}
}

// reachedByKernel checks that directors report pods on nodes as reached by the kernel.
func reachedByKernel(t *testing.T, s *site.Site, pods []*site.Pod) {
	t.Helper()
	for _, e := range s.Edges {
		backends, err := api.NewClient(e.Socket()).Backends(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, b := range backends {
			if !slices.ContainsFunc(pods, func(p *site.Pod) bool { return p.Address == b.Address || p.Address6 == b.Address }) {
				continue
			}
			if found++; !b.ByKernel || b.Interface != "flannel.1" || !b.NextHop.IsZero() {
				t.Errorf("%s says of %s that it is reached by %q, by the kernel: %t, at %s", e.Name, b.Name, b.Interface, b.ByKernel, b.NextHop)
			}
		}
		if found != 2*len(pods) {
			t.Errorf("%s knows %d backends of %d pods in both families", e.Name, found, len(pods))
		}
	}
}
