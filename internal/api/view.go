package api

import (
	"context"
	"net/http"
	"net/url"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"weir.io/weir/internal/model"
)

// SegmentQuery asks for what is of one segment alone.
type SegmentQuery struct {
	Segment wantedSegment `query:"segment" doc:"of this segment alone: none, vlan:100, vxlan:5001"`
}

// wantedSegment is a segment that a query may name.
type wantedSegment struct {
	id    model.Segment
	given bool
}

// UnmarshalText reads a segment.
func (w *wantedSegment) UnmarshalText(text []byte) error {
	w.given = len(text) > 0
	return w.id.UnmarshalText(text)
}

// segmentText is how a segment is written.
type segmentText struct{}

// Schema says how.
func (segmentText) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Description: "none, vlan:ID, vxlan:VNI or geneve:VNI", Examples: []any{"vxlan:5001"},
		Pattern: `^(none|vlan:[0-9]+(\.[0-9]+)?|(vxlan|geneve):[0-9]+)?$`}
}

// view is the segments that an answer is about. The zero value: all of them, and what is in none.
type view struct {
	only    []model.Segment // nil: all
	limited bool            // the caller may not know that there are others
}

// viewOf returns what a request is about. The error is a Problem.
func viewOf(ctx context.Context, q SegmentQuery) (view, error) {
	who := callerOf(ctx)
	v := view{only: who.Segments.list(), limited: who.limited()}
	if !q.Segment.given {
		return v, nil
	}
	if !v.has(q.Segment.id) {
		return v, who.outside("this is about another one")
	}
	v.only = []model.Segment{q.Segment.id}
	return v, nil
}

// all reports whether nothing is left out.
func (v view) all() bool { return v.only == nil }

// has reports whether what is of a segment is shown.
func (v view) has(id model.Segment) bool { return v.all() || slices.Contains(v.only, id) }

// ofServices keeps the services whose VIPs are in the view.
func (v view) ofServices(services []model.ServiceStatus) []model.ServiceStatus {
	if v.all() {
		return services
	}
	services = slices.DeleteFunc(slices.Clone(services), func(s model.ServiceStatus) bool { return !v.has(s.Segment) })
	if v.limited {
		for i := range services {
			services[i].Backends = slices.DeleteFunc(slices.Clone(services[i].Backends), func(b model.BackendStatus) bool { return !v.has(b.Segment) })
		}
	}
	return services
}

// ofCounts keeps the sums of the view's segments.
func (v view) ofCounts(counts []model.SegmentCounts) []model.SegmentCounts {
	if v.all() {
		return counts
	}
	return slices.DeleteFunc(slices.Clone(counts), func(c model.SegmentCounts) bool { return !v.has(c.ID) })
}

// ofProblems keeps the problems of the view's segments.
func (v view) ofProblems(problems []model.Problem) []model.Problem {
	if v.all() {
		return problems
	}
	return slices.DeleteFunc(slices.Clone(problems), func(p model.Problem) bool { return !v.has(p.Segment) })
}

// ofEvents keeps the events that are about the view's segments.
func (v view) ofEvents(events []Event) []Event {
	if v.all() {
		return events
	}
	events = slices.DeleteFunc(slices.Clone(events), func(e Event) bool { return !v.has(e.Segment) })
	for i := range events {
		events[i] = v.hide(events[i])
	}
	return events
}

// hide takes out of an event what would tell a limited caller how much happens elsewhere: its number.
func (v view) hide(e Event) Event {
	if v.limited {
		e.ID, e.Revision = 0, 0
	}
	return e
}

// ofSegments keeps the segments that are in the view.
func (v view) ofSegments(status model.SegmentsStatus) model.SegmentsStatus {
	if !v.all() {
		status.Segments = slices.DeleteFunc(status.Segments, func(s model.SegmentStatus) bool { return !v.has(s.ID) })
	}
	if v.limited {
		status.Sources = []model.HostSourceStatus{} // they count the hosts of all segments
		for i := range status.Segments {
			status.Segments[i].Problems = nil // they may name other segments
		}
	}
	return status
}

// readIn is read for an answer that may be about one segment alone.
func readIn[T any](s *Server, name, summary string, value func(context.Context, view) (T, error), errs ...int) {
	type answer struct{ Body T }
	handle(s, operation{method: http.MethodGet, path: name, id: "get-" + name, summary: summary, needs: model.RoleRead, segmented: true, errors: errs},
		func(ctx context.Context, in *SegmentQuery) (*answer, error) {
			v, err := viewOf(ctx, *in)
			if err != nil {
				return nil, err
			}
			is, err := value(ctx, v)
			return &answer{is}, err
		})
}

// addSegment adds a segment to a query; nil: it is about all.
func addSegment(query url.Values, in *model.Segment) {
	if in != nil {
		query.Set("segment", in.String())
	}
}

// inSegment is a path with the query for one segment.
func inSegment(path string, in *model.Segment) string {
	query := url.Values{}
	if addSegment(query, in); len(query) > 0 {
		return path + "?" + query.Encode()
	}
	return path
}
