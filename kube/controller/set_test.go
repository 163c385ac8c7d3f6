package controller

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/translate"
)

func wishOf(name string) *wish {
	return &wish{service: &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name, UID: types.UID(name)}}}
}

func partOf(w *wish, port uint16, change ...func(*model.Service)) part {
	b := model.NewBackend()
	b.Name, b.Address, b.Port = "pod", netip.MustParseAddr("10.1.0.1"), 8080
	s := model.Service{Name: fmt.Sprintf("x/%s/%d-tcp", w.service.Name, port), VIP: netip.MustParseAddr("203.0.113.1"), Protocol: model.TCP,
		Port: model.PortRange{First: port, Last: port}, Mode: model.NAT, SNAT: true, Backends: []model.Backend{b}}
	for _, f := range change {
		f(&s)
	}
	return part{s, w}
}

func names(parts []part) string {
	var list []string
	for _, p := range parts {
		list = append(list, p.service.Name)
	}
	return strings.Join(list, " ")
}

// What no director would take is left out, with all else of its Service, and what is left has
// the defaults, so that it can be compared with what a director says.
func TestValid(t *testing.T) {
	good, bad, clash := wishOf("good"), wishOf("bad"), wishOf("clash")
	rest, refused := valid([]part{
		partOf(good, 80), partOf(bad, 81),
		partOf(bad, 82, func(s *model.Service) { s.VIP = netip.MustParseAddr("224.0.0.1") }),
		partOf(clash, 80), partOf(good, 83),
	})
	if got := names(rest); got != "x/good/80-tcp x/good/83-tcp" {
		t.Errorf("what is left is %s", got)
	}
	if len(rest) == 2 && (rest[0].service.Drain == 0 || rest[0].service.MaxDrain == 0) {
		t.Errorf("what is left has no defaults: %+v", rest[0].service)
	}
	var told []string
	for _, r := range refused {
		told = append(told, r.whose.service.Name+": "+r.why)
	}
	slices.Sort(told)
	if all := strings.Join(told, "\n"); len(told) != 2 || !strings.HasPrefix(told[0], "bad: x/bad/82-tcp: ") || !strings.HasPrefix(told[1], "clash: x/clash/80-tcp: ") {
		t.Errorf("refusals:\n%s", all)
	}
}

func TestServiceIn(t *testing.T) {
	for field, want := range map[string]int{"services[0].vip": 0, "services[12]": 12, "services[3].backends[4].address": 3} {
		if i, found := serviceIn(field); !found || i != want {
			t.Errorf("%s is in service %d, %v", field, i, found)
		}
	}
	for _, field := range []string{"", "services", "services[].vip", "services[-1].vip", "director.limits", "owner"} {
		if i, found := serviceIn(field); found {
			t.Errorf("%s is in service %d", field, i)
		}
	}
}

// A backend that somebody drained by hand is no reason to write the set again; all else is.
func TestSame(t *testing.T) {
	set := func(change func(*model.Service)) []model.Service {
		return []model.Service{partOf(wishOf("a"), 80, change).service}
	}
	plain := set(func(*model.Service) {})
	if !same(plain, set(func(s *model.Service) { s.Backends[0].State = model.Draining })) {
		t.Error("a drained backend makes another set")
	}
	for name, change := range map[string]func(*model.Service){
		"another weight": func(s *model.Service) { s.Backends[0].Weight = 1 }, "another address": func(s *model.Service) { s.VIP = s.VIP.Next() },
		"no backend": func(s *model.Service) { s.Backends = nil }, "another mode": func(s *model.Service) { s.Mode = model.GUE },
	} {
		if same(plain, set(change)) {
			t.Errorf("%s makes no other set", name)
		}
	}
	if plain[0].Backends[0].State != model.Active || same(plain, nil) {
		t.Error("to compare sets changes them")
	}
}

// A problem is told once, again when it has lasted, and when it comes back.
func TestReport(t *testing.T) {
	recorder := record.NewFakeRecorder(100)
	r := newReporter(recorder)
	now := time.Unix(1e9, 0)
	tell := func(after time.Duration, problems ...string) (told []string) {
		t.Helper()
		now = now.Add(after)
		w := wishOf("web")
		for _, p := range problems {
			w.problem(translate.NoBackends, "%s", p)
		}
		r.report(&plan{of: []*wish{w}}, now)
		for len(recorder.Events) > 0 {
			told = append(told, <-recorder.Events)
		}
		return told
	}
	for i, step := range []struct {
		after    time.Duration
		problems string
		want     string
	}{
		{0, "a", "[Warning NoBackends a]"},
		{time.Second, "a", "[]"},
		{time.Second, "a b", "[Warning NoBackends b]"},
		{repeat - 2*time.Second, "a b", "[Warning NoBackends a]"},
		{time.Second, "", "[]"},
		{time.Second, "b", "[Warning NoBackends b]"},
		{time.Second, strings.Repeat("x", 2000), "[Warning NoBackends " + strings.Repeat("x", 1020) + " ...]"},
	} {
		if got := fmt.Sprint(tell(step.after, strings.Fields(step.problems)...)); got != step.want {
			t.Errorf("step %d tells %s, want %s", i, got, step.want)
		}
	}
}
