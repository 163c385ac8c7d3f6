package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
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

// Server answers questions about a director.
type Server struct {
	datapath Datapath
	daemon   Daemon
	log      *slog.Logger
	reading  sync.Mutex // one reader of every counter in the kernel is enough
}

// NewServer returns a server that asks these.
func NewServer(datapath Datapath, daemon Daemon, log *slog.Logger) *Server {
	return &Server{datapath: datapath, daemon: daemon, log: log}
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
	answers := map[string]func() (any, error){
		"/v1/status":   s.status,
		"/v1/services": s.services,
		"/v1/backends": s.backends,
		"/v1/config":   func() (any, error) { return s.daemon.Config(), nil },
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, known := answers[r.URL.Path]
		switch {
		case !known:
			writeProblem(w, http.StatusNotFound, "there is nothing at "+r.URL.Path)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			writeProblem(w, http.StatusMethodNotAllowed, r.URL.Path+" can only be read")
		default:
			s.answer(w, r, answer)
		}
	})
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request, answer func() (any, error)) {
	value, err := answer()
	if err != nil {
		s.log.Error("answer a request", "path", r.URL.Path, "error", err)
		writeProblem(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(value); err != nil {
		s.log.Debug("send an answer", "path", r.URL.Path, "error", err)
	}
}

func (s *Server) read() (model.DatapathStatus, error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	d, err := s.datapath.Status()
	if err != nil {
		return model.DatapathStatus{}, fmt.Errorf("read the datapath: %w", err)
	}
	return d, nil
}

func (s *Server) status() (any, error) {
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	return newStatus(s.daemon, d), nil
}

func (s *Server) services() (any, error) {
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	for i := range d.Services {
		d.Services[i].Backends = orEmpty(d.Services[i].Backends)
	}
	return orEmpty(d.Services), nil
}

func (s *Server) backends() (any, error) {
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	return backendsOf(d), nil
}
