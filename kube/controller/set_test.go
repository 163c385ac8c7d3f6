package controller

import (
	"fmt"
	"net/netip"
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
	return part{service: s, whose: w}
}

func names(parts []part) string {
	var list []string
	for _, p := range parts {
		list = append(list, p.service.Name)
	}
	return strings.Join(list, " ")
}

// A service that no director would take is found, and services that directors would take have the
// defaults, so that they can be compared with what a director says.
func TestValid(t *testing.T) {
	w := wishOf("web")
	for name, test := range map[string]struct {
		parts []part
		want  string // how what is wrong begins
	}{
		"good":               {[]part{partOf(w, 80), partOf(w, 81)}, ""},
		"a multicast VIP":    {[]part{partOf(w, 80), partOf(w, 82, func(s *model.Service) { s.VIP = netip.MustParseAddr("224.0.0.1") })}, "x/web/82-tcp: "},
		"a port twice":       {[]part{partOf(w, 80), partOf(w, 80, func(s *model.Service) { s.Name = "x/web/other" })}, "x/web/other: "},
		"no service at all ": {nil, ""},
	} {
		list := services(test.parts)
		why := valid(list)
		if !strings.HasPrefix(why, test.want) || (test.want == "") != (why == "") {
			t.Errorf("%s: %q is wrong, want %q", name, why, test.want)
		}
		if test.want == "" && len(list) > 0 && (list[0].Retention == 0 || list[0].MaxRetention == 0) {
			t.Errorf("%s: it has no defaults: %+v", name, list[0])
		}
	}
}

// No part of a refused Service is left, and other Services stay as they were.
func TestLeaveOut(t *testing.T) {
	good, bad := wishOf("good"), wishOf("bad")
	rest, refused := leaveOut([]part{partOf(good, 80), partOf(bad, 81), partOf(bad, 82), partOf(good, 83)}, map[int]string{1: "is taken", 2: "too"})
	if got := names(rest); got != "x/good/80-tcp x/good/83-tcp" {
		t.Errorf("what is left is %s", got)
	}
	if len(refused) != 1 || refused[0].whose != bad || refused[0].why != "x/bad/81-tcp: is taken" {
		t.Errorf("refusals: %+v", refused)
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

// A backend that was drained by hand is no reason to write the set again; any other change is.
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

// An event says where a Service is reached if that is new, and does not say that it is reached
// nowhere.
func TestNewAddresses(t *testing.T) {
	of := func(list string) (ingress []corev1.LoadBalancerIngress) {
		mode := corev1.LoadBalancerIPModeVIP
		for _, a := range strings.Fields(list) {
			ingress = append(ingress, corev1.LoadBalancerIngress{IP: a, IPMode: &mode})
		}
		return ingress
	}
	for _, test := range []struct {
		now, before string
		news        bool
	}{{"1.1.1.1", "", true}, {"1.1.1.1 ::1", "1.1.1.1", true}, {"::1", "1.1.1.1", true}, {"1.1.1.1", "1.1.1.1", false}, {"1.1.1.1", "1.1.1.1 ::1", false}, {"", "1.1.1.1", false}} {
		if got := isNews(of(test.now), of(test.before)); got != test.news {
			t.Errorf("%q after %q is news: %v", test.now, test.before, got)
		}
	}
}

// A problem is reported once, again after a while, and when it comes back.
func TestReport(t *testing.T) {
	recorder := record.NewFakeRecorder(100)
	r := newReporter(recorder)
	now := time.Unix(1e9, 0)
	tell := func(after time.Duration, problems ...string) (told []string) {
		t.Helper()
		now = now.Add(after)
		w := wishOf("web")
		for _, p := range problems {
			w.problem(forwarding, translate.NoBackends, "%s", p)
		}
		if rest := r.report(&plan{unsettled: map[*wish]bool{w: true}}, now); len(rest) > 0 {
			t.Error("one Service's events are too many at once")
		}
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
