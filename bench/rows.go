package main

import (
	"context"
	"fmt"
	"maps"
	"math"
	"strconv"

	"weir.io/weir/bench/track"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/record"
	"weir.io/weir/lab/traffic"
)

// rowModes are the modes in which a row has different costs: in gue a packet carries it, in the
// others the director remembers flows.
var rowModes = []track.Subject{l2dsr, track.Weir(model.IPIP, false, false), track.Weir(model.GUE, false, false)}

// sharedSlots are the percentages of slots whose connections may belong to several backends.
var sharedSlots = []int{0, 25, 100}

// The cost of the version before is the reference.
var (
	toBefore     = record.Quantity{Name: "ratio", Unit: "1", Better: record.Lower}
	toBeforeLow  = record.Quantity{Name: "ratio-low", Unit: "1", Better: record.Neither}
	toBeforeHigh = record.Quantity{Name: "ratio-high", Unit: "1", Better: record.Neither}
)

// leastRounds is the minimum for this scenario: an interval from five rounds says nothing.
const leastRounds = 20

var rowsNotes = []string{
	"cost: as in flows: the balancer's own time per packet, on one core, with one arm. 64-byte TCP packets of 1,000 established flows at random, 1 VIP with 255 backends",
	"shared: percentage of slots whose connections may be of several backends, because some of the backends drain since a moment ago (25: a tenth of them; 100: one half, and before it the other one)",
	"packets: ACK is of open connections. SYN differs for the director in one thing: packets that begin a connection name no other candidate of their slot. What gue costs more for the others is what it costs to name the backup",
	"ratio: to the cost of the version before, round by round; between ratio-low and ratio-high is the median of all rounds there could be, but in one case of a hundred. At least 20 rounds, also if --rounds says less",
}

func measureRows(ctx context.Context, s *session) error {
	_, older, err := s.olderWeir(ctx)
	if err != nil {
		return err
	}
	if !s.settings.Smoke {
		s.settings.Rounds = max(s.settings.Rounds, leastRounds)
	}
	c := &course{session: s}
	way := traffic.Traffic{Protocol: model.TCP, Flows: fewFlows, VIPs: oneVIP.vips, Frames: []int{64}}
	c.add(track.Options{Subject: track.Direct, OneArm: true, Traffic: way}, record.Conditions{})
	for _, mode := range rowModes {
		if older != "" {
			c.add(track.Options{Subject: mode, Backends: oneVIP.backends, OneArm: true, Traffic: way, Older: older}, rowsBefore)
		}
		for _, shared := range sharedSlots {
			c.add(track.Options{Subject: mode, Backends: oneVIP.backends, OneArm: true, Traffic: way, Shared: shared}, rowsAt(shared))
		}
		if !namesRows(mode) {
			continue
		}
		begins := way
		begins.SYNEvery = 1
		if older != "" {
			c.add(track.Options{Subject: mode, Backends: oneVIP.backends, OneArm: true, Traffic: begins, Older: older}, ofSYNs(rowsBefore))
		}
		c.add(track.Options{Subject: mode, Backends: oneVIP.backends, OneArm: true, Traffic: begins}, ofSYNs(rowsAt(0)))
	}
	if err := c.run(ctx); err != nil {
		return err
	}
	s.compareRows()
	return nil
}

var rowsBefore = record.Conditions{"version": "before", "shared": "0", "packets": "ACK"}

func rowsAt(shared int) record.Conditions {
	return record.Conditions{"version": "now", "shared": strconv.Itoa(shared), "packets": "ACK"}
}

// namesRows says whether packets of open connections name other candidates of their slot.
func namesRows(mode track.Subject) bool { return mode.Name == "gue" }

// ofSYNs are these conditions for packets that begin a connection.
func ofSYNs(at record.Conditions) record.Conditions {
	at = maps.Clone(at)
	at["packets"] = "SYN"
	return at
}

// compareRows records the costs divided by those of the version before.
func (s *session) compareRows() {
	for _, mode := range rowModes {
		for _, shared := range sharedSlots {
			s.compareRow(mode.Name, fmt.Sprintf("%d %% shared", shared), rowsAt(shared), rowsBefore)
		}
		if namesRows(mode) {
			s.compareRow(mode.Name, "0 % shared, SYNs, which name nobody", ofSYNs(rowsAt(0)), ofSYNs(rowsBefore))
		}
	}
}

func (s *session) compareRow(mode, called string, now, before record.Conditions) {
	ratios := record.Ratios(s.into.Find(mode, now, record.Cost.Name), s.into.Find(mode, before, record.Cost.Name))
	if len(ratios) == 0 {
		return
	}
	for _, ratio := range ratios {
		s.add(mode, now, toBefore, ratio)
	}
	low, median, high := interval(ratios)
	s.add(mode, now, toBeforeLow, low)
	s.add(mode, now, toBeforeHigh, high)
	s.say("  %s, %s: %.3f of the cost before (%.3f to %.3f)", mode, called, median, low, high)
}

// offBefore is how far the ratio's interval is from 1 in the worst mode when no slot is shared; 0:
// the interval of every mode contains 1.
func offBefore(s *record.Scenario) (float64, error) {
	most := 0.0
	for _, mode := range rowModes {
		low, high := s.Find(mode.Name, rowsAt(0), toBeforeLow.Name), s.Find(mode.Name, rowsAt(0), toBeforeHigh.Name)
		if low == nil || high == nil {
			return math.NaN(), fmt.Errorf("%s was not compared", mode.Name)
		}
		if math.IsInf(low.Rounds[0], 0) || math.IsInf(high.Rounds[0], 0) {
			return math.NaN(), fmt.Errorf("too few rounds of %s to tell anything", mode.Name)
		}
		most = max(most, low.Rounds[0]-1, 1-high.Rounds[0])
	}
	return most, nil
}
