package group

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/etcdlab"
)

// TestClocksAreCompared: a director whose clock is hours off takes generations out of all directors'
// logs, so the others say so.
func TestClocksAreCompared(t *testing.T) {
	t.Parallel()
	own, other := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	now := time.Now()
	for _, test := range []struct {
		name  string
		ahead []time.Duration // of the other's writings, each renewFingerprint after the one before
		want  string
	}{
		{"the same", []time.Duration{0, 0, 0, 0}, ""},
		{"read late", []time.Duration{0, -renewFingerprint, -renewFingerprint, -renewFingerprint}, ""},
		{"written long ago", []time.Duration{-time.Hour}, ""},
		{"late once", []time.Duration{0, 0, -time.Hour, 0}, ""},
		{"hours ahead", []time.Duration{0, 3 * time.Hour, 3 * time.Hour}, "10.0.0.3 is 3h0m0s ahead"},
		{"hours behind", []time.Duration{0, -3 * time.Hour, -3*time.Hour - 2*time.Second}, "10.0.0.3 is 3h0m0s behind"},
		{"ahead by little", []time.Duration{0, mostApart + time.Second, mostApart + time.Second}, "10.0.0.3 is 11s ahead"},
		{"ahead by less than is told at first", []time.Duration{0, mostApart, mostApart, mostApart}, ""},
		{"behind, read late and at once", []time.Duration{0, -mostApart - time.Second, -mostApart - time.Second, -mostApart + 4*time.Second}, "10.0.0.3 is 11s behind"},
		{"late once, and behind by less than is told at first", []time.Duration{0, -mostApart - time.Second, -mostApart, -mostApart - time.Second}, ""},
		{"nearly right again, and read late", []time.Duration{0, -time.Hour, -time.Hour, -renewFingerprint}, ""},
		{"set right again", []time.Duration{0, time.Hour, time.Hour, 0}, ""},
	} {
		c, got := clocks{}, ""
		for i, ahead := range test.ahead {
			at := now.Add(time.Duration(i) * renewFingerprint)
			runs := []writtenRun{
				{DirectorRun: model.DirectorRun{Address: own}, Clock: at.Add(-24 * time.Hour)},
				{DirectorRun: model.DirectorRun{Address: other}, Clock: at.Add(ahead)},
				{DirectorRun: model.DirectorRun{Address: netip.MustParseAddr("10.0.0.4")}}, // an older version
			}
			got = ""
			if err := c.compare(runs, []netip.Addr{own}, at); err != nil {
				got = err.Error()
			}
		}
		if got == "" != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: it is said %q, want %q", test.name, got, test.want)
		}
		if err := c.compare(nil, []netip.Addr{own}, now); err != nil || len(c) > 0 {
			t.Errorf("%s: after it is gone it is said %v, of %d directors", test.name, err, len(c))
		}
	}
}

// TestClocksAreListed: by what directors write in etcd.
func TestClocksAreListed(t *testing.T) {
	c := newCluster(t, false)
	director, other, listed := c.open(), c.open(), &listed{}
	director.client.Warn = listed.warn
	one, two := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	compared, life := clocks{}, other.newLife()
	for i := range clocksAgain + 1 {
		if err := other.putRun(t.Context(), life, writtenRun{Also: []netip.Addr{two}}); err != nil {
			t.Fatal(err)
		}
		runs, err := director.writtenRuns(t.Context())
		if err != nil || len(runs) != 1 || time.Since(runs[0].Clock).Abs() > time.Minute {
			t.Fatalf("after writing %d it is read %+v, %v", i, runs, err)
		}
		if err := compared.compare(runs, []netip.Addr{one}, time.Now().Add(time.Hour)); err == nil != (i < clocksAgain) {
			t.Errorf("after writing %d, an hour behind, it is said %v", i, err)
		}
	}
	if err := director.compare(t.Context(), compared, settings{}, &writtenRun{Also: []netip.Addr{one}}); err != nil {
		t.Fatal(err)
	}
	if text := listed.of(model.ProblemGroup, partClocks); !strings.Contains(text, "10.0.0.3") || !strings.Contains(text, "behind") {
		t.Errorf("of a clock that is behind it is listed %q", text)
	}
}

// TestReportsOfLaterTimesAreListed: directors judge no connections by the reports of an agent whose
// clock is ahead, so they say why.
func TestReportsOfLaterTimesAreListed(t *testing.T) {
	c := newCluster(t, false)
	agent, director, listed := c.open(), c.open(), &listed{}
	director.client.Warn = listed.warn
	director.FollowReports(t.Context()).Latest(backends(1))
	report := func(ahead time.Duration) {
		t.Helper()
		if err := agent.PutReports(t.Context(), []model.AgentReport{{Backend: netip.MustParseAddr("10.0.0.1"), Taken: time.Now().Add(ahead).UTC()}}); err != nil {
			t.Fatal(err)
		}
	}
	report(3 * time.Hour)
	etcdlab.Eventually(t, "an agent's clock that is ahead is listed", func() error {
		if text := listed.of(model.ProblemReports, ""); !strings.Contains(text, "10.0.0.1") || !strings.Contains(text, "clock of its host is more than 5s ahead") {
			return fmt.Errorf("listed is %q", text)
		}
		return nil
	})
	report(0)
	etcdlab.Eventually(t, "it is over when the clock is right", func() error { return listed.none() })
}
