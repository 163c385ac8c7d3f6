package datapath

import (
	"fmt"
	"log/slog"
	"sync"

	"weir.io/weir/internal/model"
)

// Options say where and how large the datapath is.
type Options struct {
	Pin    string        // directory on a bpffs, e.g. /sys/fs/bpf/weir; made when missing
	Mode   model.XDPMode // how to attach; empty: auto
	Limits model.Limits  // sizes of the maps
	Log    *slog.Logger
}

// Datapath is the director's program with its maps, pinned, and what is in them.
// Its methods may be called from several goroutines.
type Datapath struct {
	options Options
	log     *slog.Logger
	kernel  *kernel

	mu             sync.Mutex
	table          model.Table // of the last Set
	services       map[serviceKey]*service
	old            leftovers // of the process before, until the first Set
	have           lookups   // that are in the kernel
	gone           []uint32  // services whose rings are to be freed
	serviceIndexes *indexes
	backendIndexes *indexes
	entries        backendEntries
	attached       map[string]*attachment
	begun          bool             // the table has been placed, at least once
	written        directorSettings // that the kernel has
	hops           *resolver
	closing        sync.Once
}

// Open loads the program and its maps, or adopts what another process left
// pinned. Nothing changes for packets until Set.
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
		services:       map[serviceKey]*service{},
		serviceIndexes: newIndexes(0, options.Limits.Services),
		backendIndexes: newIndexes(1, options.Limits.Backends),
		attached:       map[string]*attachment{},
	}
	if d.entries, err = mapBackends(kernel.Backends, options.Limits.Backends+1); err != nil {
		kernel.close()
		return nil, err
	}
	if d.old, err = readLeftovers(kernel, d.entries); err != nil {
		d.entries.close()
		kernel.close()
		return nil, err
	}
	if err := kernel.ThisDirector.Lookup(uint32(0), &d.written); err != nil {
		d.entries.close()
		kernel.close()
		return nil, fmt.Errorf("read settings: %w", err)
	}
	d.have = d.old.lookups.clone()
	d.serviceIndexes.occupy(d.old.serviceIndexes())
	d.backendIndexes.occupy(d.old.backendIndexes())
	if d.hops, err = newResolver(options.Log, d.hopsChanged); err != nil {
		d.entries.close()
		kernel.close()
		return nil, err
	}
	return d, nil
}

// Close lets go of the datapath, which goes on forwarding: what is pinned stays.
func (d *Datapath) Close() error {
	d.closing.Do(d.hops.close)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.attached {
		a.close()
	}
	if err := d.entries.close(); err != nil {
		return fmt.Errorf("close datapath: %w", err)
	}
	return d.kernel.close()
}
