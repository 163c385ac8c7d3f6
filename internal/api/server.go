package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"weir.io/weir/internal/model"
)

// Bounds on how much memory and time a client can cost the director.
const (
	headerBytes   = 16 << 10
	readTimeout   = 10 * time.Second
	writeTimeout  = time.Minute
	idleTimeout   = time.Minute
	closeDeadline = 2 * time.Second
)

// Server answers questions about a director or an agent, and takes a director's sets.
type Server struct {
	mux      *http.ServeMux
	api      huma.API
	log      *slog.Logger
	document func() ([]byte, error)
	reading  sync.Mutex // one reader of every counter in the kernel is enough
	bodies   *quota     // of large requests
	reports  *quota     // of agents' reports
	changes  *paces     // of sets, by clients that are no administrators
	supposed *quota     // explanations that suppose a set
	sets     Sets       // nil: there are none, as in an agent
	events   *Events    // nil: there are none

	large     places        // large answers that are being made
	largeWait time.Duration // for one of them

	streams    context.Context // ends when endless answers must end
	endStreams func()
}

// NewServer returns a director's server, with these sources.
func NewServer(datapath Datapath, daemon Daemon, log *slog.Logger) *Server {
	s := newServer("weir director", log)
	readSegmented(s, "status", "What the director does and counts", func(ctx context.Context) (Status, error) {
		v, _ := viewOf(ctx, SegmentQuery{})
		return fromDatapath(s, datapath, func(d model.DatapathStatus) Status {
			if v.limited {
				return limitedStatus(daemon, d, v)
			}
			return newStatus(daemon, d)
		})(ctx)
	})
	readIn(s, "services", "The services as they are in the kernel", viewOfDatapath(s, datapath, servicesOf))
	readIn(s, "backends", "The backends of every service as they are in the kernel", viewOfDatapath(s, datapath, backendsOf))
	read(s, "config", "The configuration that runs, with its defaults, and without secrets", configOf(daemon))
	return s
}

// NewAgentServer returns an agent's server, with these sources.
func NewAgentServer(agent Agent, daemon Daemon, log *slog.Logger) *Server {
	s := newServer("weir agent", log)
	read(s, "status", "What the agent does and counts", func(context.Context) (AgentStatus, error) {
		s.reading.Lock()
		defer s.reading.Unlock()
		status, err := agent.Status()
		if err != nil {
			return AgentStatus{}, fmt.Errorf("read the agent's state: %w", err)
		}
		return newAgentStatus(daemon, status), nil
	})
	read(s, "config", "The configuration that runs, with its defaults, and without secrets", configOf(daemon))
	return s
}

// HandleBGP answers questions about what is announced. It is called before Serve.
func (s *Server) HandleBGP(status func() model.BGPStatus) {
	read(s, "bgp", "Which routers are told what", func(context.Context) (model.BGPStatus, error) {
		return withLists(status()), nil
	})
}

// withLists makes JSON say [] and not null.
func withLists(b model.BGPStatus) model.BGPStatus {
	b.Neighbors, b.Routes = orEmpty(b.Neighbors), orEmpty(b.Routes)
	for i := range b.Neighbors {
		b.Neighbors[i].Families = orEmpty(b.Neighbors[i].Families)
	}
	return b
}

// HandleDirectors answers which directors the group has, and what each runs. It is called
// before Serve.
func (s *Server) HandleDirectors(directors func(context.Context) ([]model.DirectorRun, error)) {
	read(s, "directors", "The directors of the group, and what each runs", directors, http.StatusServiceUnavailable)
}

// fromDatapath returns an answer made from the datapath's status.
func fromDatapath[T any](s *Server, datapath Datapath, of func(model.DatapathStatus) T) func(context.Context) (T, error) {
	return func(context.Context) (none T, err error) {
		s.reading.Lock()
		defer s.reading.Unlock()
		d, err := datapath.Status()
		if err != nil {
			return none, fmt.Errorf("read the datapath: %w", err)
		}
		return of(d), nil
	}
}

// viewOfDatapath is fromDatapath for an answer that may be about one segment alone.
func viewOfDatapath[T any](s *Server, datapath Datapath, of func(model.DatapathStatus, view) T) func(context.Context, view) (T, error) {
	return func(ctx context.Context, v view) (T, error) {
		return fromDatapath(s, datapath, func(d model.DatapathStatus) T { return of(d, v) })(ctx)
	}
}

func configOf(daemon Daemon) func(context.Context) (model.Config, error) {
	return func(context.Context) (model.Config, error) {
		c := daemon.Config()
		c.Services = model.HideKeys(orEmpty(c.Services))
		for i := range c.Services {
			c.Services[i].Backends = orEmpty(c.Services[i].Backends)
		}
		c.Director.Interfaces = orEmpty(c.Director.Interfaces)
		return c, nil
	}
}

// Serve answers requests until the context ends.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler:        s.Handler(),
		ConnContext:    withPeer,
		ReadTimeout:    readTimeout,
		WriteTimeout:   writeTimeout,
		IdleTimeout:    idleTimeout,
		MaxHeaderBytes: headerBytes,
		ErrorLog:       slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeDeadline)
		defer cancel()
		if s.events != nil {
			s.events.Close() // listeners would not end by themselves
		}
		s.endStreams()
		if server.Shutdown(end) != nil {
			_ = server.Close()
		}
	})
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the API: %w", err)
	}
	<-ended // the end has only begun: listeners have yet to hear of it
	return nil
}
