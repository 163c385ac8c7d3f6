package datapath

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/datapath/observe"
	"weir.io/weir/internal/model"
)

// snapshot is what observers see of the datapath. The lock is held.
func (d *Datapath) snapshot() *observe.Snapshot {
	d.nameIndexes()
	return &observe.Snapshot{Rings: d.rings.lines.Bytes, Backends: d.entries.Entries, Settings: d.written, Services: d.names.observed, Live: d.kernel.all, Leaves: d.hops.Leaves, Inside: d.overlay.wayOf, Wire: d.overlay.onWire}
}

// Explain returns what the director would do with a frame that comes in by an interface, and why.
// The program itself says so, run with a copy of what it remembers. Nothing changes by it. The
// first call loads the program, which takes seconds.
func (d *Datapath) Explain(name string, frame []byte) (none model.Explanation, err error) {
	d.observing.Lock()
	defer d.observing.Unlock()
	if d.observer == nil {
		if d.observer, err = observe.Load(d.options.size, d.kernel.all); err != nil {
			return none, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.begun || d.closed() {
		return none, observe.ErrNothingForwarded
	}
	w := d.snapshot()
	closeTable, err := d.openSNAT(w)
	if err != nil {
		return none, err
	}
	defer closeTable()
	return w.Explain(d.observer, name, frame)
}

// lendShared gives a snapshot the flows that other directors have told of.
func (d *Datapath) lendShared(w *observe.Snapshot) (func(), error) {
	w.Tables = map[string]*ebpf.Map{}
	table, err := d.kernel.sharedTable.used()
	if err != nil || table == nil || d.shared.clients == nil {
		return func() {}, err
	}
	w.Tables[directorMapSharedTables], w.Tables[directorMapSharedClients], w.Tables[directorMapSharedEnds] = table, d.shared.clients, d.shared.ends
	return func() { table.Close() }, nil
}

// openSNAT gives a snapshot full NAT's tables.
func (d *Datapath) openSNAT(w *observe.Snapshot) (func(), error) {
	closeShared, err := d.lendShared(w)
	if err != nil {
		return func() {}, err
	}
	header, found, err := d.kernel.snatHeader()
	if err != nil || !found {
		return closeShared, err
	}
	table, err := d.kernel.snatTable.used()
	if err != nil || table == nil {
		return closeShared, err
	}
	w.Tables[directorMapSnatTables], w.Header = table, header
	return func() { closeShared(); table.Close() }, nil
}

// newCaptures captures what this datapath does with packets.
func (d *Datapath) newCaptures() *observe.Captures {
	return observe.NewCaptures(observe.CaptureDeps{
		Log: d.log, Lock: &d.mu, Size: d.options.shape, Live: d.kernel.all, Reasons: d.kernel.reasons,
		Snapshot: func() (*observe.Snapshot, error) {
			if !d.begun || !d.kernel.tidied { // until then, an earlier process may have left another program
				return nil, observe.ErrNothingForwarded
			}
			return d.snapshot(), nil
		},
		Interfaces: d.attachedNames,
		Index: func(name string) (int, bool) {
			if a := d.attachedBy(name); a != nil {
				return a.index, true
			}
			return 0, false
		},
		Switch: d.switchCapture,
	})
}

// StartCapture captures packets for a client: see observe.Captures.Start.
func (d *Datapath) StartCapture(ctx context.Context, client string, wanted model.Capture) (*observe.Capture, error) {
	return d.captures.Start(ctx, client, wanted)
}

// switchCapture puts a program that captures in place of the director's; nil: the director's again. It
// is pinned first: if this process is killed, the next one tells by the pin whose maps they are.
func (d *Datapath) switchCapture(program *ebpf.Program) error {
	d.capturing = program
	if program != nil {
		if err := pinClone(program, d.kernel.capturePin()); err != nil {
			return err
		}
	}
	if program == nil {
		d.forgetSteering(steeredFlowLeft)
	}
	if err := d.switchTo(d.attaching()); err != nil || program != nil {
		return err // the pin stays while some link has the program
	}
	d.forgetSteering(steeredFlowLeft) // once more: links have got it one after the other
	if err := os.Remove(d.kernel.capturePin()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove pin: %w", err)
	}
	return nil
}

// switchTo replaces the program of all links.
func (d *Datapath) switchTo(program *ebpf.Program) error {
	var errs []error
	for name, a := range d.attached {
		// ENOLINK: the interface is gone, and an event about it is on its way.
		if err := a.link.Update(program); err != nil && !errors.Is(err, unix.ENOLINK) {
			errs = append(errs, fmt.Errorf("replace the program of %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// attaching is the program that interfaces are to have.
func (d *Datapath) attaching() *ebpf.Program {
	if d.capturing != nil {
		return d.capturing
	}
	return d.kernel.program
}
