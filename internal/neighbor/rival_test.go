package neighbor

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// A VIP that other hosts claim is a problem from the first claim until there has been none for long,
// and one problem, whoever the others say that they are.
func TestRivalsAreAProblem(t *testing.T) {
	vip := netip.MustParseAddr("192.0.2.1")
	now := time.Hour
	s := &Speaker{log: slog.New(slog.DiscardHandler), guard: &guard{clock: func() time.Duration { return now }}}
	s.guard.allow(forever)
	turn := newTurn(s)
	where := map[netip.Addr][]string{vip: {"eth0"}}
	turn.hold(now, where, []netip.Addr{vip})
	turn.want.vips = []netip.Addr{vip}
	problem := func() string {
		t.Helper()
		list := turn.vips(&model.NeighborGroup{}, where)
		if len(list) != 1 || list[0].State != model.NeighborAnswers {
			t.Fatalf("the VIPs are %+v, want one that is answered for", list)
		}
		return list[0].Problem
	}
	turn.defend(now, nil)
	if got := problem(); got != "" {
		t.Errorf("without a claim the problem is %q", got)
	}
	turn.defend(now, map[netip.Addr]mac{vip: {2, 0, 0, 0, 0, 1}})
	const want = "another host, 02:00:00:00:00:01, says that it has it, and gets packets of those that believe it"
	for i := range byte(5) {
		if got := problem(); got != want {
			t.Errorf("while it is claimed the problem is %q", got)
		}
		now += contested - time.Second
		turn.defend(now, map[netip.Addr]mac{vip: {2, 0, 0, 0, 1, i}})
	}
	now += contested - time.Second
	turn.defend(now, nil)
	if got := problem(); got != want {
		t.Errorf("soon after a claim the problem is %q", got)
	}
	now += time.Second
	turn.defend(now, nil)
	if got := problem(); got != "" {
		t.Errorf("long after the last claim the problem is %q", got)
	}
}
