package datapath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"

	"weir.io/weir/internal/model"
)

// The program writes what it learns of flows into a ring, without waking anybody: at
// 20,000 new connections per second that would be as many wakings. The ring is looked
// into every flowNewsEvery, which takes no system call. When it is full something goes
// untold, and is counted: then all that is remembered has to be told again.
const (
	flowNewsEvery = 4 * time.Millisecond
	untoldEvery   = time.Second
)

// FollowFlows hands out what becomes known of flows, some at a time, until the context
// ends. untold says that something may be missing before it: so does the first call, for
// the program says nothing while nobody follows. Whoever wants all of it asks for
// RememberedFlows then.
func (d *Datapath) FollowFlows(ctx context.Context, take func(news []model.RememberedFlow, untold bool)) error {
	reader, err := ringbuf.NewReader(d.kernel.ToldFlows)
	if err != nil {
		return fmt.Errorf("open the ring of what flows become: %w", err)
	}
	defer reader.Close()
	reader.SetDeadline(time.Unix(1, 0)) // it never waits
	lost, err := d.untold()
	if err != nil {
		return err
	}
	if err := d.tell(true); err != nil {
		return err
	}
	take(nil, true)
	look, count := time.NewTicker(flowNewsEvery), time.NewTicker(untoldEvery)
	defer look.Stop()
	defer count.Stop()
	for {
		select {
		case <-ctx.Done():
			return d.tell(false)
		case <-look.C:
			news, err := d.readNews(reader)
			if err != nil {
				return errors.Join(err, d.tell(false))
			}
			if len(news) > 0 {
				take(news, false)
			}
		case <-count.C:
			now, err := d.untold()
			if err != nil {
				return errors.Join(err, d.tell(false))
			}
			if now != lost {
				lost = now
				take(nil, true)
			}
		}
	}
}

// readNews empties the ring.
func (d *Datapath) readNews(reader *ringbuf.Reader) ([]model.RememberedFlow, error) {
	if reader.AvailableBytes() == 0 {
		return nil, nil
	}
	var entries []directorFlowEntry
	for record := (ringbuf.Record{}); ; {
		err := reader.ReadInto(&record)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read what flows have become: %w", err)
		}
		if len(record.RawSample) >= int(unsafe.Sizeof(directorFlowEntry{})) {
			entries = append(entries, *(*directorFlowEntry)(unsafe.Pointer(&record.RawSample[0])))
		}
	}
	return d.nameFlows(entries)
}

// nameFlows leaves out what others cannot use.
func (d *Datapath) nameFlows(entries []directorFlowEntry) ([]model.RememberedFlow, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, err := flowClock()
	if err != nil || d.entries.memory == nil {
		return nil, err
	}
	d.nameIndexes()
	flows := make([]model.RememberedFlow, 0, len(entries))
	for i := range entries {
		if flow, useful := d.nameFlow(&entries[i], now); useful {
			flows = append(flows, flow)
		}
	}
	return flows, nil
}

// RememberedFlows hands out everything that is remembered of flows that have begun, some
// at a time, for as long as take returns true.
func (d *Datapath) RememberedFlows(take func(some []model.RememberedFlow) bool) error {
	const atOnce = 1 << 14 // entries, most of them free: a Set need not wait long
	for first := 0; ; first += atOnce {
		entries, more := d.readFlows(first, first+atOnce)
		flows, err := d.nameFlows(entries)
		if err != nil {
			return err
		}
		for some := range slices.Chunk(flows, len(d.told.tellings)) {
			if !take(some) {
				return nil
			}
		}
		if !more {
			return nil
		}
	}
}

// readFlows copies the entries of some places.
func (d *Datapath) readFlows(from, to int) (entries []directorFlowEntry, more bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.flows.entries == nil { // the datapath is closed
		return nil, false
	}
	for i := from; i < min(to, len(d.flows.entries)); i++ {
		if entry, there := d.flows.read(i); there {
			entries = append(entries, entry)
		}
	}
	return entries, to < len(d.flows.entries)
}

// tell makes the program write down what it learns, or not.
func (d *Datapath) tell(on bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.telling = on
	if d.entries.memory == nil || !d.begun {
		return nil // the next Set does
	}
	settings := d.written
	settings.Flags = settings.Flags&^uint32(directorSettingsFlagSETTINGS_TELL) | d.tellFlag()
	return d.writeSettings(settings)
}

func (d *Datapath) tellFlag() uint32 {
	if d.telling {
		return uint32(directorSettingsFlagSETTINGS_TELL)
	}
	return 0
}

// untold counts what found no room in the ring.
func (d *Datapath) untold() (sum uint64, err error) {
	var perCPU []uint64
	if err := d.kernel.FlowEvents.Lookup(uint32(directorFlowEventFLOW_UNTOLD), &perCPU); err != nil {
		return 0, fmt.Errorf("count what was not told of flows: %w", err)
	}
	for _, n := range perCPU {
		sum += n
	}
	return sum, nil
}
