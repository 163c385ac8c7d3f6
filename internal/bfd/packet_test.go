package bfd

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"weir.io/weir/lab/memlab"
)

// an example of a packet, as bytes
func wire(change func(b []byte)) []byte {
	b := []byte{0x20 | 3, 0xc0 | 0x20 | 0x08, 3, 24, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0xc3, 0x50, 0, 0, 0x9c, 0x40, 0, 0, 0, 0}
	if change != nil {
		change(b)
	}
	return b
}

func TestParse(t *testing.T) {
	got, why := Parse(wire(nil))
	want := Packet{State: Up, Diagnostic: NeighborDown, Poll: true, Independent: true, Multiplier: 3, Mine: 7, Yours: 9,
		DesiredTx: 50 * time.Millisecond, RequiredRx: 40 * time.Millisecond}
	if why != Accepted || cmp.Diff(want, got) != "" {
		t.Errorf("%v: %s", why, cmp.Diff(want, got))
	}
}

// The rules of RFC 5880 6.8.6 that need no session, in their order.
func TestParseDiscards(t *testing.T) {
	auth := func(length, section byte, bytes ...byte) []byte {
		b := append(wire(func(b []byte) { b[1] |= 0x04; b[3] = length }), 4, section)
		return append(b, bytes...)
	}
	for _, c := range []struct {
		name string
		in   []byte
		want Discard
	}{
		{"nothing", nil, DiscardLength},
		{"a byte too few", wire(nil)[:23], DiscardLength},
		{"version 0", wire(func(b []byte) { b[0] &= 0x1f }), DiscardVersion},
		{"version 2", wire(func(b []byte) { b[0] = b[0]&0x1f | 2<<5 }), DiscardVersion},
		{"length below 24", wire(func(b []byte) { b[3] = 23 }), DiscardLength},
		{"length below 26 with authentication", wire(func(b []byte) { b[1] |= 0x04; b[3] = 25 }), DiscardLength},
		{"length beyond the payload", wire(func(b []byte) { b[3] = 25 }), DiscardLength},
		{"length below the payload", append(wire(nil), 1, 2, 3), Accepted},
		{"authentication", auth(28, 4, 1, 2), Accepted},
		{"authentication of another length than the packet's", auth(28, 3, 1, 2), DiscardLength},
		{"authentication beyond the payload", auth(29, 5, 1, 2), DiscardLength},
		{"multiplier 0", wire(func(b []byte) { b[2] = 0 }), DiscardMultiplier},
		{"multipoint", wire(func(b []byte) { b[1] |= 1 }), DiscardMultipoint},
		{"no discriminator", wire(func(b []byte) { b[7] = 0 }), DiscardMine},
		{"up, and knows no session", wire(func(b []byte) { b[11] = 0 }), DiscardStateless},
		{"init, and knows no session", wire(func(b []byte) { b[1], b[11] = 0x80, 0 }), DiscardStateless},
		{"down, and knows no session", wire(func(b []byte) { b[1], b[11] = 0x40, 0 }), Accepted},
		{"switched off, and knows no session", wire(func(b []byte) { b[1], b[11] = 0, 0 }), Accepted},
	} {
		p, why := Parse(c.in)
		if why != c.want {
			t.Errorf("%s: %v, want %v", c.name, why, c.want)
		}
		if why != Accepted && cmp.Diff(Packet{}, p) != "" {
			t.Errorf("%s: discarded, and yet %+v", c.name, p)
		}
	}
}

// gopacket's decoder, which shares no line with this one, reads what is written here.
func TestAppend(t *testing.T) {
	p := Packet{State: Init, Diagnostic: ForwardingReset, Final: true, Independent: true, Multiplier: 5, Mine: 0x01020304, Yours: 0x0a0b0c0d,
		DesiredTx: time.Second, RequiredRx: 300 * time.Millisecond, RequiredEcho: 2 * time.Hour}
	var got layers.BFD
	if err := got.DecodeFromBytes(p.Append(nil), gopacket.NilDecodeFeedback); err != nil {
		t.Fatal(err)
	}
	want := layers.BFD{BaseLayer: got.BaseLayer, Version: 1, Diagnostic: layers.BFDDiagnosticForwardPlaneReset, State: layers.BFDStateInit,
		Final: true, ControlPlaneIndependent: true, DetectMultiplier: 5, MyDiscriminator: 0x01020304, YourDiscriminator: 0x0a0b0c0d,
		DesiredMinTxInterval: 1000000, RequiredMinRxInterval: 300000, RequiredMinEchoRxInterval: 0xffffffff}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(wire(nil))
	f.Add(append(wire(func(b []byte) { b[1] |= 0x04; b[3] = 28 }), 4, 4, 1, 2))
	f.Fuzz(func(t *testing.T, in []byte) {
		before := bytes.Clone(in)
		var p Packet
		var why Discard
		memlab.Bound{AtLeast: 1 << 20}.Check(t, len(in), func() { p, why = Parse(in) })
		if !bytes.Equal(before, in) {
			t.Fatal("the packet was changed")
		}
		if why != Accepted {
			return
		}
		if p.Mine == 0 || p.Multiplier == 0 || p.Yours == 0 && p.State > Down {
			t.Errorf("accepted %+v", p)
		}
		// All that was read is written again, and it is all that there is.
		out := p.Append(nil)
		want := in[:len(out)]
		want[3] = byte(len(out)) // it may have been longer, and what was there had no meaning
		if !bytes.Equal(out, want) {
			t.Errorf("read % x and wrote % x", before, out)
		}
	})
}
