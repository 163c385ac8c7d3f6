package kube

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"weir.io/weir/kube/test/site"
)

// While all pods of a Service are replaced, no request fails and no long answer breaks.
func TestRollingUpdate(t *testing.T) { rolls(t, newSite(t), true) }

// The same in gue, straight to pods.
func TestRollingUpdateInGUE(t *testing.T) {
	rolls(t, newPodSiteOf(t, site.Options{Slots: 6}), true, inMode("gue"), site.ByEdge)
}

// In ipip there is no second chance, by which an open connection finds its pod: there are only
// short requests.
func TestRollingUpdateInIPIP(t *testing.T) {
	rolls(t, newPodSiteOf(t, site.Options{Slots: 6}), false, inMode("ipip"), site.ByEdge)
}

// rolls replaces all pods of a Service during short and long requests.
func rolls(t *testing.T, s *site.Site, alsoLong bool, how ...func(*corev1.Service)) {
	t.Helper()
	ctx := t.Context()
	pods := startPods(t, s, "web", 4)
	vip := netip.MustParseAddr("203.0.113.7")
	if _, err := s.MakeService(ctx, "web", "web", vip, how...); err != nil {
		t.Fatal(err)
	}
	if err := s.HasAddress(ctx, "web", vip); err != nil {
		t.Fatal(err)
	}
	answered(t, pods, func(ctx context.Context) site.Answer { return s.Ask(ctx, vip) })
	ask := s.Ask
	if alsoLong {
		ask = s.AskLong
	}
	short := site.Request(ctx, 10*time.Millisecond, func(ctx context.Context) site.Answer { return s.Ask(ctx, vip) })
	long := site.Request(ctx, 100*time.Millisecond, func(ctx context.Context) site.Answer { return ask(ctx, vip) })
	var after []*site.Pod
	rolled, err := site.Loaded(ctx, short, long, func() (err error) {
		after, err = s.Roll(ctx, "web", pods, 3*time.Second)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d of %d requests failed, and %d of %d that may be long", rolled.Failed, rolled.Made, rolled.Broken, rolled.Long)
	if rolled.Failed > 0 || rolled.Broken > 0 {
		t.Errorf("%d of %d requests failed, and %d of %d long answers: %v", rolled.Failed, rolled.Made, rolled.Broken, rolled.Long, rolled.Stories)
	}
	if rolled.Made == 0 || rolled.Long == 0 {
		t.Errorf("%d requests were made, and %d long ones", rolled.Made, rolled.Long)
	}
	answers := map[string]bool{}
	waitFor(t, "the new pods to answer", func() bool {
		answers[s.Ask(ctx, vip).Pod] = true
		return !slices.ContainsFunc(after, func(p *site.Pod) bool { return !answers[p.Name] })
	})
	for _, p := range pods {
		if answers[p.Name] {
			t.Errorf("%s answers, which was replaced", p.Name)
		}
	}
}
