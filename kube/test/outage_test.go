package kube

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"weir.io/weir/kube/test/site"
)

// outage is how long the API server is away.
const outage = time.Minute

// load is the requests to a Service while the API server is away.
type load struct {
	name        string
	vip         netip.Addr
	short, long *site.Requests
	held        chan site.Answer
}

// For a minute the cluster has no API server and no etcd, under load: short requests, long answers,
// and some that begin before that minute and end after it. Nothing fails: in nat by directors of
// their own, in nat and gue by a DirectorGroup, whose sidecars and agents' sidecars cannot reach an
// API server. Nothing fails either when all is back, and later changes are followed.
func TestOutage(t *testing.T) {
	s := newPodSiteOf(t, site.Options{Slots: 4, Directors: 2})
	ctx := t.Context()
	pods := startPods(t, s, "web", 4)
	loads := []*load{{name: "own", vip: netip.MustParseAddr("203.0.113.7")}, {name: "nat", vip: netip.MustParseAddr("203.0.113.8")}, {name: "gue", vip: netip.MustParseAddr("203.0.113.9")}}
	for _, l := range loads {
		how := map[string][]func(*corev1.Service){"nat": {site.ByEdge}, "gue": {inMode("gue"), site.ByEdge}}[l.name]
		if _, err := s.MakeService(ctx, l.name, "web", l.vip, how...); err != nil {
			t.Fatal(err)
		}
		if err := s.HasAddress(ctx, l.name, l.vip); err != nil {
			t.Fatal(err)
		}
		answered(t, pods, func(ctx context.Context) site.Answer { return s.Ask(ctx, l.vip) })
	}
	for _, l := range loads {
		l.held = make(chan site.Answer, 16)
		for range cap(l.held) {
			go func() { l.held <- s.AskHeld(ctx, l.vip) }()
		}
	}
	connections := func() (n int) {
		for _, p := range pods {
			n += p.Connections()
		}
		return n
	}
	waitFor(t, "answers to be under way that outlive the outage", func() bool { return connections() >= len(loads)*cap(loads[0].held) })
	for _, l := range loads {
		l.short = site.Request(ctx, 20*time.Millisecond, func(ctx context.Context) site.Answer { return s.Ask(ctx, l.vip) })
		l.long = site.Request(ctx, 200*time.Millisecond, func(ctx context.Context) site.Answer { return s.AskLong(ctx, l.vip) })
	}

	if err := s.StopServer(); err != nil {
		t.Fatal(err)
	}
	if err := s.StopStore(); err != nil {
		t.Fatal(err)
	}
	away := time.Now()
	if err := s.Ready(); err == nil {
		t.Error("the API server answers, which is to be away")
	}
	select {
	case <-time.After(outage): // what the test is about
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	}
	if err := s.StartStore(); err != nil {
		t.Fatal(err)
	}
	if err := s.StartServer(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the API server to be back", func() bool { return s.Ready() == nil })
	back := time.Now()

	late := startPods(t, s, "web", 1)
	var all sync.WaitGroup
	for _, l := range loads {
		// Clients of the API server have waited longer and longer between two attempts.
		answeredWithin(t, 3*patience, late, func(ctx context.Context) site.Answer { return s.Ask(ctx, l.vip) })
	}
	t.Logf("a pod that was made when the API server was back has answered everywhere after %v", time.Since(back).Round(time.Second))
	for _, l := range loads {
		all.Go(func() { l.end(t, away, back) })
	}
	all.Wait()
}

// end checks and logs what became of the load.
func (l *load) end(t *testing.T, away, back time.Time) {
	l.short.Close()
	l.long.Close()
	within := 0
	for _, a := range l.short.Since(away) {
		if a.Began.Before(back) {
			within++
		}
	}
	failed := append(l.short.Failures(time.Time{}), l.long.Failures(time.Time{})...)
	if len(failed) > 0 {
		t.Errorf("%s: %d requests failed: %v", l.name, len(failed), failed[:min(len(failed), 20)])
	}
	if within == 0 {
		t.Errorf("%s: no request was made while the API server was away", l.name)
	}
	broken := 0
	for range cap(l.held) {
		a := <-l.held
		if end := a.Began.Add(a.Took); a.Err != nil {
			broken++
			t.Errorf("%s: an answer that began before the API server went, after %v: %v", l.name, a.Took, a.Err)
		} else if end.Before(away.Add(outage)) {
			t.Errorf("%s: an answer took %v, and ended before the outage did", l.name, a.Took)
		}
	}
	t.Logf("%s: %d requests, %d of them in the %v without an API server, and %d long ones, of which %d failed; of %d that began before and ended after it %d broke",
		l.name, len(l.short.Since(time.Time{})), within, back.Sub(away).Round(time.Second), len(l.long.Since(time.Time{})), len(failed), cap(l.held), broken)
}
