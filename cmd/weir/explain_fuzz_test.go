package main

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"weir.io/weir/internal/explain"
	"weir.io/weir/lab/memlab"
)

// FuzzOpenCapture: packets of any capture file are read to its end or to an error, and each can be
// described.
func FuzzOpenCapture(f *testing.F) {
	frame := make([]byte, 60)
	info := gopacket.CaptureInfo{Timestamp: time.Unix(1, 0), Length: len(frame), CaptureLength: len(frame)}
	var old, ng bytes.Buffer
	w := pcapgo.NewWriter(&old)
	n, err := pcapgo.NewNgWriter(&ng, layers.LinkTypeEthernet)
	if err := errors.Join(err, w.WriteFileHeader(65535, layers.LinkTypeEthernet), w.WritePacket(info, frame), n.WritePacket(info, frame), n.Flush()); err != nil {
		f.Fatal(err)
	}
	f.Add(old.Bytes())
	f.Add(ng.Bytes())
	f.Add(old.Bytes()[:30])
	f.Add([]byte("no capture at all"))
	f.Fuzz(func(t *testing.T, file []byte) {
		memlab.Bound{PerByte: 100, AtLeast: 8 << 20}.Check(t, len(file), func() {
			next, err := openCapture(bytes.NewReader(file))
			for err == nil {
				_, err = next()
			}
		})
		next, err := openCapture(bytes.NewReader(file))
		if err != nil {
			return
		}
		for range mostPackets {
			frame, err := next()
			if err != nil {
				return
			}
			if len(frame) > 0 && len(explain.Describe(frame)) == 0 {
				t.Fatalf("nothing is said of % x", frame)
			}
		}
	})
}
