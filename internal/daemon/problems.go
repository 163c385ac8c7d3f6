package daemon

import (
	"fmt"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/problems"
	"weir.io/weir/internal/upkeep"
)

// ReportUpkeep returns a function that makes events of repaired parts of the host. A failed repair is a
// problem, which has events of its own.
func ReportUpkeep(events *api.Events) func(upkeep.Event) {
	return func(e upkeep.Event) {
		if e.State == model.UpkeepRepaired {
			events.Add(api.Event{Kind: api.EventUpkeep, Part: e.Part, State: string(e.State), Text: e.Text()})
		}
	}
}

// UpkeepProblems are the problems to list, of parts of the host and of the notices that say when they
// change: deaf is why there are none. The code that applies a configuration lists that it does not run.
func UpkeepProblems(parts []model.Upkeep, deaf error) (host, interfaces []model.Problem) {
	host = deafProblems("notices of upkeep", "changes of what this process keeps on this host", upkeep.Interval, deaf)
	for i := range parts {
		u := &parts[i]
		for _, p := range u.Problems {
			found := model.Problem{Part: u.Part, Text: upkeep.Text(u.Part, &p)}
			if p.State == model.UpkeepContested {
				found.Fix = "end what changes it, or the need for it in the configuration"
			}
			if u.Part == upkeep.Lock { // all works without it
				found.Severity, found.Fix = model.SeverityWarning, "end what holds that name: then it is taken within a second"
			}
			if u.Part == upkeep.Interfaces && p.What == upkeep.MACs {
				found.Severity = model.SeverityWarning
			}
			if p.What == "" && p.State == model.UpkeepWaiting { // perhaps all is as it should be
				found.Severity = model.SeverityWarning
			}
			if u.Part == "programs" && p.State == model.UpkeepWaiting { // perhaps it lets everything go on
				found.Severity, found.Fix = model.SeverityWarning, "see that the other program lets tunnels go on (TCX_NEXT), or attach it behind the agent's"
			}
			switch u.Part {
			case upkeep.Configuration:
			case upkeep.Interfaces, upkeep.XDP:
				found.Part = p.What
				interfaces = append(interfaces, found)
			default:
				host = append(host, found)
			}
		}
	}
	return host, interfaces
}

// MTUProblems are the problems of interfaces whose MTU has become smaller. A change by mistake and one
// on purpose look the same, and only a restart of the process says that it is meant.
func MTUProblems(lowered []model.LoweredMTU, process string) (found []model.Problem) {
	for _, l := range lowered {
		found = append(found, model.Problem{Part: "mtu of " + l.Interface, Severity: model.SeverityWarning,
			Text: fmt.Sprintf("the MTU of %s has become %d, and was %d: longer packets that hosts on its link send may be lost there without an answer", l.Interface, l.Now, l.Before),
			Fix:  fmt.Sprintf("ip link set %s mtu %d; or, if it is meant, give all hosts on the link the same MTU and restart %s, which loses no packet", l.Interface, l.Before, process)})
	}
	return found
}

// CrowdProblems are the problems of services whose flows fill a table. They have no numbers, which
// change all the time.
func CrowdProblems(crowds []model.CrowdedService) (found []model.Problem) {
	for _, c := range crowds {
		of := tablesCrowded[c.Table]
		found = append(found, model.Problem{Part: c.Service, Segment: c.Segment, Severity: model.SeverityWarning, Text: fmt.Sprintf("service %s: %s", c.Service, of.text), Fix: of.fix})
	}
	return found
}

// tablesCrowded says for each table what it means if a service's flows have no room there.
var tablesCrowded = map[string]struct{ text, fix string }{
	model.FlowMemoryTable: {"new flows have no room in flow memory, and many in it are its own: new connections are not remembered, and may break when backends change",
		"if this is no flood, give limits.flows more"},
	model.NATTable: {"new flows have no room in full NAT's table, and many in it are its own: new connections are dropped (drop_snat_full)",
		"if this is no flood, give the service's SNAT more addresses or ports"},
	model.UDPFlowsTable: {"it has its quota of the agent's UDP flows: more of its flows are remembered as those that have just begun, and may move when backends change",
		"if this is no flood, give the agent's udp-flows more"},
	model.PodsTable: {"it has its quota of the flows of pods on this host: more of its flows are remembered as those that have just begun, for a minute",
		"if this is no flood, spread its pods over more nodes"},
	model.RedirectTable: {"it has its quota of the host's redirected connections: more of its connections go as it falls back",
		"if this is no attack, spread its clients over more hosts"},
}

// ProblemEvents are the events of changes of the list.
func ProblemEvents(changes []problems.Change) []api.Event {
	events := make([]api.Event, len(changes))
	for i := range changes {
		c := &changes[i]
		events[i] = api.Event{Kind: api.EventProblem, State: api.ProblemRaised, Text: c.Text, Owner: c.Owner, Segment: c.Segment, Problem: &c.Problem}
		if c.Over {
			events[i].State, events[i].Text = api.ProblemResolved, "is over: "+c.Text
		}
	}
	return events
}

// LookEvery is the time between two looks for changes that are not signaled.
const LookEvery = 500 * time.Millisecond

// ServicesText counts services in words.
func ServicesText(count int) string {
	if count == 1 {
		return "1 service"
	}
	return fmt.Sprintf("%d services", count)
}
