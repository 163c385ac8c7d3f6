package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir.io/weir/internal/model"
)

var (
	hookCurrent = prometheus.NewDesc("weir_hook_current",
		"Whether the hook has taken which VIPs are up now: 1 or 0.", []string{"hook"}, nil)
	hookCalls = prometheus.NewDesc("weir_hook_calls_total",
		"Calls of the hook that have ended, since the director started, by their result: ok, failed.", []string{"hook", "result"}, nil)
)

var ofHooks = []*prometheus.Desc{hookCurrent, hookCalls}

func collectHooks(values chan<- prometheus.Metric, hooks []model.HookStatus) {
	for _, h := range hooks {
		current := 0.0
		if h.Current {
			current = 1
		}
		values <- prometheus.MustNewConstMetric(hookCurrent, prometheus.GaugeValue, current, h.Name)
		values <- prometheus.MustNewConstMetric(hookCalls, prometheus.CounterValue, float64(h.Calls-h.Failures), h.Name, "ok")
		values <- prometheus.MustNewConstMetric(hookCalls, prometheus.CounterValue, float64(h.Failures), h.Name, "failed")
	}
}
