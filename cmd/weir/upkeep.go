package main

import (
	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/upkeep"
)

// partPrograms is the part of a host that is the agent's programs.
const partPrograms = "programs"

// tellUpkeep returns a function that tells a process's listeners that a part of the host was
// repaired. A failed repair is a problem, and told as one.
func tellUpkeep(events *api.Events) func(upkeep.Event) {
	return func(e upkeep.Event) {
		if e.State == model.UpkeepRepaired {
			events.Add(api.Event{Kind: api.EventUpkeep, Part: e.Part, State: string(e.State), Text: e.Text()})
		}
	}
}

// upkeepProblems are the problems to list. The code that applies a configuration lists that it does
// not run.
func upkeepProblems(parts []model.Upkeep) (host, interfaces []model.Problem) {
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
			if u.Part == partPrograms && p.State == model.UpkeepWaiting { // perhaps it lets everything go on
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
