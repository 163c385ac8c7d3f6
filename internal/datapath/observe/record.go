package observe

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
)

// captured is what the program says of a packet.
type captured struct {
	seen observedObservation
	head captureCaptureHead
}

// Read reads what has come, or waits a moment for it.
func (c *Capture) Read() (batch []model.CapturedPacket, err error) {
	c.reader.SetDeadline(time.Now().Add(captureLook))
	var records []captured
	var frames [][]byte
	most := min(captureBatch, uint64(c.wanted.Packets)-c.number)
	for uint64(len(records)) < most {
		err := c.reader.ReadInto(&c.record)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read the capture's ring: %w", err)
		}
		record, bytes, err := readCaptured(c.record.RawSample)
		if err != nil {
			return nil, err
		}
		records, frames = append(records, record), append(frames, bytes)
	}
	if len(records) == 0 {
		return nil, nil
	}
	return c.name(records, frames)
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
func (c *Capture) name(records []captured, frames [][]byte) ([]model.CapturedPacket, error) {
	offset, err := wallOffset()
	if err != nil {
		return nil, err
	}
	a := c.all
	a.Lock.Lock()
	defer a.Lock.Unlock()
	w, err := a.snapshot()
	if err != nil {
		return nil, os.ErrClosed
	}
	packets := make([]model.CapturedPacket, len(records))
	for i := range records {
		r, frame := &records[i], frames[i]
		p := &packets[i]
		c.number++
		p.Number, p.Time = c.number, time.Unix(0, int64(r.head.Time)+offset).UTC()
		p.Reason, p.Action = a.Reasons[r.seen.Reason%uint32(len(a.Reasons))], uint8(r.seen.Action)
		p.In, p.InLength = frame[:r.head.In], int(r.head.InLength)
		if r.head.Out > 0 {
			p.Out, p.OutLength = frame[r.head.In:], int(r.head.OutLength)
		}
		p.Interface = c.names.byIndex(r.head.Ingress)
		w.nameCaptured(p, &r.seen.Packet)
		p.Leaves = c.leaves(w, p, &r.seen.Packet)
	}
	return packets, nil
}

// wallOffset is what to add to CLOCK_MONOTONIC to get the time of day, in nanoseconds.
func wallOffset() (int64, error) {
	now, err := flows.Monotonic()
	return time.Now().UnixNano() - int64(now), err
}

// nameCaptured names the service, the backend and the slot of a packet.
func (w *Snapshot) nameCaptured(p *model.CapturedPacket, seen *observedPacket) {
	var e model.Explanation
	w.explainService(&e, seen)
	p.Segment = seen.flow().Segment
	if e.Service != nil {
		p.Service = e.Service.Name
	}
	if seen.Backend != 0 && int(seen.Backend) < len(w.Backends) {
		name, address := w.nameOf(seen.Backend)
		p.Backend, p.Address = name, captureAddress(address)
	}
	if slot, header := w.slotOf(seen); slot != nil && header.Size > 0 {
		hash := seen.flow().Hash(header.Salt, model.AffinityFrom(header.Affinity, header.Prefix4, header.Prefix6))
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
func (c *Capture) leaves(w *Snapshot, p *model.CapturedPacket, seen *observedPacket) string {
	const tx, redirect = 3, 4
	switch b := seen.Backend; {
	case p.Action == tx:
		return p.Interface
	case p.Action != redirect:
		return ""
	case seen.Service != 0 && b != 0 && int(b) < len(w.Backends):
		return c.names.byIndex(w.Backends[b].Ifindex)
	case len(p.Out) < 12:
		return ""
	}
	// A reply takes the kernel's route: its frame has the MAC address of the interface that it
	// leaves by.
	return c.names.byMAC([6]byte(p.Out[6:12]))
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

// Counts sums the counts of all CPUs.
func (c *Capture) Counts() (*model.CaptureCounts, error) {
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
