package main

import (
	"math"

	"weir.io/weir/bench/program"
	"weir.io/weir/bench/record"
	"weir.io/weir/bench/track"
)

// check is a target that weir set itself.
type check struct {
	name     string
	what     string
	unit     string
	relation string // >= or <=
	target   float64
	scenario string // that has the measurements: without it the check is left out
	// value returns what was reached, NaN where the scenario lacks what it needs,
	// which misses the target.
	value func(*record.Scenario) float64
}

// checks are all targets, in the order of the tables.
var checks = []check{
	{"throughput_64_vs_redirect", "l2dsr's packets per second with 64-byte frames, 1 VIP x 255 backends and 1,000 flows, to a bare redirect's", "", ">=", 0.80, "rfc2544",
		func(s *record.Scenario) float64 {
			return ratio(s, l2dsr.Name, track.Redirect.Name, smallest(oneVIP, fewFlows).at(), record.Throughput)
		}},
	{"throughput_128x4000_vs_1x255", "the same with 128 VIPs x 4,000 backends, to 1 x 255", "", ">=", 0.92, "rfc2544",
		func(s *record.Scenario) float64 { return manyToOne(s, fewFlows) }},
	{"throughput_128x4000_vs_1x255_1mflows", "the same with 1,000,000 flows", "", ">=", 0.80, "rfc2544",
		func(s *record.Scenario) float64 { return manyToOne(s, manyFlows) }},
	{"throughput_imix_vs_redirect", "l2dsr's packets per second of the simple IMIX, to a bare redirect's", "", ">=", 0.80, "imix",
		func(s *record.Scenario) float64 {
			return ratio(s, l2dsr.Name, track.Redirect.Name, imixAt(fewFlows), record.Throughput)
		}},
	{"cost_dnat_vs_weir_1flow", "iptables' cost per packet, to l2dsr's, 1 flow", "", ">=", 12, "flows",
		func(s *record.Scenario) float64 {
			return ratio(s, track.Iptables.Name, l2dsr.Name, flowsAt(1), record.Cost)
		}},
	{"cost_dnat_vs_weir_1mflows", "the same with 1,000,000 flows", "", ">=", 20, "flows",
		func(s *record.Scenario) float64 {
			return ratio(s, track.Iptables.Name, l2dsr.Name, flowsAt(manyFlows), record.Cost)
		}},
	{"cost_1mflows_vs_1flow", "cost per packet with 1,000,000 flows, to that with 1: the worst mode that keeps no state", "", "<=", 1.5, "flows", flatness},
	{"cost_ipv6_vs_ipv4", "cost per packet of an IPv6 VIP, to that of an IPv4 one, of the same outer family: the worst mode", "", "<=", 1.25, "modes", ipv6Cost},
	{"syn_vs_dnat", "SYNs per second of new flows through l2dsr, to those through iptables, one core", "", ">=", 6, "syn",
		func(s *record.Scenario) float64 {
			return ratio(s, l2dsr.Name, track.Iptables.Name, record.Conditions{}, record.Throughput)
		}},
	{"swap_lost", "packets lost in a round with 10 swaps of the ring per second, on one core", "", "<=", 0, "churn",
		func(s *record.Scenario) float64 { return worst(s, lostPackets, false) }},
	{"swap_misdirected", "packets that came to a backend of neither ring in a round with 10 swaps per second", "", "<=", 0, "churn",
		func(s *record.Scenario) float64 { return worst(s, misdirected, false, true) }},
	{"run_l2dsr_vs_macswap", "l2dsr's program alone, IPv4, to one that swaps MAC addresses", "", "<=", 5, "program",
		func(s *record.Scenario) float64 { return ratio(s, "l2dsr", program.Swap, modesAt(false), runTime) }},
	{"run_ipip_vs_headmove", "ipip's program alone, IPv4, to one that moves the head and writes Ethernet", "", "<=", 5, "program",
		func(s *record.Scenario) float64 { return ratio(s, "ipip", program.Move, modesAt(false), runTime) }},
	{"run_gue_vs_headmove", "the same of gue", "", "<=", 7, "program",
		func(s *record.Scenario) float64 { return ratio(s, "gue", program.Move, modesAt(false), runTime) }},
	{"run_nat_vs_macswap", "nat's program alone, IPv4, established flow, to one that swaps MAC addresses", "", "<=", 12, "program",
		func(s *record.Scenario) float64 { return ratio(s, "nat", program.Swap, modesAt(false), runTime) }},
	{"backend_cycles_gue_vs_direct", "a backend's CPU time per byte of bulk TCP behind the agent (gue, XDP), to that without", "", "<=", 1.3, "backend",
		func(s *record.Scenario) float64 {
			return ratio(s, "gue-xdp", "direct", record.Conditions{}, backendTime)
		}},
	{"update_visible_p99_ms", "from Set, of which one of 4,096 services is new, until every CPU forwards by the new ring", "ms", "<=", 5, "update",
		func(s *record.Scenario) float64 { return updateTime(s, 1, visible99) }},
	{"set_4096_services_ms", "Set, of which all 4,096 services are new", "ms", "<=", 500, "update",
		func(s *record.Scenario) float64 { return updateTime(s, manyServices, took50) }},
	{"utilization_idle", "weir_datapath_utilization of the balancer's CPU without traffic", "", "<=", 0.05, "utilization",
		func(s *record.Scenario) float64 { return found(s, exported, loadOf(0), inUse) }},
	{"utilization_at_first_loss", "the same at the lowest rate that loses packets", "", ">=", 0.9, "utilization",
		func(s *record.Scenario) float64 { return found(s, exported, record.Conditions{}, atFirstLoss) }},
	{"utilization_linearity_r2", "R² of the straight line through it from no load to that rate", "", ">=", 0.97, "utilization",
		func(s *record.Scenario) float64 { return found(s, exported, record.Conditions{}, linearity) }},
}

// ratio is the median, over the rounds, of one subject to another under the same
// conditions.
func ratio(s *record.Scenario, of, to string, at record.Conditions, quantity record.Quantity) float64 {
	return record.Median(record.Ratios(s.Find(of, at, quantity.Name), s.Find(to, at, quantity.Name)))
}

// judge compares what was measured with the targets. A check whose scenario did not
// run is left out; one whose scenario broke is missed, whatever was measured by then.
func judge(r *record.Record) []record.Check {
	judged := []record.Check{}
	for _, c := range checks {
		s := r.Scenario(c.scenario)
		if s == nil {
			continue
		}
		value := math.NaN()
		if s.Error == "" {
			value = c.value(s)
		}
		judged = append(judged, record.Check{Name: c.name, What: c.what, Value: record.Number(value),
			Unit: c.unit, Relation: c.relation, Target: c.target, OK: c.met(value)})
	}
	return judged
}

// met is whether a value reaches the target. One that is missing does not.
func (c check) met(value float64) bool {
	if !record.Number(value).Finite() {
		return false
	}
	if c.relation == "<=" {
		return value <= c.target
	}
	return value >= c.target
}
