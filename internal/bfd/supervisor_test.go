package bfd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// process stands for the process that a supervisor starts: the same server, in this one.
type process struct {
	t      *testing.T
	socket string

	mu     sync.Mutex
	starts int
	kill   context.CancelFunc
	ended  chan struct{}
}

func (p *process) start() (<-chan error, error) {
	listener, err := net.Listen("unix", p.socket)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.t.Cleanup(cancel)
	ended := make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.starts++
	p.kill, p.ended = cancel, ended
	log := slog.New(slog.DiscardHandler)
	server := NewServer(NewSpeaker(still{}, log), model.BFDStatus{Version: "test"}, log)
	go func() {
		defer close(ended)
		server.Run(ctx, listener)
	}()
	return nil, nil
}

// last returns how often a process was started, and the last one.
func (p *process) last() (starts int, kill context.CancelFunc, ended <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.starts, p.kill, p.ended
}

// A supervisor starts a process where none answers, also when one that did is gone, tells it the
// sessions, hands on what it says, and ends it when there are none any more.
func TestSupervisor(t *testing.T) {
	p := &process{t: t, socket: filepath.Join(t.TempDir(), "bfd.sock")}
	told := make(chan model.BFDStatus, 1024)
	k := NewSupervisor(p.socket, p.start, func(s model.BFDStatus) { told <- s }, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { k.Run(ctx) })
	hears := func(what string, is func(model.BFDStatus) bool) {
		t.Helper()
		patience := time.After(20 * time.Second)
		for {
			select {
			case s := <-told:
				if is(s) {
					return
				}
			case <-patience:
				t.Fatalf("waited in vain for the supervisor to hear %s", what)
			}
		}
	}
	sessions := func(n int) func(model.BFDStatus) bool {
		return func(s model.BFDStatus) bool { return s.PID != 0 && len(s.Sessions) == n }
	}
	nothing := func(s model.BFDStatus) bool { return s.PID == 0 && len(s.Sessions) == 0 }
	want := func(n int) (list []model.BFDSession) {
		for i := range n {
			list = append(list, model.BFDSession{Neighbor: netip.AddrFrom4([4]byte{127, 0, 0, byte(2 + i)}), Interfaces: []string{"lo"},
				Timers: model.BFDTimers{Interval: model.Duration(time.Second), Multiplier: 1}, RestartTime: model.Duration(time.Hour)})
		}
		return list
	}

	k.Set(want(1))
	hears("of one session", sessions(1))
	k.Set(want(2))
	hears("of two", sessions(2))
	status, err := Query(ctx, p.socket)
	if err != nil || !sessions(2)(status) || time.Until(status.Deadline) < 50*time.Minute || status.Version != "test" {
		t.Errorf("to somebody else the process says %+v (%v)", status, err)
	}
	refuses(t, p.socket)

	starts, kill, ended := p.last()
	if starts != 1 {
		t.Errorf("%d processes were started, not one", starts)
	}
	kill()
	hears("nothing more", nothing)
	<-ended
	hears("of both sessions from another process", sessions(2))
	starts, _, ended = p.last()
	if starts != 2 {
		t.Errorf("%d processes were started, not two", starts)
	}
	k.Set(nil)
	hears("nothing more", nothing)
	<-ended
	if status, err := k.Status(); err != nil || status.PID != 0 {
		t.Errorf("without sessions, the supervisor knows of %+v (%v)", status, err)
	}
	if err := Stop(p.socket); err != nil {
		t.Error("stop a process that is not there:", err)
	}
}

// refuses checks that what is no request ends the conversation, and nothing else.
func refuses(t *testing.T, socket string) {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\n"); err != nil {
		t.Fatal(err)
	}
	if answer, err := io.ReadAll(conn); err != nil || len(answer) > 0 {
		t.Errorf("to what is no request the process says %q (%v)", answer, err)
	}
}

// The status of a process that has just begun can be read: all of its times are still zero.
func TestFirstStatus(t *testing.T) {
	now := time.Now()
	fresh := newSession(now, model.BFDSession{Neighbor: netip.MustParseAddr("10.0.0.1")}, 7, rand.New(rand.NewPCG(1, 1)))
	for _, status := range []model.BFDStatus{{}, {Sessions: []model.BFDSessionStatus{{}, fresh.status()}}} {
		line, err := json.Marshal(status)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := read(bufio.NewReader(bytes.NewReader(append(line, '\n')))); err != nil {
			t.Errorf("a supervisor cannot read %s: %v", line, err)
		}
	}
}

// TestRestartBeforeTheFirstStatus: a process that ended before it had said anything was replaced, too.
func TestRestartBeforeTheFirstStatus(t *testing.T) {
	p := &process{t: t, socket: filepath.Join(t.TempDir(), "bfd.sock")}
	starts := 0
	start := func() (<-chan error, error) {
		if starts++; starts > 1 {
			return p.start()
		}
		listener, err := net.Listen("unix", p.socket)
		if err != nil {
			return nil, err
		}
		go func() {
			if conn, err := listener.Accept(); err == nil {
				conn.Close()
			}
			listener.Close()
		}()
		return nil, nil
	}
	answered := make(chan struct{}, 1)
	k := NewSupervisor(p.socket, start, func(s model.BFDStatus) {
		if s.Version != "" {
			select {
			case answered <- struct{}{}:
			default:
			}
		}
	}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	k.Set([]model.BFDSession{{Neighbor: netip.MustParseAddr("10.0.0.2")}})
	running.Go(func() { k.Run(ctx) })
	select {
	case <-answered:
	case <-time.After(20 * time.Second):
		t.Fatal("no process answers")
	}
	if n := k.Restarts(); n != 1 {
		t.Errorf("%d processes have replaced another one, want 1", n)
	}
}
