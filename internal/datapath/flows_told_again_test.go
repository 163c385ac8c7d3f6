package datapath

import (
	"net/netip"
	"testing"

	"weir.io/weir/internal/model"
)

// A client uses a port again while others remember the connection before it. A director that was
// told of that one alone takes over what it is told of the new one.
func testFlowToldPortAgain(t *testing.T) {
	bothProtocols(t, func(t *testing.T, d *testDirector, s scenario) {
		const told, seen, ended, busy = clientPort, clientPort + 1, clientPort + 2, clientPort + 3
		first := s.telling(t, d, told, s.freshState(), 1, 9)
		s.wantTold(t, d, first, directorToldOutcomeTOLD_NEW, "nobody knew the flow")
		first.Entry.Backend, first.Entry.Epoch = s.first, s.backends[0].epoch
		s.wantTold(t, d, first, directorToldOutcomeTOLD_OLDER, "two directors tell of one moment: the first one counts")
		s.wantTold(t, d, s.telling(t, d, told, s.freshState(), 0, 2), directorToldOutcomeTOLD_NEW, "the port is used again")
		s.wantTold(t, d, s.telling(t, d, told, s.freshState(), 1, 5), directorToldOutcomeTOLD_OLDER, "the connection before it, told once more")
		s.want(t, d, told, ackFlag, 0, "the new connection")
		s.wantTold(t, d, s.telling(t, d, told, s.freshState(), 1, 0), directorToldOutcomeTOLD_OLDER, "the flow has gone on here")

		s.wantTold(t, d, s.telling(t, d, seen, s.freshState(), 1, 5), directorToldOutcomeTOLD_NEW, "nobody knew the flow")
		s.want(t, d, seen, ackFlag, 1, "as was told")
		if e := s.remembered(t, d)[seen]; e == nil || flowState(&model.RememberedFlow{Service: model.ServiceID{Protocol: s.protocol}, State: model.FlowOpen}) == directorFlowState(e.State) {
			t.Errorf("remembered as %+v: one of its packets has come", e)
		}
		if s.protocol != model.TCP {
			return
		}
		for _, port := range []uint16{ended, busy} {
			s.sends(t, d, port, int(synFlag), int(ackFlag), int(ackFlag)|lasting, int(finFlag))
		}
		s.remembered(t, d)[ended].Seen -= 70
		s.wantTold(t, d, s.telling(t, d, ended, s.freshState(), 1, 0), directorToldOutcomeTOLD_NEW, "the client has ended the connection before it")
		s.want(t, d, ended, ackFlag, 1, "the new connection")
		s.remembered(t, d)[busy].Seen -= 20
		s.wantTold(t, d, s.telling(t, d, busy, s.freshState(), 1, 0), directorToldOutcomeTOLD_OLDER, "the client may still acknowledge what it gets")
	})
}

// A client repeats its SYN because the answer was lost, and the second one comes to another director:
// it goes where the first one went. Another host's SYN moves no connection.
func testFlowToldSYN(t *testing.T) {
	w, s := flowWorld(model.TCP, true)
	d := loadTestDirector(t, w)
	const repeated, own, guessed, goesOn = clientPort, clientPort + 1, clientPort + 2, clientPort + 3
	state := flowState(&model.RememberedFlow{Service: model.ServiceID{Protocol: model.TCP}, Class: model.FreshFlow, State: model.FlowOpening})
	s.wantTold(t, d, s.telling(t, d, repeated, state, 1, 0), directorToldOutcomeTOLD_NEW, "nobody knew the flow")
	s.want(t, d, repeated, synFlag, 1, "where the first SYN went")
	s.want(t, d, repeated, ackFlag, 1, "the connection")
	if e := s.remembered(t, d)[repeated]; e == nil || e.State != uint8(directorFlowStateFLOW_BEGUN) {
		t.Errorf("remembered as %+v, want as one that has begun", e)
	}
	s.want(t, d, own, synFlag, 0, "the owner")
	s.wantTold(t, d, s.telling(t, d, own, state, 1, 3), directorToldOutcomeTOLD_OLDER, "this director has seen the younger SYN")
	s.want(t, d, own, ackFlag, 0, "where the younger SYN went")
	s.want(t, d, guessed, ackFlag, 2, "a guess")
	s.wantTold(t, d, s.telling(t, d, guessed, state, 1, 9), directorToldOutcomeTOLD_OLDER, "the connection before it")
	s.want(t, d, goesOn, synFlag, 0, "the owner")
	s.want(t, d, goesOn, ackFlag, 0, "it goes on")
	s.remembered(t, d)[goesOn].Seen -= 5
	s.wantTold(t, d, s.telling(t, d, goesOn, state, 1, 0), directorToldOutcomeTOLD_OLDER, "another host may have sent it")
	s.want(t, d, goesOn, ackFlag, 0, "it stays")
}

// What becomes of a flow when a fresh one of the same backend is told: the next connection of its
// port lives as long as any that has just begun.
func testFlowToldSameBackend(t *testing.T) {
	const syn, ack, fin, rst = int(synFlag), int(ackFlag), int(finFlag), int(rstFlag)
	for _, test := range []struct {
		name  string
		flags []int
		quiet uint32
		want  directorFlowState
	}{
		{"closing", []int{syn, ack, ack | lasting, fin}, 70, directorFlowStateFLOW_TOLD},
		{"closing a moment ago", []int{syn, ack, ack | lasting, fin}, 5, directorFlowStateFLOW_CLOSING},
		{"reset", []int{syn, ack, ack | lasting, rst}, 5, directorFlowStateFLOW_TOLD},
		{"parted", []int{syn, ack, fin}, 5, directorFlowStateFLOW_TOLD},
		{"cut", []int{syn, ack, rst}, 5, directorFlowStateFLOW_TOLD},
		{"opening", []int{syn}, 5, directorFlowStateFLOW_TOLD},
		{"guessed", []int{ack}, 5, directorFlowStateFLOW_LEARNED},
		{"gone on", []int{syn, ack}, 5, directorFlowStateFLOW_BEGUN},
		{"sustained", []int{syn, ack, ack | lasting}, 5, directorFlowStateFLOW_ESTABLISHED},
	} {
		w, s := flowWorld(model.TCP, true)
		d := loadTestDirector(t, w)
		s.sends(t, d, clientPort, test.flags...)
		entry := s.remembered(t, d)[clientPort]
		entry.Seen -= test.quiet
		d.take(t, s.telling(t, d, clientPort, s.freshState(), int(entry.Backend-s.first), 0))
		if e := s.remembered(t, d)[clientPort]; e == nil || e.State != uint8(test.want) {
			t.Errorf("%s: remembered as %+v, want state %d", test.name, e, test.want)
		}
	}
}

// A guess is told to nobody: it would be taken for a flow whose SYN another director has placed.
func TestGuessesAreNotTold(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbor(t, netip.MustParseAddr("10.0.0.11"))
	d := openTest(t, model.Limits{})
	must(t, d.Set(tableOf(1, 1, 0)))
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nameIndexes()
	now, err := flowClock()
	must(t, err)
	var entry directorFlowEntry
	for index, s := range d.names.services {
		entry.Service, entry.Source = index, addressBytes(netip.MustParseAddr("10.9.9.9"))
		entry.Backend = s.order[0].index
	}
	entry.Seen, entry.Epoch = now, d.entries.entries[entry.Backend].Epoch
	for state := range directorFlowStateFLOW_TOLD_UDP + 1 {
		entry.State = uint8(state)
		flow, told := d.nameFlow(&entry, now)
		guess := state <= directorFlowStateFLOW_CLAIMED || state == directorFlowStateFLOW_LEARNED || state == directorFlowStateFLOW_ONCE
		if told == guess {
			t.Errorf("a flow in state %d is told: %v", state, told)
		}
		if opens := told && flow.State == model.FlowOpening; opens != (state == directorFlowStateFLOW_SYN) {
			t.Errorf("a flow in state %d is told as a SYN: %v", state, opens)
		}
	}
}
