package main

import (
	"weir.io/weir/bench/policies"
	"weir.io/weir/bench/program"
	"weir.io/weir/bench/sim"
	"weir.io/weir/bench/track"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/record"
)

// check is a target that weir has set itself.
type check struct {
	name     string
	what     string // complete in itself: a list may show one check alone
	unit     string
	relation string // >= or <=
	target   float64
	scenario string // the one that has the measurements: without it the check is left out
	quantity record.Quantity
	value    value
}

// checks are all targets, in the order of the tables.
var checks = []check{
	{"throughput_64_vs_redirect", "l2dsr's packets per second with 64-byte frames, 1 VIP x 255 backends and 1,000 flows, to a bare redirect's", "", ">=", 0.90, "rfc2544", record.Throughput,
		ratio(l2dsr.Name, track.Redirect.Name, smallest(oneVIP, fewFlows).at(), record.Throughput)},
	{"throughput_128x4000_vs_1x255", "l2dsr's packets per second with 64-byte frames, 128 VIPs x 4,000 backends in all and 1,000 flows, to those with 1 VIP x 255 backends", "", ">=", 0.92, "rfc2544", record.Throughput,
		manyToOne(fewFlows)},
	{"throughput_128x4000_vs_1x255_1mflows", "l2dsr's packets per second with 64-byte frames, 128 VIPs x 4,000 backends in all and 1,000,000 flows, to those with 1 VIP x 255 backends", "", ">=", 0.85, "rfc2544", record.Throughput,
		manyToOne(manyFlows)},
	{"throughput_imix_vs_redirect", "l2dsr's packets per second of the simple IMIX, to a bare redirect's", "", ">=", 0.80, "imix", record.Throughput,
		ratio(l2dsr.Name, track.Redirect.Name, imixAt(fewFlows, byCount), record.Throughput)},
	{"throughput_imix_vs_redirect_on_link", "l2dsr's packets per second of the simple IMIX from a link of 5 Gbit/s, to a bare redirect's", "", ">=", 0.97, "imix", record.Throughput,
		ratio(l2dsr.Name, track.Redirect.Name, imixOnLink, record.Throughput)},
	{"cost_dnat_vs_weir_1flow", "iptables' own time per packet, to l2dsr's, 1 flow", "", ">=", 12, "flows", record.Cost,
		ratio(track.Iptables.Name, l2dsr.Name, flowsAt(1), record.Cost)},
	{"cost_dnat_vs_weir_1mflows", "iptables' own time per packet, to l2dsr's, 1,000,000 flows", "", ">=", 20, "flows", record.Cost,
		ratio(track.Iptables.Name, l2dsr.Name, flowsAt(manyFlows), record.Cost)},
	{"cost_1mflows_vs_1flow", "weir's own time per packet with 1,000,000 flows, to that with 1: the worst of the modes that keep no state (l2dsr, ipip, gue, nat)", "", "<=", 1.5, "flows", record.Cost, flatness()},
	{"state_misses", "how many random reads of memory as large as a table of flows a packet takes longer with 1,000,000 flows than with 1: the worse of least-conn and a slot with flow memory", "", "<=", 1.15, "state", record.Cost,
		misses(leastConn, memoized)},
	{"state_misses_snat", "how many random reads of memory as large as a table of flows a packet takes longer with 1,000,000 flows than with 1, full NAT", "", "<=", 1.3, "state", record.Cost,
		misses(fullNAT)},
	{"state_1flow_vs_stateless", "weir's own time per packet of a single flow that is remembered, to that where nothing is: the worse of least-conn and a slot with flow memory", "", "<=", 1.5, "state", record.Cost,
		toStateless(leastConn, memoized)},
	{"state_refused_at_80_percent", "the part of 1,000,000 new flows for which flow memory had no place, when they fill it to 80 %", "", "<=", 0.001, "state", refused,
		reading(memoized.Name, smallFrames(manyFlows), refused)},
	{"fanout_receiver_cost", "what a packet takes of the receiving core with fan-out, to what it takes without: the worse of gue and full NAT", "", "<=", 0.625, "fan-out", record.Cost, receiverCost()},
	{"steered_vs_nat_table_8000", "packets per second of 8,000 flows in l2dsr that a NIC steers, to those by full NAT's table as it was in " + landedTables, "", ">=", 1.5, "steering", record.Throughput,
		ratio(steered.Name, before(fullNAT), smallFrames(mostRules), record.Throughput)},
	{"steered_vs_flow_table_8000", "packets per second of 8,000 flows in l2dsr that a NIC steers, to those of least-conn by flow memory as it was in " + landedTables, "", ">=", 1.25, "steering", record.Throughput,
		ratio(steered.Name, before(leastConn), smallFrames(mostRules), record.Throughput)},
	{"steered_own_cost_vs_stateless", "l2dsr's program alone on a packet of a flow that a NIC steers, to that by the ring: the worse of IPv4 and IPv6", "", "<=", 0.5, "steering", runTime, ruleToRing()},
	{"elephants_share", "the share of packets that the 2,000 flows with rules have, of 1,000,000 whose sizes follow Zipf's law with 1.1, to that of the 2,000 largest", "", ">=", 0.9, "steering", elephantsShare,
		reading(elephants, elephantsAt, elephantsShare)},
	{"steered_misdirected", "packets that came to a backend of neither the old ring nor the new one, in a round in which 1,000 rules of a NIC change per second and the ring is swapped once per second", "", "<=", 0, "steering", misdirected,
		quantileOf(subject{disturbed, disturbedAt}, misdirected, 1)},
	{"cores_order", "packets per second with twice as many CPUs, to those with half of them, even flows: the least of l2dsr, l2dsr by generic XDP and iptables; below 1 more CPUs carry less", "", ">=", 1, "cores", record.Throughput, coresOrder},
	{"cost_ipv6_vs_ipv4", "weir's own time per packet of an IPv6 VIP, to that of an IPv4 VIP, with the same outer family: the worst mode", "", "<=", 1.25, "modes", record.Cost, ipv6Cost()},
	{"vxlan_vs_l2dsr", "l2dsr's own time per packet in VXLAN, to that in no segment, frames of 128 bytes as they come", "", "<=", 1.1, "segments", record.Cost, toUntaggedIn(inVXLAN)},
	{"geneve_vs_l2dsr", "l2dsr's own time per packet in Geneve, to that in no segment, frames of 128 bytes as they come", "", "<=", 1.15, "segments", record.Cost, toUntaggedIn(inGeneve)},
	{"vlan_vs_untagged", "l2dsr's own time per packet in a VLAN, to that in no segment, frames of 128 bytes as they come", "", "<=", 1.1, "segments", record.Cost, toUntaggedIn(inVLAN)},
	{"untagged_vs_before", "l2dsr's program alone in no segment, to that of the version before directors could be VTEPs: the upper bound of the 95 % interval of the median, the worse of IPv4 and IPv6", "", "<=", 1.03, "segments", toBefore, worstBefore()},
	{"foreign_packets", "packets of one of two tenants with the same addresses that came to the other one, in a round in which the rings are swapped up to 10 times per second: the worst of l2dsr in VXLAN and Geneve and nat in VXLAN", "", "<=", 0, "segments", foreign, mostForeign()},
	{"migration_followed_p95_ms", "time from when a director's file has a backend's new VTEP until its packets come there, and only there, 95th percentile", "ms", "<=", 1000, "segments", followedDelay,
		quantileOf(subject{l2dsr.Name, movesAt}, followedDelay, 0.95)},
	{"rows_unchanged", "weir's own time per packet where no slot is shared, to that of the version before flow memory: how far the 99 % interval of the median is from 1 in the worst mode (l2dsr, ipip, gue)", "", "<=", 0, "rows", toBefore, offBefore},
	{"syn_vs_dnat", "SYNs per second of new flows through l2dsr, to those through iptables, one core", "", ">=", 6, "syn", record.Throughput,
		ratio(l2dsr.Name, track.Iptables.Name, record.Conditions{}, record.Throughput)},
	{"swap_lost", "packets lost in a round in which the ring is swapped up to 10 times per second, on one core", "", "<=", 0, "churn", lostPackets,
		withSwaps(lostPackets, false)},
	{"swap_misdirected", "packets that came to a backend of neither the old ring nor the new one, in a round in which the ring is swapped up to 10 times per second", "", "<=", 0, "churn", misdirected,
		withSwaps(misdirected, false, true)},
	{"run_l2dsr_vs_macswap", "l2dsr's program alone, IPv4, to one that swaps MAC addresses", "", "<=", 5, "program", runTime,
		ratio("l2dsr", program.Swap, modesAt(false), runTime)},
	{"run_ipip_vs_headmove", "ipip's program alone, IPv4, to one that moves the head and writes Ethernet", "", "<=", 5, "program", runTime,
		ratio("ipip", program.Move, modesAt(false), runTime)},
	{"run_gue_vs_headmove", "gue's program alone, IPv4, to one that moves the head and writes Ethernet", "", "<=", 7, "program", runTime,
		ratio("gue", program.Move, modesAt(false), runTime)},
	{"run_nat_vs_macswap", "nat's program alone, IPv4, established flow, to one that swaps MAC addresses", "", "<=", 12, "program", runTime,
		ratio("nat", program.Swap, modesAt(false), runTime)},
	{"backend_cycles_gue_vs_direct", "a backend's CPU time per byte of bulk TCP behind the agent (gue, XDP), to that without", "", "<=", 1.3, "backend", backendTime,
		ratio("gue-xdp", "direct", record.Conditions{}, backendTime)},
	{"update_visible_p99_ms", "time from a Set that changes one of 4,096 services until every CPU forwards by its new ring, 99th percentile", "ms", "<=", 5, "update", visible99,
		updateTime(1, visible99)},
	{"set_4096_services_ms", "how long a Set that changes all of 4,096 services takes, median", "ms", "<=", 500, "update", took50,
		updateTime(manyServices, took50)},
	{"explain_disagreements", "packets of 100,000 random ones of which weir explain said something else than what the director then did, or than the ring that is worked out in Go", "", "<=", 0, "explain", disagreements,
		explained(disagreements)},
	{"explain_side_effects", "readings of all maps in which questions had changed something", "", "<=", 0, "explain", sideEffects,
		explained(sideEffects)},
	{"plan_error_percent", "the largest difference between the share of flows that a plan said would move and the share that then moved, over 100 random changes, in percent of the flows", "%", "<=", 1, "explain", planError,
		explained(planError)},
	{"health_tcp_cpu", "CPU time of a director that checks 1,000 backends' own addresses by kind tcp once a second, of one CPU", "%", "<=", 5, "health", checkShare,
		reading(string(model.CheckTCP), checked{to: model.CheckAddress}.at(), checkShare)},
	{"clean_update_p50_ms", "time from a clean change of the number of directors or backends until traffic has followed it, median", "ms", "<=", 100, "convergence", trafficDelay, cleanQuantile(0.5)},
	{"clean_update_max_ms", "time from a clean change of the number of directors or backends until traffic has followed it, the longest", "ms", "<=", 1000, "convergence", trafficDelay, cleanQuantile(1)},
	{"clean_failed_requests", "requests that failed in a round of clean changes, the most", "request", "<=", 0, "convergence", failed, delayOf(cleanChanges, failed, 1)},
	{"host_loss_bfd_p50_ms", "time from the loss of a director's host until the last request began that met it, with BFD (3 x 50 ms), median", "ms", "<=", 300, "convergence", trafficDelay, delayOf(hostLost, trafficDelay, 0.5)},
	{"host_loss_bfd_max_ms", "time from the loss of a director's host until the last request began that met it, with BFD (3 x 50 ms), the longest", "ms", "<=", 600, "convergence", trafficDelay, delayOf(hostLost, trafficDelay, 1)},
	{"host_loss_hold_max_ms", "time from the loss of a director's host until the last request began that met it, without BFD (hold time 3 s), the longest", "ms", "<=", 4000, "convergence", trafficDelay, delayOf(hostLostHold, trafficDelay, 1)},
	{"process_loss_failed_requests", "requests that failed in a round in which processes of directors are killed, the most", "request", "<=", 0, "convergence", failed, delayOf(processLost, failed, 1)},
	{"backend_death_to_quiet_p95_ms", "time from a backend's death until a director has sent it a client's packet for the last time, 95th percentile", "ms", "<=", 1000, "convergence", quietDelay, delayOf(backendDies, quietDelay, 0.95)},
	{"scaleout_4_vs_1", "payload per second through 4 directors, whose cables are the limit, to that through 1", "", ">=", 3.9, "scaleout", carried, scaleoutRatio},
	{"rr_p50_vs_direct", "median latency of a request in an open connection that was redirected, to that without a balancer", "", "<=", 1.03, "bypass", latency50, toDirect(rr, latency50)},
	{"rr_p99_vs_direct", "99th percentile of the latency of a request in an open connection that was redirected, to that without a balancer", "", "<=", 1.1, "bypass", latency99, toDirect(rr, latency99)},
	{"crr_p50_vs_direct", "what mode redirect adds to the median latency of a request with a connection of its own, to what the quicker one of gue and ipip adds", "", "<=", 1, "bypass", latency50, betweenDirectAndDSR},
	{"goodput_vs_director_link", "bytes of requests per second that three clients and three servers exchange past the director in open connections, mode redirect, to what its cable carries: with requests of the size that comes to the most", "", ">=", 2.8, "bypass", goodput, mostGoodput},
	{"p99_round_robin_vs_random", "99th percentile of the latency of requests to servers that answer one at a time, at load 0.8, placed in turns (redirect), to that of those placed at random (DSR)", "", "<=", 0.5, "tail", latency99, timed.turnsToRandom},
	{"p99_files_round_robin_vs_random", "99th percentile of the latency of requests for files to servers whose links are the limit, at load 0.8, placed in turns (redirect), to that of those placed at random (DSR)", "", "<=", 0.5, "tail", files.p99, files.turnsToRandom},
	{"soak_memory_growth", "own memory of the director, its BFD process or an agent, or the director's live heap, whichever has grown the most in a soak, by its trend (Theil-Sen), that of its later half, or a step that stays", "%", "<=", 20, "soak", ownMemory, worstGrowth(ownMemory, liveHeap)},
	{"soak_handles_growth", "descriptors, goroutines, pins, bytes of maps or of rings, whichever have grown the most in a soak, by their trend (Theil-Sen), that of its later half, or a step that stays; by one is granularity, not growth", "%", "<=", 1, "soak", descriptors, worstGrowth(descriptors, goroutines, pinned, mapMemory, ringMemory)},
	{"soak_failed_requests", "requests that failed in a soak", "request", "<=", 0, "soak", failed,
		reading(soakGroup, nil, failed)},
	{"pod_ready_to_request_p95_ms", "time from the status of a pod that says it is ready until it has answered a request from outside, 95th percentile", "ms", "<=", 200, "kubernetes", requestDelay, delayOf(podReady, requestDelay, 0.95)},
	{"pod_ready_to_request_max_ms", "time from the status of a pod that says it is ready until it has answered a request from outside, the longest", "ms", "<=", 1000, "kubernetes", requestDelay, delayOf(podReady, requestDelay, 1)},
	{"pod_terminating_to_quiet_p95_ms", "time from the deletion of a pod until the last request from outside began that it answered, 95th percentile", "ms", "<=", 200, "kubernetes", lastDelay, delayOf(podTerminates, lastDelay, 0.95)},
	{"pod_terminating_to_quiet_max_ms", "time from the deletion of a pod until the last request from outside began that it answered, the longest", "ms", "<=", 1000, "kubernetes", lastDelay, delayOf(podTerminates, lastDelay, 1)},
	{"service_to_forwarded_max_ms", "time from when a Service is made until it is answered outside, announced by BGP, the longest", "ms", "<=", 1000, "kubernetes", requestDelay, delayOf(serviceMade, requestDelay, 1)},
	{"node_to_forwarding_ms", "time from when a node gets the label of a DirectorGroup until it has brought a request from outside to a pod, with the images present, without a kubelet's own time, the longest", "ms", "<=", 3000, "kubernetes", requestDelay, delayOf(nodeLabelled, requestDelay, 1)},
	{"rolling_update_failed", "requests that failed, and long ones that broke, in a round in which all pods of a Service are replaced, the most", "request", "<=", 0, "kubernetes", failed, rolledFailures},
	{"utilization_idle", "weir_datapath_utilization of the balancer's CPU without traffic", "", "<=", 0.05, "utilization", inUse,
		reading(exported, loadOf(0), inUse)},
	{"utilization_at_first_loss", "weir_datapath_utilization of the balancer's CPU at the lowest rate that loses packets", "", ">=", 0.9, "utilization", atFirstLoss,
		reading(exported, record.Conditions{}, atFirstLoss)},
	{"utilization_linearity_r2", "R² of the straight line through weir_datapath_utilization, from no load to the lowest rate that loses packets", "", ">=", 0.97, "utilization", linearity,
		reading(exported, record.Conditions{}, linearity)},
}

// simulated are the targets of simulations.
var simulated = []check{
	{"sim_p99_round_robin_vs_random", "p99 of central round-robin to that of random, fixed service, load 0.8", "1", "<=", 0.5, "latency", policies.P99,
		ratio(sim.Central, sim.Random, record.Conditions{"service": "fixed", "load": checkedLoad}, policies.P99)},
	{"sim_p99_distributed_vs_random", "p99 of 16 directors' own round-robin to that of random, fixed service, load 0.8", "1", "<=", 1, "latency", policies.P99,
		ratio(sim.Distributed, sim.Random, record.Conditions{"service": "fixed", "load": checkedLoad}, policies.P99)},
	{"sim_p99_p2c_vs_random", "p99 of p2c to that of random, exponential service, load 0.8", "1", "<=", 0.5, "latency", policies.P99,
		ratio(sim.P2C, sim.Random, record.Conditions{"service": "exponential", "load": checkedLoad}, policies.P99)},
}

// alternates are checks of the same names that other scenarios answer, if the scenarios of checks
// did not run.
var alternates = []check{
	{"syn_vs_dnat", "SYNs per second of new flows that the director hands over, mode redirect, to those through iptables, one core", "", ">=", 6, "bypass", record.Throughput,
		ratio(handing.Name, track.Iptables.Name, record.Conditions{}, record.Throughput)},
}
