package datapath

import (
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/lab/packet"
)

// The states of a TCP flow, by what each side sends. Capitals: the client.
func testSNATStates(t *testing.T) {
	const (
		SYN, ACK, FIN, RST = packet.SYN, packet.ACK, packet.FIN | packet.ACK, packet.RST
	)
	type step struct {
		backend bool
		flags   uint8
		aged    uint32 // before it
	}
	client := func(flags uint8) step { return step{flags: flags} }
	backend := func(flags uint8) step { return step{backend: true, flags: flags} }
	for _, test := range []struct {
		name  string
		steps []step
		want  abi.SnatState
	}{
		{"SYN", []step{client(SYN)}, abi.SnatStateSNAT_SYN},
		{"SYN again", []step{client(SYN), client(SYN)}, abi.SnatStateSNAT_SYN},
		{"nobody answers", []step{client(SYN), client(ACK)}, abi.SnatStateSNAT_SYN},
		{"only the backend answers", []step{client(SYN), backend(SYN | ACK), backend(ACK)}, abi.SnatStateSNAT_ANSWERED},
		{"established by the client", []step{client(SYN), backend(SYN | ACK), client(ACK)}, abi.SnatStateSNAT_ESTABLISHED},
		{"old SYN", []step{client(SYN), backend(SYN | ACK), client(ACK), client(SYN)}, abi.SnatStateSNAT_ESTABLISHED},
		{"client's FIN", []step{client(SYN), backend(SYN | ACK), client(ACK), client(FIN)}, abi.SnatStateSNAT_CLOSING},
		{"client's FIN at once", []step{client(SYN), backend(SYN | ACK), client(FIN)}, abi.SnatStateSNAT_CLOSING},
		{"backend's FIN", []step{client(SYN), backend(SYN | ACK), client(ACK), backend(FIN)}, abi.SnatStateSNAT_CLOSING},
		{"one FIN twice", []step{client(SYN), backend(SYN | ACK), client(ACK), client(FIN), client(FIN)}, abi.SnatStateSNAT_CLOSING},
		{"FIN of a connection that is none", []step{client(SYN), client(FIN)}, abi.SnatStateSNAT_SYN},
		{"data after a FIN", []step{client(SYN), backend(SYN | ACK), client(ACK), client(FIN), backend(ACK)}, abi.SnatStateSNAT_CLOSING},
		{"both FINs", []step{client(SYN), backend(SYN | ACK), client(ACK), client(FIN), backend(FIN), client(ACK)}, abi.SnatStateSNAT_CLOSED},
		{"new connection after FINs", []step{client(SYN), backend(SYN | ACK), client(FIN), backend(FIN), client(SYN)}, abi.SnatStateSNAT_SYN},
		{"and it lasts", []step{client(SYN), backend(SYN | ACK), client(FIN), backend(FIN), client(SYN), backend(SYN | ACK), client(ACK)}, abi.SnatStateSNAT_ESTABLISHED},
		{"refused", []step{client(SYN), backend(RST)}, abi.SnatStateSNAT_RESET},
		{"goes on after it was refused", []step{client(SYN), backend(RST), {false, ACK, 5}}, abi.SnatStateSNAT_RESET},
		{"under way after RST", []step{client(SYN), backend(SYN | ACK), client(ACK), backend(RST), client(ACK)}, abi.SnatStateSNAT_RESET},
		{"backend goes on after RST", []step{client(SYN), backend(SYN | ACK), client(ACK), client(RST), {true, ACK, 5}}, abi.SnatStateSNAT_RESET},
		{"client goes on after RST", []step{client(SYN), backend(SYN | ACK), client(ACK), backend(RST), {false, ACK, 5}}, abi.SnatStateSNAT_ESTABLISHED},
		{"new connection after RST", []step{client(SYN), backend(SYN | ACK), client(ACK), backend(RST), client(SYN)}, abi.SnatStateSNAT_SYN},
	} {
		t.Run(test.name, func(t *testing.T) {
			w, s, _ := snatWorld(true)
			d := loadTestDirector(t, w)
			for i, step := range test.steps {
				if step.aged > 0 {
					s.age(t, d, clientPort, step.aged)
				}
				send := s.says
				if step.backend {
					send = s.hears
				}
				if action := send(t, d, clientPort, step.flags); action == xdpDrop {
					t.Fatalf("packet %d was dropped", i+1)
				}
			}
			if got := s.state(t, d, clientPort); got != test.want {
				t.Errorf("state is %d, want %d", got, test.want)
			}
		})
	}
}
