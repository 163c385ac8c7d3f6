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
	only []model.Segment // nil: all
}

// viewOf returns what a request is about.
func viewOf(_ context.Context, q SegmentQuery) view {
	if q.Segment.given {
		return view{only: []model.Segment{q.Segment.id}}
	}
	return view{}
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
	return slices.DeleteFunc(slices.Clone(services), func(s model.ServiceStatus) bool { return !v.has(s.Segment) })
}

// ofBackends keeps the backends that are in the view.
func (v view) ofBackends(backends []Backend) []Backend {
	if v.all() {
		return backends
	}
	return slices.DeleteFunc(backends, func(b Backend) bool { return !v.has(b.Segment) })
}

// ofEvents keeps the events that are about the view's segments.
func (v view) ofEvents(events []Event) []Event {
	if v.all() {
		return events
	}
	return slices.DeleteFunc(slices.Clone(events), func(e Event) bool { return !v.has(e.Segment) })
}

// ofSegments keeps the segments that are in the view.
func (v view) ofSegments(status model.SegmentsStatus) model.SegmentsStatus {
	if !v.all() {
		status.Segments = slices.DeleteFunc(status.Segments, func(s model.SegmentStatus) bool { return !v.has(s.ID) })
	}
	return status
}

// readIn is read for an answer that may be about one segment alone.
func readIn[T any](s *Server, name, summary string, value func(context.Context, view) (T, error), errs ...int) {
	type answer struct{ Body T }
	handle(s, operation{method: http.MethodGet, path: name, id: "get-" + name, summary: summary, needs: model.RoleRead, errors: errs},
		func(ctx context.Context, in *SegmentQuery) (*answer, error) {
			v, err := value(ctx, viewOf(ctx, *in))
			return &answer{v}, err
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
