package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir.io/weir/internal/model"
)

var (
	neighborVIPs = prometheus.NewDesc("weir_neighbor_vips",
		"VIPs for which somebody is to answer by ARP and NDP, by who does: answers (this director), other, nobody.", []string{"state"}, nil)
	neighborLease = prometheus.NewDesc("weir_neighbor_lease_held",
		"Whether this director has the lease that it answers by, in a group: 1 or 0.", nil, nil)
	neighborMoves = prometheus.NewDesc("weir_neighbor_moves_total",
		"VIPs that this director began to answer for, and ceased to, by direction: taken, lost.", []string{"direction"}, nil)
	neighborFrames = prometheus.NewDesc("weir_neighbor_frames_total",
		"Frames of ARP and NDP about VIPs, by what they were: announced, answered, limited (not answered, there were too many), conflict (of another host that claims a VIP).",
		[]string{"interface", "kind"}, nil)
)

var ofNeighbors = []*prometheus.Desc{neighborVIPs, neighborLease, neighborMoves, neighborFrames}

// collectNeighbor leaves out metrics of what a director does not do.
func collectNeighbor(values chan<- prometheus.Metric, s *model.NeighborStatus) {
	if s.IsZero() {
		return
	}
	count := map[model.NeighborState]int{}
	for i := range s.VIPs {
		count[s.VIPs[i].State]++
	}
	for _, state := range model.NeighborStates {
		values <- prometheus.MustNewConstMetric(neighborVIPs, prometheus.GaugeValue, float64(count[state]), string(state))
	}
	if s.Lease != "" {
		held := 0.0
		if s.Lease == model.LeaseHeld {
			held = 1
		}
		values <- prometheus.MustNewConstMetric(neighborLease, prometheus.GaugeValue, held)
	}
	values <- prometheus.MustNewConstMetric(neighborMoves, prometheus.CounterValue, float64(s.Taken), "taken")
	values <- prometheus.MustNewConstMetric(neighborMoves, prometheus.CounterValue, float64(s.Lost), "lost")
	for _, i := range s.Interfaces {
		for kind, n := range map[string]uint64{"announced": i.Announced, "answered": i.Answered, "limited": i.Limited, "conflict": i.Conflicts} {
			values <- prometheus.MustNewConstMetric(neighborFrames, prometheus.CounterValue, float64(n), i.Name, kind)
		}
	}
}
