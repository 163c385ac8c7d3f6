package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"

	"weir.io/weir/internal/model"
)

// serviceManager is what has started the process, if it wants to be told how the process is
// (sd_notify(3)); without NOTIFY_SOCKET nobody is told.
type serviceManager struct {
	log      *slog.Logger
	progress func() uint64 // grows while work goes on that takes long; nil: there is none

	mu       sync.Mutex
	ready    bool
	stopping bool
	status   string // that it was told last
}

// NotifyReady tells the service manager, if there is one, that a process does its work.
func NotifyReady(log *slog.Logger) { (&serviceManager{log: log}).notify(sd.SdNotifyReady) }

// notifyWithin is how long a message may take: a service manager that does not read keeps nothing waiting.
const notifyWithin = 100 * time.Millisecond

// notify sends lines of the protocol.
func (m *serviceManager) notify(lines ...string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	if err := send(path, strings.Join(lines, "\n")); err != nil {
		m.log.Warn("the service manager is not told how this process is", "error", err)
	}
}

// send sends a message, or gives up. (The library's SdNotify waits for as long as nobody reads.)
func send(path, message string) error {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetWriteDeadline(time.Now().Add(notifyWithin)); err != nil {
		return err
	}
	_, err = conn.Write([]byte(message))
	return err
}

// say tells in one line how the process is, if that has changed.
func (m *serviceManager) say(status string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if status != m.status && !m.stopping {
		m.status = status
		m.notify("STATUS=" + status)
	}
}

// reloads reports a version of the file that is about to be applied, and returns what reports that this
// is over. Before the process is ready, neither is reported: systemd would take it for the start's end.
func (m *serviceManager) reloads() (over func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ready || m.stopping {
		return func() {}
	}
	m.notify(sd.SdNotifyReloading, sd.SdNotifyMonotonicUsec())
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if !m.stopping {
			m.notify(sd.SdNotifyReady)
		}
	}
}

// Ready tells the service manager that the process does its work. From then on the manager hears that
// this is still so, as often as it wants to, as long as alive returns no error, or work that takes long
// goes on.
func (d *Daemon) Ready(ctx context.Context, alive func(context.Context) error) {
	m := &d.manager
	m.mu.Lock()
	m.ready = true
	m.notify(sd.SdNotifyReady)
	m.mu.Unlock()
	interval, err := sd.SdWatchdogEnabled(false)
	if err != nil {
		m.log.Warn("the service manager's watchdog is not fed", "error", err)
	}
	if interval > 0 {
		go m.feed(ctx, interval/feedings, alive)
	}
}

// feedings is how often the watchdog is fed within the time after which it bites.
const feedings = 4

// feed feeds the watchdog until the context ends. While alive waits, it is fed only as often as there is
// progress.
func (m *serviceManager) feed(ctx context.Context, every time.Duration, alive func(context.Context) error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	answer := make(chan error, 1)
	ask := func() { answer <- alive(ctx) }
	go ask()
	answered, seen := false, m.steps()
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-answer:
			if err != nil {
				return
			}
			m.notify(sd.SdNotifyWatchdog)
			answered = true
		case <-tick.C:
			if now := m.steps(); !answered && now != seen {
				seen = now
				m.notify(sd.SdNotifyWatchdog)
			}
			if answered {
				answered = false
				go ask()
			}
		}
	}
}

func (m *serviceManager) steps() uint64 {
	if m.progress == nil {
		return 0
	}
	return m.progress()
}

// While a process starts, the service manager is asked for startMore every startLook in which there was
// progress: rings of many backends take minutes.
const (
	startLook = 10 * time.Second
	startMore = "EXTEND_TIMEOUT_USEC=60000000"
)

func (m *serviceManager) extendStart() {
	for seen := m.steps(); ; {
		time.Sleep(startLook) // between two looks
		m.mu.Lock()
		over := m.ready || m.stopping
		m.mu.Unlock()
		if over {
			return
		}
		if now := m.steps(); now != seen {
			seen = now
			m.notify(startMore)
		}
	}
}

// Say tells the service manager in one line what the process does, and its problems.
func (d *Daemon) Say(does string) {
	list := d.Problems.All()
	if len(list) > 0 {
		does += fmt.Sprintf("; %s: %s", countProblems(list), strings.Join(strings.Fields(list[0].Text), " "))
	}
	d.manager.say(does)
}

func countProblems(list []model.Problem) string {
	if len(list) == 1 {
		return "1 problem"
	}
	return fmt.Sprintf("%d problems", len(list))
}

// stopAfterWait is how long a process may take to end after what it waits for.
const stopAfterWait = 90 * time.Second

// Stopping tells the service manager that the process ends, and why it waits until then: without that the
// manager would kill it in the middle of a long wait.
func (d *Daemon) Stopping(why string, wait time.Duration) {
	m := &d.manager
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopping = true
	lines := []string{sd.SdNotifyStopping, "STATUS=" + why}
	if wait > 0 {
		lines = append(lines, fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", (wait+stopAfterWait).Microseconds()))
	}
	m.notify(lines...)
}
