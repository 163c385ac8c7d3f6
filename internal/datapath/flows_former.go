package datapath

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
)

// Versions before 0.2 have flow memory in another table (bpf/director/pick/former_table.h). If one of
// them has run here, its table stays, and the program keeps it up to date, so that the way back
// loses no flow. It goes with the first start that is formerLasts after the upgrade.
const formerLasts = 24 * time.Hour

var formerMaps = []string{directorMapFlows, directorMapFlowTags}

// keepFormer decides whether the former table stays, and gives its maps the sizes that they have. A
// director that has none has two maps of one entry in its place, which are not pinned as state.
func (k *kernel) keepFormer(spec *ebpf.CollectionSpec, pinned map[string]*ebpf.Map) error {
	former := pinned[directorMapFlows] != nil && pinned[directorMapFlows].MaxEntries() > 1
	if former {
		upgraded, err := k.upgraded()
		if err != nil {
			return err
		}
		former = time.Since(upgraded) < formerLasts
	}
	k.hasFormer = former
	for _, name := range formerMaps {
		if !former {
			delete(k.state, name)
		}
		if m := pinned[name]; m != nil && !former && !k.adopted {
			m.Close()
			delete(pinned, name)
		}
		if m := pinned[name]; m != nil {
			spec.Maps[name].MaxEntries = m.MaxEntries()
		} else if !former {
			spec.Maps[name].MaxEntries = 1
		}
	}
	return nil
}

// shape gives the maps of a program the form that they have.
func (d *Datapath) shape(spec *ebpf.CollectionSpec) {
	d.options.shape(spec)
	for _, name := range formerMaps {
		spec.Maps[name].MaxEntries = d.kernel.all[name].MaxEntries()
	}
}

// upgraded is when flow memory began to be in the table of this version.
func (p *pins) upgraded() (time.Time, error) {
	var stat unix.Stat_t
	err := unix.Stat(p.state[directorMapFlowTable], &stat)
	if errors.Is(err, os.ErrNotExist) {
		return time.Now(), nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("look at pin of flow memory: %w", err)
	}
	return time.Unix(stat.Mtim.Unix()), nil
}

// importFormer copies the flows of the former table to the new one. The program finds those that it
// misses, but nothing else looks for flows there.
func (d *Datapath) importFormer() error {
	if !d.kernel.hasFormer || d.kernel.kept[directorMapFlowTable] || d.imports.former {
		return nil
	}
	memory, err := bpfload.Map[abi.FlowEntry](d.kernel.Flows)
	if err != nil {
		return err
	}
	defer memory.Close()
	now, err := flows.Clock()
	if err != nil {
		return err
	}
	d.nameIndexes()
	var list []abi.Telling
	for i := range memory.Entries {
		e := flows.AtOneMoment(&memory.Entries[i])
		s := d.names.services[e.Service]
		if s == nil || !flows.Live(d.entries.Entries, &e, now) {
			continue
		}
		list = append(list, abi.Telling{Entry: e, Ipv6: truth(s.key.vip.Is6()), Hash: flowOf(s, &e).Hash(d.written.FlowSalt, model.AffinityFlow)})
	}
	for some := range slices.Chunk(list, len(d.imports.Entries)) {
		copy(d.imports.Entries, some)
		if err := d.kernel.takeTellings(len(some)); err != nil {
			return err
		}
	}
	d.imports.former = true
	d.log.Info("flow memory has the flows of the version before", "flows", len(list))
	return nil
}
