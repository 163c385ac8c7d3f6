package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir.io/weir/internal/model"
)

var (
	redirectProbes = prometheus.NewDesc("weir_redirect_probes_total",
		"Probes of whether connections can be handed over to backends, by what they said: ok, or why not.", []string{"result"}, nil)
	redirected = prometheus.NewDesc("weir_backend_redirect",
		"Whether connections are handed over to the backend, of services with mode redirect; 0: they go as the service falls back.",
		[]string{"service", "backend"}, nil)
)

func collectRedirect(values chan<- prometheus.Metric, status *model.DatapathStatus) {
	for _, p := range status.RedirectProbes {
		values <- prometheus.MustNewConstMetric(redirectProbes, prometheus.CounterValue, float64(p.Count), p.Name)
	}
	first, _ := withMetrics(status.Services)
	for i := range status.Services[:first] {
		s := &status.Services[i]
		for _, b := range s.Backends {
			if b.Redirect != nil {
				values <- prometheus.MustNewConstMetric(redirected, prometheus.GaugeValue, truth(b.Redirect.Able), s.Name, b.Name)
			}
		}
	}
}
