package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"weir.io/weir/internal/model"
)

// mostMeasured is how long traffic may be counted for a plan.
const mostMeasured = 10 * time.Second

// PlanRequest is what to plan.
type PlanRequest struct {
	Owner string
	SetText
	Measure time.Duration // how long traffic is counted; 0: it is not
}

// Plan says what a set would change: what putting it would answer, and what happens to traffic and
// connections.
type Plan struct {
	SetChange `json:",inline"`
	// Base is the tag of the set that it was planned for: a condition for putting it. None:
	// there is no set.
	Base     string                 `json:"base,omitempty" doc:"ETag, without its quotation marks, of the set that the plan is for: put it with If-Match, so that it is what was planned; none: there is no set"`
	Measured model.Duration         `json:"measured,omitempty" doc:"for how long traffic was counted; none: it was not"`
	Services []model.PlannedService `json:"services" doc:"those that are added, changed and removed"`
	Limits   []model.PlannedLimit   `json:"limits" doc:"what this director would have to have room for"`
	// Overrides are states that operators have given to backends of the director's own file.
	Overrides []model.BackendOverride `json:"overrides,omitempty" doc:"states of backends beside the director's own file, which go on to hold after it"`
}

type planSet struct {
	setBody
	PartQuery
	Owner   string `query:"owner" required:"true" minLength:"1" maxLength:"63" pattern:"^[a-z0-9][a-z0-9._-]*$" doc:"whose set it would be"`
	Measure int    `query:"measure" minimum:"0" maximum:"10" default:"0" doc:"for how many seconds traffic is counted, to say what of it moves; 0: it is not"`
}

type plannedSet struct {
	ETag string `header:"ETag"`
	Body Plan
}

func (s *Server) planSet(ctx context.Context, in *planSet) (*plannedSet, error) {
	text, err := in.of(in.text)
	if err != nil {
		return nil, err
	}
	if err := s.within(ctx, in.Owner); err != nil {
		return nil, err
	}
	p, err := s.sets.Plan(ctx, PlanRequest{Owner: in.Owner, SetText: text, Measure: time.Duration(in.Measure) * time.Second})
	if err != nil {
		return nil, err
	}
	if callerOf(ctx).limited() { // of what all share, it knows its segments' limits
		p.Revision, p.Limits, p.Overrides = 0, nil, nil
	}
	fill(&p.SetChange)
	p.Services, p.Limits = orEmpty(p.Services), orEmpty(p.Limits)
	for i := range p.Services {
		p.Services[i].Backends, p.Services[i].Risks = orEmpty(p.Services[i].Backends), orEmpty(p.Services[i].Risks)
	}
	return &plannedSet{ETag: strconv.Quote(p.Tag), Body: p}, nil
}

// PlanSet says what PutSet would answer. It counts no traffic.
func (c *Client) PlanSet(ctx context.Context, owner string, text SetText) (SetChange, error) {
	plan, err := c.Plan(ctx, PlanRequest{Owner: owner, SetText: text})
	return plan.SetChange, err
}

// Plan says what putting a set would change.
func (c *Client) Plan(ctx context.Context, r PlanRequest) (plan Plan, err error) {
	query := url.Values{"owner": {r.Owner}}
	if r.Measure > 0 {
		query.Set("measure", strconv.Itoa(int(min(r.Measure, mostMeasured)/time.Second)))
	}
	r.addPart(query)
	answer, err := c.ask(ctx, http.MethodPost, "plan?"+query.Encode(), r.header(), r.Text, &plan)
	plan.Tag = strings.Trim(answer.Get("ETag"), `"`)
	return plan, err
}
