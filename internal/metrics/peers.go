package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir.io/weir/internal/model"
)

var (
	told = prometheus.NewDesc("weir_flows_told_total",
		"Flows that other directors have told, by what became of them.", []string{"outcome"}, nil)
	peerFlows = prometheus.NewDesc("weir_peer_flows_total",
		"Flows that went between this director and another one, by direction: heard, told.", []string{"director", "direction"}, nil)
	peerConnected = prometheus.NewDesc("weir_peer_connected",
		"Whether what another director remembers is heard, and whether it is told what this one does.", []string{"director", "direction"}, nil)
	peerProblems = prometheus.NewDesc("weir_peer_problems_total",
		"How often a director was too slow to be told what is new, so that it was told everything again, and how often it could not be understood (garbage).", []string{"director", "problem"}, nil)
	strangers = prometheus.NewDesc("weir_peer_strangers_total",
		"Connections of those who wanted to be told of flows, and did not dial from a director's address, could not show its certificate, or gave way in the handshake to newer ones of the same address. A director that has just started may be among them for a moment.", nil, nil)
)

var ofPeers = []*prometheus.Desc{told, peerFlows, peerConnected, peerProblems, strangers}

func collectPeers(values chan<- prometheus.Metric, status *model.DatapathStatus) {
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		values <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	is := func(since time.Time, labels ...string) {
		value := 0.0
		if !since.IsZero() {
			value = 1
		}
		values <- prometheus.MustNewConstMetric(peerConnected, prometheus.GaugeValue, value, labels...)
	}
	for _, e := range status.Flows.Told {
		count(told, e.Count, e.Name)
	}
	count(strangers, status.Strangers)
	for _, p := range status.Peers {
		director := p.Director.String()
		count(peerFlows, p.Heard, director, "heard")
		count(peerFlows, p.Told, director, "told")
		count(peerProblems, p.Slow, director, "slow")
		count(peerProblems, p.Garbage, director, "garbage")
		is(p.Tells, director, "heard")
		is(p.Listens, director, "told")
	}
}
