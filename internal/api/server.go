package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"weir.io/weir/internal/model"
)

// Bounds on what a client can make the director hold or wait for.
const (
	headerBytes   = 16 << 10
	readTimeout   = 10 * time.Second
	writeTimeout  = time.Minute
	idleTimeout   = time.Minute
	closeDeadline = 2 * time.Second
)

// Server answers questions about a director or an agent.
type Server struct {
	answers  map[string]func() (any, error) // by path
	handlers map[string]http.Handler        // by path: what answers otherwise than in JSON
	sets     Sets                           // nil: there are none, as in an agent
	log      *slog.Logger
	reading  sync.Mutex // one reader of every counter in the kernel is enough
}

// NewServer returns a director's server, which asks these.
func NewServer(datapath Datapath, daemon Daemon, log *slog.Logger) *Server {
	s := &Server{log: log}
	s.answers = map[string]func() (any, error){
		"/v1/status":   s.director(datapath, func(d model.DatapathStatus) any { return newStatus(daemon, d) }),
		"/v1/services": s.director(datapath, func(d model.DatapathStatus) any { return servicesOf(d) }),
		"/v1/backends": s.director(datapath, func(d model.DatapathStatus) any { return backendsOf(d) }),
		"/v1/config":   func() (any, error) { return daemon.Config(), nil },
	}
	return s
}

// NewAgentServer returns an agent's server, which asks these.
func NewAgentServer(agent Agent, daemon Daemon, log *slog.Logger) *Server {
	s := &Server{log: log}
	s.answers = map[string]func() (any, error){
		"/v1/status": func() (any, error) {
			s.reading.Lock()
			defer s.reading.Unlock()
			status, err := agent.Status()
			if err != nil {
				return nil, fmt.Errorf("read the agent's state: %w", err)
			}
			return newAgentStatus(daemon, status), nil
		},
		"/v1/config": func() (any, error) { return daemon.Config(), nil },
	}
	return s
}

// Handle lets a handler answer who reads a path. It is called before Serve.
func (s *Server) Handle(path string, handler http.Handler) {
	if s.handlers == nil {
		s.handlers = map[string]http.Handler{}
	}
	s.handlers[path] = handler
}

// HandleBGP answers questions about what is announced. It is called before Serve.
func (s *Server) HandleBGP(status func() model.BGPStatus) {
	s.answers["/v1/bgp"] = func() (any, error) { return status(), nil }
}

// director returns an answer that is made of what the datapath says.
func (s *Server) director(datapath Datapath, of func(model.DatapathStatus) any) func() (any, error) {
	return func() (any, error) {
		s.reading.Lock()
		defer s.reading.Unlock()
		d, err := datapath.Status()
		if err != nil {
			return nil, fmt.Errorf("read the datapath: %w", err)
		}
		return of(d), nil
	}
}

// Serve answers requests until the context ends.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler:        s.Handler(),
		ReadTimeout:    readTimeout,
		WriteTimeout:   writeTimeout,
		IdleTimeout:    idleTimeout,
		MaxHeaderBytes: headerBytes,
		ErrorLog:       slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeDeadline)
		defer cancel()
		if server.Shutdown(end) != nil {
			_ = server.Close()
		}
	})
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the API: %w", err)
	}
	return nil
}

// Handler returns the API as a handler.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, known := s.answers[r.URL.Path]
		handler := s.handlers[r.URL.Path]
		switch {
		case s.sets != nil && strings.HasPrefix(r.URL.Path, setsPath):
			s.putSet(w, r)
		case strings.HasPrefix(r.URL.Path, setsPath):
			writeProblem(w, http.StatusNotFound, "an agent keeps no sets: ask a director")
		case !known && handler == nil:
			writeProblem(w, http.StatusNotFound, "there is nothing at "+r.URL.Path)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			writeProblem(w, http.StatusMethodNotAllowed, r.URL.Path+" can only be read")
		case handler != nil:
			handler.ServeHTTP(w, r)
		default:
			s.answer(w, r, answer)
		}
	})
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request, answer func() (any, error)) {
	value, err := answer()
	if err != nil {
		s.log.Error("answer a request", "path", r.URL.Path, "error", err)
		writeProblem(w, statusOfError(err), err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(value); err != nil {
		s.log.Debug("send an answer", "path", r.URL.Path, "error", err)
	}
}
