package director

import (
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"weir.io/weir/internal/model"
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
		{"a VIP is", model.Announcement{VIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, false, 1},
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
