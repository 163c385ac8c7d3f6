package agent

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/contents"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// spoken is a segment of a client's, or of its pod's.
type spoken struct {
	ofPod    bool
	flags    uint8
	seq, ack uint32
	text     string
}

func says(flags uint8, seq, ack uint32) spoken { return spoken{false, flags, seq, ack, ""} }

func answers(flags uint8, seq, ack uint32, text string) spoken {
	return spoken{true, flags, seq, ack, text}
}

// speak gives the host a segment, whatever becomes of it.
func (c podTalk) speak(t *testing.T, s spoken) {
	t.Helper()
	if s.ofPod {
		run(t, c.HostEgress, build(frame{ether}, ended(c.first, c.from, s.flags, s.seq, s.ack, s.text)), nil)
		return
	}
	run(t, c.HostIngress, gue(c.director, c.host, podRow(1, c.here(c.first)), ended(c.from, c.vip, s.flags, s.seq, s.ack, s.text)), nil)
}

// TestPodsProof is the table of what makes a connection to a pod one that stays: only what client
// and pod can say alone. The client's first number is 100, the pod's 900.
func TestPodsProof(t *testing.T) {
	const syn, ack, psh, rst = packet.SYN, packet.ACK, packet.PSH, packet.RST
	synAck := answers(syn|ack, 900, 101, "")
	labs := podLabs(t)
	for i, row := range []struct {
		name   string
		spoken []spoken
		stays  bool
	}{
		{"handshake", []spoken{says(syn, 100, 0), synAck, says(ack, 101, 901)}, true},
		{"handshake, and the SYN-ACK is sent again", []spoken{says(syn, 100, 0), synAck, synAck, says(ack, 101, 901)}, true},
		{"first data, and the ACK before it is lost", []spoken{says(syn, 100, 0), synAck, says(ack|psh, 101, 901)}, true},
		{"the pod acknowledges data", []spoken{says(syn, 100, 0), synAck, says(ack|psh, 101, 5), answers(ack, 901, 105, "")}, true},
		{"another SYN, which the pod answers", []spoken{says(syn, 100, 0), says(syn, 7000, 0), answers(syn|ack, 900, 7001, ""), says(ack, 7001, 901)}, true},
		{"begun before the host remembered, and both go on", []spoken{says(ack|psh, 101, 901), answers(ack, 901, 105, "answer"), says(ack, 105, 907)}, true},
		{"begun before, and the pod acknowledges more", []spoken{says(ack|psh, 101, 901), answers(ack, 901, 105, ""), says(ack|psh, 105, 5), answers(ack, 901, 109, "")}, true},

		{"SYN alone", []spoken{says(syn, 100, 0)}, false},
		{"SYN and SYN-ACK", []spoken{says(syn, 100, 0), synAck}, false},
		{"ACK of another number", []spoken{says(syn, 100, 0), synAck, says(ack, 101, 900)}, false},
		{"ACK of a number far away", []spoken{says(syn, 100, 0), synAck, says(ack, 101, 12345)}, false},
		{"right ACK, out of the window", []spoken{says(syn, 100, 0), synAck, says(ack, 101+1<<24, 901)}, false},
		{"PSH without ACK", []spoken{says(syn, 100, 0), synAck, says(psh, 101, 901)}, false},
		{"RST with the right number", []spoken{says(syn, 100, 0), synAck, says(rst|ack, 101, 901)}, false},
		{"SYN-ACK of the client", []spoken{says(syn, 100, 0), synAck, says(syn|ack, 101, 901)}, false},
		{"one side alone", []spoken{says(ack, 101, 901), says(ack|psh, 101, 901), says(ack, 105, 901)}, false},
		{"a listener that answers what is out of the window", []spoken{says(syn, 100, 0), synAck, says(ack, 1<<24, 5), answers(ack, 901, 101, ""), says(ack, 101, 5)}, false},
		{"the same twice", []spoken{says(syn, 100, 0), synAck, says(ack, 1<<24, 5), answers(ack, 901, 101, ""), says(ack, 101, 5), answers(ack, 901, 101, ""), says(ack, 101, 6)}, false},
		{"the same, and the SYN is forgotten", []spoken{says(ack, 1<<24, 5), answers(ack, 901, 101, ""), says(ack, 101, 5), answers(ack, 901, 101, ""), says(ack, 101, 6)}, false},
		{"a listener that waits since another SYN", []spoken{says(syn, 100, 0), answers(ack, 901, 40001, "")}, false},
		{"the same twice, and a segment between", []spoken{says(syn, 100, 0), answers(ack, 901, 40001, ""), says(ack, 101, 5), answers(ack, 901, 40001, "")}, false},
		{"the same after a segment of nobody's", []spoken{says(ack, 100, 5), says(syn, 100, 0), answers(ack, 901, 40001, ""), says(syn, 200, 0), answers(ack, 901, 40001, "")}, false},
		{"refused", []spoken{says(syn, 100, 0), answers(rst|ack, 0, 101, ""), says(ack, 101, 1)}, false},
	} {
		for name, p := range labs {
			t.Run(row.name+", "+name, func(t *testing.T) {
				c, before := p.talk(uint16(4000+i)), p.established(t)
				for _, s := range row.spoken {
					c.speak(t, s)
				}
				if stays := p.established(t) > before; stays != row.stays {
					t.Errorf("the connection stays: %v, want %v", stays, row.stays)
				}
			})
		}
	}
}

// TestPodsAnswer: if the pod sends a segment that only the end of a connection can send, this host
// gets all segments of that connection, although its SYN has not come here. Else segments that
// acknowledge bytes that the pod has not sent go on to the next host.
func TestPodsAnswer(t *testing.T) {
	const syn, ack, fin = packet.SYN, packet.ACK, packet.FIN
	labs := podLabs(t)
	for i, row := range []struct {
		name   string
		spoken []spoken
		here   bool
	}{
		{"data", []spoken{says(ack, 101, 901), answers(ack, 901, 105, "answer")}, true},
		{"FIN", []spoken{says(ack, 101, 901), answers(fin|ack, 901, 105, "")}, true},
		{"the client acknowledges what the pod has sent", []spoken{says(ack, 101, 901), answers(ack, 901, 105, ""), says(ack, 105, 901)}, true},
		{"the pod acknowledges more", []spoken{says(ack, 101, 901), answers(ack, 901, 105, ""), answers(ack, 901, 109, "")}, true},

		{"nothing", []spoken{says(ack, 101, 901)}, false},
		{"a listener's bare ACK", []spoken{says(ack, 1<<24, 5), answers(ack, 901, 101, "")}, false},
		{"the same twice", []spoken{says(ack, 1<<24, 5), answers(ack, 901, 101, ""), says(ack, 1<<24, 6), answers(ack, 901, 101, "")}, false},
		{"SYN-ACK that is sent again", []spoken{says(ack, 101, 5), answers(syn|ack, 900, 101, "")}, false},
	} {
		for name, p := range labs {
			t.Run(row.name+", "+name, func(t *testing.T) {
				c := p.talk(uint16(4300 + i))
				for _, s := range row.spoken {
					c.speak(t, s)
				}
				before, want := p.counts(t), bpfHostReasonHOST_PASSED_ON
				if row.here {
					want = bpfHostReasonHOST_DECAP_POD
				}
				in := gue(p.director, p.host, podRow(1, p.here(p.first), candidate{p.peer, p.elsewhere}), ended(c.from, c.vip, ack, 105, 7777, ""))
				run(t, p.HostIngress, in, nil)
				if got := p.changed(t, before); got != reasonName(t, want) {
					t.Errorf("a segment with a number that the pod has not sent is counted as %s, want %s", got, reasonName(t, want))
				}
			})
		}
	}
}

// TestPodsEnds: while a connection is opened and afterwards, a client's FIN or RST counts within
// the window alone.
func TestPodsEnds(t *testing.T) {
	const far = 101 + 1<<24
	p := newPodLab(t, true, true)
	for i, row := range []struct {
		name  string
		open  bool
		flags uint8
		seq   uint32
		want  bpfPodSign
	}{
		{"RST while it is opened", false, packet.RST, 101, bpfPodSignPOD_RESET},
		{"RST while it is opened, out of the window", false, packet.RST, far, 0},
		{"RST", true, packet.RST, 101, bpfPodSignPOD_RESET},
		{"RST out of the window", true, packet.RST, far, 0},
		{"FIN", true, packet.FIN | packet.ACK, 101, bpfPodSignPOD_FIN_CLIENT},
		{"FIN out of the window", true, packet.FIN | packet.ACK, far, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := p.talk(uint16(4100 + i))
			c.speak(t, says(packet.SYN, 100, 0))
			c.speak(t, answers(packet.SYN|packet.ACK, 900, 101, ""))
			m := p.PodOpening
			if row.open {
				c.speak(t, says(packet.ACK, 101, 901))
				m = p.PodFlows
			}
			c.speak(t, says(row.flags, row.seq, 901))
			const ends = uint8(bpfPodSignPOD_RESET | bpfPodSignPOD_FIN_CLIENT)
			found := false
			if err := eachEntry(m, func(flow bpfPodFlow, way bpfPodWay) {
				if flow.ClientPort != networkOrder(c.from.Port()) {
					return
				}
				found = true
				if way.Kind == uint8(bpfPodWayKindPOD_ARRIVING) && way.Signs&ends != uint8(row.want) {
					t.Errorf("signs are %#x, want of the ends %#x", way.Signs, row.want)
				}
			}); err != nil {
				t.Fatal(err)
			}
			if !found {
				t.Error("the connection is not where it is looked for")
			}
		})
	}
}

// takeTurns lets a client and a pod speak in turn.
func (p *podLab) takeTurns(t *testing.T, from netip.AddrPort, turns int) {
	t.Helper()
	vip := netip.AddrPortFrom(p.vip, 53)
	for range turns {
		run(t, p.HostIngress, gue(p.director, p.host, podRow(1, p.here(p.dnsFirst)), datagram(from, vip, "?")), nil)
		run(t, p.HostEgress, build(frame{ether}, datagram(p.dnsFirst, from, "!")), nil)
	}
}

// waitForProof waits until flows of UDP that have just begun may stay.
func waitForProof() {
	for began := now(); now()-began < 3100*time.Millisecond; {
		runtime.Gosched()
	}
}

// TestPodDatagramsOutliveAFlood: a flow of UDP in which client and pod have taken turns for a while
// stays with its pod, whatever others send meanwhile, and whichever pod is picked. One that was
// answered once does not.
func TestPodDatagramsOutliveAFlood(t *testing.T) {
	runtime.LockOSThread() // and never unlocked: the thread keeps its one CPU
	var one unix.CPUSet
	one.Set(0)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatalf("stay on one CPU: %v", err)
	}
	p := newPodLab(t, true, true)
	vip := netip.AddrPortFrom(p.vip, 53)
	var talks []netip.AddrPort
	for port := range uint16(64) {
		talks = append(talks, netip.AddrPortFrom(p.client, 3000+port))
	}
	for _, from := range talks {
		p.takeTurns(t, from, 5)
	}
	if n := p.established(t); n != 0 {
		t.Errorf("%d flows stay at once", n)
	}
	waitForProof()
	for _, from := range talks {
		p.takeTurns(t, from, 1)
	}
	if n := p.established(t); n != len(talks) {
		t.Fatalf("%d flows stay, want %d", n, len(talks))
	}
	flood := p.PodOpening.MaxEntries()
	for i := range flood {
		forged := netip.AddrPortFrom(netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 0xcb007100+i))), 999)
		in := gue(p.director, p.host, podRow(1, p.here(p.dnsFirst)), datagram(forged, vip, "?"))
		if verdict, _ := run(t, p.HostIngress, in, nil); verdict != tcNext {
			t.Fatalf("the verdict about datagram %d is %d", i, verdict)
		}
		run(t, p.HostEgress, build(frame{ether}, datagram(p.dnsFirst, forged, "!")), nil)
	}
	if n := p.established(t); n != len(talks) {
		t.Errorf("%d flows stay after the flood, want %d", n, len(talks))
	}
	for _, from := range talks {
		row := podRow(1, p.here(p.dnsSecond), p.here(p.dnsFirst))
		p.arrives(t, "after the flood", gue(p.director, p.host, row, datagram(from, vip, "?")), decapPod, build(frame{ether}, datagram(from, p.dnsFirst, "?")))
		p.leaves(t, "after the flood", build(frame{ether}, datagram(p.dnsFirst, from, "!")), podReply, build(frame{ether}, datagram(vip, from, "!")))
	}
}

// TestPodQuotas: a service that has most of the flows leaves room for others; its own go on as
// they began, and stay once there is room.
func TestPodQuotas(t *testing.T) {
	p := newPodLab(t, true, true)
	most := p.PodFlows.MaxEntries() / 2
	index := p.indexes[identity{podVIP4, model.TCP, model.PortRange{First: 80, Last: 80}}]
	set := func(all, own uint32) {
		t.Helper()
		if err := contents.Put(p.PodQuotas, map[uint32]bpfHostQuota{0: {Counted: all}, index: {Counted: own}}); err != nil {
			t.Fatal(err)
		}
	}
	opens := func(c podTalk) bool {
		t.Helper()
		before := p.established(t)
		c.speak(t, says(packet.SYN, 100, 0))
		c.speak(t, answers(packet.SYN|packet.ACK, 900, 101, ""))
		c.speak(t, says(packet.ACK, 101, 901))
		c.says(t, "it is served", podRow(1, p.here(p.second)), packet.ACK, 101, 901, decapPod, p.first)
		return p.established(t) > before
	}
	set(most-100, 399)
	if !opens(p.talk(4200)) {
		t.Error("a service with less than four times what is free gets no room")
	}
	if opens(p.talk(4201)) {
		t.Error("a service with four times what is free gets room")
	}
	set(most, 0)
	if opens(p.talk(4202)) {
		t.Error("there is room where there is none")
	}
	set(most-1, 3)
	if !opens(p.talk(4203)) {
		t.Error("another service gets no room")
	}
	set(0, 0)
	waiting := p.talk(4201)
	before := p.established(t)
	waiting.speak(t, says(packet.ACK, 101, 901))
	if n := p.established(t); n != before+1 {
		t.Errorf("%d connections stay, want %d: one has waited for room", n, before+1)
	}
}
