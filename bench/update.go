package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strconv"
	"time"

	"github.com/cilium/ebpf"

	"weir.io/weir/bench/inside"
	"weir.io/weir/internal/datapath"
	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
	"weir.io/weir/lab/record"
)

// How long an update takes: the median and the 99th percentile.
var (
	visible50 = record.Quantity{Name: "visible-p50", Unit: "ms", Better: record.Lower} // until every CPU forwards by it
	visible99 = record.Quantity{Name: "visible-p99", Unit: "ms", Better: record.Lower}
	first50   = record.Quantity{Name: "first-packet-p50", Unit: "ms", Better: record.Lower} // until some CPU does
	took50    = record.Quantity{Name: "took-p50", Unit: "ms", Better: record.Lower}         // until the call returned
	took99    = record.Quantity{Name: "took-p99", Unit: "ms", Better: record.Lower}
)

// manyServices is the default maximum.
const manyServices = 4096

// The steps of an update: working out the table, handing it to the kernel, and all of it in a
// director, beginning with the file.
const (
	planSubject = "plan"
	setSubject  = "set"
	fileSubject = "file"
)

var updateNotes = []string{
	"every service has 4 backends and the smallest default ring (1,021 slots); a change gives the ring's slots to the two backends that had none",
	"seen by a SYN of a new connection per CPU and 100 us, which runs the program that is in the kernel (BPF_PROG_TEST_RUN); the machine is otherwise idle",
	"set: from the call of Datapath.Set; plan: the engine's part before it; file: from the rename of the new configuration to the packet, through a real weir run",
}

// updates is how many of each kind a round has: enough for the slowest in a hundred, except for the
// slow kinds.
type updates struct{ one, all, small, large int }

func measureUpdate(ctx context.Context, s *session) error {
	n, many := updates{one: 100, all: 4, small: 10, large: 2}, manyServices
	if s.settings.Smoke {
		n, many = updates{2, 2, 2, 2}, 64
	}
	// The watchers must not wait for a processor of Go's scheduler that Set or the collector has:
	// packets do not either.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(3 * runtime.NumCPU()))
	u, err := inLab(ctx, s, func(ctx context.Context, lab *netlab.Lab) (*updater, error) { return newUpdater(ctx, lab, many) })
	if err != nil {
		return err
	}
	return s.inRounds(ctx,
		func(ctx context.Context) error { return u.set(ctx, s, 1, n.one) },
		func(ctx context.Context) error { return u.set(ctx, s, many, n.all) },
		func(ctx context.Context) error { return u.file(ctx, s, u.small, 1, n.small) },
		func(ctx context.Context) error { return u.file(ctx, s, u.large, many, n.large) },
	)
}

// updater has a datapath of its own to call, and two directors whose files it edits:
//
//	set --- client --- small, large
type updater struct {
	host         *netlab.Host
	datapath     *datapath.Datapath
	planner      *engine.Planner
	pin          string
	services     int // how many the datapath has
	small, large *process.Weir
}

func newUpdater(ctx context.Context, lab *netlab.Lab, services int) (*updater, error) {
	u := &updater{host: lab.Host("set"), planner: engine.NewPlanner(), services: services}
	client := lab.Host("client")
	for i, h := range []*netlab.Host{u.host, lab.Host("small"), lab.Host("large")} {
		lab.Link(h, client, netlab.LinkOptions{XDP: true, A: []string{"10.1.0.1/16"}})
		if err := lab.Err(); err != nil {
			return nil, err
		}
		c := changing([]int{0, 1, services}[i], 0, 0)
		c.Director.Interfaces = []string{"eth0"}
		var err error
		switch i {
		case 0:
			err = u.open()
		case 1:
			u.small, err = process.StartDirector(h, c)
		case 2:
			u.large, err = process.StartDirector(h, c)
		}
		if err != nil {
			return nil, err
		}
	}
	return u, errors.Join(lab.Err(), u.small.Runs(ctx), u.large.Runs(ctx))
}

// open makes the datapath on the host. Later it asks the kernel through the host's sockets.
func (u *updater) open() (err error) {
	if u.datapath, u.pin, err = openDatapath(u.host, changing(0, 0, 0).Director.Limits); err != nil {
		return err
	}
	table, _ := u.planner.Plan(changing(u.services, 0, 0), nil, nil)
	return u.host.Do(func() error { return u.datapath.Set(table) })
}

// Close closes the datapath.
func (u *updater) Close() error { return u.datapath.Close() }

// changing returns a configuration of that many services. The first ones, as many as changed says,
// send to other backends in odd turns.
func changing(services, changed, turn int) model.Config {
	c := tableSize{services, 4}.config(model.L2DSR)
	c.Director.Limits.RingMemory = 256 << 20 // for all rings twice: before and after
	for i := range c.Services {
		for b := range c.Services[i].Backends {
			if odd := i < changed && turn%2 == 1; (b < 2) == odd {
				c.Services[i].Backends[b].Weight = 0
			}
		}
	}
	return c
}

const changingPort = 80

func changingVIP(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}) }

// set changes that many services, that often, by calling Set. The number of times is even, so the
// next kind of change begins where this one did.
func (u *updater) set(ctx context.Context, s *session, changed, times int) error {
	program, err := inside.Program(u.pin)
	if err != nil {
		return err
	}
	defer program.Close()
	configs := [2]model.Config{changing(u.services, changed, 0), changing(u.services, changed, 1)}
	var planned, took, visible []float64
	for i := range times {
		began := time.Now()
		table, _ := u.planner.Plan(configs[(i+1)%2], nil, nil)
		planned = append(planned, milliseconds(time.Since(began)))
		seen, elapsed, err := watched(ctx, program, func() error {
			return u.host.Do(func() error { return u.datapath.Set(table) })
		})
		if err != nil {
			return fmt.Errorf("set %d of %d services: %w", changed, u.services, err)
		}
		took = append(took, milliseconds(elapsed))
		visible = append(visible, milliseconds(seen.last))
	}
	at := record.Conditions{"services": strconv.Itoa(u.services), "changed": strconv.Itoa(changed)}
	s.add(planSubject, at, took50, record.Median(planned))
	s.add(setSubject, at, took50, record.Median(took))
	s.add(setSubject, at, took99, record.Quantile(took, 0.99))
	s.add(setSubject, at, visible50, record.Median(visible))
	s.add(setSubject, at, visible99, record.Quantile(visible, 0.99))
	return nil
}

// file changes one of a director's services, that often, by editing its file. The number of times
// is even here, too.
func (u *updater) file(ctx context.Context, s *session, director *process.Weir, services, times int) error {
	program, err := inside.Program(director.Pin)
	if err != nil {
		return err
	}
	defer program.Close()
	var first, all []float64
	for i := range times {
		c := changing(services, 1, i+1)
		c.Director.Interfaces = []string{"eth0"}
		if err := director.Prepare(c); err != nil {
			return err
		}
		seen, _, err := watched(ctx, program, director.Commit)
		if err != nil {
			return fmt.Errorf("edit the file of %d services: %w", services, err)
		}
		first, all = append(first, milliseconds(seen.first)), append(all, milliseconds(seen.last))
	}
	at := record.Conditions{"services": strconv.Itoa(services), "changed": "1"}
	s.add(fileSubject, at, first50, record.Median(first))
	s.add(fileSubject, at, visible50, record.Median(all))
	s.add(fileSubject, at, visible99, record.Quantile(all, 0.99))
	return nil
}

// sight is how long after a change it was seen, first and last.
type sight struct{ first, last time.Duration }

// watched makes a change of the first service, and says when the CPUs forwarded by it and how long
// the change itself took.
func watched(ctx context.Context, program *ebpf.Program, change func() error) (sight, time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wait, err := inside.Watch(ctx, program, changingVIP(0), changingPort)
	if err != nil {
		return sight{}, 0, err
	}
	began := time.Now()
	err = change()
	elapsed := time.Since(began)
	if err != nil {
		cancel() // nothing will be seen
		_, _ = wait()
		return sight{}, 0, err
	}
	seen, err := wait()
	return sight{seen.First.Sub(began), seen.Last.Sub(began)}, elapsed, err
}

// updateTime is the median time of Set with that many of 4,096 services changed.
func updateTime(changed int, quantity record.Quantity) value {
	return reading(setSubject, record.Conditions{"services": strconv.Itoa(manyServices), "changed": strconv.Itoa(changed)}, quantity)
}
