package datapath

import (
	"fmt"
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

// lasting is a packet that comes when its flow has gone on for PROOF_LASTS.
const lasting = 1 << 8

// sends sends packets of a flow, with these flags.
func (s scenario) sends(t *testing.T, d *testDirector, port uint16, flags ...int) {
	t.Helper()
	for _, f := range flags {
		if f&lasting != 0 {
			s.lasts(t, d, port)
		}
		s.goes(t, d, port, uint8(f))
	}
}

// lasts makes a flow that is remembered begin some seconds earlier.
func (s scenario) lasts(t *testing.T, d *testDirector, port uint16) {
	t.Helper()
	s.remembered(t, d)[port].Since -= 3
}

// What the client's packets make of a flow, whether it is fresh or has lasted.
func testFlowEnds(t *testing.T) {
	const syn, ack, fin, rst = int(synFlag), int(ackFlag), int(finFlag), int(rstFlag)
	for _, test := range []struct {
		name  string
		flags []int
		state abi.FlowState
	}{
		{"SYN", []int{syn}, abi.FlowStateFLOW_SYN},
		{"SYN twice", []int{syn, syn}, abi.FlowStateFLOW_SYN},
		{"begun", []int{syn, ack}, abi.FlowStateFLOW_BEGUN},
		{"begun, and goes on at once", []int{syn, ack, ack}, abi.FlowStateFLOW_BEGUN},
		{"sustained", []int{syn, ack, ack | lasting}, abi.FlowStateFLOW_ESTABLISHED},
		{"only SYNs, for long", []int{syn, syn | lasting, syn | lasting}, abi.FlowStateFLOW_SYN},
		{"PSH without ACK", []int{syn, 0x08 | lasting, 0x08 | lasting}, abi.FlowStateFLOW_SYN},
		{"SYN-ACK of a client", []int{syn, syn | ack | lasting}, abi.FlowStateFLOW_SYN},
		{"old SYN", []int{syn, ack, ack | lasting, syn}, abi.FlowStateFLOW_ESTABLISHED},
		{"SYN of a fresh one", []int{syn, ack, syn}, abi.FlowStateFLOW_SYN},
		{"learned", []int{ack}, abi.FlowStateFLOW_LEARNED},
		{"learned twice", []int{ack, ack}, abi.FlowStateFLOW_BEGUN},
		{"learned and sustained", []int{ack, ack | lasting}, abi.FlowStateFLOW_ESTABLISHED},
		{"learned by its FIN", []int{fin}, abi.FlowStateFLOW_PARTED},
		{"FIN of a fresh one", []int{syn, ack, fin}, abi.FlowStateFLOW_PARTED},
		{"FIN of a fresh one, and more", []int{syn, ack, fin, ack | lasting}, abi.FlowStateFLOW_PARTED},
		{"FIN", []int{syn, ack, ack | lasting, fin}, abi.FlowStateFLOW_CLOSING},
		{"half closed", []int{syn, ack, ack | lasting, fin, ack}, abi.FlowStateFLOW_CLOSING},
		{"RST of a fresh one", []int{syn, ack, rst}, abi.FlowStateFLOW_CUT},
		{"RST", []int{syn, ack, ack | lasting, rst}, abi.FlowStateFLOW_RESET},
		{"under way after RST", []int{syn, ack, ack | lasting, rst, ack}, abi.FlowStateFLOW_RESET},
		{"new after FIN", []int{syn, ack, ack | lasting, fin, syn}, abi.FlowStateFLOW_SYN},
		{"new after RST", []int{syn, ack, ack | lasting, rst, syn, ack}, abi.FlowStateFLOW_BEGUN},
		{"new after RST of a fresh one", []int{syn, ack, rst, syn, ack}, abi.FlowStateFLOW_BEGUN},
	} {
		w, s := flowWorld(model.TCP, true)
		d := loadTestDirector(t, w)
		s.sends(t, d, clientPort, test.flags...)
		if e := s.remembered(t, d)[clientPort]; e == nil || e.State != uint8(test.state) {
			t.Errorf("%s: remembered as %+v, want state %d", test.name, e, test.state)
		}
	}
	w, s := flowWorld(model.TCP, true)
	d := loadTestDirector(t, w)
	s.sends(t, d, clientPort, ack, ack|lasting, rst)
	s.remembered(t, d)[clientPort].Seen -= 3
	s.want(t, d, clientPort, ackFlag, 2, "a RST that was not for real")
	if e := s.remembered(t, d)[clientPort]; e.State != uint8(abi.FlowStateFLOW_ESTABLISHED) {
		t.Errorf("state %d after packets that go on after a RST", e.State)
	}
	s.goes(t, d, clientPort, finFlag)
	s.setBackend(t, d, 2, abi.BackendStateBACKEND_DRAINING)
	s.want(t, d, clientPort, ackFlag, 2, "the end of a connection, draining")
	s.want(t, d, clientPort, synFlag, 0, "a new connection is not for a draining backend")
}

func testFlowExpires(t *testing.T) {
	const syn, ack, fin, rst = int(synFlag), int(ackFlag), int(finFlag), int(rstFlag)
	for _, test := range []struct {
		protocol model.Protocol
		flags    []int
		seconds  uint32
	}{
		{model.TCP, []int{syn}, 60},
		{model.TCP, []int{syn, ack}, 1800},
		{model.TCP, []int{ack}, 1800},
		{model.TCP, []int{ack, ack | lasting}, 7440},
		{model.TCP, []int{ack, fin}, 60},
		{model.TCP, []int{ack, ack | lasting, fin}, 240},
		{model.TCP, []int{ack, rst}, 60},
		{model.TCP, []int{ack, ack | lasting, rst}, 60},
		{model.UDP, []int{0}, 60},
		{model.UDP, []int{0, 0}, 60},
		{model.UDP, []int{0, 0, lasting}, 300},
	} {
		w, s := flowWorld(test.protocol, true)
		d := loadTestDirector(t, w)
		s.sends(t, d, clientPort, test.flags...)
		was := int(s.remembered(t, d)[clientPort].Backend - s.first)
		s.setRing(t, d, listedRing(1, 2, 0)) // nobody has 1 for an answer yet
		if was == 0 {
			s.setRing(t, d, listedRing(1, 0, 2))
		}
		units := uint32(uint64(test.seconds) * 1e9 >> 30)
		s.remembered(t, d)[clientPort].Seen = d.now() - units
		s.want(t, d, clientPort, ackFlag, was, fmt.Sprint("quiet for ", test.seconds, " s"))
		s.remembered(t, d)[clientPort].Seen = d.now() - 7000
		e := s.remembered(t, d)[clientPort]
		e.Seen -= units + 1000
		if got := s.goes(t, d, clientPort, ackFlag); got == was {
			t.Errorf("%v: the flow is still known after %d s", test.protocol, test.seconds)
		}
	}
}
