package ovn

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"weir.io/weir/lab/etcdlab"
)

// The databases listen in a network namespace of the tests' own.
func TestMain(m *testing.M) { etcdlab.Isolated(m) }

const patience = 60 * time.Second

func address(text string) netip.Addr { return netip.MustParseAddr(text) }

// watcher is a consumer of Follow.
type watcher struct {
	t    *testing.T
	stop func()
	log  *log

	mu     sync.Mutex
	latest Snapshot
	more   chan struct{} // closed by the next report
	count  int
}

// log may be read while it is written.
type log struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// watch follows until the test ends.
func watch(t *testing.T, o Options) *watcher {
	t.Helper()
	w := &watcher{t: t, log: &log{}, more: make(chan struct{})}
	o.Log = slog.New(slog.NewTextHandler(io.MultiWriter(t.Output(), w.log), nil))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Follow(ctx, o, w.report) }()
	var once sync.Once
	w.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error("Follow:", err)
			}
		})
	}
	t.Cleanup(w.stop)
	return w
}

func (w *watcher) report(s Snapshot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.latest = s
	w.count++
	close(w.more)
	w.more = make(chan struct{})
}

func (w *watcher) now() (Snapshot, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.latest, w.more
}

// until waits for a snapshot with which there is nothing wrong.
func (w *watcher) until(what string, wrong func(*Snapshot) error) Snapshot {
	w.t.Helper()
	end := time.After(patience)
	for {
		s, more := w.now()
		err := wrong(&s)
		if err == nil {
			return s
		}
		select {
		case <-more:
		case <-end:
			w.t.Fatalf("never: %s: %v; the status is %+v", what, err, s.Status)
		}
	}
}

// port waits for the port of an address in a network.
func (w *watcher) port(network, ip, what string, right func(Port) bool) Port {
	w.t.Helper()
	var found Port
	w.until(fmt.Sprintf("the port of %s in %s %s", ip, network, what), func(s *Snapshot) error {
		n, err := s.Network(network)
		if err != nil {
			return err
		}
		p, has := s.Port(n.ID, address(ip))
		if !has {
			return fmt.Errorf("%s has no port with %s", network, ip)
		}
		if found = p; !right(p) {
			return fmt.Errorf("it is %+v", p)
		}
		return nil
	})
	return found
}

func connected(s *Snapshot) error {
	if !s.Status.Connected || !s.Status.Known {
		return fmt.Errorf("not connected: %w", s.Status.Problem)
	}
	return nil
}

func isOn(chassis string) func(Port) bool {
	return func(p Port) bool { return p.Chassis != nil && p.Chassis.Name == chassis }
}

// wait waits for something that no report tells.
func wait(t *testing.T, what string, wrong func() error) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		err := wrong()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("never: %s: %v", what, err)
		}
		time.Sleep(20 * time.Millisecond) // between two looks
	}
}
