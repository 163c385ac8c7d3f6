package flowsync

import (
	"bytes"
	"net/netip"
	"testing"

	"weir.io/weir/internal/model"
)

// some are flows of all kinds.
func some() []model.RememberedFlow {
	tcp := flowOf(1234, model.FlowClosing)
	tcp.Service.Segment = model.Segment{Kind: model.SegmentVXLAN, ID: 5000}
	udp := model.RememberedFlow{
		Service: model.ServiceID{VIP: netip.MustParseAddr("2001:db8::53"), Protocol: model.UDP},
		Backend: netip.MustParseAddrPort("10.0.0.1:0"), Source: netip.MustParseAddrPort("[2001:db8:9::1]:53"), Port: 65535, State: model.FlowOpen, Age: 65535,
	}
	mapped := flowOf(1, model.FlowOpen)
	mapped.Backend = netip.MustParseAddrPort("[fd00::1]:1")
	return []model.RememberedFlow{tcp, udp, mapped}
}

func TestFlowsAreReadAsWritten(t *testing.T) {
	var b []byte
	for _, f := range some() {
		b = appendFlow(b, &f)
	}
	read, err := readFlows(b)
	if err != nil || len(read) != 3 {
		t.Fatalf("read %d flows, %v", len(read), err)
	}
	for i, f := range some() {
		if read[i] != f {
			t.Errorf("read %+v, want %+v", read[i], f)
		}
	}
	for cut := 1; cut < len(b); cut++ {
		if flows, err := readFlows(b[:cut]); err == nil && len(flows) == 3 {
			t.Errorf("%d of %d bytes are read as all flows", cut, len(b))
		}
	}
	old := some()[0]
	old.Age = 1 << 20
	read, err = readFlows(appendFlow(nil, &old))
	if err != nil || read[0].Age != 65535 {
		t.Errorf("an age of 2^20 is read as %d, %v, want the largest", read[0].Age, err)
	}
}

// FuzzReadFlows: whatever comes, it is refused or written again as it was.
func FuzzReadFlows(f *testing.F) {
	for _, flow := range some() {
		f.Add(appendFlow(nil, &flow))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		flows, err := readFlows(b)
		if err != nil {
			return
		}
		var again []byte
		for i := range flows {
			again = appendFlow(again, &flows[i])
		}
		if !bytes.Equal(b, again) {
			t.Errorf("% x is read as %+v and written as % x", b, flows, again)
		}
	})
}
