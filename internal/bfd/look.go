package bfd

import (
	"context"
	"log/slog"
	"time"
)

// noteForwarding takes the state of the interfaces.
func (s *Speaker) noteForwarding(ctx context.Context, does map[string]Forwarding) {
	s.request(ctx, func() {
		s.does = does
		s.look(time.Now())
	})
}

// look holds the sessions down whose interfaces do not forward, and those that no process has asked
// for in time: then no process answers for this director any more.
func (s *Speaker) look(now time.Time) {
	s.expiry = time.Time{}
	for _, session := range s.sessions {
		why := held(session.want.Interfaces, s.does)
		switch end := s.renewed.Add(time.Duration(session.want.RestartTime)); {
		case !now.Before(end):
			why = ForwardingReset
			s.abandon(session)
		default:
			session.abandoned = false
			if s.expiry.IsZero() || end.Before(s.expiry) {
				s.expiry = end
			}
		}
		session.Hold(now, why)
	}
}

// abandon says once that a session is taken down because no process asks for it.
func (s *Speaker) abandon(session *session) {
	if session.abandoned {
		return
	}
	session.abandoned = true
	neighbor, restart := session.want.Neighbor, session.want.RestartTime
	s.say(func(log *slog.Logger) {
		log.Warn("nobody has asked for a BFD session for its restart time: it is taken down", "neighbor", neighbor, "restart-time", restart)
	})
}

// Look looks at the datapath now.
func (s *Speaker) Look(ctx context.Context) {
	s.watcher.check(func(does map[string]Forwarding) { s.noteForwarding(ctx, does) })
}
