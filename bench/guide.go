package main

import (
	"strings"

	"weir.io/weir/bench/report"
)

// What is quoted, in full.
const (
	lee = `J.-B. Lee, T.-H. Yoo, E.-H. Lee, B.-H. Hwang, S.-W. Ahn and C.-H. Cho, "High-Performance Software Load Balancer for Cloud-Native Architecture", IEEE Access, 2021, [doi:10.1109/ACCESS.2021.3108801](https://doi.org/10.1109/ACCESS.2021.3108801)`

	takahashi = `K. Takahashi, "A Study on Portable Load Balancer for Container Clusters", PhD dissertation, The Graduate University for Advanced Studies (SOKENDAI), 2019`

	kogias = `M. Kogias, R. Iyer and E. Bugnion, "Bypassing the Load Balancer Without Regrets", ACM Symposium on Cloud Computing (SoCC), 2020, [doi:10.1145/3419111.3421304](https://doi.org/10.1145/3419111.3421304)`

	hnlb = `R. Durner, A. Varasteh, M. Stephan, C. Mas Machuca and W. Kellerer, "HNLB: Utilizing Hardware Matching Capabilities of NICs for Offloading Stateful Load Balancers", IEEE International Conference on Communications (ICC), 2019, [doi:10.1109/ICC.2019.8761434](https://doi.org/10.1109/ICC.2019.8761434), section IV`
)

// guide helps to read the document. It says what is true of every record; what a run did is in the
// notes of its scenarios, in the record.
var guide = report.Guide{
	Remarks: map[string][]string{
		"rfc2544": {
			"The paper is " + lee + ", table 2",
			"`-`: DNAT's cost is its table of flows, not its rules, so with 128x4000 it is measured at one length alone, and with 1,000,000 flows of one protocol. With two cores no cost can be told, because source and balancer work at the same time. Tagged frames are measured with UDP, 1,000 flows and one core, and without DNAT, which would need a VLAN interface",
		},
		"imix": {"The paper is " + lee + ", table 2, figures 9 and 10"},
		"flows": {
			"`-`: 10,000,000 flows are not measured with iptables, see above; direct has no cost, because it is what is subtracted",
		},
		"churn": {
			"10/s is how often the file is replaced at most, and `swaps` what came of it. weir run waits until a file was left alone for 50 ms, and shares the cores with traffic that takes all it can get: so fewer are seen, fewest on two cores, where both are full. Records of versions that know `coalesce`, and waited that long besides, have fewer still",
		},
		"http": {
			"The paper is " + takahashi + ", figures 4.6, 4.7 and 4.9, and appendix C for the 100 requests",
			"`-`: IPv6 is measured with the most servers and two modes, which shows what the family costs; it has no direct to be compared with",
			"One server with keep-alive is an odd row: full NAT comes near direct there, or passes it, and `l2dsr`, `ipip` and `gue` may be far below, though their packets take the shorter way. A single nginx and wrk share the cores, so this is probably about how the scheduler has them take turns: the faster ways have the lower median latency and the higher 99th percentile, as when requests are answered in bursts. It was not looked into further; compare balancers by the rows with more servers",
		},
		"convergence": {
			"The paper is " + takahashi + ", figure 4.15, which is a histogram of such delays",
		},
		"scaleout": {"The paper is " + takahashi + ", figures 4.13 and 4.14"},
		"bypass":   {"The paper is " + kogias + ", figures 7 to 10"},
		"tail":     {"The paper is " + kogias + ", figures 11 and 12"},
		"update": {
			"file has in it what weir run waits for on purpose: until the file was left alone for 50 ms and, in versions that know it, until `coalesce` is over, 50 ms by default",
			"`-`: the file of a director is edited to change one service; with a single service nothing is set besides that",
		},
		"utilization": {"HNLB is " + hnlb},
		"steering":    {"HNLB is " + strings.TrimSuffix(hnlb, ", section IV")},
	},
	Events: map[string][]string{"convergence": {routeDelay.Name, trafficDelay.Name, quietDelay.Name}, "kubernetes": {requestDelay.Name, lastDelay.Name}, "segments": {followedDelay.Name}},
	Reasons: map[string]string{
		"goodput_vs_director_link":             "redirection.md#goodput",
		"steered_own_cost_vs_stateless":        "costs.md#a-packet-with-a-rule",
		"vxlan_vs_l2dsr":                       "costs.md#packets-in-tunnels",
		"geneve_vs_l2dsr":                      "costs.md#packets-in-tunnels",
		"vlan_vs_untagged":                     "costs.md#packets-in-tunnels",
		"rr_p50_vs_direct":                     "redirection.md#latency",
		"syn_vs_dnat":                          "redirection.md#syns-per-second",
		"throughput_128x4000_vs_1x255_1mflows": "costs.md#many-services-and-many-flows",
	},
}
