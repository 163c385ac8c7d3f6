package main

import (
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/upkeep"
)

// tellUpkeep returns what tells events of upkeep to those who listen to a process.
func tellUpkeep(events *api.Events) func(upkeep.Event) {
	return func(e upkeep.Event) {
		events.Add(api.Event{Kind: api.EventUpkeep, Part: e.Part, State: string(e.State), Text: e.Text()})
	}
}

// upkeepTable lists what is not as it should be; it is left out where all is.
func upkeepTable(t *table, parts []model.Upkeep) {
	headed := false
	for i := range parts {
		for _, p := range parts[i].Problems {
			if !headed {
				headed = true
				t.line("")
				t.row("PART", "WHAT", "STATE", "SINCE", "FOUND", "CHANGED-BY", "ERROR")
			}
			t.row(parts[i].Part, p.What, p.State, p.Since.Format(time.RFC3339), p.Found, p.By, p.Error)
		}
	}
}
