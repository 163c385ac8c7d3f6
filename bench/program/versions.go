package program

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"weir.io/weir/bench/inside"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
	"weir.io/weir/lab/traffic"
)

// Version is a weir whose program is measured beside another's.
type Version struct {
	Name   string
	Object []byte // its compiled director.bpf.c, as in its binary
	Binary string // the program that runs its director
	Older  bool   // may not know every key of today's configuration
	Hands  bool   // it knows mode redirect
}

// Subject is one version's program on one packet.
type Subject struct {
	Version string
	Way     string
	SYN     bool // the packet begins a connection; otherwise it is of an open one
}

// PutBack is the subject that forwards nothing: its time is what it takes to call a program and to restore a packet
// that was not made longer.
var PutBack = Subject{Way: "put back"}

// putBack are it and the same of a packet that was made longer.
var putBack = []Subject{{Way: "put back, tunnel"}, PutBack}

// calls is how often the director is called in one run, see bench/bpf/again.bpf.c.
const calls = 16

// Versions is the programs of some versions, to be run in turns.
type Versions struct {
	directors []*running
	turns     []*turn
	closers   []func() error
}

// running is a version whose director is running.
type running struct {
	Version
	port  *netlab.Port
	maps  inside.Maps
	entry string // its program; empty: director
	queue uint32 // by which packets come
	again *again // loaded anew for each measurement
}

// turn is a subject with everything needed to run it.
type turn struct {
	*running
	subject    Subject
	program    string // that runs; empty: the one that calls the director
	frame, syn []byte // syn: begins the connection, if the program must know it
	option     uint32 // offset in the frame of what is filled in; 0: nothing is
	plain      bool   // only the MAC addresses change
	settings   settings
}

// NewVersions runs a director of each version on a host of its own in the lab. Each way has a
// service in it.
func NewVersions(ctx context.Context, lab *netlab.Lab, ipv6 bool, versions ...Version) (_ *Versions, err error) {
	v := &Versions{}
	defer func() {
		if err != nil {
			err = errors.Join(err, v.Close())
		}
	}()
	for _, version := range versions {
		if err := v.start(ctx, lab, ipv6, version); err != nil {
			return nil, fmt.Errorf("version %s: %w", version.Name, err)
		}
	}
	v.comparisons(v.turns[0])
	return v, v.prepare()
}

// comparisons adds what a program's time is measured against.
func (v *Versions) comparisons(like *turn) {
	nothing := &running{port: like.port}
	v.directors = append(v.directors, nothing)
	for n, subject := range putBack {
		v.turns = append(v.turns, &turn{subject: subject, running: nothing, frame: like.frame, settings: settings{tunnel: uint32(1 - n)}})
	}
}

func (v *Versions) start(ctx context.Context, lab *netlab.Lab, ipv6 bool, version Version) error {
	cable, err := connect(lab, version.Name+"-", ipv6, 1)
	if err != nil {
		return err
	}
	way, ways := waysTraffic(ipv6), Ways
	hands := version.Hands && !ipv6 // no IPv6 frames ask to be redirected
	if hands {
		ways = slices.Concat(Ways, Handing)
	}
	start := process.StartDirectorAs
	if version.Older {
		start = process.StartOlderDirector
	}
	director, err := start(cable.B.Host, version.Binary, config(way, ways))
	if err != nil {
		return err
	}
	v.closers = append(v.closers, director.Stop)
	if err := director.Forwards(ctx); err != nil {
		return err
	}
	r := &running{Version: version, port: cable.B}
	if r.maps, err = inside.OpenMaps(director.Pin); err != nil {
		return err
	}
	v.closers = append(v.closers, r.maps.Close)
	v.directors = append(v.directors, r)
	syns, packets, err := bothFrames(cable, way)
	if err != nil {
		return err
	}
	for n, way := range Ways {
		data := &turn{subject: Subject{version.Name, way.Name, false}, running: r, frame: packets[n]}
		if way.SNAT {
			data.syn = syns[n]
		}
		v.turns = append(v.turns, data)
		if way.Mode == model.GUE {
			v.turns = append(v.turns, &turn{subject: Subject{version.Name, way.Name, true}, running: r, frame: syns[n]})
		}
	}
	if !hands {
		return nil
	}
	asking, err := frames(cable, askingTraffic())
	if err != nil {
		return err
	}
	for n, way := range Handing {
		v.turns = append(v.turns, &turn{subject: Subject{version.Name, way.Name, true}, running: r, frame: asking[len(Ways)+n], option: saysAt})
	}
	return nil
}

// prepare finds out how much longer each way makes its packet, and checks that it is forwarded and
// restored.
func (v *Versions) prepare() (err error) {
	if err := v.load(); err != nil {
		return err
	}
	defer v.unload()
	for _, t := range v.turns {
		if t.Object == nil {
			continue // which forwards nothing
		}
		if err := t.prepare(); err != nil {
			return fmt.Errorf("version %s: %s: %w", t.Name, t.subject.Way, err)
		}
	}
	return nil
}

func (t *turn) prepare() error {
	if err := t.start(); err != nil {
		return err
	}
	if err := t.again.set(settings{times: 1}, t.frame); err != nil {
		return err
	}
	r, err := t.again.named(calling).run(t.port, t.queue, t.frame, 1)
	if err != nil {
		return err
	}
	t.settings = settings{times: calls, growth: uint32(len(r.frame) - len(t.frame)), option: t.option}
	if t.plain {
		t.settings.macs = 1
	}
	t.settings.tunnel = min(t.settings.growth, 1)
	if err := t.again.set(t.settings, t.frame); err != nil {
		return err
	}
	return t.again.named(calling).leavesItsPacket(t.port, t.queue, t.frame)
}

// start begins the connection if the program must know it.
func (t *turn) start() error {
	if t.syn == nil {
		return nil
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(t.Object))
	if err != nil {
		return fmt.Errorf("read the director's object: %w", err)
	}
	if err := handshake(spec, t.maps, t.port, t.syn, t.frame); err != nil {
		return fmt.Errorf("begin a connection: %w", err)
	}
	return nil
}

// load loads the programs. Each time the kernel puts them somewhere else.
func (v *Versions) load() (err error) {
	for _, r := range v.directors {
		if r.again, err = newAgain(r.Object, cmp.Or(r.entry, director), r.maps); err != nil {
			v.unload()
			return fmt.Errorf("version %s: %w", r.Name, err)
		}
	}
	return nil
}

func (v *Versions) unload() {
	for _, r := range v.directors {
		if r.again != nil {
			r.again.collection.Close()
		}
		r.again = nil
	}
}

// Least returns the least time that each subject took for a packet, in nanoseconds, over that many
// passes.
func (v *Versions) Least(ctx context.Context, passes, repeats int) (map[Subject]float64, error) {
	took, err := v.times(ctx, passes, repeats, calls)
	least := map[Subject]float64{}
	for subject, all := range took {
		least[subject] = slices.Min(all)
	}
	return least, err
}

// times returns how long each subject took for a packet, in nanoseconds, in each pass. In each pass
// all subjects run that many times, in turns, with so many calls of the director in each run. The
// programs are loaded anew, because their place in memory makes a difference.
func (v *Versions) times(ctx context.Context, passes, repeats, calls int) (map[Subject][]float64, error) {
	if err := v.load(); err != nil {
		return nil, err
	}
	defer v.unload()
	all := map[Subject][]float64{}
	for range passes {
		for _, t := range v.turns {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			took, err := t.time(repeats, calls)
			if err != nil {
				return nil, fmt.Errorf("version %s: %s: %w", t.Name, t.subject.Way, err)
			}
			all[t.subject] = append(all[t.subject], took)
		}
	}
	return all, nil
}

// time runs a turn, and returns what one packet took.
func (t *turn) time(repeats, calls int) (float64, error) {
	if err := t.start(); err != nil {
		return 0, err
	}
	settings := t.settings
	settings.times = uint32(calls)
	if err := t.again.set(settings, t.frame); err != nil {
		return 0, err
	}
	r, err := t.again.named(cmp.Or(t.program, calling)).run(t.port, t.queue, t.frame, max(1, repeats/calls))
	return float64(r.took.Nanoseconds()) / float64(calls), err
}

// Keep measures only some of the subjects from now on.
func (v *Versions) Keep(wanted func(Subject) bool) {
	v.turns = slices.DeleteFunc(v.turns, func(t *turn) bool { return !wanted(t.subject) })
}

// Subjects returns all subjects, in the order of their turns.
func (v *Versions) Subjects() []Subject {
	all := make([]Subject, len(v.turns))
	for i, t := range v.turns {
		all[i] = t.subject
	}
	return all
}

// Close ends the directors.
func (v *Versions) Close() error {
	var problems []error
	for _, c := range v.closers {
		problems = append(problems, c())
	}
	return errors.Join(problems...)
}

// waysTraffic has a flow to each way's service.
func waysTraffic(ipv6 bool) traffic.Traffic {
	return traffic.Traffic{IPv6: ipv6, Protocol: model.TCP, Flows: len(Ways), VIPs: len(Ways), Frames: []int{frameSize}, InTurn: true}
}

// askingTraffic has a SYN to each way's service that asks to be redirected. The ways that hand over
// come after the others.
func askingTraffic() traffic.Traffic {
	all := len(Ways) + len(Handing)
	return traffic.Traffic{Protocol: model.TCP, Flows: all, VIPs: all, Frames: []int{traffic.AskingFrame}, SYNEvery: 1, InTurn: true, Asks: true}
}

// saysAt is the offset of the address in a SYN's option: its last 8 bytes are the address, a port
// and two NOPs.
const saysAt = traffic.AskingFrame - traffic.FCS - 8

// bothFrames returns a SYN and a packet of an open connection of each way.
func bothFrames(cable *netlab.Link, way traffic.Traffic) (syns, packets [][]byte, err error) {
	begin := way
	begin.SYNEvery = 1
	if syns, err = frames(cable, begin); err != nil {
		return nil, nil, err
	}
	packets, err = frames(cable, way)
	return syns, packets, err
}
