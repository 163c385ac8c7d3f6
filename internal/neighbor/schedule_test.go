package neighbor

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// A VIP is announced at once, four times more within eight seconds, and then again and again,
// those that were taken together at different times.
func TestAnnouncementsAreRepeated(t *testing.T) {
	const refresh = time.Minute
	start := 100 * time.Second
	times := func(vip netip.Addr) (list []time.Duration) {
		a := again(start)
		for range 8 {
			list = append(list, a.due-start)
			a.next(vip, a.due, refresh)
		}
		return list
	}
	one, two := times(netip.MustParseAddr("203.0.113.1")), times(netip.MustParseAddr("203.0.113.2"))
	for i, want := range []time.Duration{0, 1, 2, 4, 8} {
		if one[i] != want*time.Second {
			t.Errorf("announcement %d is due after %v, want %d s", i, one[i], want)
		}
	}
	if first := one[5] - one[4]; first < refresh/2 || first > refresh {
		t.Errorf("the first refresh is %v after the last repeat", first)
	}
	if one[6]-one[5] != refresh || one[7]-one[6] != refresh {
		t.Errorf("later refreshes are at %v", one[5:])
	}
	if one[5] == two[5] {
		t.Error("two VIPs that were taken together are refreshed together")
	}
	late := again(start)
	late.next(vip4, start+5*time.Second, refresh)
	if late.due != start+5*time.Second {
		t.Errorf("after an announcement that was five seconds late the next one is due at %v", late.due)
	}
}

func TestLimiter(t *testing.T) {
	l := newLimiter(100)
	allowed := func(now time.Duration) (n int) {
		for l.allow(now) {
			n++
		}
		return n
	}
	for _, step := range []struct {
		now  time.Duration
		want int
	}{{0, 10}, {10 * time.Millisecond, 1}, {15 * time.Millisecond, 0}, {20 * time.Millisecond, 1}, {time.Hour, 10}} {
		if got := allowed(step.now); got != step.want {
			t.Errorf("at %v %d are allowed, want %d", step.now, got, step.want)
		}
	}
	if n := newLimiter(1); !n.allow(0) || n.allow(0) {
		t.Error("one per second is not one at once")
	}
}

// Nothing is sent by a lease that has ended, nor for what is not held on that interface.
func TestGuard(t *testing.T) {
	now := time.Duration(0)
	g := &guard{clock: func() time.Duration { return now }}
	place := func(text string) model.NeighborPlace {
		name, id, _ := strings.Cut(text, " vlan:")
		at := model.NeighborPlace{Interface: name}
		if n, err := strconv.Atoi(id); err == nil {
			at.Segment = model.Segment{Kind: model.SegmentVLAN, ID: uint32(n)}
		}
		return at
	}
	sends := func(on string, vip netip.Addr) bool {
		sent := false
		at := place(on)
		if g.send(at, model.VIP{Segment: at.Segment, Address: vip}, func() { sent = true }) != sent {
			t.Error("what it says it has sent it has not, or the other way round")
		}
		return sent
	}
	if sends("eth0", vip4) {
		t.Error("a guard that knows nothing lets something pass")
	}
	tagged := place("eth0 vlan:100")
	g.set(map[model.NeighborPlace]map[model.VIP]bool{place("eth0"): {model.Untagged(vip4): true, model.Untagged(vip6): true},
		place("eth1"): {model.Untagged(vip6): true}, tagged: {{Segment: tagged.Segment, Address: vip4}: true}})
	if sends("eth0", vip4) {
		t.Error("something passes without a lease")
	}
	if !g.allow(10) || g.lapsed() || g.allow(20) {
		t.Error("it does not say when the time begins")
	}
	if !sends("eth0", vip4) || !sends("eth1", vip6) || sends("eth1", vip4) || sends("eth2", vip4) ||
		!sends("eth0 vlan:100", vip4) || sends("eth0 vlan:100", vip6) || sends("eth0 vlan:200", vip4) {
		t.Error("another pass than those that are held")
	}
	now = 19
	if !sends("eth0", vip4) {
		t.Error("it ends too early")
	}
	now = 20
	if sends("eth0", vip4) || !g.lapsed() {
		t.Error("something passes after the end")
	}
	g.allow(forever)
	g.only([]model.VIP{model.Untagged(vip6)})
	if sends("eth0", vip4) || sends("eth0 vlan:100", vip4) || !sends("eth0", vip6) {
		t.Error("something passes that is no VIP any more, or nothing does")
	}
}
