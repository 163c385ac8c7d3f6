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

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
)

// The program writes what it learns of flows into a ring. The kernel wakes the process for the
// first flow after the ring was emptied. Then the process leaves the ring alone for flowNewsEvery,
// because at 20,000 new connections per second it would be woken for many of them. What finds the
// ring full is not shared, and is counted: then everything that is remembered has to be shared again.
const (
	flowNewsEvery = 4 * time.Millisecond
	unsharedEvery = time.Second
)

// flowsAtOnce is how many flows are handed out at a time, at most. newsAtOnce is the same for new
// flows: more than the ring has room for.
const (
	flowsAtOnce = 512
	newsAtOnce  = 1 << 13
)

// FollowFlows hands out what becomes known of flows, some at a time, until the context ends. unshared
// says that something before it may be missing. The first call says so, too, because the program
// shares nothing while there are no followers. To have all of it, call RememberedFlows then.
func (d *Datapath) FollowFlows(ctx context.Context, take func(news model.FlowNews, unshared bool)) error {
	reader, err := ringbuf.NewReader(d.kernel.ToldFlows)
	if err != nil {
		return fmt.Errorf("open the ring of what flows become: %w", err)
	}
	defer reader.Close()
	defer context.AfterFunc(ctx, func() { reader.Close() })()
	lost, err := d.unshared()
	if err != nil {
		return err
	}
	if err := d.share(1); err != nil {
		return err
	}
	take(model.FlowNews{}, true)
	return errors.Join(d.follow(ctx, reader, lost, take), d.share(-1))
}

// follow hands out what comes, and checks from time to time whether more has gone unshared than was
// lost before.
func (d *Datapath) follow(ctx context.Context, reader *ringbuf.Reader, lost uint64, take func(news model.FlowNews, unshared bool)) error {
	count := time.Now().Add(unsharedEvery)
	whole, announced := d.isWhole(), d.announcesSNAT()
	for ctx.Err() == nil {
		reader.SetDeadline(count)
		news, err := d.readNews(reader)
		late := errors.Is(err, os.ErrDeadlineExceeded)
		switch {
		case errors.Is(err, ringbuf.ErrClosed) && ctx.Err() != nil:
			return nil
		case err != nil && !late:
			return err
		case len(news.Flows)+len(news.NAT) > 0:
			take(news, false)
		}
		if late || time.Now().After(count) {
			count = time.Now().Add(unsharedEvery)
			now, err := d.unshared()
			if err != nil {
				return err
			}
			// Before the first Set the flows that an earlier process has left have no names.
			// What the others have of full NAT's flows also says whether their addresses are announced.
			named, announcedNow := !whole && d.isWhole(), d.announcesSNAT()
			if now != lost || named || announcedNow != announced {
				lost, whole, announced = now, whole || named, announcedNow
				take(model.FlowNews{}, true)
			}
			if again, err := d.nameTold(d.tellAgain()); err == nil && len(again) > 0 {
				take(model.FlowNews{NAT: again}, false)
			}
		}
		if !late {
			select {
			case <-ctx.Done():
			case <-time.After(flowNewsEvery):
			}
		}
	}
	return nil
}

// isWhole says whether a Set has been done.
func (d *Datapath) isWhole() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.whole
}

// announcesSNAT says whether the addresses of full NAT are announced.
func (d *Datapath) announcesSNAT() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.table.SNAT.Announce
}

// readNews waits until there is something in the ring, and takes it.
func (d *Datapath) readNews(reader *ringbuf.Reader) (news model.FlowNews, err error) {
	var entries []abi.FlowEntry
	var told []abi.ToldSnat
	for record, more := (ringbuf.Record{}), true; more && len(entries)+len(told) < newsAtOnce; more = record.Remaining > 0 {
		if err := reader.ReadInto(&record); err != nil {
			return news, fmt.Errorf("read what flows have become: %w", err)
		}
		switch sample := record.RawSample; {
		case len(sample) >= int(unsafe.Sizeof(abi.ToldSnat{})):
			told = append(told, *(*abi.ToldSnat)(unsafe.Pointer(&sample[0])))
		case len(sample) >= int(unsafe.Sizeof(abi.FlowEntry{})):
			entries = append(entries, *(*abi.FlowEntry)(unsafe.Pointer(&sample[0])))
		}
	}
	if news.Flows, err = d.nameFlows(entries); err != nil {
		return news, err
	}
	news.NAT, err = d.nameTold(told)
	return news, err
}

// nameFlows leaves out flows that other directors cannot use.
func (d *Datapath) nameFlows(entries []abi.FlowEntry) ([]model.RememberedFlow, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, err := flows.Clock()
	if err != nil || d.closed() {
		return nil, err
	}
	d.nameIndexes()
	list := make([]model.RememberedFlow, 0, len(entries))
	for i := range entries {
		if flow, useful := d.nameFlow(&entries[i], now); useful {
			list = append(list, flow)
		}
	}
	return list, nil
}

// RememberedFlows hands out everything that is remembered of flows that have begun, some at a time,
// for as long as take returns true.
func (d *Datapath) RememberedFlows(take func(some []model.RememberedFlow) bool) error {
	const atOnce = 1 << 14 // entries, most of them free: a Set need not wait long
	for first, more := 0, true; more; first += atOnce {
		var entries []abi.FlowEntry
		entries, more = d.readFlows(first, first+atOnce)
		named, err := d.nameFlows(entries)
		if err != nil {
			return err
		}
		for some := range slices.Chunk(named, flowsAtOnce) {
			if !take(some) {
				return nil
			}
		}
	}
	return nil
}

// readFlows copies the entries of some places.
func (d *Datapath) readFlows(from, to int) (entries []abi.FlowEntry, more bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.flows.Entries == nil { // the datapath is closed
		return nil, false
	}
	for e := range d.flows.Flows(from, to) {
		entries = append(entries, *e)
	}
	return entries, to < len(d.flows.Entries)
}

// share makes the program write down what it learns while there are followers, of which there are so
// many more now. Packets on their way go by the old flags until this returns.
func (d *Datapath) share(more int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.followers += more
	if d.closed() || !d.begun {
		return nil // the next Set writes them
	}
	settings := d.written
	settings.Flags = settings.Flags&^shareFlag | d.shareFlag()
	if settings.Flags == d.written.Flags {
		return nil
	}
	d.beginChange(d.whole)
	err := d.writeSettings(settings)
	if err == nil && more > 0 {
		err = d.readers.wait()
	}
	if err != nil && more > 0 {
		d.followers -= more // a caller that gets an error does not follow
	}
	return err
}

const shareFlag = uint32(abi.SettingsFlagSETTINGS_TELL)

func (d *Datapath) shareFlag() uint32 {
	if d.followers > 0 {
		return shareFlag
	}
	return 0
}

// unshared counts what found no room in the ring.
func (d *Datapath) unshared() (uint64, error) {
	t, err := readTally(d.kernel.FlowEvents, uint32(abi.FlowEventFLOW_UNTOLD))
	return t.packets, err
}
