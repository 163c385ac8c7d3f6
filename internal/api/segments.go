package api

import (
	"context"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"weir.io/weir/internal/model"
)

// hostsBytes bounds a list of hosts of tenants' networks: more than a director has room for.
const hostsBytes = 32 << 20

// Segments knows where hosts of tenants' networks are. An error that is a Problem has its own status.
type Segments interface {
	// Segments returns what is known of all segments, with the services of which only are in these; nil: all.
	Segments(only []model.Segment) (model.SegmentsStatus, error)
	// PutSegments replaces what clients of the API have said of hosts, by what is in the text.
	PutSegments(text SetText) (PutHosts, error)
}

// HostsList is what a client of the API says of where hosts of tenants' networks are.
type HostsList struct {
	Segments []model.SegmentHosts `json:"segments"`
}

// PutHosts is what has been put.
type PutHosts struct {
	Segments int `json:"segments"`
	Hosts    int `json:"hosts"`
	// Unnamed are segments of the list that may be mistyped.
	Unnamed []model.Segment `json:"unnamed,omitempty" doc:"of these, those that no segment, service or backend of the configuration and the sets names: no packet is sent by what was put until one does"`
}

// hostsBody is a sent list of hosts.
type hostsBody struct{ text SetText }

// Resolve reads the body.
func (b *hostsBody) Resolve(ctx huma.Context) []error {
	return b.text.read(ctx, "a list of hosts", hostsBytes)
}

type putHosts struct{ hostsBody }

// HandleSegments lets clients get where hosts of tenants' networks are, and say it. It is called before Serve.
func (s *Server) HandleSegments(segments Segments) {
	const path = "segments"
	type got struct{ Body model.SegmentsStatus }
	type put struct{ Body PutHosts }
	handle(s, operation{method: http.MethodGet, path: path, id: "get-segments", summary: "What the director knows of tenants' networks", needs: model.RoleRead, segmented: true, large: true,
		text: "Every segment that is configured, that services or backends are in, or of which a source says something: where its hosts are, and which source says so.", errors: []int{http.StatusServiceUnavailable}},
		func(ctx context.Context, in *SegmentQuery) (*got, error) {
			v, err := viewOf(ctx, *in)
			if err != nil {
				return nil, err
			}
			status, err := segments.Segments(CallerSegments(ctx))
			return &got{v.ofSegments(status)}, err
		})
	handle(s, operation{method: http.MethodPut, path: path, id: "put-segments", summary: "Say where hosts of tenants' networks are", needs: model.RoleAdmin, body: true,
		text: "It replaces everything that clients of the API have said before; one error changes nothing. It is kept over restarts, and of this director alone: each director of a group has its own. " +
			"Of an address that the configuration names, too, the configuration's host counts; OVN and EVPN count less.",
		errors: []int{http.StatusRequestTimeout, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusServiceUnavailable}},
		func(_ context.Context, in *putHosts) (*put, error) {
			answer, err := segments.PutSegments(in.text)
			return &put{answer}, err
		})
	schema := s.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[HostsList](), true, "HostsList")
	s.api.OpenAPI().Paths[base+path].Put.RequestBody = &huma.RequestBody{Required: true, Description: "what is wanted, in JSON or YAML",
		Content: map[string]*huma.MediaType{"application/json": {Schema: schema}, "application/yaml": {Schema: schema}}}
}

// Segments returns what the director knows of tenants' networks.
func (c *Client) Segments(ctx context.Context) (model.SegmentsStatus, error) {
	return c.SegmentsIn(ctx, nil)
}

// SegmentsIn returns what it knows of one; nil: of all.
func (c *Client) SegmentsIn(ctx context.Context, in *model.Segment) (model.SegmentsStatus, error) {
	return get[model.SegmentsStatus](ctx, c, inSegment("segments", in))
}

// PutSegments says where hosts of tenants' networks are.
func (c *Client) PutSegments(ctx context.Context, text SetText) (answer PutHosts, err error) {
	_, err = c.ask(ctx, http.MethodPut, "segments", text.header(), text.Text, &answer)
	return answer, err
}
