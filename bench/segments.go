package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"weir.io/weir/bench/program"
	"weir.io/weir/bench/track"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/record"
	"weir.io/weir/lab/traffic"
	"weir.io/weir/lab/version"
)

// beforeSegments is the commit before directors could be VTEPs: --base names another one.
const beforeSegments = "d366ffef"

const (
	// wireFrame is how long all frames are as they come, with their tags or outer headers: the shortest that
	// have room for those over IPv6.
	wireFrame = 128
	// segmentBuilds is how often the tracks are built anew: where a program comes to lie in memory makes a
	// difference.
	segmentBuilds = 5
	// movingBackends is how many backends there are where they move: so many that some packets go to each.
	movingBackends = 16
	movingRate     = 100e3
	// moves is how many backends move in a round.
	moves, smokeMoves = 5, 1
)

// How packets come, as conditions.
const (
	untagged   = "untagged"
	inVLAN     = "vlan"
	inVXLAN    = "vxlan"
	inGeneve   = "geneve"
	twoTenants = "two tenants"
)

var (
	// beyondReflect is what a packet takes more than one that a program only sends back, the program itself.
	beyondReflect = record.Quantity{Name: "beyond-reflect", Unit: "ns", Better: record.Lower}
	// toUntagged is the cost of a packet in a segment, to that of one in none.
	toUntagged     = record.Quantity{Name: "to-untagged", Unit: "1", Better: record.Lower}
	toUntaggedLow  = record.Quantity{Name: "to-untagged-low", Unit: "1", Better: record.Neither}
	toUntaggedHigh = record.Quantity{Name: "to-untagged-high", Unit: "1", Better: record.Neither}
	// foreign are packets that came to another tenant than theirs.
	foreign = record.Quantity{Name: "foreign", Unit: "packet", Better: record.Lower}
	// followedDelay is from when the file has a backend's new VTEP until packets come there, and only there.
	followedDelay = record.Quantity{Name: "followed", Unit: "ms", Better: record.Lower}
	lateAtVTEP    = record.Quantity{Name: "late", Unit: "packet", Better: record.Lower}
)

// segmentsCertainty is how sure the bounds of this scenario's ratios are.
const segmentsCertainty = 0.95

var segmentsNotes = []string{
	"cost: as in flows: the balancer's own time per packet, on one core, with one arm. TCP packets of 1,000 established flows at random, 1 VIP with 255 backends. Frames have 128 bytes as they come, with tags or outer headers: so what is inside is shorter by these. direct and reflect are measured with the same frames, and direct's time is subtracted",
	"reflect is an XDP program that only sends back: its cost is that of veth, and in every other one. beyond-reflect is the cost without it: what the director's program takes",
	"vxlan, geneve: the balancer is a VTEP, in an underlay of IPv4 or (over ipv6) IPv6; each backend is at a VTEP of its own, behind a router, so 255 sets of outer headers are written in turns. Geneve's headers have no options. l2dsr to geneve: packets come in VXLAN, and backends are in Geneve. l2dsr on a VTEP: packets and backends are in no segment, and the director has the program of a VTEP",
	"before: " + beforeSegments + " or what --base says, built from the repository's history: no director was a VTEP then",
	"to-untagged: to the cost of l2dsr in no segment, round by round; nat's is to that of nat, and before is what now is compared with. Between -low and -high is the median of all rounds there could be, but in one case of 20. At least 20 rounds, also if --rounds says less; all directors and their programs are new in each fifth of them, because where a program comes to lie in memory makes a difference of some ns",
	"run: the director's program alone, now and before, as in versions, without what it takes to call it and to put its packet back. ratio is of these times",
	"foreign: two tenants with the same VIPs, backends and clients, one VNI for each, and VTEPs of their own. Ten times per second the director's file is replaced by one with other backends for both, as in churn. Each packet says inside whose it is, and every one is looked at",
	"followed: from the rename of a file in which a backend has another VTEP, until packets come there and no longer to the one before, with 100,000 packets per second to 16 backends. weir run waits for 50 ms until the file was left alone, and for `coalesce`, 50 ms. late: packets to the former VTEP after the first to the new one",
}

// segmentWay is a way in which packets come.
type segmentWay struct {
	name    string
	vlan    uint16
	overlay traffic.Overlay
}

var segmentWays = []segmentWay{
	{name: untagged},
	{name: inVLAN, vlan: taggedVLAN},
	inTunnel(model.SegmentVXLAN, false), inTunnel(model.SegmentGeneve, false),
	inTunnel(model.SegmentVXLAN, true), inTunnel(model.SegmentGeneve, true),
}

func inTunnel(kind model.SegmentKind, outer6 bool) segmentWay {
	overlay := track.InTunnels(kind, outer6, 1)
	return segmentWay{name: overlay.String(), overlay: overlay}
}

func segmentAt(way string) record.Conditions { return record.Conditions{"in": way} }

func (w segmentWay) traffic() traffic.Traffic {
	way := traffic.Traffic{Protocol: model.TCP, Flows: fewFlows, VIPs: oneVIP.vips, VLAN: w.vlan, Overlay: w.overlay}
	way.Frames = []int{wireFrame - way.Longer()}
	return way
}

var nat = track.Weir(model.NAT, false, false)

// Names of subjects that are not in the segment that they come from, or not of this version.
var (
	l2dsrOnVTEP   = l2dsr.Name + " on a VTEP"
	l2dsrBefore   = l2dsr.Name + ", before"
	l2dsrToGeneve = l2dsr.Name + " to geneve"
)

// subjects are what is measured with packets that come this way, by their names.
func (w segmentWay) subjects() (names []string, subjects map[string]track.Subject) {
	add := func(name string, s track.Subject) {
		names = append(names, name)
		subjects[name] = s
	}
	subjects = map[string]track.Subject{}
	inside := func(s track.Subject) track.Subject {
		if w.overlay.Given() {
			return s.InOverlay(w.overlay.Kind, w.overlay.IPv6)
		}
		return s
	}
	add(l2dsr.Name, inside(l2dsr))
	switch w.name {
	case untagged:
		add(l2dsrOnVTEP, l2dsr.OnVTEP())
		add(nat.Name, nat)
	case inVXLAN:
		add(l2dsrToGeneve, l2dsr.InOverlay(model.SegmentGeneve, false))
		add(nat.Name, inside(nat))
	}
	return names, subjects
}

func measureSegments(ctx context.Context, s *session) error {
	if err := s.chooseBase(ctx); err != nil {
		return err
	}
	rounds := s.settings.Rounds
	if !s.settings.Smoke {
		rounds = max(rounds, leastRounds)
	}
	for _, part := range []func(context.Context, *session, int) error{measureSegmentCosts, measureUntagged, measureTenants, measureMoves} {
		if err := part(ctx, s, rounds); err != nil {
			return err
		}
		if err := s.close(); err != nil { // what a part has built is not for the others
			return err
		}
	}
	return nil
}

// chooseBase says which commit is compared with. A smoke run compares with none, because to build another weir
// takes longer than all of it.
func (s *session) chooseBase(ctx context.Context) error {
	if s.base != "" || s.settings.Smoke {
		return nil
	}
	commit, err := version.Commit(ctx, beforeSegments)
	s.base = commit
	return err
}

// measureSegmentCosts measures what packets cost, with tracks that are built anew some times.
func measureSegmentCosts(ctx context.Context, s *session, rounds int) error {
	older := ""
	if s.base != "" {
		var err error
		if _, older, err = s.olderWeir(ctx); err != nil {
			return err
		}
	}
	builds := segmentBuilds
	if s.settings.Smoke {
		builds = 1
	}
	for range builds {
		s.settings.Rounds = (rounds + builds - 1) / builds
		c := &course{session: s}
		for _, way := range segmentWays {
			at := segmentAt(way.name)
			add := func(name string, o track.Options) {
				o.Traffic, o.Backends, o.OneArm = way.traffic(), oneVIP.backends, true
				c.add(o, at).name = name
			}
			add(track.Direct.Name, track.Options{Subject: track.Direct})
			add(track.Reflect.Name, track.Options{Subject: track.Reflect})
			if way.name == untagged && older != "" {
				add(l2dsrBefore, track.Options{Subject: l2dsr, Older: older})
			}
			names, subjects := way.subjects()
			for _, name := range names {
				add(name, track.Options{Subject: subjects[name]})
			}
		}
		if err := c.run(ctx); err != nil {
			return err
		}
		if err := s.close(); err != nil {
			return err
		}
	}
	s.compareSegments()
	return nil
}

// compareSegments records what packets cost beside those in no segment, and beside a program that only sends back.
func (s *session) compareSegments() {
	for _, m := range slices.Clone(s.into.Measurements) {
		if m.Quantity != record.Cost || m.Subject == track.Reflect.Name {
			continue
		}
		reflect := s.into.Find(track.Reflect.Name, m.Conditions, record.Cost.Name)
		for i := range min(len(m.Rounds), len(reflect.Rounds)) {
			s.add(m.Subject, m.Conditions, beyondReflect, m.Rounds[i]-reflect.Rounds[i])
		}
		to := l2dsr.Name
		if m.Subject == nat.Name {
			to = nat.Name
		}
		base := s.into.Find(to, segmentAt(untagged), record.Cost.Name)
		ratios := record.Ratios(m, base)
		if m == base || len(ratios) == 0 {
			continue
		}
		for _, ratio := range ratios {
			s.add(m.Subject, m.Conditions, toUntagged, ratio)
		}
		low, median, high := intervalOf(ratios, segmentsCertainty)
		s.add(m.Subject, m.Conditions, toUntaggedLow, low)
		s.add(m.Subject, m.Conditions, toUntaggedHigh, high)
		s.say("  %s, %s: %.3f of %s, untagged (%.3f to %.3f)", m.Subject, m.Conditions["in"], median, to, low, high)
	}
}

// measureUntagged measures the program of directors that are no VTEP, beside that of the version before.
func measureUntagged(ctx context.Context, s *session, rounds int) error {
	if s.base == "" {
		s.note("a smoke run compares with no other version unless --base names it")
		return nil
	}
	versions, err := s.versions(ctx)
	if err != nil {
		return err
	}
	lab, err := s.newLab()
	if err != nil {
		return err
	}
	s.settings.Rounds = rounds
	passes, repeats := passes, versionRepeats
	if s.settings.Smoke {
		passes, repeats = smokePasses, smokeVersionRepeats
	}
	var steps []func(context.Context) error
	for _, vip6 := range s.families() {
		v, err := program.NewVersions(ctx, lab, vip6, versions...)
		if err != nil {
			return fmt.Errorf("%s: %w", familyNames[vip6], err)
		}
		s.atEnd(v.Close)
		v.Keep(func(of program.Subject) bool { return of.Way == l2dsr.Name || of == program.PutBack })
		steps = append(steps, func(ctx context.Context) error {
			least, err := v.Least(ctx, passes, repeats)
			if err != nil {
				return fmt.Errorf("%s: %w", familyNames[vip6], err)
			}
			return s.addUntagged(least, vip6)
		})
	}
	if err := s.inRounds(ctx, steps...); err != nil {
		return err
	}
	for _, vip6 := range s.families() {
		ratios := s.into.Find(l2dsr.Name, untaggedAt("now", vip6), toBefore.Name).Rounds
		low, median, high := intervalOf(ratios, segmentsCertainty)
		s.add(l2dsr.Name, untaggedAt("now", vip6), toBeforeLow, low)
		s.add(l2dsr.Name, untaggedAt("now", vip6), toBeforeHigh, high)
		s.say("  %s, %s: %.3f of the program's time before (%.3f to %.3f)", l2dsr.Name, familyNames[vip6], median, low, high)
	}
	return nil
}

func untaggedAt(version string, vip6 bool) record.Conditions {
	return record.Conditions{"version": version, "vip": familyNames[vip6]}
}

// addUntagged records what l2dsr's programs take themselves, of one round.
func (s *session) addUntagged(least map[program.Subject]float64, vip6 bool) error {
	var own []float64
	for _, version := range []string{"before", "now"} {
		took := least[program.Subject{Version: version, Way: l2dsr.Name}] - least[program.PutBack]
		if took <= 0 {
			return fmt.Errorf("%s, %s: the program takes %.1f ns less than putting its packet back", l2dsr.Name, version, -took)
		}
		own = append(own, took)
		s.add(l2dsr.Name, untaggedAt(version, vip6), runTime, took)
	}
	s.add(l2dsr.Name, untaggedAt("now", vip6), toBefore, own[1]/own[0])
	return nil
}

// worstBefore is the upper bound of the ratio to the version before, of the worse family.
func worstBefore() value {
	var both []value
	for _, vip6 := range []bool{false, true} {
		both = append(both, reading(l2dsr.Name, untaggedAt("now", vip6), toBeforeHigh))
	}
	return largest(both...)
}

// tenantsMeasured are the modes and kinds in which two tenants have the same addresses.
var tenantsMeasured = []struct {
	subject track.Subject
	kind    model.SegmentKind
}{{l2dsr, model.SegmentVXLAN}, {l2dsr, model.SegmentGeneve}, {nat, model.SegmentVXLAN}}

func tenantsAt(kind model.SegmentKind) record.Conditions {
	return record.Conditions{"in": traffic.Overlay{Kind: kind}.String(), "of": twoTenants}
}

// measureTenants has two tenants with the same addresses send at once, while their backends change.
func measureTenants(ctx context.Context, s *session, _ int) error {
	s.settings.Rounds = defaultRounds
	if s.settings.Smoke {
		s.settings.Rounds = 1
	}
	var steps []func(context.Context) error
	for _, of := range tenantsMeasured {
		way := segmentWay{overlay: track.InTunnels(of.kind, false, 2)}.traffic()
		t, err := track.Start(ctx, track.Options{Subject: of.subject.InOverlay(of.kind, false), Backends: oneVIP.backends, Traffic: way, OneArm: true, Swaps: true, Every: true})
		if err != nil {
			return err
		}
		s.atEnd(t.Close)
		stream, err := t.Stream(way)
		if err != nil {
			return err
		}
		steps = append(steps, func(ctx context.Context) error {
			return s.tenants(ctx, t, stream, of.subject.Name, tenantsAt(of.kind))
		})
	}
	return s.inRounds(ctx, steps...)
}

func (s *session) tenants(ctx context.Context, t *track.Track, stream *track.Stream, name string, at record.Conditions) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var swaps track.Swaps
	ended := make(chan error, 1)
	go func() {
		var err error
		swaps, err = t.KeepSwapping(ctx, swapInterval)
		ended <- err
	}()
	_, err := stream.Measure(max(churnSamples*s.sample(), churnLeast))
	stop()
	err = errors.Join(err, <-ended)
	var wrong *traffic.WrongError
	if errors.As(err, &wrong) {
		s.add(name, at, foreign, float64(wrong.Packets[traffic.Foreign]))
	}
	if err != nil {
		return fmt.Errorf("%s, %v: %w", name, at, err)
	}
	s.add(name, at, foreign, 0)
	s.add(name, at, swapsCounted, swaps.PerSecond())
	return nil
}

// mostForeign is how many packets came to another tenant, the most of all rounds.
func mostForeign() value {
	var all []value
	for _, of := range tenantsMeasured {
		all = append(all, quantileOf(subject{of.subject.Name, tenantsAt(of.kind)}, foreign, 1))
	}
	return largest(all...)
}

// movesAt are the conditions of backends that move.
var movesAt = record.Conditions{"in": inVXLAN, "by": "file"}

// measureMoves has backends move to other VTEPs.
func measureMoves(ctx context.Context, s *session, rounds int) error {
	s.settings.Rounds = rounds
	each := moves
	if s.settings.Smoke {
		each = smokeMoves
	}
	way := segmentWay{overlay: track.InTunnels(model.SegmentVXLAN, false, 1)}.traffic()
	t, err := track.Start(ctx, track.Options{Subject: l2dsr.InOverlay(model.SegmentVXLAN, false), Backends: movingBackends, Traffic: way, OneArm: true, Moves: true})
	if err != nil {
		return err
	}
	s.atEnd(t.Close)
	stream, err := t.Stream(way)
	if err != nil {
		return err
	}
	next := 0
	return s.inRounds(ctx, func(ctx context.Context) error {
		return stream.While(movingRate, func() error {
			for range each {
				move, err := t.MoveBackend(ctx, next%movingBackends)
				if err != nil {
					return err
				}
				next++
				s.add(l2dsr.Name, movesAt, followedDelay, milliseconds(move.Followed))
				s.add(l2dsr.Name, movesAt, lateAtVTEP, float64(move.Late))
			}
			return nil
		})
	})
}

// toUntaggedIn is the cost of l2dsr's packets that come this way, to that of untagged ones.
func toUntaggedIn(way string) value {
	return ratioOf(subject{l2dsr.Name, segmentAt(way)}, subject{l2dsr.Name, segmentAt(untagged)}, record.Cost)
}
