package director

import (
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"testing"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/neighbor"
)

// The signal that begins the grace period does not end it, in whatever order it reaches those that
// listen, and the next one does.
func TestSecondSignalEndsTheGracePeriod(t *testing.T) {
	const patience = 10 * time.Second
	signals, forget := (&Director{handover: make(chan os.Signal, 1)}).hearSignals()
	defer forget()
	tell := func() {
		if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	for range 200 {
		stop, release := signal.NotifyContext(t.Context(), syscall.SIGTERM)
		tell()
		select {
		case <-stop.Done():
		case <-time.After(patience):
			t.Fatal("the signal does not end the context")
		}
		forgetFirst(signals)
		select {
		case <-signals:
			t.Fatal("the first signal ends the grace period")
		case <-time.After(time.Millisecond):
		}
		tell()
		select {
		case <-signals:
		case <-time.After(patience):
			t.Fatal("the second signal does not end the grace period")
		}
		release()
	}
}

// Full NAT's addresses are announced if the configuration says so: the director's own, and as backups
// those of other directors whose flows it knows, but no prefix twice.
func TestSourcesAreAnnounced(t *testing.T) {
	own, other := netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("2001:db8::1")
	vip := model.Route{Prefix: netip.MustParsePrefix("203.0.113.0/24")}
	now := model.Announcement{BGP: model.BGP{ASN: 65001}, Routes: []model.Route{vip}, SNAT: model.SNAT{Addresses: []netip.Addr{own}}}
	sources := neighbor.Sources{Own: []netip.Addr{own}, Others: []netip.Addr{own, other}}
	want := []model.Route{vip, {Prefix: netip.MustParsePrefix("198.18.0.1/32")}, {Prefix: netip.MustParsePrefix("2001:db8::1/128"), Backup: true}}
	same := func(a, b model.Route) bool { return a.Prefix == b.Prefix && a.Backup == b.Backup }
	if got := withSources(&now, sources); !slices.EqualFunc(got, want, same) {
		t.Errorf("announced are %+v, want %+v", got, want)
	}
	if got := withSources(&now, neighbor.Sources{}); len(got) != 1 {
		t.Errorf("announced are %+v without any source", got)
	}
	lent := []netip.Addr{other}
	g := &gate{last: &now, others: func() []netip.Addr { return lent }}
	if got := g.lends(); got != nil {
		t.Errorf("%v are announced, though the configuration does not say so", got)
	}
	now.SNAT.Announce = true
	if got := g.lends(); !slices.Equal(got, lent) {
		t.Errorf("%v are announced for other directors, want %v", got, lent)
	}
}

// While no interface has the program nothing leads packets here, and what other VTEPs tell is learned on.
func TestWithheld(t *testing.T) {
	entries := []model.EVPNEntry{{MAC: model.MAC{2, 5: 1}}}
	now := model.Announcement{Routes: []model.Route{{}}, VIPs: []model.VIP{{}}, EVPN: model.EVPN{Segments: []model.EVPNSegment{{VNI: 5001, Entries: entries}}}}
	got := withheld(now)
	if len(got.Routes) != 0 || len(got.VIPs) != 0 || len(got.EVPN.Segments) != 1 || got.EVPN.Segments[0].VNI != 5001 || len(got.EVPN.Segments[0].Entries) != 0 {
		t.Errorf("told is %+v", got)
	}
	if len(now.EVPN.Segments[0].Entries) != 1 {
		t.Error("what is announced later has changed")
	}
}

// VIPs that are held back because no interface has the program are listed until one has it, also when
// their backends fail meanwhile, so that there is nothing to announce.
func TestHeldBackUntilAProgramIsThere(t *testing.T) {
	open := false
	g := &gate{open: func() bool { return open }}
	look := func() int {
		t.Helper()
		found, err := g.look()
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	for _, step := range []struct {
		what string
		now  model.Announcement
		open bool
		want int
	}{
		{"nothing is to be announced", model.Announcement{}, false, 0},
		{"a VIP is", model.Announcement{VIPs: []model.VIP{model.Untagged(netip.MustParseAddr("192.0.2.1"))}}, false, 1},
		{"its backends fail", model.Announcement{}, false, 1},
		{"the program is there", model.Announcement{}, true, 0},
		{"it is away again", model.Announcement{}, false, 0},
	} {
		open, g.last, g.was = step.open, &step.now, step.open
		if got := look(); got != step.want {
			t.Errorf("%s: %d differences, want %d", step.what, got, step.want)
		}
	}
}
