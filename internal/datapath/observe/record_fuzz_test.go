package observe

import (
	"encoding/binary"
	"testing"
	"unsafe"

	"weir.io/weir/lab/memlab"
)

// FuzzReadCaptured: a record of the capture's ring is refused, or has the bytes that it says.
func FuzzReadCaptured(f *testing.F) {
	var layout captureCaptureRecord
	start := int(unsafe.Offsetof(layout.Bytes))
	in, out := int(unsafe.Offsetof(layout.Head)+unsafe.Offsetof(layout.Head.In)), int(unsafe.Offsetof(layout.Head)+unsafe.Offsetof(layout.Head.Out))
	record := func(inBytes, outBytes uint32, frames int) []byte {
		b := make([]byte, start+frames)
		binary.NativeEndian.PutUint32(b[in:], inBytes)
		binary.NativeEndian.PutUint32(b[out:], outBytes)
		return b
	}
	f.Add(record(60, 80, 144))
	f.Add(record(60, 80, 139))
	f.Add(record(1<<31, 1<<31, 8))
	f.Add(record(1<<32-1, 1, 8))
	f.Add(record(0, 0, 0)[:start-1])
	f.Fuzz(func(t *testing.T, raw []byte) {
		var c captured
		var frames []byte
		var err error
		memlab.Bound{PerByte: 4, AtLeast: 1 << 20}.Check(t, len(raw), func() { c, frames, err = readCaptured(raw) })
		if err == nil && uint64(len(frames)) != uint64(c.head.In)+uint64(c.head.Out) {
			t.Fatalf("frames of %d and %d bytes are %d", c.head.In, c.head.Out, len(frames))
		}
	})
}
