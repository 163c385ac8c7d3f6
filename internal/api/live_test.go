package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// moving is a director whose counters grow with each reading.
type moving struct {
	*director
	mu       sync.Mutex
	readings int
}

func (m *moving) Status() (model.DatapathStatus, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.readings++
	s := m.status
	s.Reasons = []model.Counter{{Name: "forward_ipip", Packets: uint64(1000 * m.readings)}, {Name: "drop_no_backend", Packets: uint64(100 * m.readings)}, {Name: "drop_snat_full"}}
	s.Services = append([]model.ServiceStatus{}, m.status.Services...)
	if of := &s.Services[0]; len(of.Backends) > 0 {
		of.Packets = uint64(1000 * m.readings)
		of.Backends = append([]model.BackendStatus{}, of.Backends...)
		of.Backends[0].Packets = of.Packets
	}
	return s, m.err
}

// change changes what the director says from now on.
func (m *moving) change(how func(*model.DatapathStatus)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	services := append([]model.ServiceStatus{}, m.status.Services...)
	m.status.Services = services
	how(&m.status)
}

type liveClient struct {
	t     *testing.T
	lines *bufio.Scanner
}

// watch begins to listen to what a director does.
func watch(t *testing.T, d *moving, events *api.Events, query string) *liveClient {
	t.Helper()
	server := api.NewServer(d, d, quiet())
	server.HandleEvents(events)
	server.HandleLive(api.LiveSources{Datapath: d, Daemon: d, Events: events,
		BGP:       func() model.BGPStatus { return model.BGPStatus{ASN: 65001, Routes: make([]model.RouteStatus, 3)} },
		Directors: func(context.Context) ([]model.DirectorRun, error) { return nil, errors.New("etcd is away") }})
	listener := httptest.NewServer(server.Handler())
	t.Cleanup(listener.Close)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, listener.URL+"/v1/live"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 16<<20)
	return &liveClient{t, lines}
}

// next returns the next message, and how long its text is.
func (c *liveClient) next() (m api.LiveMessage, length int) {
	c.t.Helper()
	for c.lines.Scan() {
		if data, is := strings.CutPrefix(c.lines.Text(), "data: "); is {
			if err := json.Unmarshal([]byte(data), &m); err != nil {
				c.t.Fatal(err)
			}
			return m, len(data)
		}
	}
	c.t.Fatalf("the stream ends: %v", c.lines.Err())
	return m, 0
}

// until returns the first message that is as it is wanted.
func (c *liveClient) until(what string, is func(api.LiveMessage) bool) api.LiveMessage {
	c.t.Helper()
	for range 20 {
		if m, _ := c.next(); is(m) {
			return m
		}
	}
	c.t.Fatalf("%s is not told", what)
	return api.LiveMessage{}
}

// The first message has everything, and the others what is different.
func TestLive(t *testing.T) {
	t.Parallel()
	d, events := &moving{director: newDirector()}, api.NewEvents()
	events.Add(api.Event{Kind: api.EventSet, Text: "before"})
	c := watch(t, d, events, "?service=web")
	first, _ := c.next()
	if !first.Whole || len(first.Services) != 2 || first.Services[1].Name != "web" || first.Services[1].Active != 1 || first.Services[1].Backends != 2 ||
		first.Director == nil || first.Director.Version != "v1" || first.BGP == nil || first.BGP.Routes != 3 || first.Group == nil || first.Group.Problem != "etcd is away" ||
		len(first.Events) != 1 || first.Seconds != 0 || len(first.Rates) != 0 || first.Flows.Remembered != 3 || len(first.CPUs) != 1 {
		t.Errorf("the first message is %+v", first)
	}
	if first.Troubled == nil || first.Troubled.Count != 1 || first.Troubled.Backends[0].Service != "web" || first.Troubled.Backends[0].Name != "b" {
		t.Errorf("troubled are %+v", first.Troubled)
	}
	if first.Detail == nil || len(first.Detail.Backends) != 2 {
		t.Errorf("of the service that is asked for there is %+v", first.Detail)
	}
	second := c.until("a rate", func(m api.LiveMessage) bool { return m.Seconds > 0 })
	rate := second.Rates["web"].Packets
	if second.Whole || len(second.Services) > 0 || second.Director != nil || second.BGP != nil || second.Group != nil || second.Troubled != nil || len(second.Events) > 0 {
		t.Errorf("nothing but counters has changed, and it is told %+v", second)
	}
	if most := 1001 / second.Seconds; rate <= 0 || rate > most || second.Total.Packets != rate || second.Drops["drop_no_backend"] <= 0 || second.Total.Dropped != second.Drops["drop_no_backend"] {
		t.Errorf("in %v s the rate is %v, of all %+v; drops are %v", second.Seconds, rate, second.Total, second.Drops)
	}
	if second.Detail == nil || len(second.Detail.Backends) > 0 || second.Detail.Rates["a"].Packets != rate {
		t.Errorf("of its backends it is told %+v", second.Detail)
	}

	events.Add(api.Event{Kind: api.EventHealth, Text: "something"})
	if m := c.until("an event", func(m api.LiveMessage) bool { return len(m.Events) > 0 }); m.Events[0].Text != "something" {
		t.Errorf("told is %+v", m.Events)
	}
}

// Only changes are told: of services, of those that are gone, and of backends.
func TestLiveTellsChanges(t *testing.T) {
	t.Parallel()
	d, events := &moving{director: newDirector()}, api.NewEvents()
	c := watch(t, d, events, "?service=web")
	c.next()
	d.change(func(s *model.DatapathStatus) {
		s.Services[0].Backends = s.Services[0].Backends[:1]
		s.Services[1] = model.ServiceStatus{Name: "new", Protocol: model.UDP, VIP: netip.MustParseAddr("203.0.113.11")}
	})
	m := c.until("the change", func(m api.LiveMessage) bool { return len(m.Services) > 0 })
	if len(m.Services) != 2 || m.Services[0].Name != "new" || m.Services[1].Name != "web" || m.Services[1].Backends != 1 || fmt.Sprint(m.Gone) != "[dns]" ||
		m.Troubled == nil || m.Troubled.Count != 0 || m.Detail == nil || len(m.Detail.Backends) != 1 {
		t.Errorf("told is %+v", m)
	}
	d.change(func(s *model.DatapathStatus) { s.Services = s.Services[1:] })
	if m := c.until("the end", func(m api.LiveMessage) bool { return len(m.Gone) > 0 }); !m.Detail.Missing || m.Gone[0] != "web" || len(m.Services) > 0 {
		t.Errorf("told is %+v", m)
	}
	events.Close()
	for c.lines.Scan() { // the end of the director is the end of the stream
	}
	if err := c.lines.Err(); err != nil {
		t.Error("the stream ends with", err)
	}
}

// The kernel is read once for all listeners, and not at all while there are none.
func TestLiveReadsForAll(t *testing.T) {
	t.Parallel()
	d, events := &moving{director: newDirector()}, api.NewEvents()
	if d.readings > 0 {
		t.Error("it is read before somebody listens")
	}
	server := api.NewServer(d, d, quiet())
	server.HandleEvents(events)
	server.HandleLive(api.LiveSources{Datapath: d, Daemon: d, Events: events, BGP: func() model.BGPStatus { return model.BGPStatus{} },
		Directors: func(context.Context) ([]model.DirectorRun, error) { return nil, nil }})
	events.Close() // each hears one message
	begin := time.Now()
	for range 10 {
		w := httptest.NewRecorder()
		server.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/live", nil))
		if !strings.Contains(w.Body.String(), `"whole":true`) {
			t.Fatalf("the first message is %s", w.Body)
		}
	}
	// About one in a second, however long these ten have taken.
	if most := 1 + int(time.Since(begin).Seconds()/0.9); d.readings > most {
		t.Errorf("for 10 who came one after the other it was read %d times, and not %d", d.readings, most)
	}
}

// A thousand services of fifty backends: what is told each second depends on what changes,
// and not on how many there are.
func TestLiveOfManyServices(t *testing.T) {
	t.Parallel()
	d, events := &moving{director: newDirector()}, api.NewEvents()
	one := model.ServiceStatus{VIP: netip.MustParseAddr("203.0.113.10"), Protocol: model.TCP, Port: model.PortRange{First: 443, Last: 443}, Slots: 10007}
	for n := range 50 {
		one.Backends = append(one.Backends, model.BackendStatus{Name: fmt.Sprint("backend-", n), Address: netip.MustParseAddr("10.0.0.1"), Mode: model.GUE, State: model.Active, Slots: 200})
	}
	d.status.Services = nil
	for n := range 1000 {
		s := one
		s.Name = fmt.Sprintf("service-of-some-team-%04d", n)
		d.status.Services = append(d.status.Services, s)
	}
	c := watch(t, d, events, "?service=service-of-some-team-0999")
	first, length := c.next()
	if len(first.Services) != 1000 || len(first.Detail.Backends) != 50 || length > 400<<10 {
		t.Errorf("of 1000 services %d are told, and of 50 backends %d, in %d bytes", len(first.Services), len(first.Detail.Backends), length)
	}
	if m, length := c.next(); len(m.Services) > 0 || length > 4<<10 {
		t.Errorf("where one rate changes %d services are told, in %d bytes", len(m.Services), length)
	}
}
