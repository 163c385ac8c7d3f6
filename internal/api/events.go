package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2/sse"

	"weir.io/weir/internal/model"
)

// Bounds on events: how many are kept (if there are more, those of the segment that has most of them go first), how many clients may listen at the same time, and how long
// they may get nothing.
const (
	mostEvents    = 1000
	mostListeners = 64
	heartbeat     = 15 * time.Second
)

// EventKind is what an event is about.
type EventKind string

// The kinds of events.
const (
	EventFile    EventKind = "file"    // another version of the director's file was read
	EventProblem EventKind = "problem" // something that was asked for does not run, or does again
	EventSet     EventKind = "set"     // an owner's set has changed
	EventHealth  EventKind = "health"  // a backend's health has changed
	EventBGP     EventKind = "bgp"     // a session with a router has changed
	// EventRedirect: connections are handed over to a backend again, or no longer.
	EventRedirect EventKind = "redirect"
	// EventOverride: the state of a backend in the director's file was overridden (weir drain), or counts again.
	EventOverride EventKind = "override"
	// EventTier: another tier of a service's backends gets new connections.
	EventTier EventKind = "tier"
	// EventUpkeep: a part of the host was not as it should be, and was repaired.
	EventUpkeep EventKind = "upkeep"
)

// The states of problems.
const (
	ProblemRaised   = "raised"
	ProblemResolved = "resolved"
)

// Event is something that has happened to a director or an agent.
type Event struct {
	ID       uint64    `json:"id" doc:"grows; as Last-Event-ID it says which one was heard last"`
	Time     time.Time `json:"time"`
	Kind     EventKind `json:"kind" enum:"file,problem,set,health,bgp,redirect,override,tier,upkeep"`
	Text     string    `json:"text" doc:"what has happened, for people"`
	Owner    string    `json:"owner,omitempty"`
	Revision uint64    `json:"revision,omitempty" doc:"of the state that has the set"`
	Service  string    `json:"service,omitempty"`
	// Segment is that of the service, or of the problem.
	Segment  model.Segment `json:"segment,omitzero" doc:"of the service, or of the tenant's network that it is about"`
	Backend  string        `json:"backend,omitempty" doc:"its name"`
	Backends int           `json:"backends,omitempty" doc:"where many have changed at once and are told together: how many"`
	Neighbor string        `json:"neighbor,omitempty" doc:"the router's address, 10.0.0.1%red in VRF red, or the interface by which it is known"`
	State    string        `json:"state,omitempty" doc:"of the backend's health or redirection, of the session, the number of the tier, of a part of the host (repaired), or of the problem: raised, resolved"`
	Part     string        `json:"part,omitempty" doc:"of the host, as in docs/operate/upkeep.md"`
	// Problem is what the event is about, of kind problem.
	Problem *model.Problem `json:"problem,omitempty"`
}

// Events keeps the last events, and tells them to listeners.
type Events struct {
	mu     sync.Mutex
	last   []Event               // the oldest first
	many   map[model.Segment]int // how many of them a segment has
	next   uint64
	news   chan struct{} // is closed when there is a new event
	closed bool
}

// NewEvents returns an empty Events. Its events' numbers are larger than those of an earlier
// process.
func NewEvents() *Events {
	const perSecond = 1 << 20
	return &Events{many: map[model.Segment]int{}, next: uint64(time.Now().Unix()) * perSecond, news: make(chan struct{})}
}

// Add tells events, which have happened now.
func (e *Events) Add(events ...Event) {
	if len(events) == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	for _, event := range events {
		event.ID, event.Time = e.next, now
		e.next++
		e.last = append(e.last, event)
		e.many[event.Segment]++
	}
	e.forget()
	close(e.news)
	e.news = make(chan struct{})
}

// forget leaves out what is more than mostEvents: the oldest ones of the segments that have most, so that what happens to
// one tenant pushes out nothing of others; and with more segments than that the oldest of all.
func (e *Events) forget() {
	if len(e.last) <= mostEvents {
		return
	}
	each := model.FairShare(slices.Collect(maps.Values(e.many)), mostEvents)
	leave := map[model.Segment]int{}
	for segment, n := range e.many {
		leave[segment] = n - each
	}
	goes := func(event Event) bool {
		if leave[event.Segment] <= 0 {
			return false
		}
		leave[event.Segment]--
		e.left(event)
		return true
	}
	e.last = slices.DeleteFunc(e.last, goes) // in place: a copy for each event would be garbage
	if more := len(e.last) - mostEvents; more > 0 {
		for _, event := range e.last[:more] {
			e.left(event)
		}
		e.last = slices.Delete(e.last, 0, more)
	}
}

// left counts an event that is left out.
func (e *Events) left(event Event) {
	if e.many[event.Segment]--; e.many[event.Segment] == 0 {
		delete(e.many, event.Segment)
	}
}

// Close ends telling.
func (e *Events) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.closed = true
		close(e.news)
	}
}

// after returns the events after a number, and a channel that is closed when there are more; nil:
// there never will be.
func (e *Events) after(id uint64) (list []Event, news <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.last {
		if e.last[i].ID > id {
			list = append(list, e.last[i:]...)
			break
		}
	}
	if e.closed {
		return list, nil
	}
	return list, e.news
}

// before returns the number after which there are that many events of a view, or all of them.
func (e *Events) before(count int, v view) uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	from := e.next - 1
	for i := len(e.last) - 1; i >= 0 && count > 0; i-- {
		if v.has(e.last[i].Segment) {
			from, count = e.last[i].ID-1, count-1
		}
	}
	return from
}

// HandleEvents lets clients listen to events. It is called before Serve.
func (s *Server) HandleEvents(events *Events) {
	s.events = events
	type input struct {
		SegmentQuery
		LastEventID string `header:"Last-Event-ID" doc:"number of the event that was heard last: those since then come first"`
		Last        int    `query:"last" minimum:"0" maximum:"1000" default:"0" doc:"where there is no Last-Event-ID: how many earlier ones come first"`
		Follow      bool   `query:"follow" default:"true" doc:"false: the answer ends with the last one that there is"`
	}
	op := s.endless(operation{method: http.MethodGet, path: "events", id: "get-events", summary: "What happens, as server-sent events", needs: model.RoleRead, segmented: true,
		text: "The answer does not end, unless follow is false. An event is a message whose data is an object; lines that begin with a colon only say that the director is there."})
	sse.Register(s.api, op, map[string]any{"message": Event{}}, func(ctx context.Context, in *input, send sse.Sender) {
		v, err := viewOf(ctx, in.SegmentQuery)
		if err != nil {
			return // seen has refused it
		}
		from, err := strconv.ParseUint(in.LastEventID, 10, 64)
		if err != nil || v.limited { // whose events have no numbers
			from = events.before(in.Last, v)
		}
		events.stream(ctx, from, in.Follow, v, send)
	})
}

// stream sends the events of a view after a number, and all that follow, until the client is gone; or
// only the existing ones.
func (e *Events) stream(ctx context.Context, from uint64, follow bool, v view, send sse.Sender) {
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		list, news := e.after(from)
		for _, event := range list {
			from = event.ID
			if !v.has(event.Segment) {
				continue
			}
			event = v.hide(event)
			if send(sse.Message{ID: int(event.ID), Data: event}) != nil {
				return
			}
		}
		if news == nil || !follow {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-news:
		case <-beat.C:
			if send.Comment("still there") != nil {
				return
			}
		}
	}
}

// EventQuery is which events are asked for.
type EventQuery struct {
	Last    int            // how many past ones
	Follow  bool           // and new ones, too
	Segment *model.Segment // nil: of all
}

// Events calls take with each event, the oldest first, until it returns an error, the context or
// the director ends, or there are no more.
func (c *Client) Events(ctx context.Context, q EventQuery, take func(Event) error) error {
	waiting, answered, cancel := c.patience(ctx, lookTimeout)
	defer cancel()
	query := url.Values{"last": {strconv.Itoa(q.Last)}, "follow": {strconv.FormatBool(q.Follow)}}
	addSegment(query, q.Segment)
	response, err := c.send(waiting, http.MethodGet, "events?"+query.Encode(), nil, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answered()
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, is := strings.CutPrefix(lines.Text(), "data: ")
		if !is {
			continue
		}
		var event Event
		if err := json.Unmarshal([]byte(data), &event); err != nil {
			return fmt.Errorf("read an event: %w", err)
		}
		if err := take(event); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	if err := lines.Err(); err != nil {
		return c.readError("events", silence(waiting, err))
	}
	return nil
}
