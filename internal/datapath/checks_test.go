package datapath

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// checkContext is struct __sk_buff up to what the programs read (linux/bpf.h).
type checkContext struct {
	Length, PacketType, Mark, QueueMapping, Protocol, VLANPresent, VLANTCI, VLANProto, Priority, Ingress, Ifindex uint32
	_                                                                                                             [136]byte
}

// The verdicts of tc (linux/pkt_cls.h).
const (
	tcUnspecified = ^uint32(0)
	tcShot        = 2
	tcRedirect    = 7
)

// testChecks sends frames of sockets through the program that leads health checks, and
// wants what the director's program makes of a client's frames.
func testChecks(t *testing.T) {
	spec, err := ebpf.LoadCollectionSpec("checks/check_bpfel.o")
	if err != nil {
		t.Fatal(err)
	}
	verdicts, err := bpfload.EnumNames(spec.Types, "check_verdict", "CHECK_")
	must(t, err)
	ways := "check_ways"
	spec.Maps[ways].MaxEntries = 64
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatalf("load check.bpf.o: %+v", err)
	}
	defer c.Close()
	run := func(t *testing.T, frame []byte, mark, number uint32) (uint32, []byte) {
		t.Helper()
		o := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256), Context: checkContext{Mark: mark, Priority: number}}
		verdict, err := c.Programs["send_check"].Run(o)
		if err != nil {
			t.Fatal(err)
		}
		return verdict, o.DataOut
	}
	counted := func(t *testing.T, want string, run func()) {
		t.Helper()
		var before, after []uint64
		for _, into := range []*[]uint64{&before, &after} {
			if err := c.Maps["check_verdicts"].Lookup(uint32(slices.Index(verdicts, want)), into); err != nil {
				t.Fatal(err)
			}
			if into == &before {
				run()
			}
		}
		if sum(after) != sum(before)+1 {
			t.Errorf("verdict %s was counted %d times, not once", want, sum(after)-sum(before))
		}
	}
	number := uint32(0)
	for _, inner4 := range []bool{true, false} {
		for _, outer4 := range []bool{true, false} {
			for _, mode := range []model.Mode{model.L2DSR, model.IPIP, model.GUE} {
				if mode == model.L2DSR && inner4 != outer4 {
					continue
				}
				number++
				s := &testService{vip: vipAddress(inner4, 1), first: number, backends: []testBackend{{mode: mode, address: backendAddress(outer4, int(number)), ifindex: ingress}}}
				if err := c.Maps[ways].Put(number, checkEntry{To: s.abiBackend(0), Settings: (&testWorld{}).abiSettings()}); err != nil {
					t.Fatal(err)
				}
				for _, header := range []packet.Header{packet.TCPHeader{Src: clientPort, Dst: servicePort, Flags: packet.SYN}, packet.UDPHeader{Src: clientPort, Dst: servicePort}, packet.SCTPHeader{Src: clientPort, Dst: servicePort}} {
					in := build(ip(clientOf(inner4), s.vip), header, packet.Text("odd"))
					t.Run(fmt.Sprintf("%v to %v, %v, %T", mode, s.backends[0].address, s.vip, header), func(t *testing.T) {
						counted(t, "sent", func() {
							verdict, out := run(t, in, 1, number)
							if verdict != tcRedirect {
								t.Fatalf("verdict %d", int32(verdict))
							}
							s.checkLed(t, in, out)
						})
					})
				}
			}
		}
	}
	frame := build(ip(clientOf(true), vipAddress(true, 1)), packet.TCPHeader{Src: 40000, Dst: 80, Flags: packet.SYN})
	arp := packet.Build(packet.EthernetHeader{Dst: clientMAC, Src: ownMAC, Type: packet.EtherTypeARP}, packet.Zeros(46))
	for _, row := range []struct {
		name         string
		frame        []byte
		mark, number uint32
		verdict      uint32
		counted      string
	}{
		{"nobody's way", frame, 1, 1000, tcShot, "no_way"},
		{"no mark", frame, 0, 1, tcUnspecified, "not_marked"},
		{"not IP", arp, 1, 1, tcShot, "not_ip"},
	} {
		t.Run(row.name, func(t *testing.T) {
			counted(t, row.counted, func() {
				verdict, out := run(t, row.frame, row.mark, row.number)
				if verdict != row.verdict {
					t.Errorf("verdict %d, want %d", int32(verdict), int32(row.verdict))
				}
				packet.Equal(t, out, row.frame)
			})
		})
	}
}

// checkLed wants the headers of a way before a packet that stays as it is.
func (s *testService) checkLed(t *testing.T, in, out []byte) {
	t.Helper()
	if err := packet.VerifyChecksums(out); err != nil {
		t.Error(err)
	}
	b, inner := s.backends[0], in[14:]
	checkers := []packet.Checker{packet.Ether(backendMAC(s.first), egressMAC)}
	sources, protocol := tunnel6, uint8(packet.ProtocolIPv6)
	if b.address.Is4() {
		sources = tunnel4
	}
	if s.vip.Is4() {
		protocol = packet.ProtocolIPv4
	}
	switch b.mode {
	case model.GUE:
		at := len(out) - len(inner) - 12
		if at < 14 {
			t.Fatalf("%d bytes", len(out))
		}
		port := binary.BigEndian.Uint16(out[at:])
		if port < 49152 {
			t.Errorf("comes from port %d", port)
		}
		if sum := binary.BigEndian.Uint16(out[at+6:]); (sum != 0) != (b.address.Is6() && inner[protocolAt(inner)] != packet.ProtocolSCTP) {
			t.Errorf("has UDP checksum %#x", sum)
		}
		checkers = append(checkers, packet.Tunnel(sources, b.address, packet.TTL(64), packet.TOS(tos(inner))), packet.UDP(port, 6080), packet.GUE(protocol, nil))
	case model.IPIP:
		checkers = append(checkers, packet.Tunnel(sources, b.address, packet.TTL(64), packet.TOS(tos(inner))))
	}
	packet.Check(t, out, append(checkers, packet.IP(clientOf(s.vip.Is4()), s.vip), packet.Anything())...)
	if !bytes.Equal(out[len(out)-len(inner):], inner) {
		t.Errorf("the packet inside has changed: %x", out)
	}
}

// protocolAt is where an IP header names what follows it.
func protocolAt(ip []byte) int {
	if ip[0]>>4 == 4 {
		return 9
	}
	return 6
}

func sum(list []uint64) (total uint64) {
	for _, n := range list {
		total += n
	}
	return total
}
