package datapath

import (
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// opened is how many connections to a backend were counted.
func (d *testDirector) opened(t testing.TB, index uint32) (sum uint64) {
	t.Helper()
	var perCPU []uint64
	must(t, d.Maps["backend_opened"].Lookup(index, &perCPU))
	for _, n := range perCPU {
		sum += n
	}
	return sum
}

// testOpened: in every mode a SYN that is forwarded is counted as a connection of its backend,
// and nothing else is.
func testOpened(t *testing.T) {
	w := &testWorld{}
	scenarios := w.scenarios(notFullNAT)
	dead := w.add(testService{vip: vipAddress(true, 99), protocol: model.TCP, port: singlePort(servicePort),
		backends: []testBackend{{mode: model.GUE, address: backendAddress(true, 9), state: abi.BackendStateBACKEND_DOWN}}})
	scenarios = append(scenarios, scenario{client: client4, testService: dead})
	d := loadTestDirector(t, w)
	for _, s := range scenarios {
		before := d.opened(t, s.first)
		d.run(t, build(s.data(10)...), 0)
		want := before
		if s.protocol == model.TCP {
			for _, flags := range []uint8{packet.SYN | packet.ACK, packet.FIN | packet.SYN, packet.RST, packet.ACK, packet.SYN, packet.SYN | packet.ECE | packet.CWR} {
				d.run(t, build(ip(s.client, s.vip), packet.TCPHeader{Src: clientPort, Dst: servicePort, Flags: flags}), 0)
			}
			if s.testService != dead {
				want += 2
			}
		}
		if got := d.opened(t, s.first); got != want {
			t.Errorf("%v %v %v: %d connections were counted, want %d", s.backends[0].mode, s.protocol, s.vip, got-before, want-before)
		}
	}
}
