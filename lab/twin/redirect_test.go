package twin

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
)

// What Linux puts into a SYN and into the answer: MSS, SACK, timestamps, window scale.
var linuxSYN = []byte{2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7}

// The option, byte by byte, as docs/internals/datapath.md has it.
var (
	openOption   = []byte{254, 10, 0x57, 0x52, 0, 0, 0, 0, 0, 0, 1, 1}
	filledOption = []byte{254, 10, 0x57, 0x52, 192, 0, 2, 1, 0x01, 0xbb, 1, 1}
)

func TestReadRedirect(t *testing.T) {
	none, forbidden := Redirect{At: -1, Room: true}, Redirect{At: -1}
	open := func(at int) Redirect { return Redirect{At: at} }
	for _, c := range []struct {
		name    string
		options []byte
		want    Redirect
	}{
		{"no options", nil, none},
		{"Linux's", linuxSYN, none},
		{"asks", openOption, open(0)},
		{"asks after Linux's", slices.Concat(linuxSYN, openOption), open(20)},
		{"NOPs first", slices.Concat([]byte{1, 1}, openOption[:10]), open(2)},
		{"filled in", filledOption, Redirect{At: 0, VIP: [4]byte{192, 0, 2, 1}, Port: 443}},
		{"filled in, port 0", slices.Concat(filledOption[:8], []byte{0, 0, 1, 1}), Redirect{At: 0, VIP: [4]byte{192, 0, 2, 1}}},
		{"at an odd place", slices.Concat([]byte{1}, openOption[:10], []byte{1}), forbidden},
		{"twice", slices.Concat(openOption, openOption), forbidden},
		{"one byte too short", []byte{254, 9, 0x57, 0x52, 0, 0, 0, 0, 0, 1, 1, 1}, forbidden},
		{"two bytes too long", append([]byte{254, 12, 0x57, 0x52}, make([]byte, 8)...), forbidden},
		{"cut short", openOption[:8], forbidden},
		{"another experiment", []byte{254, 10, 0xe2, 0xd4, 0, 0, 0, 0, 0, 0, 1, 1}, none}, // 32-bit ExIDs begin like this, including SMC's (RFC 7609)
		{"the other kind of experiment", slices.Concat([]byte{253}, openOption[1:]), none},
		{"experiment without an identifier", []byte{254, 2, 254, 2}, none},
		{"Fast Open", slices.Concat(openOption, []byte{34, 2, 1, 1}), forbidden},
		{"Fast Open before", slices.Concat([]byte{34, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1}, openOption), forbidden},
		{"Fast Open, as an experiment", slices.Concat([]byte{254, 4, 0xf9, 0x89}, openOption), forbidden},
		{"MPTCP", slices.Concat([]byte{30, 4, 0, 1}, openOption), forbidden},
		{"MD5", slices.Concat(append([]byte{19, 18}, make([]byte, 16)...), []byte{1, 1}, openOption), forbidden},
		{"AO", slices.Concat([]byte{29, 4, 1, 1}, openOption), forbidden},
		{"behind the end", slices.Concat([]byte{0, 0, 0, 0}, openOption), forbidden},
		{"the end behind it", slices.Concat(openOption, []byte{0, 0, 0, 0}), open(0)},
		{"an option of one byte", slices.Concat([]byte{5, 1, 1, 1}, openOption), forbidden},
		{"an option of no byte", slices.Concat([]byte{5, 0, 1, 1}, openOption), forbidden},
		{"kind without length", []byte{1, 1, 1, 5}, forbidden},
		{"28 bytes leave room", slices.Concat(linuxSYN, []byte{1, 1, 1, 1, 1, 1, 1, 1}), none},
		{"32 bytes do not", slices.Concat(linuxSYN, bytes.Repeat([]byte{1}, 12)), Redirect{At: -1}},
		{"24 bytes without MSS leave room for the answer's", bytes.Repeat([]byte{1}, 24), none},
		{"28 bytes without MSS do not", bytes.Repeat([]byte{1}, 28), Redirect{At: -1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := ReadRedirect(c.options); got != c.want {
				t.Errorf("%x reads as %+v, want %+v", c.options, got, c.want)
			}
		})
	}
}

func TestAppendRedirect(t *testing.T) {
	for vip, want := range map[netip.AddrPort][]byte{
		{}:                                       openOption,
		netip.MustParseAddrPort("192.0.2.1:443"): filledOption,
		netip.MustParseAddrPort("[2001:db8::c000:201]:443"):   filledOption,
		netip.MustParseAddrPort("[2001:db8::ffff:ffff]:8080"): {254, 10, 0x57, 0x52, 255, 255, 255, 255, 0x1f, 0x90, 1, 1},
	} {
		if got := AppendRedirect(nil, vip); !bytes.Equal(got, want) {
			t.Errorf("the option for %v is %x, want %x", vip, got, want)
		}
	}
}

// FuzzReadRedirect reads any options. If there is room for the option, it is at the end after it
// was added, and there is no room for another one.
func FuzzReadRedirect(f *testing.F) {
	for _, options := range [][]byte{nil, linuxSYN, openOption, filledOption, slices.Concat(linuxSYN, openOption)} {
		f.Add(options)
	}
	vip := netip.MustParseAddrPort("192.0.2.1:443")
	f.Fuzz(func(t *testing.T, options []byte) {
		if len(options) > optionsMax || len(options)%4 != 0 {
			return
		}
		r := ReadRedirect(options)
		if r.At >= 0 && !bytes.Equal(options[r.At:r.At+4], openOption[:4]) {
			t.Fatalf("%x has no option at %d", options, r.At)
		}
		if !r.Room {
			return
		}
		if asks := ReadRedirect(AppendRedirect(slices.Clone(options), netip.AddrPort{})); asks.At != len(options) || !asks.Asks() || asks.Room {
			t.Fatalf("%x with the option reads as %+v", options, asks)
		}
		if filled := ReadRedirect(AppendRedirect(slices.Clone(options), vip)); filled.VIP != vip.Addr().As4() || filled.Port != vip.Port() {
			t.Fatalf("%x with the filled option reads as %+v", options, filled)
		}
	})
}
