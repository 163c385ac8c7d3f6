package kube

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir.io/weir/kube/test/site"
	"weir.io/weir/lab/netlab"
)

// newSite builds the lab with a whole cluster's network.
func newSite(t *testing.T) *site.Site {
	t.Helper()
	needs(t, map[string]string{"kube-apiserver in $WEIR_KUBE_APISERVER": apiserver, "kube-controller-manager in $WEIR_KUBE_CONTROLLER_MANAGER": controllers})
	s, err := site.New(t.Context(), netlab.ForTest(t), site.Options{
		Programs:    site.Programs{APIServer: apiserver, Controllers: controllers, Weir: weir, WeirKube: weirKube},
		Definitions: "../chart/crds", Directors: 2, Nodes: 2, Slots: 6, OwnNotice: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.Logs())
		}
	})
	return s
}

// startPods makes ready pods, in turns on the nodes.
func startPods(t *testing.T, s *site.Site, app string, n int) (pods []*site.Pod) {
	t.Helper()
	for i := range n {
		p, err := s.StartPod(t.Context(), s.Nodes[i%len(s.Nodes)], app)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		pods = append(pods, p)
	}
	return pods
}

// A Service is announced to a real router by every director, and each pod answers clients outside,
// by each of them. A pod that becomes ready gets connections, and one that is told to end gets no
// new ones and keeps those that it has.
func TestSite(t *testing.T) {
	s := newSite(t)
	ctx := t.Context()
	pods := startPods(t, s, "web", 3)
	late, err := s.StartPod(ctx, s.Nodes[0], "web")
	if err != nil {
		t.Fatal(err)
	}
	vip := netip.MustParseAddr("203.0.113.7")
	if _, err := s.MakeService(ctx, "web", "web", vip); err != nil {
		t.Fatal(err)
	}
	if err := s.HasAddress(ctx, "web", vip); err != nil {
		t.Fatal(err)
	}
	var directors []netip.Addr
	for _, d := range s.Directors {
		directors = append(directors, d.Address)
	}
	waitFor(t, "the router to send to both directors", func() bool {
		hops, err := s.NextHops(vip)
		return err == nil && slices.Equal(hops, directors)
	})
	requests := site.Request(ctx, 10*time.Millisecond, func(ctx context.Context) site.Answer { return s.Ask(ctx, vip) })
	defer requests.Close()
	for _, p := range pods {
		if _, _, err := requests.Served(ctx, p.Name, len(s.Directors)); err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range requests.Since(time.Time{}) {
		if known := slices.ContainsFunc(s.Directors, func(d *site.Director) bool { return d.SNAT == a.Seen }); a.Err == nil && !known {
			t.Errorf("%s has seen %s, which is no director's address", a.Pod, a.Seen)
		}
		if a.Pod == late.Name {
			t.Errorf("%s got a request before it was ready", late.Name)
		}
	}

	// The late pod becomes ready: both directors send it requests.
	if _, err := late.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	if _, _, err := requests.Served(ctx, late.Name, len(s.Directors)); err != nil {
		t.Fatal(err)
	}

	// The late pod is told to end: it answers the requests that it has, and gets no new ones.
	asked := make(chan site.Answer, 64)
	for range cap(asked) {
		go func() { asked <- s.AskLong(ctx, vip) }()
	}
	waitFor(t, "long answers to be under way", func() bool {
		connections := late.Connections()
		for _, p := range pods {
			connections += p.Connections()
		}
		return connections >= cap(asked)
	})
	told, err := late.Delete(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := requests.Quiet(ctx, late.Name, told, time.Second); err != nil {
		t.Fatal(err)
	}
	if err := late.End(ctx); err != nil {
		t.Fatal(err)
	}
	answered := 0
	for range cap(asked) {
		a := <-asked
		if a.Err != nil {
			t.Errorf("a long answer that began before %s was told to end: %v", late.Name, a.Err)
		}
		if a.Pod == late.Name {
			answered++
		}
	}
	if answered == 0 {
		t.Errorf("no long answer is of %s", late.Name)
	}
	requests.Close()
	if failed := requests.Failures(time.Time{}); len(failed) > 0 {
		t.Errorf("%d requests failed: %v", len(failed), failed)
	}
}
