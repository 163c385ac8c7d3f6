package edge

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/bfd"
	"weir.io/weir/lab/process"
)

// Usage is the resources that a process uses.
type Usage struct {
	Who         string
	Memory      uint64 // bytes of its own
	Descriptors int
	Heap        float64 // bytes that the last garbage collection left; 0: unknown
	Goroutines  float64 // 0: unknown
}

// Pulse is the resources of the processes that no change ends: the first director, its BFD process
// and the first backend's agent.
type Pulse struct {
	Usage []Usage
	Rings uint64 // bytes that rings take at that director
	Pins  int    // files below the BPF file systems of all directors

	Late   time.Duration // the most by which a packet of the first director's BFD process was late
	Losses uint64        // of its session
}

// Pulse reads what is used now.
func (e *Edge) Pulse(ctx context.Context) (p Pulse, err error) {
	d := e.Directors[0]
	speaker, err := process.Find(d.host, "bfd")
	if err != nil {
		return p, err
	}
	for _, one := range []struct {
		who string
		pid int
	}{{"director", d.weir.PID()}, {"bfd", speaker}, {"agent", e.Backends[0].agent.PID()}} {
		memory, err := process.MemoryOf(one.pid)
		if err != nil {
			return p, fmt.Errorf("%s: %w", one.who, err)
		}
		descriptors, err := process.Descriptors(one.pid)
		if err != nil {
			return p, fmt.Errorf("%s: %w", one.who, err)
		}
		p.Usage = append(p.Usage, Usage{Who: one.who, Memory: memory.Anonymous, Descriptors: descriptors})
	}
	if p.Usage[0].Goroutines, err = d.weir.Metric(ctx, "go_goroutines"); err != nil {
		return p, err
	}
	if p.Usage[0].Heap, err = d.weir.Metric(ctx, "go_gc_heap_live_bytes"); err != nil {
		return p, err
	}
	status, err := api.NewClient(d.weir.Socket).Status(ctx)
	if err != nil {
		return p, err
	}
	p.Rings = status.RingMemory
	spoken, err := bfd.Query(ctx, bfd.Socket(d.weir.Socket))
	if err != nil {
		return p, err
	}
	p.Late = time.Duration(spoken.Late)
	for _, session := range spoken.Sessions {
		p.Losses += session.Losses
	}
	for _, d := range e.Directors {
		err := filepath.WalkDir(d.weir.Pin, func(_ string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				p.Pins++
			}
			return err
		})
		if err != nil {
			return p, fmt.Errorf("pins of %s: %w", d.Name, err)
		}
	}
	return p, nil
}

// Maps is where the first director has pinned its maps.
func (e *Edge) Maps() string { return e.Directors[0].weir.Pin }

// Quiet waits until no slot of the first director can have connections of older owners.
func (e *Edge) Quiet(ctx context.Context) error {
	return until(ctx, "generations to leave the logs", func() bool {
		list, err := api.NewClient(e.Directors[0].weir.Socket).Services(ctx)
		if err != nil {
			return false
		}
		for _, s := range list {
			if s.Log.Generations != 1 {
				return false
			}
		}
		return len(list) == 1+e.activeOthers()
	})
}

func (e *Edge) activeOthers() (n int) {
	for _, s := range e.Others {
		if s.Active {
			n++
		}
	}
	return n
}

// Toggle adds a service to the group's, or removes it.
func (e *Edge) Toggle(ctx context.Context, s *Service) error {
	s.Active = !s.Active
	if err := e.Apply(ctx); err != nil {
		return errors.Join(fmt.Errorf("service %s", s.Name), err)
	}
	return nil
}
