package datapath

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// tcxNext is what the program always returns: the packet goes on (linux/bpf.h).
const tcxNext = ^uint32(0)

// leaving sends a frame of this host through the program on its way out.
func (d *testDirector) leaving(t *testing.T, frame []byte) []byte {
	t.Helper()
	o := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+64)}
	action, err := d.Programs[natTCProgUndoNat].Run(o)
	if err != nil {
		t.Fatalf("run %d bytes: %v", len(frame), err)
	}
	if action != tcxNext {
		t.Errorf("verdict %d, want %d: other programs come after this one", int32(action), int32(-1))
	}
	return o.DataOut
}

// localScenarios are the scenarios with their first backend on this host.
func (w *testWorld) localScenarios(wanted func(wayTo) bool) []scenario {
	list := w.scenarios(wanted)
	for _, s := range list {
		s.backends[0].local = true
	}
	return list
}

// A packet leaves this host as these headers, and is counted if it was changed.
func (d *testDirector) checkLeaving(t *testing.T, name string, in, want []byte) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		before := d.readAll(t)
		out := d.leaving(t, in)
		packet.Equal(t, out, want)
		if err := packet.VerifyChecksums(out); err != nil {
			t.Error(err)
		}
		counted := counts{}
		if string(in) != string(want) {
			counted[reasonName(abi.ReasonFORWARD_REPLY)] = abi.Counter{Packets: 1, Bytes: uint64(len(in) - 14)}
		}
		if got := d.readAll(t).since(before); got.String() != counted.String() {
			t.Errorf("counted %s\nwant    %s", got, counted)
		}
	})
}

// The replies of a backend on this host get the VIP where they leave.
func testUndo(t *testing.T) {
	w := &testWorld{}
	scenarios := w.localScenarios(isPlainNAT)
	d := loadTestDirector(t, w)
	for i, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			undone := func(name string, headers ...packet.Header) {
				t.Helper()
				d.checkLeaving(t, name, build(headers...), build(translated(headers, s.vipEnd(), end{}, 0)...))
			}
			untouched := func(name string, headers ...packet.Header) {
				t.Helper()
				d.checkLeaving(t, name, build(headers...), build(headers...))
			}
			answer := s.answer(s.client, 100)
			undone("reply", answer...)
			undone("odd payload", answer[0], answer[1], packet.Text("odd"))
			undone("no payload", s.answer(s.client, 0)...)
			untouched("from another port", answer[0], s.segment4(otherPort, clientPort, packet.ACK))
			untouched("from another address", ip(vipAddress(s.vip.Is4(), 0xffe), s.client), answer[1])
			untouched("of a backend elsewhere", ip(s.backends[1].address, s.client), answer[1])
			if s.vip.Is4() && s.protocol == model.UDP {
				undone("UDP without checksum", answer[0], packet.UDPHeader{Src: backendPort, Dst: clientPort, NoChecksum: true}, packet.Text("x"))
			}
			s.undoErrors(t, d)
			in := pieces(uint32(i), s.answer(s.client, 600)...)
			want := pieces(uint32(i), translated(s.answer(s.client, 600), s.vipEnd(), end{}, 0)...)
			for j := range in {
				if j == 0 && s.protocol == model.SCTP {
					want[j] = in[j] // its checksum cannot be mended
				}
				d.checkLeaving(t, fmt.Sprintf("fragment %d", j), in[j], want[j])
			}
			orphan := pieces(uint32(1000+i), s.answer(s.client, 600)...)[1]
			d.checkLeaving(t, "fragment of an unknown packet", orphan, orphan)
		})
	}
}

// undoErrors are what this host answers itself, about packets as it received them.
func (s scenario) undoErrors(t *testing.T, d *testDirector) {
	for _, e := range icmpErrors(s.vip.Is4()) {
		for _, quoted := range []int{8, 20, 1000} {
			about := s.data(30)
			received := translated(about, end{}, s.backendEnd(), 0)
			in := build(ip(s.backendEnd().address, s.client), e.header, packet.Quote(quoted, received...))
			want := build(ip(s.vip, s.client), e.header, packet.Quote(quoted, about...))
			d.checkLeaving(t, fmt.Sprintf("%s, %d bytes", e.name, quoted), in, want)
		}
	}
}

// A packet that is not IP is left alone, and so are all packets if no service is NAT.
func testUndoLeavesOthers(t *testing.T) {
	w := &testWorld{}
	s := w.localScenarios(isPlainNAT)[0]
	d := loadTestDirector(t, w)
	arp := packet.Build(packet.EthernetHeader{Dst: clientMAC, Src: ownMAC, Type: packet.EtherTypeARP}, packet.Zeros(46))
	packet.Equal(t, d.leaving(t, arp), arp)
	reply := build(s.answer(s.client, 10)...)
	for length := 14 + 20; length < 14+20+20; length++ { // the kernel runs no shorter ones
		packet.Equal(t, d.leaving(t, reply[:length]), reply[:length])
	}
	settings := w.abiSettings()
	settings.Flags &^= uint32(abi.SettingsFlagSETTINGS_REPLIES)
	d.put(t, "this_director", uint32(0), settings)
	packet.Equal(t, d.leaving(t, reply), reply)
}

// Several full NAT services have the same backend on this host: each client's
// replies come from the VIP that it called.
func testUndoFullNAT(t *testing.T) {
	for _, is4 := range []bool{true, false} {
		for _, protocol := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
			w := &testWorld{}
			var services []scenario
			for n := range 3 {
				services = append(services, scenario{client: clientOf(is4), testService: w.add(testService{
					vip: vipAddress(is4, n), protocol: protocol, port: singlePort(servicePort), salt: uint64(n),
					backends: []testBackend{{mode: model.NAT, snat: true, local: true, address: backendAddress(is4, 0), port: backendPort}},
				})})
			}
			d := loadTestDirector(t, w)
			for round, flags := range []uint8{packet.SYN, packet.ACK, packet.FIN | packet.ACK} {
				for n, s := range services {
					port := clientPort + uint16(n)
					headers := []packet.Header{ip(s.client, s.vip), s.segment4(port, servicePort, flags), packet.Text("client")}
					in := row{name: fmt.Sprintf("%v, round %d, service %d", protocol, round, n), in: build(headers...),
						reason: abi.ReasonPASS_LOCAL, action: xdpPass, backend: s.first, out: build(translated(headers, end{}, s.backendEnd(), 0)...)}
					d.check(t, []row{in})
					answer := []packet.Header{ip(s.backendEnd().address, s.client), s.segment4(backendPort, port, flags|packet.ACK), packet.Text("server")}
					d.checkLeaving(t, in.name+", reply", build(answer...), build(translated(answer, s.vipEnd(), end{}, 0)...))
				}
			}
			// The client's own port cannot be open to two of them at once.
			clash := services[1]
			headers := []packet.Header{ip(clash.client, clash.vip), clash.segment4(clientPort, servicePort, packet.SYN), packet.Text("client")}
			d.check(t, []row{row{name: "port in use", in: build(headers...)}.dropped(abi.ReasonDROP_SNAT_CLASH, clash.testService)})
		}
	}
}
