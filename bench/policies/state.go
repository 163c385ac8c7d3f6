package policies

import (
	"math/rand/v2"
	"strconv"

	"weir.io/weir/internal/engine"
	"weir.io/weir/lab/record"
)

var stateNotes = []string{
	"a site of 100 services with 1,000 backends each behind one group of 100 directors; memory: of each of them, with 64 CPUs. Rings and what is shared are computed by the code that directors run, after the change",
	"rings and backends: what every mode needs, and `gue` for TCP needs nothing else, whatever changes. A backend takes 64 bytes and 16 for each CPU",
	"flow memory: 41 bytes for each open connection of a shared slot, of the whole group, since directors tell each other. It is needed until the older generation has left and the connections have ended, by `l2dsr`, `ipip` and `nat`; with nothing changed it is empty",
	"table: what the table alone takes of a balancer that remembers every connection, in entries as large as weir's; its backends come on top. shared: of the whole group in each director; own: each director its own, with as many connections as the others, and a lost director's are lost",
	"`limits.flows` is at most 268,435,456, 11 GB: what is beyond is placed and not remembered",
}

var memoryNeeded = record.Quantity{Name: "memory", Unit: "B", Better: record.Lower}

const (
	siteServices  = 100
	siteBackends  = 1000
	siteDirectors = 100
	siteCPUs      = 64
	flowBytes     = 41
)

func askState(a *asking) error {
	backends := siteBackends
	if a.settings.Smoke {
		backends = 100
	}
	planner := engine.NewPlanner()
	outcomes := map[string]outcome{}
	for _, c := range changes {
		if c.name != "replace 10 %" && c.name != "remove 1" {
			continue
		}
		o, _, err := c.after(backends, rand.New(rand.NewPCG(a.settings.Seed, 0)), planner)
		if err != nil {
			return err
		}
		outcomes[c.name] = o
	}
	for connections := 1e6; connections <= 1e9; connections *= 10 {
		at := record.Conditions{"connections": strconv.FormatFloat(connections, 'f', 0, 64)}
		add := func(subject string, bytes float64) { a.into.Add(subject, at, memoryNeeded, bytes) }
		fixed := func(o outcome) float64 {
			return siteServices*float64(o.bytes) + float64(siteServices*backends)*(64+16*siteCPUs)
		}
		add("gue, 10 % replaced", fixed(outcomes["replace 10 %"]))
		for _, name := range []string{"remove 1", "replace 10 %"} {
			o := outcomes[name]
			add("ipip, "+map[string]string{"remove 1": "1 of 1,000 removed", "replace 10 %": "10 % replaced"}[name],
				fixed(o)+flowBytes*o.lists*connections)
		}
		add("table, own", flowBytes*connections/siteDirectors)
		add("table, shared", flowBytes*connections)
	}
	return nil
}
