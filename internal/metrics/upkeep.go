package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir.io/weir/internal/model"
)

var upkeepRepairs = prometheus.NewDesc("weir_upkeep_repairs_total",
	"Things of a part of the host that were not as they should be and that weir has put right, since the process started.", []string{"part"}, nil)

var ofUpkeep = []*prometheus.Desc{upkeepRepairs}

// collectUpkeep is the same for directors and agents. A thing that could not be put right is a
// problem, and is counted as one.
func collectUpkeep(values chan<- prometheus.Metric, parts []model.Upkeep) {
	for i := range parts {
		values <- prometheus.MustNewConstMetric(upkeepRepairs, prometheus.CounterValue, float64(parts[i].Repairs), parts[i].Part)
	}
}
