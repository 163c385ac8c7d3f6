package flowsync

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"weir.io/weir/internal/model"
)

// protocol is what TLS agrees on.
const protocol = "weir-flows/1"

type frameKind uint8

const (
	frameFlows frameKind = 1
	frameAll   frameKind = 2
	frameAlive frameKind = 3
)

const (
	headerLength = 4
	maxFrame     = 1 << 16 // of what the length counts
	flowsAtOnce  = 512     // in a frame: at most 34,000 bytes
)

// frame is a header with no flows yet.
func frame(kind frameKind) []byte { return finish([]byte{0, 0, 0, 0, byte(kind)}) }

func finish(f []byte) []byte {
	binary.BigEndian.PutUint32(f, uint32(len(f)-headerLength))
	return f
}

// telling is a frame of some flows.
type telling struct {
	frame []byte
	flows int
}

// tellingsOf puts flows into frames.
func tellingsOf(flows []model.RememberedFlow) (list []telling) {
	for some := range slices.Chunk(flows, flowsAtOnce) {
		f := frame(frameFlows)
		for i := range some {
			f = appendFlow(f, &some[i])
		}
		list = append(list, telling{finish(f), len(some)})
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
	case kind < frameFlows || kind > frameAlive:
		return 0, nil, fmt.Errorf("a frame of kind %d", kind)
	case kind != frameFlows && length > 1:
		return 0, nil, fmt.Errorf("a frame of kind %d with %d bytes", kind, length)
	}
	return kind, b[1:], nil
}
