package flowsync

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"weir.io/weir/internal/model"
)

// version is of the format of flows.
type version int

const (
	unclassed  version = 1 // flows have neither a class nor a number
	classed    version = 2
	translated version = 3 // flows of full NAT are shared, too
)

// versions are those that this director understands, the one that is preferred first.
var versions = []version{translated, classed, unclassed}

// Protocols are the formats of flows, as TLS names them when two directors agree on one: the one that
// is preferred first.
func Protocols() (list []string) {
	for _, v := range versions {
		list = append(list, v.protocol())
	}
	return list
}

func (v version) protocol() string { return fmt.Sprintf("weir-flows/%d", v) }

// versionOf returns what TLS has agreed on; 0: none of them.
func versionOf(protocol string) version {
	for _, v := range versions {
		if v.protocol() == protocol {
			return v
		}
	}
	return 0
}

type frameKind uint8

const (
	frameFlows frameKind = 1
	frameAll   frameKind = 2
	frameAlive frameKind = 3
	// frameResets is not in weir-flows/1.
	frameResets frameKind = 4
	// frameNAT is in none before weir-flows/3.
	frameNAT frameKind = 5
)

const (
	headerLength = 4
	maxFrame     = 1 << 16 // of what the length counts
	flowsAtOnce  = 512     // in a frame: at most 50,000 bytes
)

// frame is a header with no flows yet.
func frame(kind frameKind) []byte { return finish([]byte{0, 0, 0, 0, byte(kind)}) }

func finish(f []byte) []byte {
	binary.BigEndian.PutUint32(f, uint32(len(f)-headerLength))
	return f
}

// flowsFrame is a frame of some flows.
type flowsFrame struct {
	bytes []byte
	flows int
}

// mostFresh is how many fresh flows are shared of all that is remembered: of a flood there may be as
// many as there is room for.
const mostFresh = 1 << 16

// fewFresh leaves out fresh flows that are more than so many, and counts those that are shared.
func fewFresh(flows []model.RememberedFlow, room *int) []model.RememberedFlow {
	return slices.DeleteFunc(slices.Clone(flows), func(f model.RememberedFlow) bool {
		if f.Class != model.FreshFlow || f.State == model.FlowOpening {
			return false
		}
		*room--
		return *room < 0
	})
}

// fewFreshNAT does the same for flows of full NAT.
func fewFreshNAT(flows []model.NATFlow, room *int) []model.NATFlow {
	return slices.DeleteFunc(slices.Clone(flows), func(f model.NATFlow) bool {
		if f.Class != model.FreshFlow {
			return false
		}
		*room--
		return *room < 0
	})
}

// framesOf puts flows into frames. Flows that open are not shared. A receiver takes a fresh flow for
// a fresh one, too.
func framesOf(flows []model.RememberedFlow, v version) (list []flowsFrame) {
	flows = slices.DeleteFunc(slices.Clone(flows), func(f model.RememberedFlow) bool { return f.State == model.FlowOpening })
	for some := range slices.Chunk(flows, flowsAtOnce) {
		f := frame(frameFlows)
		for i := range some {
			f = appendFlow(f, &some[i], v)
		}
		list = append(list, flowsFrame{finish(f), len(some)})
	}
	return list
}

// framesOfNAT does the same for flows of full NAT.
func framesOfNAT(flows []model.NATFlow, v version) (list []flowsFrame) {
	if v < translated {
		return nil
	}
	for some := range slices.Chunk(flows, flowsAtOnce) {
		f := frame(frameNAT)
		for i := range some {
			f = appendNATFlow(f, &some[i])
		}
		list = append(list, flowsFrame{finish(f), len(some)})
	}
	return list
}

// readFrame reads one frame; the flows are valid until the next one is read into the buffer.
func readFrame(r io.Reader, buffer *[]byte) (kind frameKind, flows []byte, err error) {
	var header [headerLength]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return 0, nil, err
	}
	length := binary.BigEndian.Uint32(header[:])
	if length < 1 || length > maxFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes", length)
	}
	if cap(*buffer) < int(length) {
		*buffer = make([]byte, maxFrame)
	}
	b := (*buffer)[:length]
	if _, err := io.ReadFull(r, b); errors.Is(err, io.EOF) {
		return 0, nil, io.ErrUnexpectedEOF // behind a header it is no end between two frames
	} else if err != nil {
		return 0, nil, err
	}
	kind = frameKind(b[0])
	switch {
	case kind < frameFlows || kind > frameNAT:
		return 0, nil, fmt.Errorf("a frame of kind %d", kind)
	case (kind == frameAll || kind == frameAlive) && length > 1:
		return 0, nil, fmt.Errorf("a frame of kind %d with %d bytes", kind, length)
	}
	return kind, b[1:], nil
}
