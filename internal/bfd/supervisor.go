package bfd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"weir.io/weir/internal/model"
)

// Times of a supervisor.
const (
	// heartbeat is how often the BFD process is told that nothing has changed.
	heartbeat = time.Second
	// patience is how long the process may take to answer.
	patience = 5 * time.Second
	// startup is how long a process may take until it accepts connections.
	startup = 5 * time.Second
)

// Supervisor keeps a BFD process running, and gives it the sessions that it should have.
type Supervisor struct {
	socket string
	start  func() (ended <-chan error, err error)
	report func(model.BFDStatus)
	log    *slog.Logger

	mu      sync.Mutex
	wanted  Request
	known   bool // Set was called
	status  model.BFDStatus
	last    int    // number of the process that answered last; 0: none has since one was needed
	had     bool   // a process was reached since one was needed, whether it has said anything or not
	again   uint64 // processes that have replaced one that ended by itself
	err     error
	fault   string        // the last err
	faults  uint64        // how often err came, or changed
	changed chan struct{} // one element: wanted has changed
}

// NewSupervisor makes a supervisor of the process that answers on the socket; start starts one, and returns
// a channel that gets how it ended. tell gets what the process says about itself whenever a session
// changes, and the zero status when it says nothing more.
func NewSupervisor(socket string, start func() (ended <-chan error, err error), report func(model.BFDStatus), log *slog.Logger) *Supervisor {
	return &Supervisor{socket: socket, start: start, report: report, log: log, changed: make(chan struct{}, 1)}
}

// Set replaces the sessions. Each lasts for its restart time after the last sign of life of this
// process. Without sessions no process is needed.
func (s *Supervisor) Set(sessions []model.BFDSession) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = true
	if len(sessions) == 0 {
		s.last, s.had = 0, false
	}
	s.wanted = Request{Sessions: append([]model.BFDSession{}, sessions...), End: len(sessions) == 0}
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Status returns what the process said last, and what is wrong with it.
func (s *Supervisor) Status() (model.BFDStatus, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status, s.err
}

// Faults returns how often something was wrong with the process, and what it was the last time:
// even if it lasted for less than the time between two looks at Status.
func (s *Supervisor) Faults() (n uint64, last string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faults, s.fault
}

// Restarts returns how often another process has replaced one that ended by itself.
func (s *Supervisor) Restarts() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.again
}

// Run keeps the process running until the context ends, and then leaves it alone.
func (s *Supervisor) Run(ctx context.Context) {
	for ctx.Err() == nil {
		s.mu.Lock()
		wanted, known := s.wanted, s.known
		s.mu.Unlock()
		var err error
		began := time.Now()
		if known {
			err = s.attend(ctx, wanted)
		}
		if ctx.Err() != nil {
			return
		}
		s.note(err)
		if err != nil && time.Since(began) > heartbeat {
			continue // it worked until now: there is no reason to wait
		}
		select {
		case <-ctx.Done():
		case <-s.changed:
		case <-time.After(heartbeat):
		}
	}
}

func (s *Supervisor) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && (s.err == nil || s.err.Error() != err.Error()) {
		s.log.Error("BFD is not as it should be", "error", err)
		s.faults++
		s.fault = err.Error()
	}
	if err == nil && s.err != nil {
		s.log.Info("BFD is as it should be again")
	}
	s.err = err
}

// attend tells the process the wanted sessions until that fails, or none are wanted.
func (s *Supervisor) attend(ctx context.Context, wanted Request) error {
	conn, err := net.Dial("unix", s.socket)
	absent := errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
	switch {
	case absent && wanted.End:
		return nil
	case absent:
		if conn, err = s.startAndDial(ctx); err != nil {
			return err
		}
	case err != nil:
		return fmt.Errorf("talk to the BFD process: %w", err)
	}
	s.reached(absent)
	var listening sync.WaitGroup
	defer s.noteStatus(model.BFDStatus{})
	defer listening.Wait() // it tells all of this conversation before the next begins
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	lost := make(chan error, 1)
	listening.Go(func() { lost <- s.listen(conn) })
	for {
		s.mu.Lock()
		wanted = s.wanted
		s.mu.Unlock()
		if err := writeRequest(conn, wanted); err != nil {
			return err
		}
		beat := time.NewTimer(heartbeat)
		select {
		case <-beat.C:
		case <-s.changed:
		case err := <-lost:
			beat.Stop()
			if wanted.End || ctx.Err() != nil {
				return nil
			}
			return err
		}
		beat.Stop()
	}
}

// reached notes that a process takes requests. One that was started in place of another counts, even
// if that had not said anything yet.
func (s *Supervisor) reached(started bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wanted.End {
		return
	}
	if started && s.had {
		s.again++
		s.last = 0 // what it says about itself is no other process
	}
	s.had = true
}

// startAndDial starts the process and waits until it answers.
func (s *Supervisor) startAndDial(ctx context.Context) (net.Conn, error) {
	ended, err := s.start()
	if err != nil {
		return nil, fmt.Errorf("start the BFD process: %w", err)
	}
	for deadline := time.Now().Add(startup); ; {
		conn, err := net.Dial("unix", s.socket)
		if err == nil {
			return conn, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("the BFD process does not answer: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case err := <-ended:
			return nil, fmt.Errorf("the BFD process has ended (%w): the log says why", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// writeRequest writes one request.
func writeRequest(conn net.Conn, r Request) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := conn.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("tell the BFD process its sessions: %w", err)
	}
	return nil
}

// listen reads what the process says until it says nothing more.
func (s *Supervisor) listen(conn net.Conn) error {
	lines := bufio.NewReader(conn)
	for {
		if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		status, err := read(lines)
		if err != nil {
			return fmt.Errorf("the BFD process does not answer: %w", err)
		}
		s.noteStatus(status)
		s.note(nil)
	}
}

func (s *Supervisor) noteStatus(status model.BFDStatus) {
	s.mu.Lock()
	s.status = status
	if status.PID != 0 && !s.wanted.End {
		if s.last != 0 && s.last != status.PID {
			s.again++
		}
		s.last = status.PID
	}
	s.mu.Unlock()
	s.report(status)
}

func read(lines *bufio.Reader) (status model.BFDStatus, err error) {
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return status, err
	}
	if bytes.HasPrefix(line, []byte("HTTP/")) {
		return status, errHTTP
	}
	return status, json.Unmarshal(line, &status)
}

// errHTTP says that the socket is another kind of process's.
var errHTTP = errors.New("it answers HTTP, as a director and an agent do; the socket of weir bfd is another one: bfd.sock beside director.sock, NAME-bfd.sock beside NAME.sock")

// Socket returns the socket of a director's BFD process: beside the director's own socket, which is
// given, and different for each director.
func Socket(director string) string {
	dir, name := filepath.Split(director)
	if name == "director.sock" { // the usual one
		return dir + "bfd.sock"
	}
	return dir + strings.TrimSuffix(name, ".sock") + "-bfd.sock"
}

// ErrNobody is returned by Query if there is no BFD process.
var ErrNobody = errors.New("nobody speaks BFD on")

// Query returns the status of the process that answers on the socket.
func Query(ctx context.Context, socket string) (model.BFDStatus, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return model.BFDStatus{}, fmt.Errorf("%w %s: no neighbor in the configuration asks for it, weir run has not run, or another --socket is meant", ErrNobody, socket)
	}
	if err != nil {
		return model.BFDStatus{}, fmt.Errorf("talk to the BFD process: %w", err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := writeRequest(conn, Request{}); err != nil {
		return model.BFDStatus{}, err
	}
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return model.BFDStatus{}, err
	}
	status, err := read(bufio.NewReader(conn))
	if err != nil {
		return status, fmt.Errorf("query the BFD process on %s: %w", socket, err)
	}
	return status, nil
}

// Stop ends the process that answers on the socket, if there is one. Neighbors hear that the
// sessions are switched off, or still that they are down.
func Stop(socket string) error {
	conn, err := net.Dial("unix", socket)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	return writeRequest(conn, Request{End: true})
}
