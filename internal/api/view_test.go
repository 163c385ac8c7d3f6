package api_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

var (
	red  = model.Segment{Kind: model.SegmentVXLAN, ID: 5001}
	blue = model.Segment{Kind: model.SegmentVXLAN, ID: 5002}
)

// tenants is a director of two tenants, whose VIPs and backends have the same addresses, and of a service
// in no segment that has a backend in one.
func tenants() *director {
	d := newDirector()
	vip, backend := netip.MustParseAddr("172.16.0.10"), netip.MustParseAddr("172.16.0.11")
	port := model.PortRange{First: 443, Last: 443}
	service := func(name string, in model.Segment, packets uint64, backends ...model.BackendStatus) model.ServiceStatus {
		return model.ServiceStatus{Name: name, Segment: in, VIP: vip, Protocol: model.TCP, Port: port, Slots: 1021, Packets: packets, Dropped: packets / 10, Remembered: int(packets / 100), Backends: backends}
	}
	of := func(name string, in model.Segment, state model.BackendState) model.BackendStatus {
		return model.BackendStatus{Name: name, Segment: in, Address: backend, Mode: model.L2DSR, State: state}
	}
	d.status.Services = []model.ServiceStatus{
		service("red-web", red, 1000, of("red-a", red, model.Active), of("red-b", red, model.Down)),
		service("blue-web", blue, 2000, of("blue-a", blue, model.Down)),
		service("public", model.Segment{}, 4000, of("red-a", red, model.Active), of("plain", model.Segment{}, model.Active)),
	}
	return d
}

func names[T any](list []T, of func(T) string) string {
	var all []string
	for _, one := range list {
		all = append(all, of(one))
	}
	return strings.Join(all, " ")
}

// What is asked for of one segment is that of no other: services by their VIPs, backends by where they are.
func TestOfOneSegment(t *testing.T) {
	client := start(t, tenants())
	none := model.Segment{}
	for _, test := range []struct {
		in                 *model.Segment
		services, backends string
	}{
		{nil, "red-web blue-web public", "red-web/red-a red-web/red-b blue-web/blue-a public/red-a public/plain"},
		{&red, "red-web", "red-web/red-a red-web/red-b public/red-a"},
		{&blue, "blue-web", "blue-web/blue-a"},
		{&none, "public", "public/plain"},
		{&model.Segment{Kind: model.SegmentVLAN, ID: 9}, "", ""},
	} {
		services, err := client.ServicesIn(t.Context(), test.in)
		if err != nil {
			t.Fatal(err)
		}
		backends, err := client.BackendsIn(t.Context(), test.in)
		if err != nil {
			t.Fatal(err)
		}
		if got := names(services, func(s model.ServiceStatus) string { return s.Name }); got != test.services {
			t.Errorf("services in %v are %q, want %q", test.in, got, test.services)
		}
		if got := names(backends, func(b api.Backend) string { return b.Service + "/" + b.Name }); got != test.backends {
			t.Errorf("backends in %v are %q, want %q", test.in, got, test.backends)
		}
	}
}

// A query names the segment of flows to whoever lists them.
func TestFlowsOfOneSegment(t *testing.T) {
	var asked api.FlowQuery
	d := tenants()
	server := api.NewServer(d, d, quiet())
	server.HandleFlows(func(_ context.Context, q api.FlowQuery) (api.Flows, error) { asked = q; return api.Flows{}, nil })
	client := serve(t, server)
	for _, in := range []*model.Segment{nil, {}, &blue} {
		if _, err := client.Flows(t.Context(), api.FlowQuery{Segment: in, Most: 3}); err != nil {
			t.Fatal(err)
		}
		if (in == nil) != (asked.Only == nil) || in != nil && !slices.Equal(asked.Only, []model.Segment{*in}) {
			t.Errorf("flows in %v are asked for as in %v", in, asked.Only)
		}
	}
}

// Of the events that are kept, the last ones of a segment are told.
func TestEventsOfOneSegment(t *testing.T) {
	d := tenants()
	server := api.NewServer(d, d, quiet())
	events := api.NewEvents()
	server.HandleEvents(events)
	for i := range 6 {
		events.Add(api.Event{Kind: api.EventHealth, Segment: []model.Segment{red, blue, {}}[i%3], Text: fmt.Sprint(i)})
	}
	client := serve(t, server)
	heard := func(q api.EventQuery) (texts []string) {
		if err := client.Events(t.Context(), q, func(e api.Event) error { texts = append(texts, e.Text); return nil }); err != nil {
			t.Fatal(err)
		}
		return texts
	}
	for _, test := range []struct {
		q    api.EventQuery
		want []string
	}{
		{api.EventQuery{Last: 2}, []string{"4", "5"}},
		{api.EventQuery{Last: 1, Segment: &red}, []string{"3"}},
		{api.EventQuery{Last: 9, Segment: &red}, []string{"0", "3"}},
		{api.EventQuery{Last: 9, Segment: &model.Segment{}}, []string{"2", "5"}},
		{api.EventQuery{Last: 0, Segment: &red}, nil},
	} {
		if got := heard(test.q); !slices.Equal(got, test.want) {
			t.Errorf("of %+v is heard %q, want %q", test.q, got, test.want)
		}
	}
}

// A listener to one segment hears its services, and what they sum up to.
func TestLiveOfOneSegment(t *testing.T) {
	t.Parallel()
	d, events := &moving{director: tenants()}, api.NewEvents()
	events.Add(api.Event{Text: "of blue", Segment: blue}, api.Event{Text: "of red", Segment: red})
	c := watch(t, d, events, "?segment=vxlan:5001&service=blue-web")
	first, _ := c.next()
	if len(first.Services) != 1 || first.Services[0].Name != "red-web" || first.Troubled.Count != 1 || first.Troubled.Backends[0].Name != "red-b" || first.Troubled.Backends[0].Segment != red ||
		first.Flows.Remembered != 10 || !first.Detail.Missing || len(first.Events) != 1 || first.Events[0].Text != "of red" {
		t.Errorf("the first message is %+v", first)
	}
	m := c.until("a rate", func(m api.LiveMessage) bool { return m.Seconds > 0 })
	if rate := m.Rates["red-web"].Packets; len(m.Rates) != 1 || rate <= 0 || m.Total.Packets != rate || len(m.Drops) > 0 || m.Total.Dropped != 0 {
		t.Errorf("the rates are %+v, of all %+v, drops %v", m.Rates, m.Total, m.Drops)
	}
	d.change(func(s *model.DatapathStatus) { s.Services = s.Services[2:] })
	if m := c.until("the end", func(m api.LiveMessage) bool { return len(m.Gone) > 0 }); fmt.Sprint(m.Gone) != "[red-web]" {
		t.Errorf("gone are %v", m.Gone)
	}
}
