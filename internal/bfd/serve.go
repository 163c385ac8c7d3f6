package bfd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/retry"
)

// Request is what one line of the control socket asks for. Each is answered by a line with a
// [model.BFDStatus], and another line follows whenever a session changes its state.
type Request struct {
	// Sessions are the wanted sessions from now on, each for its restart time if no other request
	// for sessions comes; nil: as before.
	Sessions []model.BFDSession `json:"sessions"`
	// End switches every session off, and then ends the process.
	End bool `json:"end,omitempty"`
}

// Times of a process without clients.
const (
	// unclaimed is how long it waits for the first request.
	unclaimed = time.Minute
	// farewell is how long it goes on saying that the sessions are down.
	farewell = 5 * time.Second
	// requestBytes bounds a request.
	requestBytes = 1 << 20
	// writeTimeout is how long a reader of answers may take.
	writeTimeout = 5 * time.Second
)

// Server is a speaker that other processes tell what to do.
type Server struct {
	speaker *Speaker
	about   model.BFDStatus // version and such
	log     *slog.Logger

	mu       sync.Mutex
	deadline time.Time
	renewed  chan struct{} // one element: the deadline has changed
	end      chan struct{} // closed when the process must end
	endOnce  sync.Once
}

// NewServer makes a server. about is what its answers say about the process.
func NewServer(speaker *Speaker, about model.BFDStatus, log *slog.Logger) *Server {
	return &Server{speaker: speaker, about: about, log: log, deadline: time.Now().Add(unclaimed),
		renewed: make(chan struct{}, 1), end: make(chan struct{})}
}

// Run speaks BFD and answers on the listener until the context ends, or a request says so, or the
// sessions were not renewed in time.
func (s *Server) Run(ctx context.Context, listener net.Listener) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var speaking, all sync.WaitGroup
	talking, quiet := context.WithCancel(ctx)
	speaking.Go(func() { s.speaker.Run(talking) })
	serving, unserved := context.WithCancel(context.WithoutCancel(ctx))
	all.Go(func() {
		<-serving.Done()
		listener.Close()
	})
	all.Go(func() { s.accept(serving, listener, &all) })
	select {
	case <-ctx.Done():
	case <-s.end:
	case <-s.expired(ctx):
	}
	quiet()
	speaking.Wait()
	unserved()
	all.Wait()
}

// expired returns a channel that is closed when no process has asked for sessions in time, and the
// neighbors know.
func (s *Server) expired(ctx context.Context) <-chan struct{} {
	over := make(chan struct{})
	go func() {
		for {
			s.mu.Lock()
			end := s.deadline.Add(farewell)
			s.mu.Unlock()
			timer := time.NewTimer(time.Until(end))
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-s.renewed:
				timer.Stop()
			case <-timer.C:
				s.log.Warn("nobody has asked for BFD sessions for the longest of their restart times")
				close(over)
				return
			}
		}
	}()
	return over
}

func (s *Server) accept(ctx context.Context, listener net.Listener, all *sync.WaitGroup) {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, say
			s.log.Error("accept on the BFD socket", "error", err)
			retry.Sleep(ctx, time.Second)
			continue
		}
		all.Go(func() {
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			defer stop()
			defer conn.Close()
			s.converse(ctx, conn)
		})
	}
}

// converse answers one client's requests, and tells it of changes.
func (s *Server) converse(ctx context.Context, conn net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	requests := make(chan Request)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer conn.Close()
	defer cancel()
	reading.Go(func() {
		defer cancel()
		lines := bufio.NewScanner(conn)
		lines.Buffer(nil, requestBytes)
		for lines.Scan() {
			var r Request
			if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
				s.log.Error("request on the BFD socket refused", "error", err)
				return
			}
			select {
			case requests <- r:
			case <-ctx.Done():
				return
			}
		}
	})
	var changed <-chan struct{} // nil before the first request
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-requests:
			s.do(ctx, r)
		case <-changed:
		}
		changed = s.speaker.Changed()
		if err := s.sendStatus(ctx, conn); err != nil {
			return
		}
	}
}

func (s *Server) do(ctx context.Context, r Request) {
	if r.Sessions != nil && !r.End {
		if err := s.speaker.Set(ctx, r.Sessions); err != nil {
			return
		}
		longest := time.Second
		for i := range r.Sessions {
			longest = max(longest, time.Duration(r.Sessions[i].RestartTime))
		}
		s.mu.Lock()
		s.deadline = time.Now().Add(longest)
		s.mu.Unlock()
		select {
		case s.renewed <- struct{}{}:
		default:
		}
	}
	if r.End {
		s.speaker.Look(ctx) // a program that was just detached must not count as attached
		s.endOnce.Do(func() { close(s.end) })
	}
}

// sendStatus writes the status.
func (s *Server) sendStatus(ctx context.Context, conn net.Conn) error {
	status, err := s.speaker.Status(ctx)
	if err != nil {
		return err
	}
	status.Version, status.Started, status.Realtime, status.PID = s.about.Version, s.about.Started, s.about.Realtime, os.Getpid()
	status.Socket = s.about.Socket
	s.mu.Lock()
	status.Deadline = s.deadline
	s.mu.Unlock()
	line, err := json.Marshal(status)
	if err != nil {
		return err
	}
	if err := conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err = conn.Write(append(line, '\n'))
	return err
}
