package datapath

import (
	"testing"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// returning sends a frame through the program that takes full NAT's replies, where it comes in.
func (d *testDirector) returning(t *testing.T, frame []byte) (verdict uint32, out []byte) {
	t.Helper()
	o := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+64), Context: checkContext{Ifindex: wireNumber}}
	verdict, err := d.Programs[natTCProgTakeReply].Run(o)
	if err != nil {
		t.Fatalf("run %d bytes: %v", len(frame), err)
	}
	return verdict, o.DataOut
}

// checkReturning checks that tc makes of a reply what XDP makes of it, but for the Ethernet
// header, which is the kernel's.
func (d *testDirector) checkReturning(t *testing.T, r row) {
	t.Helper()
	t.Run(r.name, func(t *testing.T) {
		before := d.readAll(t)
		verdict, out := d.returning(t, r.in)
		counted, want, as := counts{}, r.in, tcxNext
		if r.out != nil {
			counted[reasonName(r.reason)] = abi.Counter{Packets: 1, Bytes: uint64(len(r.in) - 14)}
			want = append(append([]byte{}, r.in[:14]...), r.out[14:]...)
		}
		if r.action == xdpRedirect {
			as = tcRedirect
		}
		if verdict != as {
			t.Errorf("verdict %d, want %d\n%s", int32(verdict), int32(as), packet.Describe(r.in))
		}
		packet.Equal(t, out, want)
		if err := packet.VerifyChecksums(out); err != nil {
			t.Error(err)
		}
		if got := d.readAll(t).since(before); got.String() != counted.String() {
			t.Errorf("counted %s\nwant    %s", got, counted)
		}
	})
}

// testTakeReply: full NAT's replies that come in by an interface without XDP in its driver.
func testTakeReply(t *testing.T) {
	w := &testWorld{}
	scenarios := w.scenarios(isFullNAT)
	d := loadTestDirector(t, w)
	for i, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			d.check(t, []row{s.fullForward("begins", d, s.opening(clientPort)...)})
			_, e := s.flowOf(t, d, clientPort)
			for _, r := range s.fullReplyRows(e.source) {
				if r.name == "reply that does not fit" { // the kernel sees to it
					headers := s.back(e.source, 1600)
					r.in, r.reason, r.action = build(headers...), abi.ReasonPASS_REPLY_UNROUTED, xdpPass
					r.out = build(translated(headers, s.vipEnd(), s.clientEnd(), 0)...)
				}
				d.checkReturning(t, r)
			}
			for _, r := range s.fullErrorRows(e.source) {
				if r.reason == abi.ReasonFORWARD_ICMP_ERROR && r.backend == 0 {
					d.checkReturning(t, r)
				}
			}
			for _, r := range s.fullFragmentRows(uint32(i*100), e.source) {
				if r.backend == 0 {
					d.checkReturning(t, r)
				}
			}
			arp := packet.Build(packet.EthernetHeader{Dst: clientMAC, Src: ownMAC, Type: packet.EtherTypeARP}, packet.Zeros(46))
			d.checkReturning(t, row{name: "ARP", in: arp})
			answer := build(s.back(e.source, 10)...)
			header := map[bool]int{true: 14 + 20, false: 14 + 40}[s.vip.Is4()] // the kernel runs no shorter ones
			whole := header + map[model.Protocol]int{model.TCP: 20, model.UDP: 8, model.SCTP: 12}[s.protocol]
			for length := header; length < whole; length++ {
				_, out := d.returning(t, answer[:length])
				packet.Equal(t, out, answer[:length])
			}
		})
	}
	if len(scenarios) == 0 {
		t.Error("nothing is full NAT")
	}
	s := scenarios[0]
	settings := w.abiSettings()
	settings.Flags &^= uint32(abi.SettingsFlagSETTINGS_REPLIES)
	d.put(t, "this_director", uint32(0), settings)
	d.checkReturning(t, row{name: "no service is nat", in: build(s.back(s.sourceEnd(0), 10)...)})
}
