package group

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/etcdlab"
)

// The other directors read each change of what a director says about itself, and it
// disappears some time after the process.
func TestRunsAreRead(t *testing.T) {
	c := newCluster(t, false)
	director, other := c.open(), c.open()
	one, two := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("2001:db8::2")
	var revision atomic.Uint64
	ctx, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		director.KeepRun(ctx, []netip.Addr{one, two}, func() (model.DirectorRun, Settings) {
			return model.DirectorRun{Version: "v1", Revision: revision.Load()}, Settings{}
		})
	}()
	says := func(want string) {
		t.Helper()
		etcdlab.Eventually(t, "what directors run is read", func() error {
			runs, err := other.Runs(t.Context())
			if err != nil {
				return err
			}
			got := ""
			for _, r := range runs {
				got += fmt.Sprintf("%v runs %d by %s; ", r.Address, r.Revision, r.Version)
			}
			if got != want {
				return fmt.Errorf("it is read that %q, want %q", got, want)
			}
			return nil
		})
	}
	says("10.0.0.2 runs 0 by v1; 2001:db8::2 runs 0 by v1; ")
	revision.Store(7)
	says("10.0.0.2 runs 7 by v1; 2001:db8::2 runs 7 by v1; ")
	c.endLease(livesFor)
	revision.Store(8)
	says("10.0.0.2 runs 8 by v1; 2001:db8::2 runs 8 by v1; ")
	end()
	<-done
	c.endLease(livesFor)
	says("")
}

// TestProblemsEndWithTheirRun: a director without an address in the group compares nothing with the
// others, so what it has listed ends.
func TestProblemsEndWithTheirRun(t *testing.T) {
	c := newCluster(t, false)
	for _, test := range []struct {
		name  string
		parts []string
		keep  func(e *Group, ctx context.Context)
	}{
		{"KeepRun", []string{partClocks, partSettings}, func(e *Group, ctx context.Context) {
			e.KeepRun(ctx, nil, func() (model.DirectorRun, Settings) { return model.DirectorRun{}, Settings{} })
		}},
		{"KeepFingerprint", []string{partFlows, partNamesake}, func(e *Group, ctx context.Context) { e.KeepFingerprint(ctx, nil, "abc") }},
	} {
		e, listed := c.open(), &listed{}
		e.client.Warn = listed.warn
		for _, part := range test.parts {
			listed.warn(model.ProblemGroup, part, errors.New("as found before"))
		}
		ctx, end := context.WithCancel(t.Context())
		end()
		test.keep(e, ctx)
		if err := listed.none(); err != nil {
			t.Errorf("after %s has ended: %v", test.name, err)
		}
	}
}
