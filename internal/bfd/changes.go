package bfd

import (
	"context"
	"log/slog"
	"time"
)

// say logs something, unless the reader of the log has stopped: that must not stop the sessions.
func (s *Speaker) say(event func(*slog.Logger)) {
	select {
	case s.events <- event:
	default:
	}
}

// note remembers that a session's state has changed, and wakes all readers that wait for
// changes. The end of a hold is such a change, too: the state shows it only when the
// neighbor has been heard, up to a second later.
func (s *Speaker) note(now time.Time, session *session) {
	if held := session.Held(); held != session.saidHeld {
		session.saidHeld = held
		s.renew()
	}
	state, why := session.State()
	if state == session.told && why == session.why {
		return
	}
	neighbor, from, says, after := session.want.Neighbor, session.told, session.Remote().Diagnostic, now.Sub(session.since)
	level := slog.LevelInfo
	if from == Up {
		level = slog.LevelWarn
	}
	s.say(func(log *slog.Logger) {
		log.Log(context.Background(), level, "BFD session changed", "neighbor", neighbor, "from", from, "to", state, "why", why,
			"neighbor-says", says, "after", after.Round(time.Millisecond))
	})
	if state != from {
		session.since = now
		session.changes++
	}
	session.told, session.why = state, why
	s.renew()
}

// renew wakes the readers that wait for a change.
func (s *Speaker) renew() {
	fresh := make(chan struct{})
	if old := s.changed.Swap(&fresh); old != nil {
		close(*old)
	}
}

// Changed returns a channel that is closed when the state of a session changes.
func (s *Speaker) Changed() <-chan struct{} { return *s.changed.Load() }
