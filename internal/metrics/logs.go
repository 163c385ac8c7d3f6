package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir.io/weir/internal/model"
)

// ofLogs are the metrics of each service's log.
var ofLogs = []struct {
	desc  *prometheus.Desc
	value func(model.LogStatus) float64
}{
	{logDesc("weir_service_generations", "Generations in the service's log: versions of its membership that connections may still need."),
		func(l model.LogStatus) float64 { return float64(l.Generations) }},
	{logDesc("weir_service_oldest_generation_timestamp_seconds", "When the oldest of them became the newest."),
		func(l model.LogStatus) float64 {
			if l.Oldest.IsZero() {
				return 0
			}
			return float64(l.Oldest.UnixMilli()) / 1000
		}},
	{logDesc("weir_service_slots_shared", "Slots of the service that may have connections of several backends."),
		func(l model.LogStatus) float64 { return float64(l.Shared) }},
	{logDesc("weir_service_slots_held", "Slots of the service that keep an older owner until their rows have room: changes come faster than drain lets go."),
		func(l model.LogStatus) float64 { return float64(l.Held) }},
	{logDesc("weir_service_slots_kept", "Slots of older generations in which agents report connections, or do not say that there are none."),
		func(l model.LogStatus) float64 { return float64(l.Kept) }},
}

func logDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, []string{"service"}, nil)
}

var movedDesc = logDesc("weir_service_slots_moved_total", "Slots of the service that got another owner, since the director started.")

func collectLogs(values chan<- prometheus.Metric, services []model.ServiceStatus) {
	for _, s := range services {
		values <- prometheus.MustNewConstMetric(movedDesc, prometheus.CounterValue, float64(s.Log.MovedTotal), s.Name)
		for _, d := range ofLogs {
			values <- prometheus.MustNewConstMetric(d.desc, prometheus.GaugeValue, d.value(s.Log), s.Name)
		}
	}
}
