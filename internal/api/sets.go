package api

import (
	"context"
	"errors"
	"fmt"
	"math"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"weir.io/weir/internal/model"
)

// Bounds on a sent set: a million backends, as weir writes them, and this time.
const (
	setBytes = 128 << 20
	setTime  = time.Minute
)

// Sets stores the services of owners. An error that is a Problem has its own status.
type Sets interface {
	// List returns all sets, by their owners' names.
	List() []SetInfo
	// Get returns an owner's set. Its keys are visible.
	Get(owner string) (set Set, found bool)
	// Put makes the services in the text the whole of an owner's set, if the condition holds.
	Put(ctx context.Context, owner string, text SetText, when Condition) (SetChange, error)
	// Documents returns an owner's set with its logs. Its keys are visible.
	Documents(owner string) (documents []model.Document, found bool)
	// Give makes services with their logs, in the JSON of Documents, the whole of an owner's
	// set.
	Give(ctx context.Context, owner string, text []byte) (SetChange, error)
	// Plan says what Put would change.
	Plan(ctx context.Context, r PlanRequest) (Plan, error)
	// Drain gives backends of sets another state, and returns those that it found.
	Drain(ctx context.Context, d Drain) ([]Drained, error)
}

// SetText is a set as it was sent: an object with one key, services.
type SetText struct {
	JSON bool // else it is YAML
	Text []byte
	Part float64 // of the way there from the current set; 0: all of it
}

// Condition and SetChange are sent with sets, and answered to them.
type (
	Condition = model.SetCondition
	SetChange = model.SetChange
)

// Set is what one owner wants. GET returns it in the form in which it is put.
type Set struct {
	Services []model.Service `json:"services"`

	Tag      string `json:"-"` // changes with the services
	Revision uint64 `json:"-"` // of the state that this director follows
}

// SetInfo is a set by name.
type SetInfo struct {
	Owner    string `json:"owner"`
	Services int    `json:"services"`
	ETag     string `json:"etag" doc:"for If-Match"`
	Fixed    bool   `json:"fixed,omitempty" doc:"it is the director's own file, and can only be got"`
}

// OwnerPath is whose set a request is about.
type OwnerPath struct {
	Owner string `path:"owner" minLength:"1" maxLength:"63" pattern:"^[a-z0-9][a-z0-9._-]*$" doc:"whose set"`
}

// attributes say in the log whose set a client has asked to change.
func (o *OwnerPath) attributes() []any { return []any{"owner", o.Owner} }

// setBody is a sent set. The library would first read it into a map, which takes ten times the
// memory; and errors must be the same as those of the file's reader.
type setBody struct{ text SetText }

type getSet struct {
	OwnerPath
	IfNoneMatch string `header:"If-None-Match" doc:"ETags of sets that the client has"`
}

type gotSet struct {
	ETag     string `header:"ETag"`
	Revision uint64 `header:"Weir-Revision" doc:"of the state that this director follows"`
	Body     Set
}

// PartQuery is how much of the way there from the current set.
type PartQuery struct {
	Part float64 `query:"part" exclusiveMinimum:"0" maximum:"1" default:"1" doc:"how much of the way from the set that there is to this one: backends' shares change by that part, and what cannot be divided comes with 1"`
}

// of is that part of the way to a set. The library's bounds do not refuse NaN, because they
// compare.
func (p PartQuery) of(text SetText) (SetText, error) {
	if text.Part = p.Part; math.IsNaN(p.Part) {
		return text, NewProblem(http.StatusUnprocessableEntity, "part: is not a number", FieldProblem{Field: "query.part", Detail: "is not a number"})
	}
	return text, nil
}

type putSet struct {
	OwnerPath
	PartQuery
	setBody
	IfMatch     string `header:"If-Match" doc:"ETag of the set that is to be replaced; *: of any"`
	IfNoneMatch string `header:"If-None-Match" doc:"*: there must be no set"`
}

type changedSet struct {
	ETag string `header:"ETag"`
	Body SetChange
}

// HandleSets lets clients get and put sets. It is called before Serve.
func (s *Server) HandleSets(sets Sets) {
	s.sets = sets
	readSegmented(s, "sets", "Which sets there are", func(ctx context.Context) ([]SetInfo, error) {
		who := callerOf(ctx)
		return orEmpty(slices.DeleteFunc(sets.List(), func(i SetInfo) bool { return who.refuseSet(i.Owner) != nil })), nil
	})
	one := "sets/{owner}"
	handle(s, operation{method: http.MethodGet, path: one, id: "get-set", summary: "A set as it was put", needs: model.RoleRead, segmented: true,
		text: "The defaults are filled in, and keys are hidden. What is got can be put: a key that is hidden stays what it is."}, s.getSet)
	ofPath := func(ctx huma.Context) string { return ctx.Param("owner") }
	ofQuery := func(ctx huma.Context) string { return ctx.Query("owner") }
	errs := []int{http.StatusRequestTimeout, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusServiceUnavailable}
	handle(s, operation{method: http.MethodPut, path: one, id: "put-set", summary: "Replace a set as a whole", needs: model.RoleWrite, segmented: true, owner: ofPath, body: true, changes: true,
		text: "Services that are not in it are removed. It is one transaction for all directors of a group, and answered when this one forwards by it. " +
			"With If-Match it replaces only the set that the client knows.",
		errors: append(errs, http.StatusPreconditionFailed)}, s.putSet)
	handle(s, operation{method: http.MethodPost, path: "plan", id: "plan-set", summary: "What a set would change", needs: model.RoleWrite, segmented: true, owner: ofQuery, body: true, changes: true,
		text: "It takes what would be put, and says what putting it would answer, what becomes of the traffic that is seen now, and which connections are at risk. Nothing is changed.", errors: errs}, s.planSet)
	s.handleDrain()
	s.handleDocuments()
	s.documentSet(one, http.MethodPut)
	s.documentSet("plan", http.MethodPost)
}

// documentSet says what body an operation takes.
func (s *Server) documentSet(path, method string) {
	item := s.api.OpenAPI().Paths[base+path]
	op := item.Put
	if method == http.MethodPost {
		op = item.Post
	}
	schema := s.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[Set](), true, "Set")
	op.RequestBody = &huma.RequestBody{Required: true, Description: "what is wanted, in JSON or YAML",
		Content: map[string]*huma.MediaType{"application/json": {Schema: schema}, "application/yaml": {Schema: schema}}}
}

// within refuses a caller of some segments a set that has something elsewhere, whoever has put that there.
func (s *Server) within(ctx context.Context, owner string) error {
	who := callerOf(ctx)
	if !who.limited() {
		return nil
	}
	if p := who.refuseSet(owner); p != nil {
		return p
	}
	set, _ := s.sets.Get(owner)
	if model.OutsideSegments(set.Services, who.Segments.list()) != nil {
		return who.outside("its set has something that is not for it: an administrator has put it")
	}
	return nil
}

func (s *Server) getSet(ctx context.Context, in *getSet) (*gotSet, error) {
	if err := s.within(ctx, in.Owner); err != nil {
		return nil, err
	}
	set, found := s.sets.Get(in.Owner)
	if !found {
		return nil, NewProblem(http.StatusNotFound, fmt.Sprintf("owner %q has no set", in.Owner))
	}
	if tags, any := parseTags(in.IfNoneMatch); any || slices.Contains(tags, set.Tag) {
		return nil, huma.ErrorWithHeaders(huma.Status304NotModified(), http.Header{"Etag": {strconv.Quote(set.Tag)}})
	}
	if callerOf(ctx).limited() {
		set.Revision = 0 // it counts the changes of all
	}
	set.Services = model.HideKeys(orEmpty(set.Services))
	return &gotSet{ETag: strconv.Quote(set.Tag), Revision: set.Revision, Body: set}, nil
}

func (s *Server) putSet(ctx context.Context, in *putSet) (*changedSet, error) {
	var when Condition
	when.Tags, when.Some = parseTags(in.IfMatch)
	if tags, any := parseTags(in.IfNoneMatch); any {
		when.None = true
	} else if len(tags) > 0 {
		return nil, NewProblem(http.StatusBadRequest, "If-None-Match: with a PUT it can only be *", FieldProblem{Field: "header.If-None-Match", Detail: "can only be *"})
	}
	if in.IfMatch != "" && len(when.Tags) == 0 && !when.Some {
		return nil, NewProblem(http.StatusBadRequest, "If-Match: is neither * nor ETags in quotation marks", FieldProblem{Field: "header.If-Match", Detail: "is neither * nor ETags in quotation marks"})
	}
	text, err := in.of(in.text)
	if err != nil {
		return nil, err
	}
	if err := s.within(ctx, in.Owner); err != nil {
		return nil, err
	}
	change, err := s.sets.Put(ctx, in.Owner, text, when)
	if callerOf(ctx).limited() {
		change.Revision = 0 // it counts the changes of all
	}
	return answerChange(change, err)
}

func answerChange(c SetChange, err error) (*changedSet, error) {
	if err != nil {
		return nil, err
	}
	fill(&c)
	return &changedSet{ETag: strconv.Quote(c.Tag), Body: c}, nil
}

// fill makes JSON say [] and not null.
func fill(c *SetChange) {
	c.Added, c.Changed, c.Removed, c.Moves = orEmpty(c.Added), orEmpty(c.Changed), orEmpty(c.Removed), orEmpty(c.Moves)
}

// parseTags reads a list of ETags (RFC 9110, section 13.1). Weak ones match no set.
func parseTags(text string) (tags []string, any bool) {
	if strings.TrimSpace(text) == "*" {
		return nil, true
	}
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if len(part) > 2 && part[0] == '"' && part[len(part)-1] == '"' {
			tags = append(tags, part[1:len(part)-1])
		}
	}
	return tags, false
}

// Resolve reads the body.
func (b *setBody) Resolve(ctx huma.Context) []error { return b.text.read(ctx, "a set", setBytes) }

// read reads a request's body, which has so many bytes at most.
func (t *SetText) read(ctx huma.Context, what string, most int64) []error {
	media, _, err := mime.ParseMediaType(ctx.Header("Content-Type"))
	switch {
	case err == nil && media == "application/json":
		t.JSON = true
	case err == nil && (media == "application/yaml" || media == "application/x-yaml"):
	default:
		return []error{NewProblem(http.StatusUnsupportedMediaType, what+" is sent as application/json or application/yaml")}
	}
	_ = ctx.SetReadDeadline(time.Now().Add(setTime))
	r, w := humago.Unwrap(ctx)
	if r.ContentLength > most {
		return []error{unreadable(&http.MaxBytesError{Limit: most})}
	}
	room := ctx.Context().Value(bodyKey{}).(*body) // admit has put it there
	if t.Text, err = room.read(http.MaxBytesReader(w, r.Body, most)); err != nil {
		if known := huma.HeadersError(nil); errors.As(err, &known) { // the library forgets them
			ctx.SetHeader("Retry-After", known.GetHeaders().Get("Retry-After"))
		}
		return []error{unreadable(err)}
	}
	return nil
}

// Sets lists all sets.
func (c *Client) Sets(ctx context.Context) ([]SetInfo, error) {
	return get[[]SetInfo](ctx, c, "sets")
}

// Set returns an owner's set, with its tag and the state's revision.
func (c *Client) Set(ctx context.Context, owner string) (set Set, err error) {
	header, err := c.ask(ctx, http.MethodGet, "sets/"+url.PathEscape(owner), nil, nil, &set)
	if err != nil {
		return set, err
	}
	set.Tag = strings.Trim(header.Get("ETag"), `"`)
	set.Revision, err = strconv.ParseUint(header.Get("Weir-Revision"), 10, 64)
	return set, err
}

// PutSet makes the services in a text an owner's set, if the condition holds.
func (c *Client) PutSet(ctx context.Context, owner string, text SetText, when Condition) (SetChange, error) {
	header := text.header()
	switch {
	case when.Some:
		header.Set("If-Match", "*")
	case len(when.Tags) > 0:
		header.Set("If-Match", `"`+strings.Join(when.Tags, `", "`)+`"`)
	}
	if when.None {
		header.Set("If-None-Match", "*")
	}
	query := url.Values{}
	text.addPart(query)
	return c.change(ctx, http.MethodPut, "sets/"+url.PathEscape(owner)+"?"+query.Encode(), header, text)
}

func (c *Client) change(ctx context.Context, method, what string, header http.Header, text SetText) (change SetChange, err error) {
	answer, err := c.ask(ctx, method, what, header, text.Text, &change)
	change.Tag = strings.Trim(answer.Get("ETag"), `"`)
	return change, err
}

func (t SetText) addPart(query url.Values) {
	if t.Part > 0 {
		query.Set("part", strconv.FormatFloat(t.Part, 'g', -1, 64))
	}
}

func (t SetText) header() http.Header {
	media := "application/yaml"
	if t.JSON {
		media = "application/json"
	}
	return http.Header{"Content-Type": {media}}
}
