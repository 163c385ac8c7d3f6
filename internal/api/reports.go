package api

import (
	"context"
	"encoding/json"
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

// The same of loads, which it reports every second, and how long their text may be.
const (
	loadsEvery = time.Second / 2
	loadsBurst = 6
	loadsBytes = 256 << 10
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
	// PutLoads takes the loads of its backend.
	PutLoads(from *Reporter, loads *LoadReport) error
}

// Reportable is what an agent may report to this director.
type Reportable struct {
	Segment   model.Segment `json:"segment" doc:"that the addresses are in"`
	Addresses []netip.Addr  `json:"addresses" doc:"of the backend whose agent the client is"`
	// Services are those of which connections count.
	Services []model.ServiceID `json:"services" doc:"of which the backend is one, in mode gue: those that a report may be about"`
	// Loads are the services that are placed by load.
	Loads  []LoadTarget `json:"loads" doc:"whose loads this director uses: none if it takes no loads by its API"`
	Shared bool         `json:"shared" doc:"a report comes to all directors of the group"`
	Time   time.Time    `json:"time" doc:"the director's clock: a report must not be from a later time, or from much earlier"`
}

// LoadTarget is a service on a backend whose load is reported.
type LoadTarget struct {
	model.ServiceID `json:",inline"`
	Backend         netip.AddrPort `json:"backend" doc:"port 0: the packet's own"`
}

// LoadReport is the loads of an agent's backend.
type LoadReport struct {
	Interval model.Duration `json:"interval" doc:"until the next report: this one counts for three, and for 10 s at most"`
	Loads    []ReportedLoad `json:"loads" maxItems:"4096"`
}

// ReportedLoad is what a server has to do.
type ReportedLoad struct {
	LoadTarget  `json:",inline"`
	Connections uint32  `json:"connections" doc:"that it has open"`
	Queue       uint32  `json:"queue" doc:"those of them in its accept queue"`
	Pressure    float64 `json:"pressure" minimum:"0" maximum:"1" doc:"share of the time in which some task waited for a CPU"`
}

// PutReport is what became of a report.
type PutReport struct {
	Shared bool `json:"shared" doc:"it comes to all directors of the group; else only this one has it"`
}

// reportBody is a sent report.
type reportBody struct{ text []byte }

// Resolve reads the body.
func (b *reportBody) Resolve(ctx huma.Context) []error { return b.read(ctx, reportBytes) }

func (b *reportBody) read(ctx huma.Context, most int64) []error {
	if media, _, err := mime.ParseMediaType(ctx.Header("Content-Type")); err != nil || media != "application/json" {
		return []error{NewProblem(http.StatusUnsupportedMediaType, "a report is sent as application/json")}
	}
	r, w := humago.Unwrap(ctx)
	if r.ContentLength > most {
		return []error{unreadable(&http.MaxBytesError{Limit: most})}
	}
	room := ctx.Context().Value(bodyKey{}).(*body) // admit has put it there
	text, err := room.read(http.MaxBytesReader(w, r.Body, most))
	if err != nil {
		return []error{unreadable(err)}
	}
	b.text = text
	return nil
}

type putReport struct{ reportBody }

// loadsBody is sent loads.
type loadsBody struct{ reportBody }

// Resolve reads the body.
func (b *loadsBody) Resolve(ctx huma.Context) []error { return b.read(ctx, loadsBytes) }

type putLoads struct{ loadsBody }

// HandleReports lets agents report of their backends. It is called before Serve.
func (s *Server) HandleReports(reports Reports) {
	const path = "report"
	type asked struct{ Body Reportable }
	type put struct{ Body PutReport }
	handle(s, operation{method: http.MethodGet, path: path, id: "get-report", summary: "What this agent may report", needs: model.RoleAgent},
		func(ctx context.Context, _ *struct{}) (*asked, error) {
			from := callerOf(ctx).Agent
			answer := reports.Reportable(&from)
			answer.Addresses, answer.Services, answer.Loads = orEmpty(answer.Addresses), orEmpty(answer.Services), orEmpty(answer.Loads)
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
	type done struct{ Body struct{} }
	handle(s, operation{method: http.MethodPut, path: "loads", id: "put-loads", summary: "Report the loads of this agent's backend", needs: model.RoleAgent, body: true,
		pace:   newPaces(loadsEvery, loadsBurst, noBound),
		text:   "They count for some seconds, at this director alone. Loads of another backend, or of a service that is not placed by load, are refused as a whole (403).",
		errors: []int{http.StatusRequestTimeout, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusServiceUnavailable}},
		func(ctx context.Context, in *putLoads) (*done, error) {
			from := callerOf(ctx).Agent
			var loads LoadReport
			if err := json.Unmarshal(in.text, &loads); err != nil {
				return nil, NewProblem(http.StatusUnprocessableEntity, "the loads cannot be read: "+model.Shown(err.Error()))
			}
			return &done{}, reports.PutLoads(&from, &loads)
		})
	s.documentReport(path, "AgentReport", reflect.TypeFor[model.AgentReport]())
	s.documentReport("loads", "LoadReport", reflect.TypeFor[LoadReport]())
}

// documentReport describes a body that is read here, and not by the library.
func (s *Server) documentReport(path, name string, body reflect.Type) {
	schema := s.api.OpenAPI().Components.Schemas.Schema(body, true, name)
	s.api.OpenAPI().Paths[base+path].Put.RequestBody = &huma.RequestBody{Required: true, Description: "what the backend has",
		Content: map[string]*huma.MediaType{"application/json": {Schema: schema}}}
}

// PutLoads reports the loads of this agent's backend.
func (c *Client) PutLoads(ctx context.Context, loads *LoadReport) error {
	body, err := encode(loads)
	if err != nil {
		return err
	}
	_, err = c.ask(ctx, http.MethodPut, "loads", jsonHeader, body, &struct{}{})
	return err
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
