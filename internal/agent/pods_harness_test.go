package agent

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// podLab is a host with pods, and packets to them and from them: one combination of the
// families inside and outside.
type podLab struct {
	*testHost
	vip, otherVIP, client       netip.Addr
	host, peer, director        netip.Addr
	first, second               netip.AddrPort // pods of this host
	elsewhere                   netip.AddrPort // a pod of peer
	dnsFirst, dnsSecond, dnsFar netip.AddrPort
}

// podLabs are all combinations of the families of VIPs and hosts. An emulated kernel takes two
// minutes to verify the programs of each, so in a short run there are those with one family each.
func podLabs(t *testing.T) map[string]*podLab {
	t.Helper()
	all := map[string]*podLab{}
	for _, over4 := range []bool{true, false} {
		for _, vip4 := range []bool{true, false} {
			if vip4 == over4 || !testing.Short() {
				all[fmt.Sprintf("vip 4 %v, over 4 %v", vip4, over4)] = newPodLab(t, vip4, over4)
			}
		}
	}
	return all
}

// newPodLab is a host that has one pod by its address of IPv4 and one by that of IPv6: both are its
// own, whichever the packet came to.
func newPodLab(t *testing.T, vip4, over4 bool) *podLab {
	t.Helper()
	at := netip.MustParseAddrPort
	p := &podLab{testHost: newTestHost(t), vip: podVIP6, otherVIP: otherPodVIP6, client: client6, host: host6, peer: peer6, director: director6,
		first: at("[fd00:1::5]:8080"), second: at("[fd00:1::6]:9090"), elsewhere: at("[fd00:2::9]:8080"),
		dnsFirst: at("[fd00:1::5]:5353"), dnsSecond: at("[fd00:1::6]:53"), dnsFar: at("[fd00:2::9]:53")}
	if vip4 {
		p.vip, p.otherVIP, p.client = podVIP4, otherPodVIP4, client4
		p.first, p.second, p.elsewhere = at("10.244.1.5:8080"), at("10.244.1.6:9090"), at("10.244.2.9:8080")
		p.dnsFirst, p.dnsSecond, p.dnsFar = at("10.244.1.5:5353"), at("10.244.1.6:53"), at("10.244.2.9:53")
	}
	if over4 {
		p.host, p.peer, p.director = host4, peer4, director4
	}
	return p
}

// candidate is an entry of a row of pods.
type candidate struct {
	host netip.Addr
	pod  netip.AddrPort
}

// podRow writes the private data of GUE for pods, by docs/internals/datapath.md.
func podRow(next int, candidates ...candidate) []byte {
	b := []byte{0x50, byte(len(candidates)), byte(next), 0}
	for _, c := range candidates {
		b = append(b, c.host.AsSlice()...)
		b = binary.BigEndian.AppendUint32(b, model.PodName(c.pod))
	}
	return b
}

func (p *podLab) here(pod netip.AddrPort) candidate { return candidate{p.host, pod} }

// gue wraps a packet.
func gue(from, to netip.Addr, private []byte, inner frame) []byte {
	return build(frame{ether, ip(from, to), packet.UDPHeader{Src: 50000, Dst: 6080}, packet.GUEHeader{Private: private}}, inner)
}

// ended is a packet of TCP from one end to another.
func ended(from, to netip.AddrPort, flags uint8, seq, ack uint32, text string) frame {
	return frame{ip(from.Addr(), to.Addr()), packet.TCPHeader{Src: from.Port(), Dst: to.Port(), Seq: seq, Ack: ack, Flags: flags, Window: 512}, packet.Text(text)}
}

func datagram(from, to netip.AddrPort, text string) frame {
	return frame{ip(from.Addr(), to.Addr()), packet.UDPHeader{Src: from.Port(), Dst: to.Port()}, packet.Text(text)}
}

// arrives gives tc a frame that comes in, and XDP before it, which must leave it to tc.
func (p *podLab) arrives(t *testing.T, what string, in []byte, reason bpfHostReason, want []byte) {
	t.Helper()
	if reason == bpfHostReasonHOST_DECAP_POD || reason == bpfHostReasonHOST_PASSED_ON {
		before := p.counts(t)
		verdict, out := run(t, p.HostXdp, in, nil)
		if verdict != xdpPass {
			t.Errorf("%s: XDP's verdict is %d", what, verdict)
		}
		packet.Equal(t, out, in)
		if got := p.changed(t, before); got != "" {
			t.Errorf("%s: XDP has counted %s", what, got)
		}
	}
	verdict := uint32(tcNext)
	switch {
	case isDrop(reason):
		verdict = tcShot
	case reason == bpfHostReasonHOST_PASSED_ON:
		verdict = tcRedirect
	}
	p.passes(t, what, true, in, reason, verdict, want)
}

// leaves gives egress a frame.
func (p *podLab) leaves(t *testing.T, what string, in []byte, reason bpfHostReason, want []byte) {
	t.Helper()
	p.passes(t, what, false, in, reason, tcNext, want)
}

func (p *podLab) passes(t *testing.T, what string, arrives bool, in []byte, reason bpfHostReason, verdict uint32, want []byte) {
	t.Helper()
	program := p.HostEgress
	if arrives {
		program = p.HostIngress
	}
	before := p.counts(t)
	got, out := run(t, program, in, nil)
	if got != verdict {
		t.Errorf("%s: verdict is %d, want %d", what, got, verdict)
	}
	if changed := p.changed(t, before); changed != reasonName(t, reason) {
		t.Errorf("%s: counted as %s, want %s", what, changed, reasonName(t, reason))
	}
	if want == nil {
		return
	}
	packet.Equal(t, out, want)
	if t.Failed() {
		t.Fatalf("%s, from\n%s", what, packet.Describe(in))
	}
}

// changed names the reasons that have counted.
func (p *podLab) changed(t *testing.T, before counts) (names string) {
	t.Helper()
	for i, c := range p.counts(t).reasons {
		if c.Packets != before.reasons[i].Packets {
			names += reasonName(t, bpfHostReason(i))
		}
	}
	return names
}

// memory is what the programs remember, as the agent has it.
func (p *podLab) memory() *podMemory {
	return &podMemory{opening: p.PodOpening, flows: p.PodFlows, datagrams: p.PodDatagrams}
}

// established counts connections that no flood pushes out.
func (p *podLab) established(t *testing.T) (n int) {
	t.Helper()
	if err := eachEntry(p.PodFlows, func(_ bpfPodFlow, way bpfPodWay) {
		if way.Kind == uint8(bpfPodWayKindPOD_ARRIVING) {
			n++
		}
	}); err != nil {
		t.Fatal(err)
	}
	return n
}
