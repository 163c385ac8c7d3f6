package controller

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/translate"
)

const (
	manyServices     = 5000
	endpointsPerSlot = 10
)

// many is a cluster with thousands of Services, as the controller reads it.
type many struct {
	*plan
	services []*corev1.Service
	slices   map[*corev1.Service][]*discoveryv1.EndpointSlice
	options  translate.Options
}

func newMany(tb testing.TB) *many {
	tb.Helper()
	r, err := pool.ParseRange("10.64.0.0/16")
	if err != nil {
		tb.Fatal(err)
	}
	m := &many{plan: newPlan(), slices: map[*corev1.Service][]*discoveryv1.EndpointSlice{}, options: translate.Options{Mode: model.NAT, SNAT: true, Backends: translate.Pods}}
	m.allocations.Pools([]pool.Pool{{Name: "public", Addresses: []pool.Range{r}}})
	for i := range manyServices {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: fmt.Sprint("s", i), UID: types.UID(fmt.Sprint(i))},
			Spec: corev1.ServiceSpec{IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Ports: []corev1.ServicePort{{Name: "http", Port: 80, NodePort: 30080}}}}
		m.services = append(m.services, s)
		m.slices[s] = []*discoveryv1.EndpointSlice{sliceOf(i, endpointsPerSlot)}
		m.want(s, nil)
	}
	m.pass(tb)
	return m
}

// sliceOf returns an EndpointSlice with the number of endpoints.
func sliceOf(service, endpoints int) *discoveryv1.EndpointSlice {
	port, name := int32(8080), "http"
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}}}
	for i := range endpoints {
		a := netip.AddrFrom4([4]byte{10, byte(128 + service>>8), byte(service), byte(i + 1)})
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a.String()}})
	}
	return s
}

// pass does what a pass does, except that it asks no other process.
func (m *many) pass(tb testing.TB) {
	tb.Helper()
	for x, holders := range m.assign() {
		m.allocations.Claim(x, holders)
	}
	m.translate(m.options, func(s *corev1.Service) []*discoveryv1.EndpointSlice { return m.slices[s] }, func(metav1.Object) map[string]string { return nil })
	m.refuse(nil)
	m.settle(nil, map[*wish]bool{})
}

// all returns everything that directors are to forward, and compares its text with what it has to
// be.
func (m *many) all(t *testing.T) []part {
	t.Helper()
	parts, err := m.parts()
	if err != nil {
		t.Fatal(err)
	}
	stored := []model.StoredService{}
	for _, s := range services(parts) {
		stored = append(stored, model.StoredService(s))
	}
	want, err := json.Marshal(map[string]any{"services": stored})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(setText(parts), want) {
		t.Fatal("the set is not written as its services are")
	}
	return parts
}

// If one EndpointSlice of thousands of Services changes, one Service is translated anew, and the
// services of no other are touched; a slice that says nothing new changes nothing for directors.
func TestPlanLooksAtWhatChanges(t *testing.T) {
	m := newMany(t)
	if parts := m.all(t); m.work.translated != manyServices || m.work.written != manyServices || len(parts) != manyServices {
		t.Fatalf("at first %d Services were translated and %d written, into %d", m.work.translated, m.work.written, len(parts))
	}
	m.assign() // Services with new claims are looked at once more
	before := map[*wish]*model.Service{}
	for _, w := range m.of {
		before[w] = &w.made.services[0]
	}
	changed := m.services[1234]
	for _, test := range []struct {
		what       string
		endpoints  int
		translated int
		revisions  uint64
	}{{"one endpoint more", endpointsPerSlot + 1, 1, 1}, {"a slice that is written anew", endpointsPerSlot + 1, 1, 0}, {"nothing", 0, 0, 0}} {
		m.work, m.allocations.Looked = work{}, 0
		revision := m.revision
		if test.endpoints > 0 {
			m.slices[changed] = []*discoveryv1.EndpointSlice{sliceOf(1234, test.endpoints)}
		}
		m.want(changed, nil)
		m.pass(t)
		m.all(t)
		if m.work.translated != test.translated || m.work.written != int(test.revisions) || m.revision-revision != test.revisions || m.allocations.Looked > 10 {
			t.Errorf("%s: %d Services are translated and %d written, %d revisions more, %d looks for addresses", test.what, m.work.translated, m.work.written, m.revision-revision, m.allocations.Looked)
		}
		for _, w := range m.of {
			if w.service != changed && &w.made.services[0] != before[w] {
				t.Fatalf("%s: %s is another one", test.what, w.name())
			}
		}
	}
	if got := len(m.byName[translate.Of(changed)].made.services[0].Backends); got != endpointsPerSlot+1 {
		t.Errorf("it has %d backends", got)
	}

	// When a Service goes, what was said about it goes too, and what it had is released.
	m.forget(translate.Of(changed))
	m.pass(t)
	if len(m.release) != 1 || len(m.all(t)) != manyServices-1 || len(m.of) != manyServices-1 || len(m.unsettled) != 0 {
		t.Errorf("after one has gone %v is released, and %d services of %d are left", m.release, len(m.all(t)), len(m.of))
	}
}

// BenchmarkOneSlice is what one changed EndpointSlice costs: the plan, and then the text of the
// whole set for directors that have no DirectorSets.
func BenchmarkOneSlice(b *testing.B) {
	m := newMany(b)
	m.assign()
	for name, whole := range map[string]bool{"plan": false, "plan and set": true} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			if _, err := m.parts(); err != nil {
				b.Fatal(err)
			}
			for i := 0; b.Loop(); i++ {
				s := m.services[i%manyServices]
				m.slices[s] = []*discoveryv1.EndpointSlice{sliceOf(i%manyServices, 1+i%endpointsPerSlot)}
				m.want(s, nil)
				m.pass(b)
				if !whole {
					continue
				}
				if parts, err := m.parts(); err != nil || len(setText(parts)) == 0 {
					b.Fatal(len(parts), err)
				}
			}
		})
	}
}
