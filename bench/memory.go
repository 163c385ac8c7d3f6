package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strconv"
	"time"

	"weir.io/weir/bench/inside"
	"weir.io/weir/internal/datapath"
	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
	"weir.io/weir/lab/record"
)

// How much memory is used, and how long it takes to set up.
var (
	configuredMemory = record.Quantity{Name: "configured", Unit: "B", Better: record.Lower} // allocated for a limit, at the start
	usedMemory       = record.Quantity{Name: "used", Unit: "B", Better: record.Lower}       // beyond that, for what exists
	mapMemory        = record.Quantity{Name: "maps", Unit: "B", Better: record.Lower}
	resident         = record.Quantity{Name: "resident", Unit: "B", Better: record.Lower}
	residentOwn      = record.Quantity{Name: "resident-own", Unit: "B", Better: record.Lower} // without files and the maps in the kernel
	residentPeak     = record.Quantity{Name: "resident-peak", Unit: "B", Better: record.Lower}
	loadTime         = record.Quantity{Name: "load", Unit: "ms", Better: record.Lower}
)

var memoryNotes = []string{
	"configured: what the kernel's maps grow by when the limit grows by one; used: what they, or a ring's lines, grow by with one more of it",
	"service: without its backends and its ring; flow: of full NAT, whose table is as large as its ports whether they are taken or not",
	"director: weir run; load: from its start until the kernel has the table, the file's reading included; resident: 3 s after that, of which resident-own is not the program's file nor maps of the kernel, which the process writes to; resident-peak: the most until then",
}

func measureMemory(ctx context.Context, s *session) error {
	lab, err := s.newLab()
	if err != nil {
		return err
	}
	sizes := []tableSize{{1, 1}, {manyServices, 64}}
	if s.settings.Smoke {
		sizes[1] = tableSize{16, 4}
	}
	for _, step := range []func(*session, *netlab.Lab) error{limitMemory, tableMemory, flowMemory} {
		if err := step(s, lab); err != nil {
			return err
		}
	}
	rounds := min(s.settings.Rounds, loads)
	for round := range rounds {
		for i, size := range sizes {
			s.say("  round %d of %d: a director with %s", round+1, rounds, size)
			host := wired(lab, fmt.Sprintf("director%d-%d", round, i))
			if err := loadDirector(ctx, s, host, size); err != nil {
				return fmt.Errorf("director with %s: %w", size, err)
			}
		}
	}
	return nil
}

// loads of each size are enough: each takes many seconds, and they differ little.
const loads = 2

// tableSize is the size of a director's configuration.
type tableSize struct{ services, backends int } // backends of each

func (t tableSize) String() string {
	return fmt.Sprintf("%d services x %d backends", t.services, t.backends)
}

// config has that many services, all with the same servers.
func (t tableSize) config(mode model.Mode) model.Config {
	c := model.Config{Services: make([]model.Service, t.services)}
	if t.services*t.backends > model.DefaultBackends {
		c.Director.Limits = model.Limits{Backends: uint32(t.services * t.backends), RingMemory: 256 << 20}
	}
	for i := range c.Services {
		s := &c.Services[i]
		*s = process.Service("s"+strconv.Itoa(i), changingVIP(i), changingPort, mode)
		s.SNAT = mode == model.NAT
		for b := range t.backends {
			backend := model.NewBackend()
			backend.Address = netip.AddrFrom4([4]byte{10, 1, 1, byte(b)})
			backend.MAC = model.MAC{0x02, 0, 0, 0, 1, byte(b)}
			s.Backends = append(s.Backends, backend)
		}
	}
	c.SetDefaults()
	return c
}

// wired makes a host with a cable.
func wired(lab *netlab.Lab, name string) *netlab.Host {
	h := lab.Host(name)
	lab.Link(h, lab.Host(name+"x"), netlab.LinkOptions{XDP: true, A: []string{"10.1.0.1/16"}})
	return h
}

// opened calls a function with a new datapath on a new host. The datapath has pinned its maps.
func opened(lab *netlab.Lab, name string, limits model.Limits, f func(d *datapath.Datapath, pin string) error) error {
	h := wired(lab, name)
	if err := lab.Err(); err != nil {
		return err
	}
	d, pin, err := openDatapath(h, limits)
	if err != nil {
		return err
	}
	defer d.Close()
	return h.Do(func() error {
		nothing, _ := engine.Plan(tableSize{}.config(model.L2DSR), nil, nil)
		if err := d.Set(nothing); err != nil { // pins the maps
			return err
		}
		return f(d, pin)
	})
}

// openDatapath makes a datapath on a host, and says where its maps will be pinned.
func openDatapath(h *netlab.Host, limits model.Limits) (d *datapath.Datapath, pin string, err error) {
	pin = filepath.Join(h.BPFFS(), "weir")
	err = h.Do(func() (err error) {
		d, err = datapath.Open(datapath.Options{Pin: pin, Limits: limits, Log: slog.New(slog.DiscardHandler)})
		return err
	})
	return d, pin, err
}

// limitMemory finds how much memory the limits take.
func limitMemory(s *session, lab *netlab.Lab) error {
	measure := func(name string, limits model.Limits) (bytes uint64, err error) {
		err = opened(lab, name, limits, func(_ *datapath.Datapath, pin string) error {
			bytes, err = inside.Memory(pin)
			return err
		})
		return bytes, err
	}
	defaults := tableSize{}.config(model.L2DSR).Director.Limits
	base, err := measure("default", defaults)
	if err != nil {
		return err
	}
	s.add("director", record.Conditions{}, mapMemory, float64(base))
	for name, grow := range map[string]func(*model.Limits, uint32){
		"service": func(l *model.Limits, factor uint32) { l.Services *= factor },
		"backend": func(l *model.Limits, factor uint32) { l.Backends *= factor },
	} {
		var total [2]uint64
		for i := range total {
			limits := defaults
			grow(&limits, uint32(2<<i))
			if total[i], err = measure(fmt.Sprint(name, 2<<i), limits); err != nil {
				return err
			}
		}
		first, second := float64(total[0]-base), float64(total[1]-total[0])/2
		if first <= 0 || second/first > 1.01 || first/second > 1.01 {
			return fmt.Errorf("maps do not grow with the limit of %ss: from %d by %.0f, then by twice %.0f bytes", name, base, first, second)
		}
		count := map[string]uint32{"service": defaults.Services, "backend": defaults.Backends}[name]
		s.add(name, record.Conditions{}, configuredMemory, first/float64(count))
	}
	return nil
}

// tableMemory finds how much memory services and rings take when they exist.
func tableMemory(s *session, lab *netlab.Lab) error {
	for _, size := range []tableSize{{1024, 1}, {1024, 64}} {
		c := size.config(model.L2DSR)
		table, _ := engine.Plan(c, nil, nil)
		err := opened(lab, fmt.Sprint("table", size.backends), c.Director.Limits, func(d *datapath.Datapath, pin string) error {
			before, err := inside.Memory(pin)
			if err != nil {
				return err
			}
			if err := d.Set(table); err != nil {
				return err
			}
			after, err := inside.Memory(pin)
			if err != nil {
				return err
			}
			status, err := d.Status()
			if err != nil {
				return err
			}
			slots := len(table.Services[0].Ring.Slots)
			ring := float64(status.RingMemory) / float64(size.services)
			// 8 bytes per slot, a header, and lists, of which this table has none.
			if least := float64(8 * slots); ring < least || ring > least+3*64 {
				return fmt.Errorf("a ring of %d slots takes %.0f bytes", slots, ring)
			}
			at := record.Conditions{"backends": strconv.Itoa(size.backends), "slots": strconv.Itoa(slots)}
			s.add("ring", at, usedMemory, ring)
			if size.backends == 1 {
				s.add("service", record.Conditions{}, usedMemory, (float64(after)-float64(before))/float64(size.services))
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s: %w", size, err)
		}
	}
	return nil
}

// flowMemory finds how much memory full NAT's table takes.
func flowMemory(s *session, lab *netlab.Lab) error {
	c := tableSize{1, 1}.config(model.NAT)
	c.Director.SNAT = model.SNAT{Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.1")}, Ports: model.DefaultSNATPorts}
	table, _ := engine.Plan(c, nil, nil)
	return opened(lab, "flows", c.Director.Limits, func(d *datapath.Datapath, pin string) error {
		if err := d.Set(table); err != nil {
			return err
		}
		bytes, err := inside.MapMemory(pin, "snat_table")
		if err != nil {
			return err
		}
		ports := int(c.Director.SNAT.Ports.Last-c.Director.SNAT.Ports.First) + 1
		flows := 2 * ports // TCP and UDP
		s.add("flow", record.Conditions{"flows": strconv.Itoa(flows)}, configuredMemory, float64(bytes)/float64(flows))
		return nil
	})
}

// settleTime is how long a director is left alone before its memory is read: meanwhile memory that
// loading needed goes back to the system, if it ever does.
const settleTime = 3 * time.Second

// loadDirector starts a director, and looks at it when it has settled.
func loadDirector(ctx context.Context, s *session, host *netlab.Host, size tableSize) error {
	c := size.config(model.L2DSR)
	c.Director.Interfaces = []string{"eth0"}
	director, err := process.StartDirector(host, c)
	if err != nil {
		return err
	}
	if err := director.Runs(ctx); err != nil {
		return err
	}
	at := record.Conditions{"services": strconv.Itoa(size.services), "backends": strconv.Itoa(size.services * size.backends)}
	s.add("director", at, loadTime, milliseconds(time.Since(director.Started)))
	settle := settleTime
	if s.settings.Smoke {
		settle = 0
	}
	if err := process.Sleep(ctx, settle); err != nil {
		return err
	}
	m, err := director.Memory()
	if err != nil {
		return err
	}
	s.add("director", at, resident, float64(m.Resident))
	s.add("director", at, residentOwn, float64(m.Anonymous))
	s.add("director", at, residentPeak, float64(m.Peak))
	bytes, err := inside.Memory(director.Pin)
	if err != nil {
		return err
	}
	s.add("director", at, mapMemory, float64(bytes))
	return director.Stop()
}
