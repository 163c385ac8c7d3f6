package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"

	"weir.io/weir/bench/compare"
	"weir.io/weir/bench/process"
	"weir.io/weir/bench/record"
	"weir.io/weir/bench/track"
	"weir.io/weir/bench/traffic"
	"weir.io/weir/internal/model"
)

// rowModes are the modes in which a row costs something different: in gue a packet
// carries it, in the others the director remembers flows.
var rowModes = []track.Subject{l2dsr, track.Weir(model.IPIP, false, false), track.Weir(model.GUE, false, false)}

// sharedSlots are the percentages of slots whose connections may be of several backends.
var sharedSlots = []int{0, 25, 100}

// beforeRows is the file that came with flow memory: what a packet costs is compared
// with the version before it, which never asked whether a slot has several candidates.
const beforeRows = "bpf/flows.h"

// What the version before costs is the reference.
var (
	toBefore     = record.Quantity{Name: "ratio", Unit: "1", Better: record.Lower}
	toBeforeLow  = record.Quantity{Name: "ratio-low", Unit: "1", Better: record.Neither}
	toBeforeHigh = record.Quantity{Name: "ratio-high", Unit: "1", Better: record.Neither}
)

// leastRounds are those of this scenario: an interval of five says nothing.
const leastRounds = 20

var rowsNotes = []string{
	"cost: as in flows: the balancer's own time per packet, on one core, with one arm. 64-byte TCP packets of 1,000 established flows at random, 1 VIP with 255 backends",
	"shared: percentage of slots whose connections may be of several backends, because some of the backends drain since a moment ago (25: a tenth of them; 100: one half, and before it the other one)",
	"ratio: to the cost of the version before, round by round; between ratio-low and ratio-high is the median of all rounds there could be, but in one case of a hundred. At least 20 rounds, also if --rounds says less",
}

func measureRows(ctx context.Context, s *session) error {
	older, err := s.olderWeir(ctx)
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
	}
	if err := c.run(ctx); err != nil {
		return err
	}
	s.compareRows()
	return nil
}

// olderWeir returns the path of weir as it was before. A smoke run goes without one
// where the history does not have it.
func (s *session) olderWeir(ctx context.Context) (string, error) {
	commit, err := s.base, error(nil)
	if commit == "" {
		commit, err = process.Before(ctx, beforeRows)
	} else {
		commit, err = process.Commit(ctx, commit)
	}
	s.into.Notes = slices.Clone(rowsNotes)
	if err != nil && s.settings.Smoke && s.base == "" {
		s.into.Notes = append(s.into.Notes, "the version before was left out: "+err.Error())
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("%w; --base names another commit to compare with", err)
	}
	s.into.Notes = append(s.into.Notes, "before: commit "+commit+", built from the repository's history")
	return process.Older(ctx, commit)
}

var rowsBefore = record.Conditions{"version": "before", "shared": "0"}

func rowsAt(shared int) record.Conditions {
	return record.Conditions{"version": "now", "shared": strconv.Itoa(shared)}
}

// compareRows writes down how the costs are to those of the version before.
func (s *session) compareRows() {
	for _, mode := range rowModes {
		for _, shared := range sharedSlots {
			at := rowsAt(shared)
			ratios := record.Ratios(s.into.Find(mode.Name, at, record.Cost.Name), s.into.Find(mode.Name, rowsBefore, record.Cost.Name))
			if len(ratios) == 0 {
				continue
			}
			for _, ratio := range ratios {
				s.add(mode.Name, at, toBefore, ratio)
			}
			low, median, high := compare.Interval(ratios)
			s.add(mode.Name, at, toBeforeLow, low)
			s.add(mode.Name, at, toBeforeHigh, high)
			s.say("  %s, %d %% shared: %.3f of the cost before (%.3f to %.3f)", mode.Name, shared, median, low, high)
		}
	}
}

// offBefore is how far the interval of the ratio is from 1 where no slot is shared, in
// the worst mode; 0: every mode's contains it.
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
