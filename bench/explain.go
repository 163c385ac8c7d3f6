package main

import (
	"context"
	"maps"
	"slices"

	"weir.io/weir/bench/answers"
	"weir.io/weir/lab/record"
)

// The findings of a comparison of answers.
var (
	asked         = record.Quantity{Name: "packets", Unit: "packets", Better: record.Higher}
	placedTwice   = record.Quantity{Name: "placed-twice", Unit: "packets", Better: record.Higher}
	disagreements = record.Quantity{Name: "disagreements", Unit: "packets", Better: record.Lower}
	sideEffects   = record.Quantity{Name: "side-effects", Unit: "readings", Better: record.Lower}
	plannedFlows  = record.Quantity{Name: "planned-flows", Unit: "flows", Better: record.Higher}
	planError     = record.Quantity{Name: "plan-error", Unit: "%", Better: record.Lower}
)

const explainSubject = "explain"

var explainNotes = []string{
	"a real weir run between clients and backends; before each packet is sent the director is asked about its very frame (POST /v1/explain), and it disagrees if what then leaves, on which link, byte for byte, or the reason under which it is counted, is another; anything else that leaves is a disagreement, too",
	"packets: SYNs and others of known and unknown flows, TCP and UDP, IPv4 and IPv6, tagged and not, pings, fragments, what does not fit, replies of nat backends, headers with a bit that is wrong; all modes, p2c, full NAT, port ranges; the first half of the services keeps its VIPs and with them its history, the others begin with each configuration",
	"placed-twice: packets of services without history and of flows that were not sent before: the director's backend must be the one that internal/engine's plan, in Go, has in the flow's row",
	"side-effects: every 500 packets all maps are read, 20 questions asked, and all maps read again; a change counts if it is there three times in a row, because the director sweeps its maps now and then",
	"plan-error: before each of 100 random changes of a service (backends come, go, drain and get other weights, rings other sizes, flows another affinity) the director is asked what it moves (POST /v1/plan); the SYNs of the same flows are sent before the change and after it, 16,384 that are spread evenly over all hashes, 65,536 where the affinity changes; it is the largest difference, in percent of the flows. One in four changes goes on with the service of the change before, and its history",
}

// The numbers of configurations and packets: 100,000 packets in all.
const (
	explainConfigurations, explainPackets           = 100, 1000
	smokeExplainConfigurations, smokeExplainPackets = 4, 60
	planChanges, planFlows                          = 100, 16_384
	smokePlanChanges, smokePlanFlows                = 3, 1024
)

func measureExplain(ctx context.Context, s *session) error {
	l, err := inLab(ctx, s, answers.New)
	if err != nil {
		return err
	}
	// There is only one round: another would send other packets, and take as long.
	configurations, packets := explainConfigurations, explainPackets
	changes, flows := planChanges, planFlows
	if s.settings.Smoke {
		configurations, packets = smokeExplainConfigurations, smokeExplainPackets
		changes, flows = smokePlanChanges, smokePlanFlows
	}
	told := 0
	result, err := l.Compare(ctx, 1, configurations, packets, func(done int) {
		if done >= told+10_000 {
			told = done
			s.say("  %d packets", done)
		}
	})
	if err != nil {
		return err
	}
	for _, example := range result.Examples {
		s.say("  %s", example)
	}
	for _, reason := range slices.Sorted(maps.Keys(result.Reasons)) {
		s.say("  %-24s %d", reason, result.Reasons[reason])
	}
	s.add(explainSubject, record.Conditions{}, asked, float64(result.Packets))
	s.add(explainSubject, record.Conditions{}, placedTwice, float64(result.Placed))
	s.add(explainSubject, record.Conditions{}, disagreements, float64(result.Disagreements))
	s.add(explainSubject, record.Conditions{}, sideEffects, float64(result.SideEffects))
	planned, err := l.Changes(ctx, 1, changes, flows, func(done int) {
		if done%10 == 0 {
			s.say("  %d changes", done)
		}
	})
	if err != nil {
		return err
	}
	for _, example := range planned.Examples {
		s.say("  %s", example)
	}
	s.add(explainSubject, record.Conditions{}, plannedFlows, float64(planned.Flows))
	s.add(explainSubject, record.Conditions{}, planError, planned.Worst)
	return nil
}

// explained is what was found in the only round.
func explained(quantity record.Quantity) value {
	return reading(explainSubject, record.Conditions{}, quantity)
}
