package store

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"weir.io/weir/internal/model"
)

// The first pause after etcd could not be asked, and the longest: each is twice the one before. And
// how often the root is read while its watch says nothing: a network can lose a watch without
// either end noticing.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 5 * time.Second
	lookAgain  = 30 * time.Second
)

// Watch sends the state as soon as it can be read, and then every later one, except those that were
// replaced before they were taken. While etcd cannot be reached nothing is sent. It ends with the
// context.
func (e *Etcd) Watch(ctx context.Context) <-chan State {
	states := make(chan State, 1)
	go func() {
		defer close(states)
		e.follow(ctx, states)
	}()
	return states
}

func (e *Etcd) follow(ctx context.Context, states chan State) {
	var last int64 = -1 // the root that was sent
	pause := firstPause
	away := false
	for ctx.Err() == nil {
		s, err := e.read(ctx)
		if err != nil {
			if !away && ctx.Err() == nil {
				e.options.Log.Warn("etcd cannot be read; what runs goes on", "error", err)
				e.options.warn(model.ProblemGroup, partEtcd, "etcd cannot be read, what runs goes on", err)
			}
			away = true
			wait(ctx, pause)
			pause = min(2*pause, lastPause)
			continue
		}
		if away {
			e.options.Log.Info("etcd is back", "revision", s.Revision)
			e.options.warn(model.ProblemGroup, partEtcd, "", nil)
		}
		e.options.warn(model.ProblemGroup, partCertificates, "the next connection to etcd fails", e.options.outdated(time.Now()))
		away, pause = false, firstPause
		if s.switched != last {
			e.mu.Lock()
			e.sent = s
			e.mu.Unlock()
			replace(states, s.State)
			last = s.switched
		}
		e.awaitSwitch(ctx, s.at)
	}
}

// replace puts a state in the channel, in place of an earlier one that was not taken. Only the
// channel's one sender calls it.
func replace(states chan State, s State) {
	select {
	case <-states:
	default:
	}
	states <- s
}

// awaitSwitch returns when the root is, or may be, another one than at a revision of etcd.
func (e *Etcd) awaitSwitch(ctx context.Context, since int64) {
	client, err := e.connect()
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), lookAgain)
	defer cancel()
	watch := client.Watch(ctx, e.rootKey(), clientv3.WithRev(since+1))
	for response := range watch {
		if response.Err() != nil {
			wait(ctx, firstPause)
			return
		}
		if len(response.Events) > 0 {
			return
		}
	}
}

func wait(ctx context.Context, pause time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}
