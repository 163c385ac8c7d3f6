package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weir.io/weir/internal/datapath"
	"weir.io/weir/internal/flowsync"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// sharing is a director's part in the flows that its group remembers. The directors' fingerprints
// are in the group's etcd: a director without one shares nothing.
type sharing struct {
	log   *slog.Logger
	group *store.Etcd
	sync  *flowsync.Sync

	mu      sync.Mutex
	own     []netip.Addr
	stop    context.CancelFunc
	running sync.WaitGroup
	said    bool
}

func newSharing(ctx context.Context, kernel *datapath.Datapath, group *store.Etcd, log *slog.Logger) (*sharing, error) {
	s := &sharing{log: log, group: group, stop: func() {}}
	if group == nil {
		return s, nil
	}
	var err error
	s.sync, err = flowsync.New(kernel, group.FollowFingerprints(ctx), log)
	return s, err
}

// set follows what the configuration says about the group.
func (s *sharing) set(d model.Director) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	port := d.FlowPortOrDefault()
	if s.sync == nil {
		if len(d.Group) > 1 && port != 0 && !s.said {
			s.said = true
			s.log.Info("what is remembered of flows is not shared with the group: director.store has no etcd")
		}
		return nil
	}
	own, others, err := divideGroup(d.Group)
	if err != nil {
		return err
	}
	if len(others) == 0 || port == 0 {
		own = nil
	}
	s.sync.Set(own, others, port)
	if slices.Equal(own, s.own) {
		return nil
	}
	s.stop()
	s.running.Wait()
	ctx, cancel := context.WithCancel(context.Background())
	s.own, s.stop = own, cancel
	if len(own) > 0 {
		s.running.Go(func() { s.group.KeepFingerprint(ctx, own, s.sync.Fingerprint()) })
	}
	return nil
}

// await gives the other directors time to tell the flows that they remember.
func (s *sharing) await(ctx context.Context, patience time.Duration) {
	if s.sync == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if missing := s.sync.Await(ctx); len(missing) > 0 {
		s.log.Warn("directors of the group have not told yet what they remember of flows", "directors", missing)
	}
}

func (s *sharing) status() (peers []model.PeerStatus, strangers uint64) {
	if s.sync == nil {
		return nil, 0
	}
	return s.sync.Status(), s.sync.Strangers()
}

// problem says why directors of the group cannot tell this one of flows.
func (s *sharing) problem() error {
	if s.sync == nil {
		return nil
	}
	return s.sync.Problem()
}

func (s *sharing) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop()
	s.running.Wait()
	if s.sync != nil {
		s.sync.Close()
	}
}

// divideGroup says which of the group's addresses are this host's.
func divideGroup(group []netip.Addr) (own, others []netip.Addr, err error) {
	here, err := net.InterfaceAddrs()
	if err != nil {
		return nil, nil, fmt.Errorf("look for this host's addresses: %w", err)
	}
	for _, a := range group {
		mine := slices.ContainsFunc(here, func(at net.Addr) bool {
			prefix, err := netip.ParsePrefix(at.String())
			return err == nil && prefix.Addr() == a
		})
		if mine {
			own = append(own, a)
		} else {
			others = append(others, a)
		}
	}
	return own, others, nil
}
