package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"

	"weir.io/weir/bench/program"
	"weir.io/weir/lab/process"
	"weir.io/weir/lab/record"
	"weir.io/weir/lab/version"
)

// beforeRows is the file that came with flow memory: a packet's cost is compared with the version
// before it, which never checked whether a slot has several candidates.
const beforeRows = "bpf/flows.h"

// object is the path in the repository of the director's program, as in the binaries of both
// versions.
const object = "internal/datapath/director_bpfel.o"

// unprobedKey is the configuration key for backends that do not answer probes: a version that does
// not know it cannot be told to hand connections over here.
const unprobedKey = `json:"redirect-unprobed`

// olderWeir returns the commit that is compared with, and the path of weir as it was then. A smoke
// run goes without it if the history does not have it.
func (s *session) olderWeir(ctx context.Context) (commit, path string, err error) {
	if commit = s.base; commit == "" {
		commit, err = version.Before(ctx, beforeRows)
	} else {
		commit, err = version.Commit(ctx, commit)
	}
	if err != nil && s.settings.Smoke && s.base == "" {
		s.note("the version before was left out: %v", err)
		return "", "", nil
	}
	if err != nil {
		return "", "", fmt.Errorf("%w; --base names another commit to compare with", err)
	}
	s.note("before: commit %s, built from the repository's history", commit)
	path, err = version.Older(ctx, commit)
	return commit, path, err
}

// passes is how often all programs run in turns for one round's values, and versionRepeats how
// often each runs on its packet in one pass.
const (
	passes, versionRepeats           = 6, 20_000
	smokePasses, smokeVersionRepeats = 3, 1_000
)

// How much longer a version's program takes than the one before.
var (
	slowdown     = record.Quantity{Name: "slowdown", Unit: "ns", Better: record.Lower}
	slowdownLow  = record.Quantity{Name: "slowdown-low", Unit: "ns", Better: record.Neither}
	slowdownHigh = record.Quantity{Name: "slowdown-high", Unit: "ns", Better: record.Neither}
)

var versionsNotes = []string{
	"as program, but two versions in turns, each with the maps of its own director. The least of 6 passes per round, because whatever disturbs a program makes it slower",
	"both programs are loaded anew in each round, because the same one takes a few nanoseconds more or less, and now and then a quarter more, where it comes to lie in memory. So there are at least 20 rounds, also if --rounds says less",
	"the times of both have in them what calls the program and what puts its packet back as it was; put back is these alone",
	"packets: ACK is of an open connection; SYN begins one, and gue names nobody in it. redirect hands it over by maglev, or in turns; both have the options of Linux's SYN and the one that asks",
	"slowdown: to the version before, round by round; between slowdown-low and slowdown-high is the median of all rounds there could be, but in one case of a hundred",
}

func measureVersions(ctx context.Context, s *session) error {
	versions, err := s.versions(ctx)
	if err != nil {
		return err
	}
	if !s.settings.Smoke {
		s.settings.Rounds = max(s.settings.Rounds, leastRounds)
	}
	lab, err := s.newLab()
	if err != nil {
		return err
	}
	var steps []func(context.Context) error
	for _, vip6 := range []bool{false, true} {
		v, err := program.NewVersions(ctx, lab, vip6, versions...)
		if err != nil {
			return fmt.Errorf("%s: %w", familyNames[vip6], err)
		}
		s.atEnd(v.Close)
		steps = append(steps, func(ctx context.Context) error { return s.measureVersions(ctx, v, vip6) })
	}
	if err := s.inRounds(ctx, steps...); err != nil {
		return err
	}
	s.compareVersions()
	return nil
}

// versions are the one before, if the history has it, and this one.
func (s *session) versions(ctx context.Context) ([]program.Version, error) {
	commit, path, err := s.olderWeir(ctx)
	if err != nil {
		return nil, err
	}
	var versions []program.Version
	if path != "" {
		code, err := version.File(ctx, commit, object)
		if err != nil {
			return nil, err
		}
		hands := false
		for _, file := range []string{"internal/model/service.go", "internal/model/model.go"} { // where services are, or were
			model, err := version.File(ctx, commit, file)
			hands = hands || err == nil && bytes.Contains(model, []byte(unprobedKey))
		}
		versions = append(versions, program.Version{Name: "before", Object: code, Binary: path, Older: true, Hands: hands})
	}
	now, err := thisVersion()
	return append(versions, now), err
}

// thisVersion is the weir that is measured.
func thisVersion() (program.Version, error) {
	binary, err := process.Binary()
	if err != nil {
		return program.Version{}, err
	}
	code, err := os.ReadFile(object)
	if err != nil {
		return program.Version{}, fmt.Errorf("read the director's program (the benchmarks run where the repository is): %w", err)
	}
	return program.Version{Name: "now", Object: code, Binary: binary, Hands: true}, nil
}

// versionAt are conditions in which a subject's two versions differ only in "version".
func versionAt(subject program.Subject, vip6 bool) record.Conditions {
	at := record.Conditions{"version": cmp.Or(subject.Version, "none"), "vip": familyNames[vip6], "packets": "ACK"}
	if subject.SYN {
		at["packets"] = "SYN"
	}
	return at
}

func (s *session) measureVersions(ctx context.Context, v *program.Versions, vip6 bool) error {
	passes, repeats := passes, versionRepeats
	if s.settings.Smoke {
		passes, repeats = smokePasses, smokeVersionRepeats
	}
	least, err := v.Least(ctx, passes, repeats)
	if err != nil {
		return fmt.Errorf("%s: %w", familyNames[vip6], err)
	}
	for _, subject := range v.Subjects() {
		s.add(subject.Way, versionAt(subject, vip6), runTime, least[subject])
		before := subject
		before.Version = "before"
		if was, found := least[before]; found && subject.Version == "now" {
			s.add(subject.Way, versionAt(subject, vip6), slowdown, least[subject]-was)
		}
	}
	return nil
}

// compareVersions records how much longer this version takes.
func (s *session) compareVersions() {
	for _, m := range slices.Clone(s.into.Measurements) {
		if m.Quantity != slowdown {
			continue
		}
		at := m.Conditions
		low, median, high := interval(m.Rounds)
		s.add(m.Subject, at, slowdownLow, low)
		s.add(m.Subject, at, slowdownHigh, high)
		before := record.Conditions{"version": "before", "vip": at["vip"], "packets": at["packets"]}
		s.say("  %s, %s, %s: %.1f ns before, %.1f now: %+.1f (%+.1f to %+.1f)", m.Subject, at["vip"], at["packets"],
			record.Median(s.into.Find(m.Subject, before, runTime.Name).Rounds), record.Median(s.into.Find(m.Subject, at, runTime.Name).Rounds),
			median, low, high)
	}
}
