package api

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"

	"weir.io/weir/internal/model"
)

// Explainer says what a director would do with a packet. An error that is a Problem has its
// own status.
type Explainer func(context.Context, model.Question) (model.Explanation, error)

type question struct{ Body model.Question }

type explanation struct{ Body model.Explanation }

// HandleExplain lets clients ask about packets. It is called before Serve.
func (s *Server) HandleExplain(explain Explainer) {
	handle(s, operation{method: http.MethodPost, path: "explain", id: "explain-packet", summary: "What would become of a packet, and why", needs: model.RoleRead, segmented: true,
		text:   "The director's program says so itself. Nothing is counted, remembered or sent. To suppose a set takes the right to put it.",
		errors: []int{http.StatusConflict, http.StatusServiceUnavailable}},
		func(ctx context.Context, in *question) (*explanation, error) {
			if p := callerOf(ctx).refuseQuestion(&in.Body); p != nil {
				return nil, p
			}
			if with := in.Body.With; with != nil {
				if p := callerOf(ctx).refuse(model.RoleWrite, with.Owner, true); p != nil {
					return nil, p
				}
				if err := s.within(ctx, with.Owner); err != nil {
					return nil, err
				}
				who := callerOf(ctx)
				if who.Role != model.RoleAdmin && !s.changes.take(who.Name) {
					return nil, tooSoon(s.changes.wait(who.Name), "ask for this less often")
				}
				if err := s.supposed.wait(ctx, who.Name, s.largeWait); err != nil { // it loads a program
					return nil, err
				}
				defer s.supposed.give(who.Name, 1)
			}
			e, err := explain(ctx, in.Body)
			if who := callerOf(ctx); err == nil && who.limited() && !explains(who.Segments.list(), &e) {
				return nil, who.outside("this packet, its service or its backend is not in them")
			}
			for _, slot := range []*model.ExplainedSlot{e.Slot, e.Before} {
				if slot != nil {
					slot.Candidates = orEmpty(slot.Candidates)
				}
			}
			e.Steps = orEmpty(e.Steps)
			return &explanation{e}, err
		})
}

// refuseQuestion says why a caller that is for some segments may not ask about a packet, or returns nil. It is
// asked before anything is looked at, so that errors tell nothing of others' segments or of interfaces.
func (c Caller) refuseQuestion(q *model.Question) *Problem {
	switch {
	case !c.limited():
		return nil
	case q.Interface != "":
		return c.outside("interface is about the whole director: leave it out")
	case len(q.Frame) == 0 && !slices.Contains(c.Segments.list(), q.Segment):
		return c.outside(fmt.Sprintf("this packet is not in them, but in segment %s: give it one of them", q.Segment))
	}
	return nil
}

// explains reports whether all that an explanation is about is in some segments.
func explains(only []model.Segment, e *model.Explanation) bool {
	switch {
	case e.Flow == nil || !slices.Contains(only, e.Flow.Segment):
		return false
	case e.Service != nil && !slices.Contains(only, e.Service.ID.Segment):
		return false
	}
	return e.Service != nil || e.Backend == nil // a reply's sender is a backend of whatever service
}

// Explain asks what the director would do with a packet.
func (c *Client) Explain(ctx context.Context, q model.Question) (model.Explanation, error) {
	return post[model.Explanation](ctx, c, "explain", q)
}

// FlowQuery is which flows are asked for.
type FlowQuery struct {
	Service string
	Segment *model.Segment // of the service; nil: any
	// Only are the segments that services may be of; nil: all. Of others nothing is known.
	Only    []model.Segment
	Client  netip.Addr // zero: any
	Backend netip.Addr // zero: any
	Most    int
}

// DefaultFlows is how many flows are listed by default.
const DefaultFlows = 1000

// The tables of flows, in the API.
const (
	TableFlowMemory = "flow-memory"
	TableFullNAT    = "full-nat"
)

// Flow is a flow whose backend the director remembers.
type Flow struct {
	Table   string         `json:"table" enum:"flow-memory,full-nat" doc:"which of the director's tables has it"`
	Service string         `json:"service"`
	Segment model.Segment  `json:"segment,omitzero" doc:"of the service"`
	Client  netip.AddrPort `json:"client"`
	VIP     netip.Addr     `json:"vip"`
	Port    uint16         `json:"port" doc:"of the VIP"`
	Backend netip.AddrPort `json:"backend" doc:"with port 0: the packet's own"`
	Source  netip.AddrPort `json:"source,omitzero" doc:"full NAT: the director's address and port from which its packets come to the backend"`
	Class   string         `json:"class" enum:"fresh,sustained,proved" doc:"how far what was seen of it shows that it is one; fresh: it gives way to others"`
	State   string         `json:"state" enum:"opening,open,closing,reset" doc:"opening: TCP: nothing but SYNs, or one packet of a connection that this director did not know, so that its backend is a guess (learned in docs/internals/datapath.md); UDP: one datagram. open: it has gone on. closing: a FIN. reset: a RST"`
	Idle    model.Duration `json:"idle,omitempty" doc:"since its last packet; none: about a second at most"`
}

// Flows are some of the flows that a director remembers.
type Flows struct {
	Flows []Flow `json:"flows"`
	More  bool   `json:"more" doc:"there are more than were asked for"`
}

// HandleFlows lets clients ask for the flows that a director remembers. It is called before Serve.
func (s *Server) HandleFlows(list func(context.Context, FlowQuery) (Flows, error)) {
	type input struct {
		SegmentQuery
		Service string     `query:"service" maxLength:"253" doc:"of this service alone"`
		Client  netip.Addr `query:"client" doc:"of this client's address alone"`
		Backend netip.Addr `query:"backend" doc:"of the backend of this address alone"`
		Limit   int        `query:"limit" minimum:"1" maximum:"100000" default:"1000" doc:"how many at most"`
	}
	type output struct{ Body Flows }
	handle(s, operation{method: http.MethodGet, path: "flows", id: "get-flows", summary: "The flows whose backends the director remembers", needs: model.RoleRead, segmented: true, large: true, errors: []int{http.StatusServiceUnavailable},
		text: "Most flows are in none, but those of full NAT: the ring says where their packets go. See docs/internals/consistency.md for which are."},
		func(ctx context.Context, in *input) (*output, error) {
			v, err := viewOf(ctx, in.SegmentQuery)
			if err != nil {
				return nil, err
			}
			flows, err := list(ctx, FlowQuery{Service: in.Service, Only: v.only, Client: in.Client, Backend: in.Backend, Most: in.Limit})
			flows.Flows = orEmpty(flows.Flows)
			return &output{flows}, err
		})
}

// Flows lists flows that the director remembers.
func (c *Client) Flows(ctx context.Context, q FlowQuery) (Flows, error) {
	query := url.Values{}
	addSegment(query, q.Segment)
	if q.Service != "" {
		query.Set("service", q.Service)
	}
	for name, a := range map[string]netip.Addr{"client": q.Client, "backend": q.Backend} {
		if a.IsValid() {
			query.Set(name, a.String())
		}
	}
	if q.Most > 0 {
		query.Set("limit", strconv.Itoa(q.Most))
	}
	return get[Flows](ctx, c, "flows?"+query.Encode())
}

// Ring is which backends own a service's slots.
type Ring struct {
	Service  string        `json:"service"`
	Segment  model.Segment `json:"segment,omitzero" doc:"of the service"`
	Backends []string      `json:"backends" doc:"their names, those that have lost slots with the last change too"`
	// Segments are where these backends are.
	Segments []model.Segment `json:"-"`
	Owners   []int           `json:"owners" doc:"for each slot its owner's place in backends; -1: nobody"`
	// Compared says that the membership before the newest one is known, and of the same size:
	// it leaves the service's log when no connection needs it any more.
	Compared bool       `json:"compared" doc:"what has moved with the last change is known"`
	Moved    []RingMove `json:"moved" doc:"slots that another one owned before the last change"`
}

// RingMove is a slot that has moved.
type RingMove struct {
	Slot int `json:"slot"`
	From int `json:"from" doc:"who owned it: a place in backends; -1: nobody"`
}

// HandleRing lets clients look at a service's ring. It is called before Serve.
func (s *Server) HandleRing(ring func(service string) (Ring, bool)) {
	type input struct {
		Service string `query:"service" required:"true" maxLength:"253" doc:"the service's name"`
	}
	type output struct{ Body Ring }
	handle(s, operation{method: http.MethodGet, path: "ring", id: "get-ring", summary: "Who owns the slots of a service's ring, and what has moved", needs: model.RoleRead, segmented: true, large: true, errors: []int{http.StatusServiceUnavailable}},
		func(ctx context.Context, in *input) (*output, error) {
			v, err := viewOf(ctx, SegmentQuery{})
			if err != nil {
				return nil, err
			}
			r, found := ring(in.Service)
			if !found || !v.has(r.Segment) {
				return nil, NewProblem(http.StatusNotFound, fmt.Sprintf("there is no service %q", in.Service))
			}
			for i := range r.Backends {
				if v.limited && (i >= len(r.Segments) || !v.has(r.Segments[i])) {
					r.Backends[i] = "hidden"
				}
			}
			r.Backends, r.Owners, r.Moved = orEmpty(r.Backends), orEmpty(r.Owners), orEmpty(r.Moved)
			return &output{r}, nil
		})
}
