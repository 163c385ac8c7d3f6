package flowsync

import (
	"bytes"
	"io"
	"testing"
)

// FuzzReadFrame: what a peer may send is refused, or read as one frame that would be written so.
func FuzzReadFrame(f *testing.F) {
	for _, sent := range framesOf(some(), classed) {
		f.Add(sent.bytes)
		f.Add(append(frame(frameAll), sent.bytes...))
		f.Add(sent.bytes[:len(sent.bytes)-1])
	}
	f.Add(frameOfResets(counts()))
	f.Add(frame(frameAlive))
	f.Add([]byte{0, 0, 0, 0, 1})
	f.Add([]byte{0, 0, 0, 9})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1})
	f.Add(finish(append(frame(frameAll), 1)))
	f.Fuzz(func(t *testing.T, b []byte) {
		sharedBound.Check(t, len(b), func() {
			var buffer []byte
			for rest := bytes.NewReader(b); ; {
				if _, _, err := readFrame(rest, &buffer); err != nil {
					return
				}
			}
		})
		buffer, rest := make([]byte, 8), bytes.NewReader(b)
		for {
			at := len(b) - rest.Len()
			kind, flows, err := readFrame(rest, &buffer)
			if err != nil {
				if err == io.EOF && at != len(b) {
					t.Errorf("%d of %d bytes are said to be nothing", len(b)-at, len(b))
				}
				return
			}
			if again := finish(append(frame(kind), flows...)); !bytes.Equal(again, b[at:len(b)-rest.Len()]) {
				t.Fatalf("% x is read as kind %d and % x", b[at:], kind, flows)
			}
			if len(flows) > 0 && kind != frameFlows && kind != frameResets {
				t.Fatalf("a frame of kind %d has % x behind it", kind, flows)
			}
		}
	})
}
