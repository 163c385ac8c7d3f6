package api

import (
	"context"
	"mime"
	"net/http"
	"net/netip"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"weir.io/weir/internal/model"
)

// reportBytes bounds the text of a report, as in etcd, and reportsBytes those that come at the same time: of one
// agent one.
const (
	reportBytes  = 1 << 20
	reportsBytes = 64 << 20
)

// How often an agent may report connections. It does so every 15 seconds for each of its two addresses, and at once
// when signs of strain begin or end.
const (
	reportEvery = 5 * time.Second
	reportBurst = 6
)

// Reporter is an agent that is a client, and may report of its own backend.
type Reporter struct {
	Name    string
	Segment model.Segment // that its addresses are in
	V4, V6  netip.Addr    // invalid: none
}

func reporterOf(c *model.APIClient) Reporter {
	if c.Role != model.RoleAgent {
		return Reporter{}
	}
	r := Reporter{Name: c.Name, Segment: c.Segment}
	for _, a := range c.Addresses {
		if a.Is4() {
			r.V4 = a
		} else {
			r.V6 = a
		}
	}
	return r
}

// At returns the addresses of its backend.
func (r *Reporter) At() (all []model.HostAddress) {
	for _, a := range []netip.Addr{r.V4, r.V6} {
		if a.IsValid() {
			all = append(all, model.HostAddress{Segment: r.Segment, Address: a})
		}
	}
	return all
}

// Reports takes what agents report of their own backends. An error that is a Problem has its own status.
type Reports interface {
	// Reportable says what an agent may report.
	Reportable(of *Reporter) Reportable
	// PutReport takes a report from its text.
	PutReport(ctx context.Context, from *Reporter, text []byte) (PutReport, error)
}

// Reportable is what an agent may report to this director.
type Reportable struct {
	Segment   model.Segment `json:"segment" doc:"that the addresses are in"`
	Addresses []netip.Addr  `json:"addresses" doc:"of the backend whose agent the client is"`
	// Services are those of which connections count.
	Services []model.ServiceID `json:"services" doc:"of which the backend is one, in mode gue: those that a report may be about"`
	Shared   bool              `json:"shared" doc:"a report comes to all directors of the group"`
	Time     time.Time         `json:"time" doc:"the director's clock: a report must not be from a later time, or from much earlier"`
}

// PutReport is what became of a report.
type PutReport struct {
	Shared bool `json:"shared" doc:"it comes to all directors of the group; else only this one has it"`
}

// reportBody is a sent report.
type reportBody struct{ text []byte }

// Resolve reads the body.
func (b *reportBody) Resolve(ctx huma.Context) []error {
	if media, _, err := mime.ParseMediaType(ctx.Header("Content-Type")); err != nil || media != "application/json" {
		return []error{NewProblem(http.StatusUnsupportedMediaType, "a report is sent as application/json")}
	}
	r, w := humago.Unwrap(ctx)
	if r.ContentLength > reportBytes {
		return []error{unreadable(&http.MaxBytesError{Limit: reportBytes})}
	}
	room := ctx.Context().Value(bodyKey{}).(*body) // admit has put it there
	text, err := room.read(http.MaxBytesReader(w, r.Body, reportBytes))
	if err != nil {
		return []error{unreadable(err)}
	}
	b.text = text
	return nil
}

type putReport struct{ reportBody }

// HandleReports lets agents report of their backends. It is called before Serve.
func (s *Server) HandleReports(reports Reports) {
	const path = "report"
	type asked struct{ Body Reportable }
	type put struct{ Body PutReport }
	handle(s, operation{method: http.MethodGet, path: path, id: "get-report", summary: "What this agent may report", needs: model.RoleAgent},
		func(ctx context.Context, _ *struct{}) (*asked, error) {
			from := callerOf(ctx).Agent
			answer := reports.Reportable(&from)
			answer.Addresses, answer.Services = orEmpty(answer.Addresses), orEmpty(answer.Services)
			return &asked{answer}, nil
		})
	handle(s, operation{method: http.MethodPut, path: path, id: "put-report", summary: "Report the connections of this agent's backend", needs: model.RoleAgent, body: true,
		pace: newPaces(reportEvery, reportBurst, noBound),
		text: "It replaces the one before. A report about another address, another segment or a service of which the backend is none is refused as a whole (403). " +
			"What weir agent reports is in docs/internals/consistency.md.",
		errors: []int{http.StatusRequestTimeout, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusServiceUnavailable}},
		func(ctx context.Context, in *putReport) (*put, error) {
			from := callerOf(ctx).Agent
			answer, err := reports.PutReport(ctx, &from, in.text)
			return &put{answer}, err
		})
	schema := s.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[model.AgentReport](), true, "AgentReport")
	s.api.OpenAPI().Paths[base+path].Put.RequestBody = &huma.RequestBody{Required: true, Description: "what the backend has",
		Content: map[string]*huma.MediaType{"application/json": {Schema: schema}}}
}

// Reportable asks what this agent may report.
func (c *Client) Reportable(ctx context.Context) (Reportable, error) {
	return get[Reportable](ctx, c, "report")
}

// PutReport reports the connections of this agent's backend.
func (c *Client) PutReport(ctx context.Context, report *model.AgentReport) (answer PutReport, err error) {
	body, err := encode(report)
	if err != nil {
		return answer, err
	}
	_, err = c.ask(ctx, http.MethodPut, "report", jsonHeader, body, &answer)
	return answer, err
}
