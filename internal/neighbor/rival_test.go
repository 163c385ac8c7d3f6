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
	vip := model.Untagged(netip.MustParseAddr("192.0.2.1"))
	now := time.Hour
	s := &Speaker{log: slog.New(slog.DiscardHandler), guard: &guard{clock: func() time.Duration { return now }}}
	s.guard.allow(forever)
	turn := newTurn(s)
	where := map[model.VIP][]model.NeighborPlace{vip: {{Interface: "eth0"}}}
	turn.hold(now, where, []model.VIP{vip})
	turn.want.vips = []model.VIP{vip}
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
	turn.defend(now, map[model.VIP]mac{vip: {2, 0, 0, 0, 0, 1}})
	const want = "another host, 02:00:00:00:00:01, says that it has it, and gets packets of those that believe it"
	for i := range byte(5) {
		if got := problem(); got != want {
			t.Errorf("while it is claimed the problem is %q", got)
		}
		now += contested - time.Second
		turn.defend(now, map[model.VIP]mac{vip: {2, 0, 0, 0, 1, i}})
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

// An address of another director's full NAT is no problem here while that director is there; a VIP that
// another one answers for, and is not up here, is one.
func TestOthersAddressesAreNoProblem(t *testing.T) {
	s := &Speaker{log: slog.New(slog.DiscardHandler), guard: &guard{clock: func() time.Duration { return time.Hour }}}
	turn := newTurn(s)
	turn.joined = director(1)
	theirs, ours, plain := vip(1), vip(2), vip(3)
	group := &model.NeighborGroup{
		Homes:  map[netip.Addr]netip.Addr{theirs.Address: director(2), ours.Address: director(1)},
		Owners: map[model.VIP]model.NeighborOwner{theirs: {Director: director(2)}, ours: {Director: director(1), Mine: true}, plain: {Director: director(2)}},
	}
	for _, one := range turn.vips(group, nil) {
		if (one.Problem == "") != (one.Of() == theirs) {
			t.Errorf("the problem of %v, which director %v owns, is %q", one.Of(), one.Owner, one.Problem)
		}
	}
}

// However many claims are forged, they make a turn begin early once a second at most, and none is
// forgotten.
func TestClaimsWakeOnceASecond(t *testing.T) {
	now := time.Hour
	s := newSpeaker(nil, slog.New(slog.DiscardHandler), func() time.Duration { return now })
	for second := range 3 {
		wakes := 0
		for i := range byte(100) {
			vip := model.Untagged(netip.AddrFrom4([4]byte{192, 0, 2, i}))
			s.conflicted(vip, mac{2, byte(second), 0, 0, 0, i})
			select {
			case <-s.wake:
				wakes++
			default:
			}
			if got := s.claimed[vip]; got != (mac{2, byte(second), 0, 0, 0, i}) {
				t.Fatalf("the claim of %v is noted as %v's", vip, got)
			}
		}
		if wakes != 1 {
			t.Errorf("100 claims in a second make %d turns begin, want one", wakes)
		}
		now += time.Second
	}
}
