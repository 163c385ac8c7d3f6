package director

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// downs are events of backends that die at once.
func downs(services, backends int) (events []api.Event) {
	for s := range services {
		for b := range backends {
			events = append(events, api.Event{Kind: api.EventHealth, Service: fmt.Sprint("s", s), Backend: fmt.Sprint("b", b), State: "down",
				Text: fmt.Sprintf("backend b%d of service s%d is down: timeout: no answer in 1s", b, s)})
		}
	}
	return events
}

// Few events stay as they are; many are merged into few, which count all backends.
func TestManyBackendsAreFewEvents(t *testing.T) {
	if got := mergeEvents(downs(4, 5)); len(got) != 20 || got[19].Backend != "b4" {
		t.Errorf("20 events become %d", len(got))
	}
	for _, test := range []struct{ services, backends, events int }{{1, 21, 1}, {1, 500, 1}, {3, 500, 3}, {20, 25, 20}, {21, 1, 20}, {500, 1, 20}, {1000, 50, 20}} {
		got := mergeEvents(downs(test.services, test.backends))
		if len(got) != test.events {
			t.Errorf("%d backends of each of %d services are %d events, want %d", test.backends, test.services, len(got), test.events)
		}
		count := 0
		for _, e := range got {
			count += max(1, e.Backends)
		}
		text, err := json.Marshal(got)
		if err != nil || len(text) > 20*200 || count != test.services*test.backends {
			t.Errorf("%d backends of each of %d services are %d bytes about %d of them, error %v", test.backends, test.services, len(text), count, err)
		}
	}
	if got := mergeEvents(downs(1, 500))[0]; got.Text != "500 backends of service s0 are down: b0, b1, b2, b3, b4 and 495 more" || got.State != "down" || got.Service != "s0" || got.Backends != 500 {
		t.Errorf("500 backends of a service are %+v", got)
	}
	if got := mergeEvents(downs(500, 1))[19].Text; got != "481 backends of 481 more services have changed, too: of s19, s20, s21, s22, s23 and 476 more" {
		t.Errorf("of 500 services the last event says %q", got)
	}
	for _, segments := range []int{2, 30} {
		tenants := downs(3*segments, 10)
		for i := range tenants {
			tenants[i].Segment = model.Segment{Kind: model.SegmentVXLAN, ID: uint32(i % segments)}
		}
		backends, events := map[model.Segment]int{}, map[model.Segment]int{}
		for _, e := range mergeEvents(tenants) {
			backends[e.Segment] += max(1, e.Backends)
			events[e.Segment]++
		}
		for segment, n := range backends {
			if n != 30 || events[segment] > max(1, mostOfOneLook/segments) {
				t.Errorf("of %d segments %v is told of %d backends in %d events", segments, segment, n, events[segment])
			}
		}
		if len(backends) != segments {
			t.Errorf("%d of %d segments are told something", len(backends), segments)
		}
	}
	mixed := downs(1, 30)
	for i := range mixed[:10] {
		mixed[i].Kind = api.EventRedirect
	}
	if got := mergeEvents(mixed); len(got) != 2 || !strings.HasPrefix(got[0].Text, "10 backends of service s0 cannot be redirected to: b0") || got[1].Backends != 20 {
		t.Errorf("two kinds are %+v", got)
	}
}
