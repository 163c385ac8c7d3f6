package netlab

import (
	"fmt"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// T is what a lab needs of a test: [testing.TB] has it.
type T interface {
	Helper()
	Cleanup(func())
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// WaitFor looks at a condition until it holds, because most things become true in milliseconds and
// none in a known time. The limit claims nothing about how long it may take: a busy machine is slow.
func WaitFor(t T, what string, condition func() bool) {
	t.Helper()
	WaitUpTo(t, time.Minute, what, condition)
}

// WaitUpTo is WaitFor with another limit. A look may start a program, and other tests wait at the same
// time: so a pause is twice as long as the look before it, but no longer than a second.
func WaitUpTo(t T, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; {
		begun := time.Now()
		if condition() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(min(max(2*time.Millisecond, 2*time.Since(begun)), time.Second)) // between two looks
	}
}

// ForTest makes a lab for a test: it ends the test at the first error, and goes
// with it, also when the test panics or the process is interrupted.
func ForTest(t T) *Lab {
	t.Helper()
	closeOnSignal()
	lab, err := New()
	if err != nil {
		t.Fatalf("make lab: %v", err)
		return nil
	}
	lab.fatal = func(err error) {
		t.Helper()
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Errorf("close lab: %v", err)
		}
	})
	return lab
}

// closeOnSignal closes all labs when the process is told to end, and lets it end
// as it would have. A command has its own idea of what a signal means, so only
// tests do this.
var closeOnSignal = sync.OnceFunc(func() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM)
	go func() {
		received := (<-signals).(unix.Signal)
		labs.Lock()
		open := make([]*Lab, 0, len(labs.open))
		for _, lab := range labs.open {
			open = append(open, lab)
		}
		labs.Unlock()
		for _, lab := range open {
			if err := lab.Close(); err != nil {
				fmt.Fprintf(os.Stderr, "close lab: %v\n", err)
			}
		}
		signal.Reset(unix.SIGINT, unix.SIGTERM)
		_ = unix.Kill(os.Getpid(), received)
	}()
})
