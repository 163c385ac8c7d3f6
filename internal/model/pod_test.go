package model_test

import (
	"net/netip"
	"testing"

	"weir.io/weir/internal/model"
)

// TestPodName checks against CRC-32 as it is in IEEE 802.3, by another program:
// python3 -c 'import zlib; print(hex(zlib.crc32(bytes(10)+b"\xff\xff\x0a\xf4\x01\x05\x1f\x90")))'
func TestPodName(t *testing.T) {
	for pod, want := range map[string]uint32{
		"10.244.1.5:8080": 0x4c6b6e34,
		"[2001:db8::1]:0": 0xf8da09bd,
	} {
		if got := model.PodName(netip.MustParseAddrPort(pod)); got != want {
			t.Errorf("%s is called %#x, want %#x", pod, got, want)
		}
	}
}

// TestOverheadOfPods adds up what docs/internals/datapath.md says of the format: the outer header, UDP,
// GUE, and then a row of all candidates, each with a pod's name.
func TestOverheadOfPods(t *testing.T) {
	for _, test := range []struct {
		mode      model.Mode
		pod, host string
		most      int
		end       string
	}{
		{model.GUE, "10.244.1.5", "10.0.1.11", 20 + 8 + 4 + 4 + 8*8, "10.0.1.11"},
		{model.GUE, "2001:db8::1", "10.0.1.11", 20 + 8 + 4 + 4 + 8*8, "10.0.1.11"},
		{model.GUE, "2001:db8::1", "2001:db8:9::1", 40 + 8 + 4 + 4 + 6*20, "2001:db8:9::1"},
		{model.IPIP, "10.244.1.5", "2001:db8:9::1", 20, "10.244.1.5"},
		{model.IPIP, "2001:db8::1", "10.0.1.11", 40, "2001:db8::1"},
	} {
		b := model.TableBackend{Mode: test.mode, Address: addr(test.pod), Host: addr(test.host)}
		if got := b.MaxOverhead(); got != test.most {
			t.Errorf("%s to %s of %s takes %d bytes at most, want %d", test.mode, test.pod, test.host, got, test.most)
		}
		if got := b.TunnelEnd().String(); got != test.end {
			t.Errorf("%s to %s of %s goes to %s, want %s", test.mode, test.pod, test.host, got, test.end)
		}
		if most := 31 * 4; test.mode == model.GUE && test.most-b.Mode.Overhead(b.Host) > most {
			t.Errorf("private data of %d bytes are more than the %d that GUE's header can count", test.most-b.Mode.Overhead(b.Host), most)
		}
	}
}
