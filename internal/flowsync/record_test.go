package flowsync

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/memlab"
)

// some are flows of all kinds.
func some() []model.RememberedFlow {
	tcp := flowOf(1234, model.FlowClosing)
	tcp.Service.Segment = model.Segment{Kind: model.SegmentVXLAN, ID: 5000}
	udp := model.RememberedFlow{
		Service: model.ServiceID{VIP: netip.MustParseAddr("2001:db8::53"), Protocol: model.UDP},
		Backend: netip.MustParseAddrPort("10.0.0.1:0"), Source: netip.MustParseAddrPort("[2001:db8:9::1]:53"), Port: 65535, Class: model.ProvedFlow, State: model.FlowOpen, Age: 65535,
	}
	mapped := flowOf(1, model.FlowOpen)
	mapped.Backend, mapped.Class = netip.MustParseAddrPort("[fd00::1]:1"), model.FreshFlow
	return []model.RememberedFlow{tcp, udp, mapped}
}

// as is a flow as a version can share it.
func as(f model.RememberedFlow, v version) model.RememberedFlow {
	if v == unclassed {
		f.Class, f.Next = model.FreshFlow, 0
	}
	return f
}

// A flow that is shared in the version without classes may be of a flood, so it is fresh.
func TestFlowsAreReadAsWritten(t *testing.T) {
	for _, v := range versions {
		var b []byte
		for _, f := range some() {
			b = appendFlow(b, &f, v)
		}
		read, err := readFlows(b, v)
		if err != nil || len(read) != 3 {
			t.Fatalf("%s: read %d flows, %v", v.protocol(), len(read), err)
		}
		for i, f := range some() {
			if read[i] != as(f, v) {
				t.Errorf("%s: read %+v, want %+v", v.protocol(), read[i], as(f, v))
			}
		}
		for cut := 1; cut < len(b); cut++ {
			if flows, err := readFlows(b[:cut], v); err == nil && len(flows) == 3 {
				t.Errorf("%s: %d of %d bytes are read as all flows", v.protocol(), cut, len(b))
			}
		}
		old := some()[0]
		old.Age = 1 << 20
		read, err = readFlows(appendFlow(nil, &old, v), v)
		if err != nil || read[0].Age != 65535 {
			t.Errorf("%s: an age of 2^20 is read as %d, %v, want the largest", v.protocol(), read[0].Age, err)
		}
	}
}

// someNAT are flows of full NAT of all kinds.
func someNAT() []model.NATFlow {
	flows := some()
	for i := range flows {
		flows[i].Class = model.ProvedFlow
	}
	fresh := flows[2]
	fresh.Class = model.FreshFlow
	return []model.NATFlow{
		{RememberedFlow: flows[0], Own: netip.MustParseAddrPort("10.0.0.1:1024"), Taken: 8081, Announced: true, BackendClosed: true, ByOwner: true, Numbers: model.NATNumbers{Known: true, Client: 0xabcd0000, Backend: 0x12340000}},
		{RememberedFlow: fresh, Own: netip.MustParseAddrPort("10.0.0.1:1026"), Numbers: model.NATNumbers{Known: true, Client: 0xabcdef01, Backend: 1}},
		{RememberedFlow: flows[1], Own: netip.MustParseAddrPort("[2001:db8:1::1]:65535")},
		{RememberedFlow: flows[2], Own: netip.MustParseAddrPort("10.0.0.1:1025")},
	}
}

func TestNATFlowsAreReadAsWritten(t *testing.T) {
	var b []byte
	for _, f := range someNAT() {
		b = appendNATFlow(b, &f)
	}
	read, err := readNATFlows(b)
	if err != nil || !slices.Equal(read, someNAT()) {
		t.Errorf("read %+v, %v, want %+v", read, err, someNAT())
	}
	for cut := 1; cut < len(b); cut++ {
		if flows, err := readNATFlows(b[:cut]); err == nil && len(flows) == len(someNAT()) {
			t.Errorf("%d of %d bytes are read as all flows", cut, len(b))
		}
	}
	for what, change := range map[string]func(f *model.NATFlow){
		"port 0":                      func(f *model.NATFlow) { f.Own = netip.AddrPortFrom(f.Own.Addr(), 0) },
		"a sustained flow":            func(f *model.NATFlow) { f.Class = model.SustainedFlow },
		"a fresh flow that ends":      func(f *model.NATFlow) { f.Class, f.State = model.FreshFlow, model.FlowClosing },
		"numbers of UDP":              func(f *model.NATFlow) { f.Numbers.Backend = 1 },
		"a VIP as the address":        func(f *model.NATFlow) { f.Own = netip.AddrPortFrom(f.Service.VIP, 1) },
		"a multicast address":         func(f *model.NATFlow) { f.Own = netip.MustParseAddrPort("[ff02::1]:1") },
		"a UDP flow that was closed":  func(f *model.NATFlow) { f.ClientClosed = true },
		"a UDP flow that was taken":   func(f *model.NATFlow) { f.Taken = 1 },
		"a closing UDP flow":          func(f *model.NATFlow) { f.State = model.FlowClosing },
		"another port of the service": func(f *model.NATFlow) { f.Service.Port = model.PortRange{First: 1, Last: 2} },
	} {
		f := someNAT()[2]
		change(&f)
		if _, err := readNATFlows(appendNATFlow(nil, &f)); err == nil {
			t.Errorf("%s is read", what)
		}
	}
	if frames := framesOfNAT(someNAT(), classed); len(frames) > 0 {
		t.Errorf("a director that does not know full NAT's flows gets %d frames", len(frames))
	}
}

// FuzzReadNATFlows: whatever comes, it is refused or written again as it was.
func FuzzReadNATFlows(f *testing.F) {
	var all []byte
	for _, flow := range someNAT() {
		all = appendNATFlow(all, &flow)
		f.Add(appendNATFlow(nil, &flow))
	}
	f.Add(all)
	f.Add(all[:len(all)-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		var flows []model.NATFlow
		var err error
		sharedBound.Check(t, len(b), func() { flows, err = readNATFlows(b) })
		if err != nil {
			return
		}
		var again []byte
		for i := range flows {
			again = appendNATFlow(again, &flows[i])
		}
		if !bytes.Equal(b, again) {
			t.Errorf("% x is read as %+v and written as % x", b, flows, again)
		}
	})
}

// TestFewFreshFlowsAreShared: of all that is remembered, flows that may be of a flood are shared as long
// as they are few, and all others.
func TestFewFreshFlowsAreShared(t *testing.T) {
	fresh, open := flowOf(1, model.FlowOpen), flowOf(2, model.FlowOpen)
	fresh.Class = model.FreshFlow
	for _, v := range versions {
		room := 1
		for _, want := range [][]model.RememberedFlow{{as(fresh, v), as(open, v)}, {as(open, v)}} {
			list := framesOf(fewFresh([]model.RememberedFlow{fresh, open, fresh}, &room), v)
			if len(list) != 1 || list[0].flows != len(want) {
				t.Fatalf("%s: %d frames, want one with %d flows", v.protocol(), len(list), len(want))
			}
			flows, err := readFlows(list[0].bytes[headerLength+1:], v)
			if err != nil || !slices.Equal(flows, want) {
				t.Errorf("%s: %+v is shared, error %v", v.protocol(), flows, err)
			}
		}
	}
}

// toldBound is what may be allocated to read what a peer sends: a flow takes some ten times what it
// has on the wire while the list of a frame grows, and a frame's buffer is as long as any frame.
var sharedBound = memlab.Bound{PerByte: 40, AtLeast: 1 << 20}

// counts are of services of all kinds.
func counts() []model.ServiceResets {
	var list []model.ServiceResets
	for i, f := range some() {
		f.Service.Protocol = model.TCP
		list = append(list, model.ServiceResets{Service: f.Service, Flows: uint32(1e9 - i)})
	}
	return list
}

// Counts of resets are read as they were written, with the largest first; more are not written.
func TestResetsAreReadAsWritten(t *testing.T) {
	list := counts()
	slices.Reverse(list)
	read, err := readResets(frameOfResets(list)[headerLength+1:])
	if err != nil || !slices.Equal(read, counts()) {
		t.Errorf("read %+v, %v, want %+v", read, err, counts())
	}
	read, err = readResets(frameOfResets(slices.Repeat(list, resetsAtOnce))[headerLength+1:])
	if err != nil || len(read) != resetsAtOnce {
		t.Errorf("of too many counts %d are read, %v", len(read), err)
	}
}

// FuzzReadResets: whatever comes, it is refused or written again as it was.
func FuzzReadResets(f *testing.F) {
	var all []byte
	for _, r := range counts() {
		all = appendResets(all, r)
		f.Add(appendResets(nil, r))
	}
	f.Add(all)
	f.Add(all[:len(all)-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		sharedBound.Check(t, len(b), func() { _, _ = readResets(b) })
		list, err := readResets(b)
		if err != nil {
			return
		}
		var again []byte
		for _, r := range list {
			again = appendResets(again, r)
		}
		if !bytes.Equal(b, again) {
			t.Errorf("% x is read as %+v and written as % x", b, list, again)
		}
	})
}

// FuzzReadFlows: whatever comes, it is refused or written again as it was, and takes memory by its
// length.
func FuzzReadFlows(f *testing.F) {
	for _, v := range versions {
		for _, flow := range some() {
			f.Add(appendFlow(nil, &flow, v), v == classed)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, withClass bool) {
		v := unclassed
		if withClass {
			v = classed
		}
		var flows []model.RememberedFlow
		var err error
		sharedBound.Check(t, len(b), func() { flows, err = readFlows(b, v) })
		if err != nil {
			return
		}
		var again []byte
		for i := range flows {
			again = appendFlow(again, &flows[i], v)
		}
		if !bytes.Equal(b, again) {
			t.Errorf("% x is read as %+v and written as % x", b, flows, again)
		}
	})
}
