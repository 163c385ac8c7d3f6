package datapath

import (
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
)

// A client uses a port again while others remember the connection before it. A director that was
// knows of that one alone imports what is shared of the new one.
func testFlowImportedPortAgain(t *testing.T) {
	bothProtocols(t, func(t *testing.T, d *testDirector, s scenario) {
		const imported, seen, ended, busy = clientPort, clientPort + 1, clientPort + 2, clientPort + 3
		first := s.record(t, d, imported, s.freshState(), 1, 9)
		s.wantImported(t, d, first, abi.ToldOutcomeTOLD_NEW, "nobody knew the flow")
		first.Entry.Backend, first.Entry.Epoch = s.first, s.backends[0].epoch
		s.wantImported(t, d, first, abi.ToldOutcomeTOLD_OLDER, "two directors share one moment: the first one counts")
		s.wantImported(t, d, s.record(t, d, imported, s.freshState(), 0, 2), abi.ToldOutcomeTOLD_NEW, "the port is used again")
		s.wantImported(t, d, s.record(t, d, imported, s.freshState(), 1, 5), abi.ToldOutcomeTOLD_OLDER, "the connection before it, shared once more")
		s.want(t, d, imported, ackFlag, 0, "the new connection")
		s.wantImported(t, d, s.record(t, d, imported, s.freshState(), 1, 0), abi.ToldOutcomeTOLD_OLDER, "the flow has gone on here")

		s.wantImported(t, d, s.record(t, d, seen, s.freshState(), 1, 5), abi.ToldOutcomeTOLD_NEW, "nobody knew the flow")
		s.want(t, d, seen, ackFlag, 1, "as was shared")
		if e := s.remembered(t, d)[seen]; e == nil || flows.StateOf(&model.RememberedFlow{Service: model.ServiceID{Protocol: s.protocol}, State: model.FlowOpen}) == abi.FlowState(e.State) {
			t.Errorf("remembered as %+v: one of its packets has come", e)
		}
		if s.protocol != model.TCP {
			return
		}
		for _, port := range []uint16{ended, busy} {
			s.sends(t, d, port, int(synFlag), int(ackFlag), int(ackFlag)|lasting, int(finFlag))
		}
		s.remembered(t, d)[ended].Seen -= 70
		s.wantImported(t, d, s.record(t, d, ended, s.freshState(), 1, 0), abi.ToldOutcomeTOLD_NEW, "the client has ended the connection before it")
		s.want(t, d, ended, ackFlag, 1, "the new connection")
		s.remembered(t, d)[busy].Seen -= 20
		s.wantImported(t, d, s.record(t, d, busy, s.freshState(), 1, 0), abi.ToldOutcomeTOLD_OLDER, "the client may still acknowledge what it gets")
	})
}

// A fresh flow of the same backend is shared about a remembered one: the next connection of its
// port lives as long as any that has just begun.
func testFlowImportedSameBackend(t *testing.T) {
	const syn, ack, fin, rst = int(synFlag), int(ackFlag), int(finFlag), int(rstFlag)
	for _, test := range []struct {
		name  string
		flags []int
		quiet uint32
		want  abi.FlowState
	}{
		{"closing", []int{syn, ack, ack | lasting, fin}, 70, abi.FlowStateFLOW_TOLD},
		{"closing a moment ago", []int{syn, ack, ack | lasting, fin}, 5, abi.FlowStateFLOW_CLOSING},
		{"reset", []int{syn, ack, ack | lasting, rst}, 5, abi.FlowStateFLOW_TOLD},
		{"parted", []int{syn, ack, fin}, 5, abi.FlowStateFLOW_TOLD},
		{"cut", []int{syn, ack, rst}, 5, abi.FlowStateFLOW_TOLD},
		{"opening", []int{syn}, 5, abi.FlowStateFLOW_TOLD},
		{"guessed", []int{ack}, 5, abi.FlowStateFLOW_LEARNED},
		{"gone on", []int{syn, ack}, 5, abi.FlowStateFLOW_BEGUN},
		{"sustained", []int{syn, ack, ack | lasting}, 5, abi.FlowStateFLOW_ESTABLISHED},
	} {
		w, s := flowWorld(model.TCP, true)
		d := loadTestDirector(t, w)
		s.sends(t, d, clientPort, test.flags...)
		entry := s.remembered(t, d)[clientPort]
		entry.Seen -= test.quiet
		d.importAll(t, s.record(t, d, clientPort, s.freshState(), int(entry.Backend-s.first), 0))
		if e := s.remembered(t, d)[clientPort]; e == nil || e.State != uint8(test.want) {
			t.Errorf("%s: remembered as %+v, want state %d", test.name, e, test.want)
		}
	}
}

// A guess is shared with nobody: it would be taken for a flow that has gone on.
func TestGuessesAreNotShared(t *testing.T) {
	for state := range abi.FlowStateFLOW_TOLD_UDP + 1 {
		guess := state == abi.FlowStateFLOW_LEARNED || state == abi.FlowStateFLOW_ONCE || state == abi.FlowStateFLOW_SYN
		if opens := flows.MeaningOf(state).State == model.FlowOpening; opens != guess {
			t.Errorf("state %d is shared as open: %v", state, !opens)
		}
	}
}
