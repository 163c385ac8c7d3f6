package datapath

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
)

// usesSNAT reports whether some backend needs full NAT's table.
func usesSNAT(t *model.Table) bool { return fullNATs(t) > 0 }

// fullNATs counts the services with backends that need full NAT's table.
func fullNATs(t *model.Table) (n int) {
	if len(t.SNAT.Addresses) == 0 {
		return 0
	}
	for i := range t.Services {
		if slices.ContainsFunc(t.Services[i].Backends, func(b model.TableBackend) bool { return b.SNAT && b.Mode == model.NAT }) {
			n++
		}
	}
	return n
}

// switchSNAT makes sure that full NAT has its table before a ring needs it. A flow's place in the
// table is its address and port. So other addresses or ports need another table, and the flows of
// the one before end.
func (d *Datapath) switchSNAT(t *model.Table) error {
	if !usesSNAT(t) {
		return nil
	}
	want, err := flows.LayoutOf(t.SNAT)
	if err != nil {
		return err
	}
	have, found, err := d.kernel.snatHeader()
	if err != nil {
		return err
	}
	want.Salt = have.Salt
	if found && have == want {
		return nil
	}
	want.Salt = rand.Uint64()
	table, err := flows.NewNAT(want)
	if err != nil {
		return err
	}
	defer table.Close()
	if err := d.kernel.putSNAT(table); err != nil {
		return err
	}
	if found {
		d.log.Warn("addresses or ports of full NAT have changed: its connections end", "addresses", t.SNAT.Addresses, "ports", t.SNAT.Ports)
	}
	return nil
}

// dropSNAT frees the table when no service is full NAT any more.
func (d *Datapath) dropSNAT(t *model.Table) error {
	if usesSNAT(t) {
		return nil
	}
	// Write only if there is a table: a write to a map of maps waits for a grace period.
	if _, found, err := d.kernel.snatHeader(); err != nil || !found {
		return err
	}
	err := ignoreMissing("free table of full NAT", d.kernel.SnatTables.Delete(uint32(0)))
	if d.kernel.ensureOwned() == nil {
		if gone := os.Remove(d.kernel.snatPin()); !errors.Is(gone, os.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return err
}

// snatPin is where the table in use is pinned itself: opening it by the number in its outer map
// would take CAP_SYS_ADMIN.
func (k *kernel) snatPin() string { return k.pins.snat }

// keepSNAT gives the table of the earlier program to a program whose other maps were made anew.
func (k *kernel) keepSNAT() error {
	if k.adopted {
		return nil
	}
	table, err := ebpf.LoadPinnedMap(k.snatPin(), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open table of full NAT: %w", err)
	}
	defer table.Close()
	if err := k.SnatTables.Put(uint32(0), table); err != nil {
		return fmt.Errorf("keep table of full NAT: %w", err)
	}
	return nil
}

// putSNAT switches the table in, and its pin after it. Where another director has taken the pins, the
// table is only held open.
func (k *kernel) putSNAT(table *ebpf.Map) error {
	held, err := table.Clone()
	if err != nil {
		return fmt.Errorf("hold table of full NAT: %w", err)
	}
	if k.ensureOwned() == nil {
		err = k.pinSNAT(table)
	} else if err = k.SnatTables.Put(uint32(0), table); err != nil {
		err = fmt.Errorf("switch table of full NAT: %w", err)
	}
	if err != nil {
		return errors.Join(err, held.Close())
	}
	if k.snatTable != nil {
		k.snatTable.Close()
	}
	k.snatTable = held
	return nil
}

func (k *kernel) pinSNAT(table *ebpf.Map) error {
	fresh := k.snatPin() + beside
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove pin of an earlier table of full NAT: %w", err)
	}
	if err := table.Pin(fresh); err != nil {
		return fmt.Errorf("pin table of full NAT: %w", err)
	}
	if err := k.SnatTables.Put(uint32(0), table); err != nil {
		return errors.Join(fmt.Errorf("switch table of full NAT: %w", err), os.Remove(fresh))
	}
	if err := os.Rename(fresh, k.snatPin()); err != nil {
		return fmt.Errorf("pin table of full NAT: %w", err)
	}
	return nil
}

// usedSNAT opens the table that is in use; nil: there is none. What is pinned may be another table:
// another director may have taken the pins, or a process was killed between switching and pinning.
func (k *kernel) usedSNAT() (*ebpf.Map, error) {
	var used ebpf.MapID
	if err := k.SnatTables.Lookup(uint32(0), &used); err != nil {
		return nil, ignoreMissing("find table of full NAT", err)
	}
	if k.snatTable != nil && isMap(k.snatTable, used) {
		return k.snatTable.Clone()
	}
	table, err := ebpf.LoadPinnedMap(k.snatPin(), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open table of full NAT: %w", err)
	}
	if !isMap(table, used) {
		return nil, table.Close()
	}
	return table, nil
}

// isMap reports whether a map has that number.
func isMap(m *ebpf.Map, number ebpf.MapID) bool {
	info, err := m.Info()
	if err != nil {
		return false
	}
	id, _ := info.ID()
	return id == number
}

// snatHeader reads the header of the table that is in use, if there is one.
func (k *kernel) snatHeader() (header flows.Layout, found bool, err error) {
	table, err := k.usedSNAT()
	if err != nil || table == nil {
		return header, false, err
	}
	defer table.Close()
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(&header)), flows.BucketBytes)
	if err := table.Lookup(uint32(0), bytes); err != nil {
		return header, false, fmt.Errorf("read header of full NAT's table: %w", err)
	}
	return header, true, nil
}
