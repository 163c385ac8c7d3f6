// Package datapath puts a model.Table into the kernel: it loads, pins and
// attaches bpf/director/director.bpf.c, switches its maps, keeps next hops fresh and
// reads its counters. It outlives its process: what is pinned keeps forwarding,
// and Open adopts it.
//
// It works on the network namespace of its process: goroutines that only some
// threads have taken elsewhere would ask the wrong kernel tables for next hops.
package datapath

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/contents"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/datapath/nexthop"
	"weir.io/weir/internal/datapath/observe"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/upkeep"
)

// Options say where and how large the datapath is.
type Options struct {
	Pin    string        // directory on a bpffs, e.g. /sys/fs/bpf/weir; made when missing
	Mode   model.XDPMode // how to attach; empty: auto
	Limits model.Limits  // sizes of the maps
	// SteeredFlows is how many flows all NICs together may steer; 0: they steer none.
	SteeredFlows uint32
	// FanOut are the CPUs to which those of receive queues give packets; none: they give none.
	FanOut []uint32
	// VTEP makes the director one: whether it is given is fixed, what it says comes with each table.
	VTEP model.VTEP
	// InVLANs says that it has addresses of its own in VLANs of tenants, which no interface has. It is fixed, too.
	InVLANs bool
	Hold    bool // interfaces that have no program of weir's get it with Admit, and not before
	Log     *slog.Logger

	// differs makes the program that of another version, in tests.
	differs func(*ebpf.CollectionSpec)
	// recheck is how often routes are read again without news of a change; 0: every five seconds.
	recheck time.Duration
}

// Datapath is the director's program with its maps, pinned, and what is in them.
// Its methods may be called from several goroutines.
type Datapath struct {
	options Options
	log     *slog.Logger
	kernel  *kernel
	opened  time.Time

	mu             sync.Mutex
	table          model.Table     // of the last Set
	links          []netlink.Link  // of its interfaces; nil: it is not there
	own            []string        // the names that these have now
	mtus           upkeep.MTUs     // that these have had
	movements      movements       // of backends' next hops
	sysctls        map[sysctl]bool // that are to be kept
	services       map[serviceKey]*service
	passed         map[uint32]passed // by segment
	ordered        []*service        // those of the table, in its order
	whole          bool              // the last Set has gone through
	old            leftovers         // of the process before, until the first Set
	have           lookups           // that are in the kernel
	serviceIndexes *indexes
	backendIndexes *indexes
	entries        backendEntries
	rings          *ringMemory
	fronts         fronts
	sources        *sources
	refused        *refusal
	loads          loads
	flows          flows.Memory
	guesses        guesses
	resets         resets
	crowds         crowds
	shares         shares
	comparison     contents.Comparison // of the maps' contents
	exact          bool                // before the change that runs, the maps had only what this process had put there
	hands          hands               // until the next look
	readers        *grace              // waits for running programs, which read all of these
	attached       map[string]*attachment
	takesReplies   map[string]int // interfaces that full NAT's replies are taken from, by index; 0: not there
	replaced       []replaced     // by the Set that runs
	begun          bool           // the indexes of a table have been assigned at least once
	holds          bool           // interfaces that do not have the program do not get it
	hears          atomic.Bool    // some interface has the program, or cannot have it
	written        abi.Settings   // that the kernel has
	hops           *nexthop.Resolver
	reported       reported
	suspicions     suspicions
	steering       steering
	fanOut         fanOut
	overlay        overlay
	quotas         quotas
	sweeper        *sweeper
	group          group
	wrote          hostMaps
	unknownMACs    error               // why this host's MAC addresses are not known; nil: they are
	outside        bool                // this host is not in the configured group
	meets          map[netip.Addr]bool // directors that were logged as taking part in the group, or not
	prober         *prober
	imports        flowImport
	shared         sharedNAT
	followers      int // that are told what becomes known of flows
	names          flowNames
	closing        sync.Once

	observing sync.Mutex        // is taken before mu
	observer  *observe.Observer // nil: not used yet

	captures  *observe.Captures
	capturing *ebpf.Program // that interfaces have in place of the director's; nil: they have the director's
}

// Open loads the program and its maps, or adopts those that another process left pinned. Nothing
// changes for packets until Set.
func Open(options Options) (*Datapath, error) {
	if options.Log == nil {
		options.Log = slog.Default()
	}
	if options.Mode == "" {
		options.Mode = model.XDPAuto
	}
	limits := model.Config{Director: model.Director{Limits: options.Limits}}
	limits.SetDefaults()
	options.Limits = limits.Director.Limits

	kernel, err := loadKernel(options)
	if err != nil {
		return nil, err
	}
	d := &Datapath{
		options:        options,
		log:            options.Log,
		kernel:         kernel,
		opened:         time.Now(),
		services:       map[serviceKey]*service{},
		passed:         map[uint32]passed{},
		serviceIndexes: newIndexes(0, options.Limits.Services),
		backendIndexes: newIndexes(1, options.Limits.Backends),
		attached:       map[string]*attachment{},
		takesReplies:   map[string]int{},
		fronts:         fronts{since: map[uint32]time.Time{}, now: time.Now},
		holds:          options.Hold,
	}
	d.captures = d.newCaptures()
	if err := d.adoptPinned(); err != nil {
		return nil, errors.Join(err, d.unmap(), kernel.close())
	}
	return d, nil
}

// adoptPinned adopts what an earlier process left pinned, if there was one.
func (d *Datapath) adoptPinned() (err error) {
	if d.entries.Memory, err = bpfload.Map[abi.Backend](d.kernel.Backends); err != nil {
		return err
	}
	if d.rings, err = mapRings(d.kernel.RingLines, d.kernel.Rings); err != nil {
		return err
	}
	d.hears.Store(!d.options.Hold)
	if d.fronts.Memory, err = bpfload.Map[abi.Front](d.kernel.Fronts); err != nil {
		return err
	}
	d.fronts.begins = d.rings.begins.Entries
	d.fronts.adopt()
	if d.refused, err = openRefused(d.kernel.BackendSources, d.kernel.all[abi.SourceFilter]); err != nil {
		return err
	}
	if d.sources, err = readSources(d.kernel.SourceRanges); err != nil {
		return err
	}
	if d.loads.Memory, err = bpfload.Map[abi.Load](d.kernel.Loads); err != nil {
		return err
	}
	if d.flows.Memory, err = bpfload.Map[abi.FlowPlace](d.kernel.FlowTable); err != nil {
		return err
	}
	if d.guesses.Memory, err = bpfload.Map[uint64](d.kernel.Guesses); err != nil {
		return err
	}
	if d.imports.Memory, err = bpfload.Map[abi.Telling](d.kernel.FlowTellings); err != nil {
		return err
	}
	if err := d.steering.open(d.kernel, d.options); err != nil {
		return err
	}
	if err := d.fanOut.open(d.kernel, d.options); err != nil {
		return err
	}
	d.overlay.egress = d.openInterface
	if err := d.overlay.open(d.kernel, d.options); err != nil {
		return err
	}
	if err := d.quotas.open(d.kernel); err != nil {
		return err
	}
	d.imports.older, d.imports.outcomes = make([]bool, len(d.imports.Entries)), make([]uint64, len(d.kernel.importOutcomes))
	if d.readers, err = newGrace(); err != nil {
		return err
	}
	if d.old, err = readLeftovers(d.kernel, d.options.Limits); err != nil {
		return err
	}
	if !d.kernel.adopted {
		d.entries.epochs(d.kernel.records.backends.Entries)
	}
	if err := d.kernel.ThisDirector.Lookup(uint32(0), &d.written); err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	if err := d.layFlows(); err != nil {
		return err
	}
	if err := d.openShared(); err != nil {
		return err
	}
	d.have = d.old.lookups.clone()
	d.serviceIndexes.occupy(d.old.serviceIndexes())
	d.rings.occupy(d.old.serviceIndexes())
	d.backendIndexes.occupy(d.old.backendIndexes())
	d.hops, err = nexthop.New(nexthop.Deps{Log: d.log, Pin: d.options.Pin, Generic: d.options.Mode == model.XDPGeneric, Recheck: d.options.recheck, Changed: d.hopsChanged})
	if err != nil {
		return err
	}
	if d.overlay.on() {
		d.hops.SetPlaces(d.overlay.inside)
	}
	d.sweeper = startSweeper(d.sweep)
	d.prober = startProber(d.log, d.groupChanged)
	return nil
}

// unmap lets go of the kernel's memory.
func (d *Datapath) unmap() error {
	d.endLoads()
	var errs []error
	if d.rings != nil {
		errs = append(errs, d.rings.close())
	}
	if d.refused != nil {
		errs = append(errs, d.refused.filter.Close())
	}
	if d.readers != nil {
		errs = append(errs, d.readers.close())
	}
	return errors.Join(append(errs, d.entries.Close(), d.fronts.Close(), d.loads.Close(), d.flows.Close(), d.guesses.Close(), d.imports.Close(), d.shared.close(), d.steering.close(), d.fanOut.close(), d.overlay.close(), d.quotas.of.Close(), d.quotas.each.Close())...)
}

// closed says whether Close was called.
func (d *Datapath) closed() bool { return d.entries.Bytes == nil }

// Close lets go of the datapath, which goes on forwarding: what is pinned stays.
func (d *Datapath) Close() error {
	d.closing.Do(func() {
		d.captures.End()
		d.sweeper.close()
		d.prober.close()
		d.hops.Close()
	})
	d.observing.Lock()
	defer d.observing.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	var err error
	if d.begun && !d.closed() {
		if failed := d.leaveFormer(); failed != nil {
			d.log.Warn("a version before 0.2 that comes next would not know what is remembered of flows", "error", failed)
		}
	}
	for _, a := range d.attached {
		a.close()
	}
	if d.observer != nil {
		err = errors.Join(err, d.observer.Close())
	}
	return errors.Join(err, d.unmap(), d.kernel.close())
}
