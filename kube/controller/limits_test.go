package controller

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// tenants are a plan with Services of NAMESPACE/NAME, the oldest first, each with a number of
// ports, backends and source ranges.
type tenants struct {
	*plan
	t    *testing.T
	of   map[string]*wish
	born time.Time
}

func newTenants(t *testing.T) *tenants {
	p := newPlan()
	return &tenants{plan: p, t: t, of: map[string]*wish{}, born: time.Unix(1e9, 0)}
}

func (s *tenants) has(name string, ports, backends, ranges int) *wish {
	s.t.Helper()
	w := s.of[name]
	if w == nil {
		s.born = s.born.Add(time.Second)
		namespace, short, _ := strings.Cut(name, "/")
		w = wishOf(short)
		w.service.Namespace, w.service.CreationTimestamp = namespace, metav1.NewTime(s.born)
		s.of[name], s.plan.of = w, append(s.plan.of, w)
	}
	w.made.services, w.made.texts, w.made.usage = nil, nil, nil
	for i := range ports {
		w.made.services = append(w.made.services, partOf(w, uint16(1000+i), func(m *model.Service) {
			m.VIP = netip.AddrFrom4([4]byte{203, 0, 113, byte(slices.Index(s.plan.of, w))})
			m.Backends = slices.Repeat(m.Backends, backends)
			for n := range ranges {
				m.SourceRanges = append(m.SourceRanges, netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(n >> 8), byte(n), 0}), 24))
			}
		}).service)
	}
	return w
}

// beyond returns what has no room, and why.
func (s *tenants) beyond() string {
	var list []string
	for _, r := range s.plan.beyond() {
		list = append(list, r.whose.name().String()+": "+r.why)
	}
	return strings.Join(list, "; ")
}

func (s *tenants) forwards() string {
	s.t.Helper()
	parts, err := s.parts()
	if err != nil {
		s.t.Fatal(err)
	}
	var list []string
	for _, p := range parts {
		if n := p.whose.name().String(); !slices.Contains(list, n) {
			list = append(list, n)
		}
	}
	return strings.Join(list, " ")
}

var someLimits = limits{most: usage{4096, 65536, 65536, 64 << 20}}

// Only the Service that is beyond the directors' limits is refused, with the limit's name and its
// count: the others go on.
func TestOneTenantsServiceIsBeyondALimit(t *testing.T) {
	s := newTenants(t)
	s.has("bank/www", 1, 1, 0)
	s.has("evil/acme", 20, 1, 3500)
	s.has("shop/www", 1, 1, 2)
	s.fit(Quotas{}, someLimits)
	if got, want := s.beyond(), "evil/acme: director.limits.source-ranges is 65536, and it takes 70000"; got != want {
		t.Errorf("refused is\n  %s\nwant\n  %s", got, want)
	}
	if got, want := s.forwards(), "bank/www shop/www"; got != want {
		t.Errorf("forwarded are %s, want %s", got, want)
	}
	if w := s.of["evil/acme"]; !s.unsettled[w] {
		t.Error("the Service that is refused is not told")
	}
	revision := s.revision
	s.fit(Quotas{}, someLimits)
	if s.revision != revision {
		t.Error("the directors get the set again though nothing is another one")
	}
	s.has("evil/acme", 20, 1, 3000)
	s.revision++
	s.fit(Quotas{}, someLimits)
	if got := s.beyond(); got != "" {
		t.Errorf("with room for it, refused is %s", got)
	}
}

// Beyond a limit the oldest Services are kept. A Service that grows loses its place and takes no
// other's; a Service that has its place keeps it when an older one comes.
func TestOldestAreKept(t *testing.T) {
	few := limits{most: usage{10, 1000, 1000, 1 << 30}}
	s := newTenants(t)
	old := s.has("a/old", 4, 1, 0)
	s.has("b/middle", 4, 1, 0)
	s.has("c/new", 4, 1, 0)
	step := func(name, beyond, forwards string) {
		t.Helper()
		s.fit(Quotas{}, few)
		if got := s.beyond(); got != beyond {
			t.Errorf("%s: refused is %q, want %q", name, got, beyond)
		}
		if got := s.forwards(); got != forwards {
			t.Errorf("%s: forwarded are %q, want %q", name, got, forwards)
		}
	}
	step("too many", "c/new: director.limits.services is 10, of which less is left than the 4 that it takes", "a/old b/middle")
	s.has("c/new", 2, 1, 0)
	step("a smaller one", "", "a/old b/middle c/new")
	s.has("a/old", 5, 1, 0)
	step("the oldest grows", "a/old: director.limits.services is 10, of which less is left than the 5 that it takes", "b/middle c/new")
	s.has("b/middle", 3, 1, 0)
	step("another one shrinks", "", "a/old b/middle c/new")
	for _, w := range s.plan.of { // another process begins
		w.fitted, w.over = nil, false
		w.service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.1"}}
	}
	old.service.Status.LoadBalancer.Ingress = nil
	s.has("b/middle", 4, 1, 0)
	step("after a restart", "a/old: director.limits.services is 10, of which less is left than the 5 that it takes", "b/middle c/new")
}

// Kubernetes does not get room in the directors that other owners take.
func TestOthersTake(t *testing.T) {
	s := newTenants(t)
	s.has("a/a", 1, 2, 0)
	s.fit(Quotas{}, limits{most: usage{10, 10, 10, 1 << 30}, others: usage{0, 9, 0, 0}})
	if got, want := s.beyond(), "a/a: director.limits.backends is 10, of which less is left than the 2 that it takes"; got != want {
		t.Errorf("refused is %q, want %q", got, want)
	}
	s.fit(Quotas{}, limits{})
	if got := s.beyond(); got != "" {
		t.Errorf("without known limits, refused is %q", got)
	}
}

// answering is a director that says what it has, and accepts nothing.
type answering struct {
	limits model.Limits
	cli    []model.Service // the set of another owner
}

func (a *answering) client(t *testing.T) *api.Client {
	t.Helper()
	mux := http.NewServeMux()
	answer := func(path string, value func() any) {
		mux.HandleFunc("GET /v1/"+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Weir-Revision", "1")
			if err := json.NewEncoder(w).Encode(value()); err != nil {
				t.Error(err)
			}
		})
	}
	answer("status", func() any { return api.Status{Role: api.RoleDirector, Limits: a.limits} })
	answer("sets", func() any { return []api.SetInfo{{Owner: "cli"}, {Owner: "kubernetes"}} })
	answer("sets/cli", func() any { return api.Set{Services: a.cli} })
	answer("config", func() any { return model.Config{} })
	socket := filepath.Join(t.TempDir(), "director.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: mux}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return api.NewClient(socket)
}

// As long as something has no room, directors are asked again: others may have freed some, and
// directors may have got more.
func TestRoomThatComes(t *testing.T) {
	s := newTenants(t)
	director := &answering{limits: model.Limits{Services: 3, Backends: 10, SourceRanges: 10, RingMemory: 1 << 30}}
	director.cli = services([]part{partOf(wishOf("one"), 80), partOf(wishOf("two"), 80)})
	w := &setWriter{directors: []*Director{{Client: director.client(t)}}, owner: "kubernetes"}
	pass := func(name string, room bool) {
		t.Helper()
		w.ask(t.Context(), s.plan)
		s.fit(Quotas{}, w.limits)
		w.revision, w.taken = s.revision, true // the directors have taken what there is room for
		if got := s.beyond(); (got == "") != room {
			t.Errorf("%s: refused is %q", name, got)
		}
	}
	s.has("a/a", 2, 1, 0)
	pass("the directors refuse it", true)
	if !w.countOthers(t.Context()) {
		t.Error("nobody else has taken anything")
	}
	pass("others have taken the room", false)
	director.cli = nil
	pass("others have left", true)
	s.has("a/a", 4, 1, 0)
	pass("it has grown", false)
	director.limits.Services = 4
	pass("the directors have more room", true)
}

// A namespace's quota counts in all groups together; a quota of its own replaces the general one.
func TestQuotas(t *testing.T) {
	s := newTenants(t)
	g := &translate.DirectorGroup{Of: &v1alpha1.DirectorGroup{ObjectMeta: metav1.ObjectMeta{Name: "edge"},
		Spec: v1alpha1.DirectorGroupSpec{Limits: &v1alpha1.DirectorLimits{SourceRanges: 5}}}}
	s.read = &resources{groups: []*translate.DirectorGroup{g}}
	s.has("a/1", 2, 1, 0)
	s.has("a/2", 1, 1, 0).group = g
	s.has("a/3", 1, 1, 0)
	s.has("b/1", 3, 1, 0)
	s.has("big/1", 20, 1, 0)
	s.has("c/1", 1, 4, 0)
	s.has("d/1", 2, 1, 3).group = g
	s.fit(Quotas{Each: Quota{Services: 3, Backends: 3}, Of: map[string]Quota{"big": {Services: 100}}}, someLimits)
	want := "a/3: the quota of namespace a for services is 3, of which less is left than the 1 that it takes; " +
		"c/1: the quota of namespace c for backends is 3, and it takes 4; " +
		"d/1: DirectorGroup edge: spec.limits.sourceRanges is 5, and it takes 6"
	if got := s.beyond(); got != want {
		t.Errorf("refused is\n  %s\nwant\n  %s", got, want)
	}
	if got, want := s.forwards(), "a/1 b/1 big/1"; got != want {
		t.Errorf("the file's directors forward %s, want %s", got, want)
	}
	w := &groupWriter{groups: map[string]*compiledGroup{}}
	of, _ := w.wishes(s.plan)
	if len(of[g]) != 1 || of[g][0] != s.of["a/2"] {
		t.Errorf("the group forwards %v", of[g])
	}
}

// Every limit of a DirectorGroup counts, and is weir's default if none is given.
func TestSpaceOf(t *testing.T) {
	s := spaceOf(&v1alpha1.DirectorGroup{Spec: v1alpha1.DirectorGroupSpec{Limits: &v1alpha1.DirectorLimits{Services: 1, Backends: 2, SourceRanges: 3, RingMemory: 4}}})
	if s.most != (usage{1, 2, 3, 4}) {
		t.Errorf("the limits are %v", s.most)
	}
	if got := spaceOf(&v1alpha1.DirectorGroup{}).most; got != (usage{4096, 65536, 65536, 64 << 20}) {
		t.Errorf("without limits they are %v", got)
	}
	if got := fmt.Sprint(usageOf([]model.Service{partOf(wishOf("a"), 80).service})); got != "[1 1 0 8256]" {
		t.Errorf("a service with a backend takes %s", got)
	}
}
