package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir.io/weir/internal/model"
)

var (
	upkeepRepairs = prometheus.NewDesc("weir_upkeep_repairs_total",
		"Things of a part of the host that were not as they should be and that weir has put right, since the process started.", []string{"part"}, nil)
	upkeepProblems = prometheus.NewDesc("weir_upkeep_problems",
		"Things of a part of the host that are not as they should be now: waiting (weir cannot put them right), failing (putting them right fails), contested (somebody else changes them back).", []string{"part", "state"}, nil)
)

var ofUpkeep = []*prometheus.Desc{upkeepRepairs, upkeepProblems}

// collectUpkeep is the same for directors and agents.
func collectUpkeep(values chan<- prometheus.Metric, parts []model.Upkeep) {
	for i := range parts {
		p := &parts[i]
		values <- prometheus.MustNewConstMetric(upkeepRepairs, prometheus.CounterValue, float64(p.Repairs), p.Part)
		count := map[model.UpkeepState]int{}
		for _, problem := range p.Problems {
			count[problem.State]++
		}
		for _, state := range model.UpkeepProblems {
			values <- prometheus.MustNewConstMetric(upkeepProblems, prometheus.GaugeValue, float64(count[state]), p.Part, string(state))
		}
	}
}
