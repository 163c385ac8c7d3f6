package datapath

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"unsafe"

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
// table is its address and port. So other addresses or ports need another table. Flows of the one
// before that have another address or port end.
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
	to, err := flows.OpenNAT(table, want)
	if err != nil {
		return err
	}
	defer to.Close()
	if err := d.carryNAT(to); err != nil {
		return err
	}
	if err := d.kernel.snatTable.put(table, d.kernel.ensureOwned() == nil); err != nil {
		return err
	}
	if err := d.foundOutside(); err != nil {
		return err
	}
	if found {
		d.log.Warn("addresses or ports of full NAT have changed: connections with another address or port end", "addresses", t.SNAT.Addresses, "ports", t.SNAT.Ports)
	}
	return nil
}

// dropSNAT frees the table when no service is full NAT any more.
func (d *Datapath) dropSNAT(t *model.Table) error {
	if usesSNAT(t) {
		return nil
	}
	return errors.Join(d.kernel.snatTable.drop(d.kernel.ensureOwned() == nil), d.foundOutside())
}

// snatHeader reads the header of the table that is in use, if there is one.
func (k *kernel) snatHeader() (header flows.Layout, found bool, err error) {
	table, err := k.snatTable.used()
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
