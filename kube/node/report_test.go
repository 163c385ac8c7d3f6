package node

import (
	"fmt"
	"testing"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// The controller is told of LoadBalancers' services alone, and what is wrong with their members.
func TestExamined(t *testing.T) {
	backend := func(name string, h *model.BackendHealth, unreachable string) model.BackendStatus {
		return model.BackendStatus{Name: name, Health: h, Unreachable: unreachable}
	}
	services := []model.ServiceStatus{
		{Name: "x/web/80-tcp", Packets: 1, Backends: []model.BackendStatus{backend("a", nil, "no route")}},
		{Name: "loadbalancer/red/web/http/10.0.0.1", Packets: 4, Bytes: 3, Opened: 2, Dropped: 1, Health: &model.ServiceHealth{}, Backends: []model.BackendStatus{
			backend("up", &model.BackendHealth{State: model.HealthUp}, ""), backend("down", &model.BackendHealth{State: model.HealthDown, Reason: "timeout"}, ""),
			backend("new", &model.BackendHealth{State: model.HealthUnknown}, ""), backend("lost", &model.BackendHealth{State: model.HealthUp}, "no neighbor")}},
	}
	r, c := examined(services, map[string]bool{"loadbalancer/red/web/http/10.0.0.1": true})
	if got := fmt.Sprint(r.Services, c.Services); got != "map[loadbalancer/red/web/http/10.0.0.1:{map[down:timeout lost:no neighbor] [new] true}] map[loadbalancer/red/web/http/10.0.0.1:[4 3 2 1]]" {
		t.Errorf("it is told %s", got)
	}
	problems := problemsOf([]model.Problem{{Kind: model.ProblemBGP, Text: "no session"}, {Kind: model.ProblemRestart, Text: "director.vtep waits"}, {Kind: model.ProblemSegment, Text: "no link", Segment: model.Segment{Kind: model.SegmentVLAN, ID: 7}}})
	if got := fmt.Sprint(problems); got != "[{director.vtep waits none} {no link vlan:7}]" {
		t.Errorf("of its problems is told %s", got)
	}
	s := &api.Status{CPUs: []model.CPUStatus{{Utilization: 0.5}, {Utilization: 0.25}}, Services: 10, Backends: 30, Limits: model.Limits{Services: 100, Backends: 50}}
	if l := loadOf(s); l.Utilization != 0.375 || l.Used != 0.6 {
		t.Errorf("its load is %+v", l)
	}
}
