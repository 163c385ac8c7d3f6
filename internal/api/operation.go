package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"weir.io/weir/internal/model"
)

// base begins every path of the API.
const base = "/v1/"

func newServer(title string, log *slog.Logger) *Server {
	s := &Server{mux: http.NewServeMux(), log: log, large: places{newQuota(largeAnswers, largeOfOneName), newQuota(largeAnswers, largeOfOneTenant), newQuota(largeAnswers, largeOfOneName)}, largeWait: turnWait, bodies: newBodies(),
		reports: newQuota(reportsBytes, 2*reportBytes), changes: newPaces(changeEvery, changeBurst, noBound), supposed: newQuota(1, 1)}
	s.streams, s.endStreams = context.WithCancel(context.Background())
	s.api = huma.NewAPI(huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI:    "3.1.0",
			Info:       &huma.Info{Title: title, Version: strings.Trim(base, "/"), Description: description},
			Components: &huma.Components{Schemas: NewSchemas(schemaPrefix), SecuritySchemes: securitySchemes},
			Security:   []map[string][]string{{"token": {}}, {"name": {}}, {"certificate": {}}},
		},
		Formats:       huma.DefaultFormats,
		DefaultFormat: "application/json",

		RejectUnknownQueryParameters: true,
	}, humago.NewAdapter(s.mux, ""))
	s.document = sync.OnceValues(s.openAPI)
	s.HandleSegmented(base+"openapi.json", http.HandlerFunc(s.sendDocument))
	return s
}

// operation is a request that the API answers, and the role that it takes.
type operation struct {
	method, path string // the path without base
	id           string // in clients that are made from the document
	summary      string
	text         string
	needs        model.Role
	// segmented says that callers that are for some segments may ask: what they get has nothing of others. All
	// other operations are refused to them, new ones, too.
	segmented bool
	// owner says whose set it is about; nil: no owner's, or the operation checks that itself.
	owner   func(huma.Context) string
	large   bool   // its answer may be so large that only some are made at a time
	endless bool   // its answer does not end
	body    bool   // its body may be so large that there is no room for many
	pace    *paces // how often a client may; nil: as often as it may ask anything
	// changes says that it changes sets, or works out what that would do: clients that are no administrators have
	// one pace for all of these.
	changes bool
	errors  []int // its own, besides those of all operations
	// answers describe the answers that the library cannot derive from the output; nil: it can.
	answers map[string]*huma.Response
}

// read lets a value be got by its name. errs are its own errors, besides those of all operations.
func read[T any](s *Server, name, summary string, value func(context.Context) (T, error), errs ...int) {
	readBy(s, operation{path: name, summary: summary, errors: errs}, value)
}

// readSegmented is read for a value that has nothing of other segments than the caller's.
func readSegmented[T any](s *Server, name, summary string, value func(context.Context) (T, error), errs ...int) {
	readBy(s, operation{path: name, summary: summary, errors: errs, segmented: true}, value)
}

func readBy[T any](s *Server, op operation, value func(context.Context) (T, error)) {
	type answer struct{ Body T }
	op.method, op.id, op.needs = http.MethodGet, "get-"+op.path, model.RoleRead
	handle(s, op,
		func(ctx context.Context, _ *struct{}) (*answer, error) {
			v, err := value(ctx)
			return &answer{v}, err
		})
}

// handle lets an operation be asked. Its input and output are the library's: fields that
// are tagged path, query and header, and Body. It is called before Serve.
func handle[I, O any](s *Server, op operation, do func(context.Context, *I) (*O, error)) {
	huma.Register(s.api, s.operation(op), func(ctx context.Context, in *I) (*O, error) {
		out, err := do(ctx, in)
		if op.needs != model.RoleRead && op.needs != model.RoleAgent { // agents report all the time
			attributes := []any{"operation", op.id, "client", callerOf(ctx).Name, "status", statusOfError(err)}
			if what, ok := any(in).(interface{ attributes() []any }); ok {
				attributes = append(attributes, what.attributes()...)
			}
			s.log.Info("a client has asked for something", attributes...)
		}
		if err == nil {
			return out, nil
		}
		if known := huma.StatusError(nil); errors.As(err, &known) {
			return nil, err
		}
		s.log.Error("answer a request", "operation", op.id, "error", err)
		return nil, NewProblem(http.StatusInternalServerError, err.Error())
	})
}

// operation returns what the library has to know about one.
func (s *Server) operation(op operation) huma.Operation {
	return huma.Operation{
		Method: op.method, Path: base + op.path, OperationID: op.id, Summary: op.summary, Description: op.text,
		Responses: op.answers, Errors: slices.Concat(commonErrors, op.errors), Middlewares: huma.Middlewares{s.admit(op)},
	}
}

// statusOfError returns the status of an operation's answer.
func statusOfError(err error) int {
	if known := huma.StatusError(nil); errors.As(err, &known) {
		return known.GetStatus()
	}
	if err != nil {
		return http.StatusInternalServerError
	}
	return http.StatusOK
}

// commonErrors are those that every operation may end with.
var commonErrors = []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound,
	http.StatusUnprocessableEntity, http.StatusTooManyRequests}

// admit refuses callers that may not ask.
func (s *Server) admit(op operation) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		owner := ""
		if op.owner != nil {
			owner = op.owner(ctx)
		}
		if p := callerOf(ctx.Context()).refuse(op.needs, owner, op.owner != nil); p != nil {
			_ = huma.WriteErr(s.api, ctx, p.Status, "", p)
			return
		}
		if who := callerOf(ctx.Context()); who.limited() && !op.segmented {
			_ = huma.WriteErr(s.api, ctx, http.StatusForbidden, who.outside("this is about the whole director").Detail)
			return
		}
		pace := op.pace
		if op.changes && callerOf(ctx.Context()).Role != model.RoleAdmin {
			pace = s.changes
		}
		if pace != nil && !pace.take(callerOf(ctx.Context()).Name) {
			ctx.SetHeader("Retry-After", seconds(pace.wait(callerOf(ctx.Context()).Name)))
			_ = huma.WriteErr(s.api, ctx, http.StatusTooManyRequests, "ask for this less often")
			return
		}
		who := callerOf(ctx.Context())
		if op.large || who.limited() && op.method == http.MethodGet && !op.endless {
			give, err := s.takeLarge(ctx.Context(), who)
			if err != nil {
				ctx.SetHeader("Retry-After", seconds(turnAgain))
				_ = huma.WriteErr(s.api, ctx, http.StatusServiceUnavailable, "", err)
				return
			}
			defer give()
		}
		if op.body {
			room := s.bodies
			if op.needs == model.RoleAgent { // so that agents take nothing from others
				room = s.reports
			}
			b := &body{of: room, client: callerOf(ctx.Context()).Name}
			defer b.end()
			ctx = huma.WithValue(ctx, bodyKey{}, b)
		}
		next(ctx)
	}
}

// takeLarge takes a place for a large answer, when there is one in time, until give is called.
func (s *Server) takeLarge(ctx context.Context, who Caller) (give func(), err error) {
	q := s.large.of(who)
	return func() { q.give(who.Name, 1) }, q.wait(ctx, who.Name, s.largeWait)
}

// Handle lets a handler answer reads of a path, but for callers that are for some segments alone. It is called
// before Serve.
func (s *Server) Handle(path string, handler http.Handler) {
	s.HandleSegmented(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if who := callerOf(r.Context()); who.limited() {
			writeProblem(w, who.outside("this is about the whole director"))
			return
		}
		handler.ServeHTTP(w, r)
	}))
}

// HandleSegmented is Handle for a handler that answers callers of segments, too: see CallerSegments. What it
// answers them has nothing of other segments.
func (s *Server) HandleSegmented(path string, handler http.Handler) {
	s.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		if p := callerOf(r.Context()).refuse(model.RoleRead, "", false); p != nil {
			writeProblem(w, p)
			return
		}
		if who := callerOf(r.Context()); who.limited() {
			give, err := s.takeLarge(r.Context(), who)
			if err != nil {
				w.Header().Set("Retry-After", seconds(turnAgain))
				writeProblem(w, NewProblem(http.StatusServiceUnavailable, err.Error()))
				return
			}
			defer give()
		}
		handler.ServeHTTP(w, r)
	})
}

// Handler returns the API as a handler for callers that may do everything.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.route(w, r.WithContext(WithCaller(r.Context(), Caller{Name: localCaller, Role: model.RoleAdmin})))
	})
}

// route finds the operation of a request. An unknown path is a problem, too.
func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	answer, pattern := s.mux.Handler(r)
	if pattern != "" {
		s.mux.ServeHTTP(w, r)
		return
	}
	var why head
	answer.ServeHTTP(&why, r)
	if why.status != http.StatusMethodNotAllowed {
		writeProblem(w, NewProblem(http.StatusNotFound, "there is nothing at "+model.Shown(r.URL.Path)))
		return
	}
	allowed := why.Header().Get("Allow")
	w.Header().Set("Allow", allowed)
	writeProblem(w, NewProblem(http.StatusMethodNotAllowed, r.URL.Path+" is only for "+allowed))
}

// head is the beginning of an answer.
type head struct {
	header http.Header
	status int
}

// Header returns the headers that are set.
func (h *head) Header() http.Header {
	if h.header == nil {
		h.header = http.Header{}
	}
	return h.header
}

// WriteHeader notes the status.
func (h *head) WriteHeader(status int) { h.status = status }

// Write drops the body.
func (h *head) Write(b []byte) (int, error) { return len(b), nil }
