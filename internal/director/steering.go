package director

import (
	"fmt"

	"weir.io/weir/internal/datapath"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/steering"
)

// steeredFlows is for how many flows with rules the kernel's maps are made.
func steeredFlows(s *model.Steering) uint32 {
	if !s.Given() {
		return 0
	}
	return s.Flows
}

// steer makes the controller of NICs' rules. kept are the queues that an earlier process kept for them.
func (d *Director) steer(kept map[int][]uint32) {
	d.steering = steering.New(steering.Deps{Datapath: d.kernel, Wanted: d.wantedSteering, Kept: kept, LinkOf: steering.ByIndex,
		Note: func(kept map[int][]uint32) error { return datapath.NoteKeptQueues(d.Pin(), kept) }})
}

// wantedSteering is what the configuration that runs asks for, as far as the maps allow.
func (d *Director) wantedSteering() (w steering.Wanted) {
	config := d.Config()
	s := &config.Director.Steering
	if !s.Given() || !d.first.Steering.Given() {
		return w
	}
	w.Flows, w.Packets = int(min(s.Flows, d.first.Steering.Flows)), float64(s.Packets)
	for _, name := range s.On(config.Director.Interfaces) {
		if link, found := steering.ByName(name, s.Queues.List()); found { // the interface's own problem tells of a missing one
			w.Links = append(w.Links, link)
		}
	}
	return w
}

// steeringStatus is which flows are steered, with the names of their services; nil: none should be.
func (d *Director) steeringStatus(services []model.ServiceStatus) *model.SteeringStatus {
	status := d.steering.Status()
	if status == nil {
		return nil
	}
	names := map[model.ServiceID]string{}
	for i := range services {
		s := &services[i]
		names[model.ServiceID{Segment: s.Segment, VIP: s.VIP, Protocol: s.Protocol, Port: s.Port}] = s.Name
	}
	named := *status
	named.Interfaces = nil
	for _, l := range status.Interfaces {
		queues := make([]model.SteeredQueue, len(l.Queues))
		for i, q := range l.Queues {
			queues[i] = q
			queues[i].Service = names[q.ID]
		}
		l.Queues = queues
		named.Interfaces = append(named.Interfaces, l)
	}
	return &named
}

// steeringProblems are the NICs that do not steer, or not all that they should.
func steeringProblems(s *model.SteeringStatus) (found []model.Problem) {
	if s == nil {
		return nil
	}
	if s.Problem != "" {
		found = append(found, model.Problem{Text: "no flow is steered: " + s.Problem, Fix: "see the director's log; meanwhile packets take the usual way"})
	}
	if s.Elsewhere > 0 {
		found = append(found, model.Problem{Severity: model.SeverityWarning,
			Text: "a NIC lists rules that it does not follow: packets of flows with rules come by other receive queues",
			Fix:  "weir_steered_flows_elsewhere counts these flows, and ethtool -S shows which queues packets come by; name the other interfaces in director.steering.interfaces, or use a newer driver"})
	}
	for _, l := range s.Interfaces {
		p := model.Problem{Part: l.Name, Text: l.Problem, Fix: model.SteeringFix}
		switch {
		case l.Problem == "":
			continue
		case l.Leaves:
			p.Severity, p.Fix = model.SeverityWarning, "see ethtool -n "+l.Name+" and delete the rules to queues that weir had"
			p.Text = fmt.Sprintf("%s is no longer to steer flows, and its rules are left: %s", l.Name, l.Problem)
		case l.Works:
			p.Severity, p.Fix = model.SeverityWarning, "packets of flows without a rule take the usual way; fewer director.steering.flows may fit"
			p.Text = fmt.Sprintf("%s does not steer all flows that it should: %s", l.Name, l.Problem)
		}
		found = append(found, p)
	}
	return found
}
