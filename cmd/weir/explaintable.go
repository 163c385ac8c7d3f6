package main

import (
	"weir.io/weir/internal/explain"
	"weir.io/weir/internal/model"
)

// explanationTable has a line for each decision.
func explanationTable(t *table, e *model.Explanation) {
	t.row("STEP", "DECISION")
	before := model.Decision("")
	for _, s := range explain.Steps(e) {
		switch {
		case s.Step == model.StepCandidate:
			t.row(" "+string(s.Step), s.Says)
		case s.Step == before:
			t.row(" ", s.Says) // a further header of the packet
		default:
			t.row(s.Step, s.Says)
		}
		before = s.Step
	}
}

// explanationsTable has a line for each packet of a file.
func explanationsTable(t *table, all []model.Explanation) {
	t.row("PACKET", "FLOW", "SERVICE", "BACKEND", "CHOSEN", "REASON", "LEAVES")
	for i := range all {
		e := &all[i]
		var flow, service, backend string
		if e.Flow != nil {
			flow = explain.FlowText(e.Flow)
		}
		if e.Service != nil {
			service = e.Service.Name
		}
		if e.Backend != nil {
			backend = e.Backend.Name
		}
		t.row(i+1, flow, service, backend, e.Chosen, e.Reason, e.Leaves)
	}
}
