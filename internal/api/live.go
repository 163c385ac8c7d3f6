package api

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/sse"

	"weir.io/weir/internal/model"
)

// How often the kernel is read for listeners: all of them get the same reading.
const (
	liveEvery = time.Second
	liveShare = 10                     // it waits this many times as long as reading took,
	liveMost  = 4 * time.Second        // and no longer: the dashboard says after 6 s that it is old
	liveSoon  = 250 * time.Millisecond // after an event, which has often changed something
	// rateSpan is the least time that rates are taken over: less would be noise.
	rateSpan      = 900 * time.Millisecond
	groupEvery    = 5 * time.Second // how often etcd is asked for other directors
	groupPatience = time.Second
)

// Bounds on messages.
const (
	mostTroubled = 50
	mostHistory  = 900 // readings
	firstEvents  = 100
	mostSent     = 100 // events in one message
)

// LiveSources are the sources of a director's live view.
type LiveSources struct {
	Datapath  Datapath
	Daemon    Daemon
	BGP       func() model.BGPStatus
	Directors func(context.Context) ([]model.DirectorRun, error)
	Events    *Events
}

// live reads what listeners are told. It reads nothing without listeners.
type live struct {
	LiveSources
	reading *sync.Mutex

	mu      sync.Mutex
	last    *liveFrame
	history []LivePoint
	group   *LiveGroup
	groupAt time.Time
}

// HandleLive lets clients watch the director. It is called before Serve, and after HandleEvents,
// which ends it with the director.
func (s *Server) HandleLive(sources LiveSources) {
	l := &live{LiveSources: sources, reading: &s.reading}
	type input struct {
		SegmentQuery
		Service string `query:"service" maxLength:"253" doc:"name of the service whose backends are told, too"`
	}
	op := s.endless(operation{method: http.MethodGet, path: "live", id: "get-live", summary: "What the director does now, as server-sent events", needs: model.RoleRead, segmented: true,
		text: "The answer does not end. The first message has all that there is, and about each second another one has what is different. It is what the dashboard shows."})
	sse.Register(s.api, op, map[string]any{"message": LiveMessage{}}, func(ctx context.Context, in *input, send sse.Sender) {
		v, err := viewOf(ctx, in.SegmentQuery)
		if err != nil {
			return // seen has refused it
		}
		if err := l.stream(ctx, in.Service, v, send); err != nil {
			s.log.Error("read what is streamed live", "error", err)
		}
	})
}

// endless returns an operation whose answer does not end: their number is bounded.
func (s *Server) endless(of operation) huma.Operation {
	listeners := places{newQuota(mostListeners, mostListeners), newSharedQuota(mostListeners, mostListeners), newSharedQuota(mostListeners, mostListeners)}
	of.endless = true
	op := s.operation(of)
	op.Middlewares = append(op.Middlewares, s.seen, func(ctx huma.Context, next func(huma.Context)) {
		who := callerOf(ctx.Context())
		if taken, _ := listeners.of(who).take(who.Name, 1); !taken {
			_ = huma.WriteErr(s.api, ctx, http.StatusTooManyRequests, "too many listen already")
			return
		}
		defer listeners.of(who).give(who.Name, 1)
		_ = ctx.SetReadDeadline(time.Time{}) // no more is read, however long it takes
		next(ctx)
	})
	return op
}

// seen refuses a caller that names a segment which it is not for: an answer that does not end begins before its
// operation could say so.
func (s *Server) seen(ctx huma.Context, next func(huma.Context)) {
	var q SegmentQuery
	if q.Segment.UnmarshalText([]byte(ctx.Query("segment"))) == nil {
		if _, err := viewOf(ctx.Context(), q); err != nil {
			_ = huma.WriteErr(s.api, ctx, http.StatusForbidden, err.Error())
			return
		}
	}
	next(ctx)
}

// stream sends messages until the client is gone, or the director ends.
func (l *live) stream(ctx context.Context, service string, v view, send sse.Sender) error {
	var sent, last *liveFrame // as the listener sees it, and what it was made of
	from, least := l.Events.before(firstEvents, v), rateSpan
	for {
		frame, history, err := l.frame(ctx, least)
		if err != nil {
			return err
		}
		seen := sent
		if frame != last {
			seen = frame.in(v)
		}
		events, news := l.Events.after(from)
		message := seen.message(sent, service)
		if len(events) > mostSent {
			events = events[:mostSent] // the rest is in the next message
		}
		for _, event := range events {
			from = event.ID
		}
		message.Events = v.ofEvents(events)
		if sent == nil && v.all() {
			message.History = history
		}
		if frame != last || len(message.Events) > 0 {
			if send.Data(message) != nil {
				return nil // the client has gone
			}
		}
		sent, last = seen, frame
		if news == nil {
			return nil
		}
		pause := time.NewTimer(max(liveEvery, min(liveShare*frame.took, liveMost)))
		if least == liveSoon {
			pause.Reset(liveSoon)
		}
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil
		case <-pause.C:
			least = rateSpan
		case <-news:
			pause.Stop()
			least = liveSoon
		}
	}
}

// frame returns the last reading, if it is no older than that, or reads again.
func (l *live) frame(ctx context.Context, least time.Duration) (*liveFrame, []LivePoint, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last != nil && time.Since(l.last.now.at) < least {
		return l.last, l.history, nil
	}
	begin := time.Now()
	status, err := l.read()
	if err != nil {
		return nil, nil, fmt.Errorf("read the datapath: %w", err)
	}
	frame := &liveFrame{now: &reading{at: time.Now()}, took: time.Since(begin)}
	if l.last != nil {
		// The last reading, or if that was just now, the one before it.
		if frame.before = l.last.now; frame.now.at.Sub(frame.before.at) < rateSpan && l.last.before != nil {
			frame.before = l.last.before
		}
	}
	frame.take(&status)
	limits := status.Limits
	m := &frame.whole
	m.Director = liveDirector(l.Daemon.Info(), limits, &status)
	m.Flows = LiveFlows{Remembered: status.Flows.Remembered, Most: limits.Flows, Settling: status.Flows.Settling}
	m.BGP, m.Group = liveBGP(l.BGP()), l.directors(ctx)
	l.last = frame
	if m.Seconds > 0 {
		// Other goroutines still read the old list: it is not changed in place.
		l.history = append(l.history[max(0, len(l.history)+1-mostHistory):len(l.history):len(l.history)], m.LivePoint)
	}
	return frame, l.history, nil
}

func (l *live) read() (model.DatapathStatus, error) {
	l.reading.Lock()
	defer l.reading.Unlock()
	return l.Datapath.Status()
}

// directors returns the group's directors, which are asked for less often.
func (l *live) directors(ctx context.Context) *LiveGroup {
	if l.group != nil && time.Since(l.groupAt) < groupEvery {
		return l.group
	}
	ctx, cancel := context.WithTimeout(ctx, groupPatience)
	defer cancel()
	list, err := l.Directors(ctx)
	l.group, l.groupAt = &LiveGroup{Directors: orEmpty(list)}, time.Now()
	if err != nil {
		l.group.Problem = err.Error()
	}
	return l.group
}
