package director

import (
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"
)

// The signal that begins the grace period does not end it, in whatever order it reaches those that
// listen, and the next one does.
func TestSecondSignalEndsTheGracePeriod(t *testing.T) {
	const patience = 10 * time.Second
	signals, forget := (&Director{shutdown: make(chan os.Signal, 1)}).hearSignals()
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
