package main

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// fakeSets are those of the transcripts' director.
type fakeSets struct{}

func (fakeSets) List() []api.SetInfo {
	return []api.SetInfo{{Owner: "file", Services: 2, ETag: "f", Fixed: true}, {Owner: "web-team", Services: 1, ETag: fakeTag}}
}

func (fakeSets) Get(owner string) (api.Set, bool) {
	web := model.Service{Name: "web", VIP: netip.MustParseAddr("203.0.113.10"), Protocol: model.TCP, Port: model.PortRange{First: 443, Last: 443}, Mode: model.GUE,
		Backends: []model.Backend{{Name: "a", Address: netip.MustParseAddr("10.0.1.1"), Weight: 100, State: model.Active}, {Name: "b", Address: netip.MustParseAddr("10.0.1.2"), Weight: 100, State: model.Draining}}}
	return api.Set{Services: []model.Service{web}, Tag: fakeTag}, owner != "nobody"
}

// fakeTag is the tag of the current set.
const fakeTag = "0123456789abcdef0123456789abcdef"

func (fakeSets) Put(_ context.Context, _ string, _ api.SetText, when api.Condition) (api.SetChange, error) {
	if len(when.Tags) != 1 || when.Tags[0] != fakeTag && when.Tags[0] != "t" {
		return api.SetChange{}, api.NewProblem(http.StatusPreconditionFailed, "that is not the set which was planned for")
	}
	return api.SetChange{Revision: 8, Tag: "t", Changed: []string{"web"}, Moves: []model.Move{{Service: "web", Slots: 1021, Moved: 255}}}, nil
}

func (fakeSets) Documents(string) ([]model.Document, bool) { return nil, true }

func (fakeSets) Give(context.Context, string, []byte) (api.SetChange, error) {
	return api.SetChange{Revision: 8, Tag: "t"}, nil
}

func (fakeSets) Drain(_ context.Context, d api.Drain) ([]api.Drained, error) {
	return []api.Drained{{Owner: "web-team", Service: "web", Backend: d.Backend, Before: model.Active, State: d.State}}, nil
}

func (fakeSets) Plan(_ context.Context, r api.PlanRequest) (api.Plan, error) {
	if r.Owner == "kube" {
		return api.Plan{}, api.NewProblem(http.StatusConflict, `services[0].vip: owner "cli" has it in service "web"`)
	}
	rate := func(n float64) *model.Rate { return &model.Rate{Connections: n, Packets: 12 * n, Bytes: 9000 * n} }
	load := func(slots int, n float64) *model.PlannedLoad {
		return &model.PlannedLoad{State: model.Active, Slots: slots, Share: float64(slots) / 1021, Rate: rate(n)}
	}
	risk := func(reason model.RiskReason, when model.RiskWhen, text string, backends ...string) model.Risk {
		return model.Risk{Reason: reason, When: when, Text: text, Backends: backends}
	}
	removed := risk(model.RiskBackendRemoved, model.WhenApplied, "a backend that is removed leaves all rows at once", "b")
	removed.Connections, removed.CountedBy = new(uint64(41)), model.CountedByMemory
	address := netip.MustParseAddr
	return api.Plan{
		SetChange: api.SetChange{Revision: 8, Tag: "t", Added: []string{"dns"}, Changed: []string{"web"}, Moves: []model.Move{{Service: "web", Slots: 1021, Moved: 511}}},
		Base:      fakeTag, Measured: model.Duration(r.Measure),
		Services: []model.PlannedService{{
			Service: "web", Change: "changed", Slots: 1021, Moved: 511, Traffic: new(0.384), Of: model.SeenInConnections, Seen: rate(250), Moves: rate(96), Waits: true,
			Backends: []model.PlannedBackend{
				{Name: "a", Address: address("10.0.1.1"), Before: load(510, 154), After: load(510, 154)},
				{Name: "c", Address: address("10.0.1.3"), After: load(511, 96), Down: true},
				{Name: "b", Address: address("10.0.1.2"), Before: load(511, 96), Open: new(uint64(37))}},
			Risks: []model.Risk{removed, risk(model.RiskNoAgents, model.WhenIdle, "no agent knows the connections in the 511 slots that move")},
		}, {Service: "dns", Change: "added", Slots: 1021}},
		Limits: []model.PlannedLimit{{Limit: "services", Before: 2, After: 3, Peak: 3, Most: 4096}, {Limit: "ring-memory", Before: 16512, After: 24768, Peak: 33024, Most: 32768, Exceeded: true}},
	}, nil
}

// trafficFrom sends datagrams of many flows from the backend's host to a VIP, until the test
// has ended.
func (h *host) trafficFrom(t *testing.T, vip string) {
	t.Helper()
	h.backend.Route("203.0.113.0/24", "10.0.0.1")
	var flows []net.Conn
	for range 200 {
		c, err := h.backend.DialContext(t.Context(), "udp", vip)
		if err != nil {
			t.Fatal(err)
		}
		flows = append(flows, c)
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() {
		close(stop)
		<-ended
		for _, c := range flows {
			_ = c.Close()
		}
	})
	go func() {
		defer close(ended)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			for _, c := range flows {
				_, _ = c.Write([]byte("weir"))
			}
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	}()
}

// A plan says which part of the current traffic moves, by counting meanwhile. Applying it is
// refused when the set has changed since the plan was made.
func TestPlanCountsTraffic(t *testing.T) {
	h := newHost(t)
	h.configure("coalesce: 1ms\ndirector: {interfaces: [eth0], store: {directory: "+h.beside("state")+"}}", "mine")
	p := h.start("director runs")
	defer p.stop()
	client := api.NewClient(h.socket)
	set := func(backends string) api.SetText {
		return api.SetText{Text: []byte("services: [{name: dns, vip: 203.0.113.10, protocol: udp, port: 53, mode: l2dsr, ring-size: 1021, backends: [" + backends + "]}]")}
	}
	const two = `{address: 10.0.0.2, mac: "02:00:00:00:00:12"}, {address: 10.0.0.3, mac: "02:00:00:00:00:13"}`
	const three = two + `, {address: 10.0.0.4, mac: "02:00:00:00:00:14"}`
	if _, err := client.PutSet(t.Context(), "cli", set(two), api.Condition{None: true}); err != nil {
		t.Fatal(err)
	}
	h.trafficFrom(t, "203.0.113.10:53")
	p.wait("count traffic", func() bool {
		services, err := client.Services(t.Context())
		for _, s := range services {
			if s.Name == "dns" {
				return err == nil && s.Backends[0].Packets > 0 && s.Backends[1].Packets > 0
			}
		}
		return false
	})
	var plan api.Plan
	p.wait("count traffic for a plan", func() bool {
		var err error
		if plan, err = client.Plan(t.Context(), api.PlanRequest{Owner: "cli", SetText: set(three), Measure: time.Second}); err != nil {
			t.Fatal(err)
		}
		if len(plan.Services) != 1 || plan.Services[0].Seen == nil || plan.Measured != model.Duration(time.Second) {
			t.Fatalf("the plan is %+v", plan)
		}
		return plan.Services[0].Traffic != nil // the sender may have been late for all of the second
	})
	s := plan.Services[0]
	if s.Of != model.SeenInPackets || math.Abs(*s.Traffic-1.0/3) > 0.1 || s.Moves.Packets <= 0 || s.Moves.Packets >= s.Seen.Packets {
		t.Errorf("of the traffic %.3f is said to move, of %s, %+v of %+v in a second: want about a third", *s.Traffic, s.Of, s.Moves, s.Seen)
	}
	before, after := 0.0, 0.0
	for _, b := range s.Backends {
		if b.Before != nil {
			before += b.Before.Rate.Packets
		}
		after += b.After.Rate.Packets
	}
	if math.Abs(before-s.Seen.Packets) > 1e-6*before || math.Abs(after-before) > 1e-6*before {
		t.Errorf("backends are said to have %.1f packets in a second before and %.1f after, of %.1f", before, after, s.Seen.Packets)
	}
	if len(s.Risks) != 1 || s.Risks[0].Reason != model.RiskNoAgents {
		t.Errorf("at risk are %+v, want what no agents know", s.Risks)
	}
	for _, l := range plan.Limits {
		want, is := map[string]uint64{"services": 2, "backends": 4, "source-ranges": 0}[l.Limit]
		if is && l.After != want || l.Exceeded || l.Peak < l.After || !is && l.After <= 0 {
			t.Errorf("of the limits it says %+v", l)
		}
	}
	// Another client is quicker.
	if _, err := client.PutSet(t.Context(), "cli", set(two[:46]), api.Condition{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.PutSet(t.Context(), "cli", set(three), conditionOf(&plan)); statusOf(err) != exitRefused {
		t.Errorf("a plan for a set that is another one now is applied: %v", err)
	}
}

// A change takes on the director what its plan says; a change for which there is no room is
// refused.
func TestPlanSaysWhatIsTaken(t *testing.T) {
	h := newHost(t)
	h.configure("coalesce: 1ms\ndirector: {interfaces: [eth0], limits: {services: 2, backends: 8}, store: {directory: "+h.beside("state")+"}}", "mine")
	p := h.start("director runs")
	defer p.stop()
	client := api.NewClient(h.socket)
	set := func(services, backends int) api.SetText {
		text := "services:\n"
		for i := range services {
			text += fmt.Sprintf("- {name: s%d, vip: 203.0.113.9%d, protocol: tcp, port: 80, mode: l2dsr, backends: [", i, i)
			for j := range backends {
				text += fmt.Sprintf("{address: 10.0.0.%d},", 2+j)
			}
			text += "]}\n"
		}
		return api.SetText{Text: []byte(text)}
	}
	for _, backends := range []int{1, 3, 2} {
		plan, err := client.Plan(t.Context(), api.PlanRequest{Owner: "cli", SetText: set(1, backends)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.PutSet(t.Context(), "cli", set(1, backends), conditionOf(&plan)); err != nil {
			t.Fatal(err)
		}
		status := h.status()
		is := map[string]uint64{"services": uint64(status.Services), "backends": uint64(status.Backends), "ring-memory": status.RingMemory}
		for _, l := range plan.Limits {
			if l.After != is[l.Limit] || l.Peak < l.After || l.Exceeded {
				t.Errorf("with %d backends it says of the limits %+v, and there are %d", backends, l, is[l.Limit])
			}
		}
	}
	for _, test := range []struct {
		set  api.SetText
		says string
	}{{set(2, 1), "limits.services"}, {set(1, 8), "limits.backends"}} {
		_, err := client.Plan(t.Context(), api.PlanRequest{Owner: "cli", SetText: test.set})
		if statusOf(err) != exitRefused || !strings.Contains(err.Error(), test.says) {
			t.Errorf("what there is no room for is answered with %v, want %s", err, test.says)
		}
	}
}
