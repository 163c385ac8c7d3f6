package datapath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"
	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/model"
)

// captureRun is a capture while it is read.
type captureRun struct {
	*Capture
	send        func([]model.CaptureMessage) error
	began, told time.Time
	number      uint64
	record      ringbuf.Record
}

// captured is what the program says of a packet.
type captured struct {
	seen observedObservation
	head captureCaptureHead
}

// read reads what has come, or waits a moment for it.
func (r *captureRun) read() (batch []model.CapturedPacket, err error) {
	r.reader.SetDeadline(time.Now().Add(captureLook))
	var records []captured
	var frames [][]byte
	most := min(captureBatch, uint64(r.wanted.Packets)-r.number)
	for uint64(len(records)) < most {
		err := r.reader.ReadInto(&r.record)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read the capture's ring: %w", err)
		}
		record, bytes, err := readCaptured(r.record.RawSample)
		if err != nil {
			return nil, err
		}
		records, frames = append(records, record), append(frames, bytes)
	}
	if len(records) == 0 {
		return nil, nil
	}
	return r.name(records, frames)
}

// readCaptured reads struct capture_record, whose frames are as long as they are. Records in the
// ring are rounded up.
func readCaptured(raw []byte) (c captured, frames []byte, err error) {
	var layout captureCaptureRecord
	const start = unsafe.Offsetof(layout.Bytes)
	if len(raw) < int(start) {
		return c, nil, fmt.Errorf("read the capture's ring: a record of %d bytes", len(raw))
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&layout)), start), raw)
	// One structure, which both programs have: bpf/director/observe/observe.h.
	c = captured{*(*observedObservation)(unsafe.Pointer(&layout.Seen)), layout.Head}
	if frames = raw[start:]; len(frames) < int(c.head.In)+int(c.head.Out) {
		return c, nil, fmt.Errorf("read the capture's ring: frames of %d and %d bytes in %d", c.head.In, c.head.Out, len(frames))
	}
	return c, append([]byte(nil), frames[:c.head.In+c.head.Out]...), nil
}

// name says in words what the indexes stand for.
func (r *captureRun) name(records []captured, frames [][]byte) ([]model.CapturedPacket, error) {
	offset, err := wallOffset()
	if err != nil {
		return nil, err
	}
	d := r.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.forwards() {
		return nil, os.ErrClosed
	}
	d.nameIndexes()
	w := &snapshot{rings: d.rings.memory, entries: d.entries.entries, services: d.names.services}
	packets := make([]model.CapturedPacket, len(records))
	for i := range records {
		c, frame := &records[i], frames[i]
		p := &packets[i]
		r.number++
		p.Number, p.Time = r.number, time.Unix(0, int64(c.head.Time)+offset).UTC()
		p.Reason, p.Action = d.kernel.reasons[c.seen.Reason%uint32(len(d.kernel.reasons))], uint8(c.seen.Action)
		p.In, p.InLength = frame[:c.head.In], int(c.head.InLength)
		if c.head.Out > 0 {
			p.Out, p.OutLength = frame[c.head.In:], int(c.head.OutLength)
		}
		p.Interface = r.names.byIndex(c.head.Ingress)
		w.nameCaptured(p, &c.seen.Packet)
		p.Leaves = r.leaves(w, p, c)
	}
	return packets, nil
}

// wallOffset is what to add to CLOCK_MONOTONIC to get the time of day, in nanoseconds.
func wallOffset() (int64, error) {
	now, err := monotonic()
	return time.Now().UnixNano() - int64(now), err
}

// nameCaptured names the service, the backend and the slot of a packet.
func (w *snapshot) nameCaptured(p *model.CapturedPacket, seen *observedPacket) {
	var e model.Explanation
	w.explainService(&e, seen)
	if e.Service != nil {
		p.Service = e.Service.Name
	}
	if seen.Backend != 0 && int(seen.Backend) < len(w.entries) {
		name, address := w.nameOf(seen.Backend)
		p.Backend, p.Address = name, captureAddress(address)
	}
	if slot, header := w.slotOf(seen); slot != nil && header.Size > 0 {
		hash := seen.flow().Hash(header.Salt, model.Affinity(header.Affinity))
		number := int(hash >> 32 * uint64(header.Size) >> 32)
		p.Slot, p.Slots = &number, int(header.Size)
	}
}

func captureAddress(a netip.AddrPort) string {
	if a.Port() == 0 {
		return a.Addr().String()
	}
	return net.JoinHostPort(a.Addr().String(), strconv.Itoa(int(a.Port())))
}

// leaves is the interface that a packet left by.
func (r *captureRun) leaves(w *snapshot, p *model.CapturedPacket, c *captured) string {
	const tx, redirect = 3, 4
	switch b := c.seen.Packet.Backend; {
	case p.Action == tx:
		return p.Interface
	case p.Action != redirect:
		return ""
	case c.seen.Packet.Service != 0 && b != 0 && int(b) < len(w.entries):
		return r.names.byIndex(w.entries[b].Ifindex)
	case len(p.Out) < 12:
		return ""
	}
	// A reply takes the kernel's route: its frame has the MAC address of the interface that it
	// leaves by.
	return r.names.byMAC([6]byte(p.Out[6:12]))
}

// captureNames are the names of interfaces. They are read again when an interface is not among
// them.
type captureNames struct {
	read     time.Time
	indexes  map[uint32]string
	hardware map[[6]byte]string
}

func (n *captureNames) byIndex(index uint32) string {
	n.refresh(n.indexes[index] == "")
	return n.indexes[index]
}

func (n *captureNames) byMAC(mac [6]byte) string {
	n.refresh(n.hardware[mac] == "")
	return n.hardware[mac]
}

func (n *captureNames) refresh(missing bool) {
	if !missing || time.Since(n.read) < captureTell {
		return
	}
	n.read = time.Now()
	links, err := netlink.LinkList()
	if err != nil {
		return // they have no names now, but may have the next time
	}
	n.indexes, n.hardware = map[uint32]string{}, map[[6]byte]string{}
	for _, l := range links {
		a := l.Attrs()
		n.indexes[uint32(a.Index)] = a.Name
		if len(a.HardwareAddr) == 6 {
			n.hardware[[6]byte(a.HardwareAddr)] = a.Name
		}
	}
}

// tell sends the packets that were read, the counts from time to time, and why the capture ends.
func (r *captureRun) tell(packets []model.CapturedPacket, ended string) error {
	messages := make([]model.CaptureMessage, 0, len(packets)+1)
	for i := range packets {
		messages = append(messages, model.CaptureMessage{Packet: &packets[i]})
	}
	if ended != "" || time.Since(r.told) > captureTell {
		counts, err := r.counts()
		if err != nil && !r.closed.Load() {
			return err
		}
		messages = append(messages, model.CaptureMessage{Counts: counts, Ended: ended})
		r.told = time.Now()
	}
	if len(messages) == 0 {
		return nil
	}
	if err := r.send(messages); err != nil {
		return err
	}
	if ended != "" || r.closed.Load() {
		return nil
	}
	return r.renew()
}

// counts sums the counts of all CPUs.
func (c *Capture) counts() (*model.CaptureCounts, error) {
	var perCPU []captureCaptureCounts
	if err := c.collection.Maps[captureMapCaptureCounted].Lookup(uint32(0), &perCPU); err != nil {
		return nil, fmt.Errorf("read what the capture has counted: %w", err)
	}
	var sum model.CaptureCounts
	for _, c := range perCPU {
		sum.Add(model.CaptureCounts{Matched: c.Matched, Limited: c.Limited, Lost: c.Lost})
	}
	return &sum, nil
}
