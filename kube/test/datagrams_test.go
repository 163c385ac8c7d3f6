package kube

import (
	"context"
	"net/netip"
	"testing"

	"weir.io/weir/kube/test/site"
)

// A Service with a port in TCP and one in UDP: datagrams reach every pod, too, in nat and in gue,
// and in both families. In gue pods see the client. A pod that has ended gets no more datagrams; in
// nat, neither does one that is told to end.
func TestDatagrams(t *testing.T) {
	s := newPodSite(t)
	ctx := t.Context()
	pods := startPods(t, s, "web", 3)
	end := map[string]func(){}
	for _, p := range pods {
		var err error
		if end[p.Name], err = p.AnswerDatagrams(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(end[p.Name])
	}
	vips := map[string][2]netip.Addr{
		"nat": {netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:1::10")},
		"gue": {netip.MustParseAddr("203.0.113.11"), netip.MustParseAddr("2001:db8:1::11")},
	}
	for mode, at := range vips {
		if _, err := s.MakeService(ctx, mode, "web", at[0], inMode(mode), inBoth(at[0], at[1]), site.ByEdge, site.WithDatagrams); err != nil {
			t.Fatal(err)
		}
		for _, vip := range at {
			seen := answered(t, pods, func(ctx context.Context) site.Answer { return s.AskDatagram(ctx, vip) })
			own := site.Client
			if vip.Is6() {
				own = site.Client6
			}
			if mode == "gue" && (len(seen) != 1 || seen[own] == 0) {
				t.Errorf("at %s in gue pods see %v for the client %s", vip, seen, own)
			}
			if mode == "nat" && seen[own] > 0 {
				t.Errorf("at %s in full NAT pods see %v, and the client is one of them", vip, seen)
			}
			answered(t, pods, func(ctx context.Context) site.Answer { return s.Ask(ctx, vip) })
		}
	}

	// In full NAT a pod that is told to end gets no datagrams of new clients. In gue it may until
	// it ends: a datagram does not tell whether it begins a flow, so it may belong to an old one.
	ending := pods[0]
	quiet := func(mode string) {
		t.Helper()
		for _, vip := range vips[mode] {
			in := 0
			waitFor(t, "50 answers in a row that are not of "+ending.Name+", in "+mode, func() bool {
				if a := s.AskDatagram(ctx, vip); a.Err != nil || a.Pod == ending.Name {
					in = 0
				} else {
					in++
				}
				return in == 50
			})
		}
	}
	if _, err := ending.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	quiet("nat")
	end[ending.Name]()
	if err := ending.End(ctx); err != nil {
		t.Fatal(err)
	}
	quiet("gue")
	for _, at := range vips {
		answered(t, pods[1:], func(ctx context.Context) site.Answer { return s.AskDatagram(ctx, at[0]) })
	}
}
