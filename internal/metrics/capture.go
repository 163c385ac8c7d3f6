package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir.io/weir/internal/model"
)

var (
	captureRunning = prometheus.NewDesc("weir_capture_running",
		"Whether somebody captures packets, for which another program forwards: 1 or 0.", nil, nil)
	captures = prometheus.NewDesc("weir_captures_total",
		"Captures that have begun since the director started.", nil, nil)
	capturePackets = prometheus.NewDesc("weir_capture_packets_total",
		"Packets that captures wanted, by what became of them there: taken, limited (over the rate), lost (not read in time). All are forwarded.", []string{"result"}, nil)
)

var ofCaptures = []*prometheus.Desc{captureRunning, captures, capturePackets}

func collectCapture(values chan<- prometheus.Metric, c *model.CaptureStatus) {
	running := 0.0
	if c.Running != nil {
		running = 1
	}
	values <- prometheus.MustNewConstMetric(captureRunning, prometheus.GaugeValue, running)
	values <- prometheus.MustNewConstMetric(captures, prometheus.CounterValue, float64(c.Begun))
	for _, r := range []struct {
		result string
		count  uint64
	}{{"taken", c.Matched - c.Limited - c.Lost}, {"limited", c.Limited}, {"lost", c.Lost}} {
		values <- prometheus.MustNewConstMetric(capturePackets, prometheus.CounterValue, float64(r.count), r.result)
	}
}
