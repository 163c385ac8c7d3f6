package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// The callers of one tenant.
var (
	redReads  = api.Caller{Name: "red-ro", Role: model.RoleRead, Segments: "vxlan:5001"}
	redWrites = api.Caller{Name: "red-rw", Role: model.RoleWrite, Owner: "red", Segments: "vxlan:5001"}
)

// opened are the operations that callers of segments may ask. Whoever adds one says here that its answer has
// nothing of other segments, and adds a request to TestLimitedCallersLearnNothing.
var opened = []string{
	"GET /", "GET /metrics", "GET /v1/openapi.json",
	"GET /v1/status", "GET /v1/services", "GET /v1/backends", "GET /v1/flows", "GET /v1/ring", "GET /v1/segments", "GET /v1/events", "GET /v1/live",
	"GET /v1/sets", "GET /v1/sets/{owner}", "PUT /v1/sets/{owner}", "POST /v1/plan", "POST /v1/drain", "POST /v1/explain",
}

// ownSets has a set of each of two owners, and one that an administrator has put for the first with something of
// the other tenant.
type ownSets struct {
	anySets
	sets map[string][]model.Service
}

func (s ownSets) List() (list []api.SetInfo) {
	for _, owner := range []string{"blue", "file", "red"} {
		list = append(list, api.SetInfo{Owner: owner, Services: len(s.sets[owner]), ETag: `"etag-of-` + owner + `"`})
	}
	return list
}

func (s ownSets) Get(owner string) (api.Set, bool) {
	services, is := s.sets[owner]
	return api.Set{Services: services, Tag: "etag-of-" + owner, Revision: 4711}, is
}

func (ownSets) Put(context.Context, string, api.SetText, api.Condition) (api.SetChange, error) {
	return api.SetChange{Revision: 4712}, nil
}

func (ownSets) Plan(context.Context, api.PlanRequest) (api.Plan, error) {
	return api.Plan{SetChange: api.SetChange{Revision: 4712}, Limits: []model.PlannedLimit{{Limit: "services", Before: 4713}},
		Overrides: []model.BackendOverride{{Service: "blue-web", Backend: "blue-a"}}}, nil
}

func serviceIn(name string, in model.Segment) model.Service {
	return model.Service{Name: name, Segment: in, VIP: netip.MustParseAddr("172.16.0.10"), Protocol: model.TCP, Port: model.PortRange{First: 443, Last: 443}, Mode: model.L2DSR,
		Backends: []model.Backend{{Name: "a", Address: netip.MustParseAddr("172.16.0.11"), Weight: 1, State: model.Active}}}
}

// shared is a server of a director with two tenants, of which all sources know something. Events and the
// live stream end.
func shared(t *testing.T, sets api.Sets) *api.Server {
	t.Helper()
	d := tenants()
	problem := func(in model.Segment, text string) model.Problem {
		return model.Problem{Kind: model.ProblemBackend, Segment: in, Severity: model.SeverityWarning, Text: text, Since: time.Unix(1, 0)}
	}
	d.info.Problems = []model.Problem{problem(red, "red-b is down"), problem(blue, "blue-a is down"), problem(model.Segment{}, "secret-of-the-director")}
	d.info.File, d.info.Host, d.info.Refused, d.info.Revision = "/etc/secret", "secret-host", "blue-web is refused", 4711
	server := api.NewServer(d, d, quiet())
	server.HandleBGP(func() model.BGPStatus { return model.BGPStatus{ASN: 64999} })
	server.HandleSets(sets)
	server.HandleExplain(func(_ context.Context, q model.Question) (e model.Explanation, err error) {
		if q.Interface != "" || q.Protocol == "fails" {
			return e, api.NewProblem(http.StatusUnprocessableEntity, "secret-host has other interfaces and segments")
		}
		e.Flow = &model.ExplainedFlow{Segment: q.Segment}
		for _, s := range d.status.Services {
			if s.Name == q.Protocol { // the packet's service
				e.Service = &model.ExplainedService{Name: s.Name, ID: model.ServiceID{Segment: s.Segment}}
				e.Backend = &model.ExplainedBackend{}
			}
		}
		return e, nil
	})
	server.HandleCapture(func(context.Context, model.Capture) (api.CaptureRun, error) {
		return nil, api.NewProblem(http.StatusConflict, "blue captures")
	})
	server.HandleFlows(func(_ context.Context, q api.FlowQuery) (api.Flows, error) {
		var list api.Flows
		for _, s := range d.status.Services {
			if q.Only == nil || slices.Contains(q.Only, s.Segment) {
				list.Flows = append(list.Flows, api.Flow{Service: s.Name, Segment: s.Segment})
			}
		}
		return list, nil
	})
	events := api.NewEvents()
	events.Add(api.Event{Kind: api.EventHealth, Segment: red, Service: "red-web", Text: "red-b is down", Revision: 4711},
		api.Event{Kind: api.EventHealth, Segment: blue, Service: "blue-web", Text: "blue-a is down"}, api.Event{Kind: api.EventSet, Owner: "blue", Text: "blue has another set"})
	events.Close()
	server.HandleEvents(events)
	server.HandleDirectors(func(context.Context) ([]model.DirectorRun, error) {
		return []model.DirectorRun{{Version: "secret"}}, nil
	})
	server.HandleLive(api.LiveSources{Datapath: d, Daemon: d, Events: events, BGP: func() model.BGPStatus { return model.BGPStatus{ASN: 64999} },
		Directors: func(context.Context) ([]model.DirectorRun, error) { return nil, nil }})
	server.HandleRing(func(name string) (api.Ring, bool) {
		for _, s := range d.status.Services {
			if s.Name == name {
				return api.Ring{Service: name, Segment: s.Segment, Backends: []string{"red-a", "blue-x", "172.16.0.99"}, Segments: []model.Segment{red, blue}}, true
			}
		}
		return api.Ring{}, false
	})
	server.HandleSegments(twoSegments{})
	server.HandleSegmented("/metrics", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "of %v", api.CallerSegments(r.Context()))
	}))
	server.HandleSegmented("/{$}", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	return server
}

// twoSegments knows of both.
type twoSegments struct{ noSegments }

func (twoSegments) Segments(only []model.Segment) (model.SegmentsStatus, error) {
	of := func(id model.Segment, host string, services ...string) model.SegmentStatus {
		return model.SegmentStatus{ID: id, Services: slices.DeleteFunc(services, func(s string) bool { return only != nil && s == "public" }), Addresses: []netip.Addr{},
			Hosts: []model.SegmentHostStatus{{SegmentHost: model.SegmentHost{Address: netip.MustParseAddr(host), VTEP: netip.MustParseAddr("192.0.2.1")}}}, Problems: []string{"VNI 7 is that of vxlan:5002"}}
	}
	return model.SegmentsStatus{Sources: []model.HostSourceStatus{{Source: model.HostsOfAPI, Hosts: 4714}},
		Segments: []model.SegmentStatus{of(red, "172.16.0.77", "red-web", "public"), of(blue, "172.16.0.99", "blue-web")}}, nil
}

func ask(server *api.Server, as api.Caller, method, path, body string) (int, string) {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	server.AnswerAs(as, w, r)
	header := w.Header().Clone()
	header.Del("Content-Type")
	return w.Code, fmt.Sprint(w.Body, header)
}

// Whatever the API has is closed to callers of segments, unless it is opened on purpose: so is what will be added.
func TestLimitedCallersAreDenied(t *testing.T) {
	server := shared(t, ownSets{sets: map[string][]model.Service{"red": {serviceIn("red-web", red)}}})
	text, err := server.Document()
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	all := []string{"GET /", "GET /metrics", "GET /v1/openapi.json"}
	for path, methods := range document.Paths {
		for method := range methods {
			all = append(all, strings.ToUpper(method)+" "+path)
		}
	}
	for _, one := range opened {
		if !slices.Contains(all, one) {
			t.Errorf("%s is no operation", one)
		}
	}
	closed := 0
	for _, one := range all {
		method, path, _ := strings.Cut(one, " ")
		path = strings.ReplaceAll(path, "{owner}", "red")
		for _, who := range []api.Caller{redReads, redWrites} {
			code, body := ask(server, who, method, path, "{}")
			denied := code == http.StatusForbidden && strings.Contains(body, "is for the segments vxlan:5001 alone, and this is about the whole director")
			role := code == http.StatusForbidden && strings.Contains(body, "has the role")
			switch is := slices.Contains(opened, one); {
			case is && denied:
				t.Errorf("%s: refused as %s: %s", one, who.Name, body)
			case !is && !denied && !role:
				t.Errorf("%s: answered as %s, with %d: %s", one, who.Name, code, body)
			case !is:
				closed++
			}
		}
	}
	if closed < 12 {
		t.Errorf("%d requests were refused, and there are more operations", closed)
	}
	// A handler that is added without a word is closed, too.
	server.Handle("/new", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "blue") }))
	if code, body := ask(server, redReads, "GET", "/new", ""); code != http.StatusForbidden {
		t.Errorf("a new handler answers %d: %s", code, body)
	}
	if code, _ := ask(server, api.Caller{Name: "all", Role: model.RoleRead}, "GET", "/new", ""); code != http.StatusOK {
		t.Errorf("a new handler answers others %d", code)
	}
}

// secrets are what a caller of red may never read: the other tenant, and counts and addresses of the whole.
var secrets = regexp.MustCompile(`blue|5002|172\.16\.0\.99|secret|public|plain|471[1234]|64999`)

// What a caller of one segment is answered is about that segment: attacks ask for the other one in every way that
// there is.
func TestLimitedCallersLearnNothing(t *testing.T) {
	server := shared(t, ownSets{sets: map[string][]model.Service{"red": {serviceIn("red-web", red)}, "blue": {serviceIn("blue-web", blue)}, "file": {}}})
	set := `{"services":[]}`
	for _, test := range []struct {
		method, path, body string
		code               int
		says               string // that is wanted
	}{
		{"GET", "/v1/status", "", 200, `"services":1`},
		{"GET", "/v1/services", "", 200, `"name":"red-web"`},
		{"GET", "/v1/services?segment=vxlan:5001", "", 200, `"name":"red-web"`},
		{"GET", "/v1/services?segment=vxlan:5002", "", 403, "this is about another one"},
		{"GET", "/v1/services?segment=none", "", 403, "this is about another one"},
		{"GET", "/v1/services?segment=", "", 200, `"name":"red-web"`},
		{"GET", "/v1/backends", "", 200, `"name":"red-a"`},
		{"GET", "/v1/backends?segment=vxlan:5002", "", 403, ""},
		{"GET", "/v1/flows?limit=100000", "", 200, `"service":"red-web"`},
		{"GET", "/v1/flows?segment=none", "", 403, ""},
		{"GET", "/v1/events?last=1000&follow=false", "", 200, "red-b is down"},
		{"GET", "/v1/events?segment=vxlan:5002&last=1000&follow=false", "", 403, ""},
		{"GET", "/v1/live", "", 200, `"name":"red-web"`},
		{"GET", "/v1/live?service=blu-web", "", 200, `"missing":true`},
		{"GET", "/v1/live?segment=vxlan:5002", "", 403, ""},
		{"GET", "/v1/ring?service=red-web", "", 200, `"backends":["red-a","hidden","hidden"]`},
		{"GET", "/v1/segments", "", 200, "172.16.0.77"},
		{"GET", "/v1/segments?segment=vxlan:5002", "", 403, ""},
		{"GET", "/v1/sets", "", 200, `"owner":"red"`},
		{"GET", "/v1/sets/red", "", 200, "red-web"},
		{"GET", "/v1/sets/file", "", 403, "a set that is not its own"},
		{"PUT", "/v1/sets/red", set, 200, `"moves"`},
		{"POST", "/v1/plan?owner=red", set, 200, `"limits":[]`},
		{"POST", "/v1/explain", `{"segment":"vxlan:5001","protocol":"red-web"}`, 200, `"red-web"`},
		{"POST", "/v1/explain", `{"segment":"vxlan:5001","protocol":"blue-web"}`, 403, "not in them"},
		{"POST", "/v1/explain", `{"frame":"00"}`, 403, "not in them"},
		{"POST", "/v1/explain", `{"segment":"vlan:7"}`, 403, "not in them"},
		{"POST", "/v1/explain", `{"segment":"vlan:7","protocol":"fails"}`, 403, "not in them"},
		{"POST", "/v1/explain", `{"segment":"vxlan:5001","interface":"eth7"}`, 403, "leave it out"},
		{"GET", "/metrics", "", 200, "of [vxlan:5001]"},
		{"GET", "/v1/bgp", "", 403, ""},
		{"GET", "/v1/config", "", 403, ""},
		{"GET", "/v1/directors", "", 403, ""},
		{"POST", "/v1/capture", "{}", 403, ""},
		{"GET", "/v1/sets/red/documents", "", 403, ""},
	} {
		code, body := ask(server, redWrites, test.method, test.path, test.body)
		if code != test.code || !strings.Contains(body, test.says) {
			t.Errorf("%s %s %s: %d %s; want %d with %q", test.method, test.path, test.body, code, body, test.code, test.says)
		}
		if found := secrets.FindAllString(strings.ReplaceAll(body, "openapi", ""), -1); found != nil {
			t.Errorf("%s %s %s tells %q: %s", test.method, test.path, test.body, found, body)
		}
	}
	// What is there, and is another's, is answered as what is not there.
	for _, pair := range [][4]string{
		{"GET", "/v1/ring?service=blue-web", "/v1/ring?service=none-web"},
		{"GET", "/v1/ring?service=public", "/v1/ring?service=privat"},
		{"GET", "/v1/live?service=blue-web", "/v1/live?service=none-web"},
		{"GET", "/v1/sets/blue", "/v1/sets/none"},
		{"PUT", "/v1/sets/blue", "/v1/sets/none", set},
		{"POST", "/v1/plan?owner=blue", "/v1/plan?owner=none", set},
	} {
		same := func(text string) string {
			text = regexp.MustCompile(`"time":"[^"]*"`).ReplaceAllString(text, "")
			return regexp.MustCompile(`blue|none|public|privat`).ReplaceAllString(text, "X")
		}
		code, body := ask(server, redWrites, pair[0], pair[1], pair[3])
		code2, body2 := ask(server, redWrites, pair[0], pair[2], pair[3])
		if code != code2 || same(body) != same(body2) {
			t.Errorf("%s is answered as %d %s\nand %s as %d %s", pair[1], code, body, pair[2], code2, body2)
		}
	}
	// The same is asked as somebody who may: the other tenant is there.
	if _, body := ask(server, api.Caller{Name: "ops", Role: model.RoleRead}, "GET", "/v1/services", ""); !strings.Contains(body, "blue-web") || !strings.Contains(body, "public") {
		t.Errorf("others are told %s", body)
	}
}

// A set with something elsewhere, which an administrator has put, is closed to its owner as a whole: not even a
// drain by an address finds what is in it.
func TestLimitedOwnersOfOthersServices(t *testing.T) {
	foreign := serviceIn("red-too", red)
	foreign.Backends[0].Segment = &blue
	for _, services := range [][]model.Service{{serviceIn("x", model.Segment{})}, {serviceIn("red-web", red), serviceIn("x", blue)}, {foreign}} {
		server := shared(t, ownSets{sets: map[string][]model.Service{"red": services}})
		for _, test := range [][3]string{{"GET", "/v1/sets/red"}, {"PUT", "/v1/sets/red", `{"services":[]}`}, {"POST", "/v1/plan?owner=red", `{"services":[]}`},
			{"POST", "/v1/drain", `{"backend":"172.16.0.11"}`}, {"POST", "/v1/explain", `{"segment":"vxlan:5001","with":{"owner":"red","services":[]}}`}} {
			if code, body := ask(server, redWrites, test[0], test[1], test[2]); code != 403 || !strings.Contains(body, "its set has something that is not for it") || secrets.MatchString(body) {
				t.Errorf("%s %s: %d %s", test[0], test[1], code, body)
			}
		}
	}
}
