package datapath

import (
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

// What is shared of a flow is held against the client's numbers, where these are known: the client may
// have used its port again before others have heard of the end.
func testFlowImportedNumbers(t *testing.T) {
	w, s := flowWorld(model.TCP, true)
	d := loadTestDirector(t, w)
	const first, far = 1000, 1 << 30
	const over, answered = abi.FlowStateFLOW_PARTED, abi.FlowStateFLOW_ANSWERED
	importAs := func(port uint16, state abi.FlowState, backend int, next uint32, want abi.ToldOutcome, why string) {
		t.Helper()
		record := s.record(t, d, port, state, backend, 0)
		record.Entry.Next = next
		s.wantImported(t, d, record, want, why)
	}
	has := func(port uint16, state abi.FlowState, next uint32, why string) {
		t.Helper()
		if e := s.remembered(t, d)[port]; e == nil || e.State != uint8(state) || e.Next != next {
			t.Errorf("port %d is remembered as %+v, want state %d and number %d: %s", port, e, state, next, why)
		}
	}
	put := func(port uint16, state abi.FlowState, next uint32) {
		t.Helper()
		s.want(t, d, port, synFlag, 0, "the owner")
		e := s.remembered(t, d)[port]
		e.Seen, e.State, e.Next = d.now(), uint8(state), next
	}

	importAs(clientPort, s.freshState(), 1, first, abi.ToldOutcomeTOLD_NEW, "nobody knew the flow")
	importAs(clientPort, over, 1, first+2<<20, abi.ToldOutcomeTOLD_AGAIN, "its client has sent 2 MiB and ended it")
	has(clientPort, over, first+2<<20, "the number of an imported flow is as old as its record")

	put(clientPort+1, abi.FlowStateFLOW_BEGUN, far)
	importAs(clientPort+1, over, 0, first, abi.ToldOutcomeTOLD_OLDER, "the end of the connection before")
	has(clientPort+1, abi.FlowStateFLOW_BEGUN, far, "another connection goes on")
	importAs(clientPort+1, over, 0, far+20, abi.ToldOutcomeTOLD_AGAIN, "its own end")

	put(clientPort+2, answered, far)
	importAs(clientPort+2, s.freshState(), 0, first, abi.ToldOutcomeTOLD_AGAIN, "it goes on elsewhere")
	has(clientPort+2, answered, far, "the number is the one that the client has to acknowledge")
	importAs(clientPort+2, over, 0, first, abi.ToldOutcomeTOLD_AGAIN, "its end: the client's number is not known here")
	has(clientPort+2, over, first, "it has ended")

	put(clientPort+3, over, first)
	importAs(clientPort+3, s.freshState(), 1, first+100, abi.ToldOutcomeTOLD_OLDER, "the same connection, of which another director guesses wrong")
	importAs(clientPort+3, s.freshState(), 1, far, abi.ToldOutcomeTOLD_NEW, "the client has used its port again")
}
