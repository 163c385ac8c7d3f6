package packet

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/ip4defrag"
	"github.com/gopacket/gopacket/layers"
)

var (
	macA = [6]byte{2, 0, 0, 0, 0, 0xa}
	macB = [6]byte{2, 0, 0, 0, 0, 0xb}
	a4   = netip.MustParseAddr("192.0.2.1")
	b4   = netip.MustParseAddr("198.51.100.2")
	a6   = netip.MustParseAddr("2001:db8::1")
	b6   = netip.MustParseAddr("2001:db8:1::2")
	eth  = EthernetHeader{Dst: macB, Src: macA}
)

// Each stack is read back by gopacket, header by header, with right checksums.
func TestBuildIsReadByGopacket(t *testing.T) {
	ip4 := IPv4Header{Src: a4, Dst: b4, TTL: 63, TOS: 0x2e<<2 | 1, ID: 7, DF: true}
	ip6 := IPv6Header{Src: a6, Dst: b6, HopLimit: 9, TrafficClass: 3, FlowLabel: 0xabcde}
	tcp := TCPHeader{Src: 1234, Dst: 80, Seq: 1, Ack: 2, Flags: SYN | ECE, Window: 512, Options: []byte{2, 4, 5, 0xb4}}
	odd := Text("odd")
	for name, row := range map[string]struct {
		headers  []Header
		checkers []Checker
	}{
		"tcp over ipv4": {[]Header{eth, ip4, tcp, odd},
			[]Checker{Ether(macB, macA), IP(a4, b4, TTL(63), TOS(0x2e<<2|1)), TCP(1234, 80, TCPFlags(SYN|ECE), MSS(1460)), Payload(odd)}},
		"tcp over ipv6 with a tag": {[]Header{eth, VLANTag{ID: 100, Priority: 3}, ip6, tcp, odd},
			[]Checker{Ether(macB, macA), VLAN(100), IP(a6, b6, TTL(9), TOS(3)), TCP(1234, 80), Payload(odd)}},
		"two tags, options": {[]Header{eth, VLANTag{TPID: EtherTypeQinQ, ID: 100}, VLANTag{ID: 200},
			IPv4Header{Src: a4, Dst: b4, Options: []byte{7, 7, 4, 0, 0, 0, 0, 0}}, UDPHeader{Src: 5, Dst: 54}, odd},
			[]Checker{Ether(macB, macA), VLAN(100), VLAN(200), IP(a4, b4), UDP(5, 54), Payload(odd)}},
		"ipv6 in ipv4": {[]Header{eth, ip4, ip6, tcp},
			[]Checker{Ether(macB, macA), Tunnel(netip.MustParsePrefix("192.0.2.0/24"), b4), IP(a6, b6), TCP(1234, 80)}},
		"ipv4 in ipv6": {[]Header{eth, ip6, ip4, tcp},
			[]Checker{Ether(macB, macA), IP(a6, b6), IP(a4, b4), TCP(1234, 80)}},
		"gue": {[]Header{eth, ip6, UDPHeader{Src: 50000, Dst: 6080}, GUEHeader{Private: []byte{1, 2, 3, 4}}, ip4, tcp, odd},
			[]Checker{Ether(macB, macA), IP(a6, b6), UDP(0, 6080), GUE(ProtocolIPv4, []byte{1, 2, 3, 4}), IP(a4, b4), TCP(1234, 80), Payload(odd)}},
		"echo": {[]Header{eth, ip4, ICMPv4Header{Type: EchoRequest, Rest: EchoID(1, 2)}, odd},
			[]Checker{Ether(macB, macA), IP(a4, b4), ICMPv4(EchoRequest, 0, EchoID(1, 2)), Payload(odd)}},
		"echo over ipv6": {[]Header{eth, ip6, ICMPv6Header{Type: EchoRequest6, Rest: EchoID(1, 2)}, odd},
			[]Checker{Ether(macB, macA), IP(a6, b6), ICMPv6(EchoRequest6, 0, EchoID(1, 2)), Payload(odd)}},
		"icmp error": {[]Header{eth, ip4, ICMPv4Header{Type: Unreachable, Code: FragmentationNeeded, Rest: 1400}, Quote(8, ip4, tcp, odd)},
			[]Checker{Ether(macB, macA), IP(a4, b4), ICMPv4(Unreachable, FragmentationNeeded, 1400), IP(a4, b4), Anything()}},
		"icmpv6 error": {[]Header{eth, ip6, ICMPv6Header{Type: PacketTooBig, Rest: 1400}, Quote(100, ip6, tcp, odd)},
			[]Checker{Ether(macB, macA), IP(a6, b6), ICMPv6(PacketTooBig, 0, 1400), IP(a6, b6), TCP(1234, 80), Payload(odd)}},
		"extension headers": {[]Header{eth, ip6, ExtensionHeader{Kind: HopByHop, Data: []byte{5, 2, 0, 0}}, ExtensionHeader{Kind: DestOptions}, tcp, odd},
			[]Checker{Ether(macB, macA), IP(a6, b6), Anything()}},
	} {
		t.Run(name, func(t *testing.T) {
			frame := Build(row.headers...)
			Check(t, frame, row.checkers...)
			if err := VerifyChecksums(frame); err != nil {
				t.Error(err)
			}
			p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
			if p.ErrorLayer() != nil && !strings.Contains(name, "icmp error") {
				t.Errorf("gopacket cannot decode the frame: %v", p.ErrorLayer().Error())
			}
		})
	}
}

// Headers worked out by others or by hand from the standard: what
// is built from their fields must be the same bytes.
func TestBuildKnownFrames(t *testing.T) {
	for name, row := range map[string]struct {
		want    string
		headers []Header
	}{
		// An IPv4 header whose checksum is worked out in many textbooks.
		"ipv4": {"4500 0073 0000 4000 4011 b861 c0a8 0001 c0a8 00c7", []Header{IPv4Header{
			Src: netip.MustParseAddr("192.168.0.1"), Dst: netip.MustParseAddr("192.168.0.199"), DF: true, Protocol: ProtocolUDP, Length: 0x73}}},
		// RFC 792 echo, checksum by hand: 0800 + 0001 + 0001 = 0802.
		"icmp echo": {"0800 f7fd 0001 0001", []Header{ICMPv4Header{Type: EchoRequest, Rest: EchoID(1, 1)}}},
		// draft-ietf-intarea-gue-09 section 3.1: variant 0, hlen 1, IPv4 inside.
		"gue": {"0104 0000 0102 0304", []Header{GUEHeader{Protocol: ProtocolIPv4, Private: []byte{1, 2, 3, 4}}}},
		// RFC 8200 section 4.5, RFC 4302 section 2.2 (96-bit ICV: length 4).
		"ipv6 fragment": {"1100 05a9 0000 002a", []Header{FragmentHeader{Next: ProtocolUDP, Offset: 1448, More: true, ID: 42}}},
		"ah":            {"3b04 0000 0000 0001 0000 0002 0101 0101 0101 0101 0101 0101", []Header{AuthHeader{SPI: 1, Sequence: 2, ICV: []byte{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}}}},
	} {
		t.Run(name, func(t *testing.T) {
			want, err := hex.DecodeString(strings.ReplaceAll(row.want, " ", ""))
			if err != nil {
				t.Fatal(err)
			}
			if got := Build(row.headers...); hex.EncodeToString(got) != hex.EncodeToString(want) {
				t.Errorf("built %x, want %x", got, want)
			}
		})
	}
}

// Every single flipped bit under a checksum is found.
func TestVerifyChecksumsFindsEveryBit(t *testing.T) {
	for name, headers := range map[string][]Header{
		"udp in gue": {eth, IPv4Header{Src: a4, Dst: b4}, UDPHeader{Src: 1, Dst: 6080}, GUEHeader{},
			IPv6Header{Src: a6, Dst: b6}, UDPHeader{Src: 9, Dst: 10}, Text("hello")},
		"tcp in ipip": {eth, IPv4Header{Src: a4, Dst: b4}, IPv4Header{Src: b4, Dst: a4}, TCPHeader{Src: 9, Dst: 10}, Text("hello")},
		"icmpv6":      {eth, IPv6Header{Src: a6, Dst: b6}, ICMPv6Header{Type: EchoReply6}, Text("hello")},
	} {
		t.Run(name, func(t *testing.T) {
			frame := Build(headers...)
			for i := len(frame) - 5; i < len(frame); i++ {
				for bit := range 8 {
					frame[i] ^= 1 << bit
					if VerifyChecksums(frame) == nil {
						t.Errorf("byte %d bit %d flipped and not found", i, bit)
					}
					frame[i] ^= 1 << bit
				}
			}
			if err := VerifyChecksums(frame); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestUDPWithoutChecksum(t *testing.T) {
	none := UDPHeader{Src: 1, Dst: 2, NoChecksum: true}
	tunnel := UDPHeader{Src: 1, Dst: 6080, NoChecksum: true}
	inner := []Header{GUEHeader{}, IPv4Header{Src: a4, Dst: b4}, UDPHeader{Src: 1, Dst: 2}}
	for name, row := range map[string]struct {
		headers []Header
		right   bool
	}{
		"ipv4":          {[]Header{eth, IPv4Header{Src: a4, Dst: b4}, none}, true},
		"ipv6":          {[]Header{eth, IPv6Header{Src: a6, Dst: b6}, none}, false},
		"tunnel, ipv6":  {append([]Header{eth, IPv6Header{Src: a6, Dst: b6}, tunnel}, inner...), true},
		"cut off":       {[]Header{eth, IPv4Header{Src: a4, Dst: b4, Length: 100}, UDPHeader{Src: 1, Dst: 2}}, false},
		"quote cut off": {[]Header{eth, IPv4Header{Src: a4, Dst: b4}, ICMPv4Header{Type: TimeExceeded}, Quote(8, IPv4Header{Src: a4, Dst: b4}, none, Zeros(40))}, true},
	} {
		if err := VerifyChecksums(Build(row.headers...)); (err == nil) != row.right {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFragmentsReassemble(t *testing.T) {
	headers := []Header{eth, IPv4Header{Src: a4, Dst: b4}, UDPHeader{Src: 1, Dst: 2}, Zeros(3000)}
	defrag := ip4defrag.NewIPv4Defragmenter()
	var whole *layers.IPv4
	for _, f := range Fragments(77, 1480, headers...) {
		p := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default)
		out, err := defrag.DefragIPv4(p.NetworkLayer().(*layers.IPv4))
		if err != nil {
			t.Fatal(err)
		}
		whole = out
	}
	if whole == nil {
		t.Fatal("fragments do not make a packet")
	}
	if want := Build(headers...)[34:]; string(whole.Payload) != string(want) {
		t.Errorf("reassembled %d bytes, want %d", len(whole.Payload), len(want))
	}
	six := Fragments(77, 1448, eth, IPv6Header{Src: a6, Dst: b6}, UDPHeader{Src: 1, Dst: 2}, Zeros(3000))
	if len(six) != 3 {
		t.Fatalf("%d fragments, want 3", len(six))
	}
	for i, f := range six {
		if err := VerifyChecksums(f); err != nil {
			t.Errorf("fragment %d: %v", i, err)
		}
		var h layers.IPv6Fragment
		if err := h.DecodeFromBytes(f[54:], gopacket.NilDecodeFeedback); err != nil {
			t.Fatal(err)
		}
		if int(h.FragmentOffset)*8 != i*1448 || h.MoreFragments != (i < 2) || h.Identification != 77 {
			t.Errorf("fragment %d: %+v", i, h)
		}
	}
}

func TestMessagesNameTheField(t *testing.T) {
	frame := Build(eth, IPv4Header{Src: a4, Dst: b4}, TCPHeader{Src: 1, Dst: 2})
	for want, err := range map[string]error{
		"header 2 (IPv4): TTL is 64, want 63":                    Match(frame, Ether(macB, macA), IP(a4, b4, TTL(63)), Anything()),
		"header 3 (TCP): TCP where UDP is expected":              Match(frame, Ether(macB, macA), IP(a4, b4), UDP(1, 2)),
		"header 1 (Ethernet): source is 02:00:00:00:00:0a, want": Match(frame, Ether(macB, macB)),
		"20 bytes (TCP) follow the last header":                  Match(frame, Ether(macB, macA), IP(a4, b4)),
	} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
	other := Build(eth, IPv4Header{Src: a4, Dst: b4, TTL: 63}, TCPHeader{Src: 1, Dst: 2})
	if d := Diff(frame, other); !strings.Contains(d, "IPv4: TTL=64, want TTL=63") {
		t.Errorf("diff does not name the TTL:\n%s", d)
	}
	if d := Diff(frame, frame); d != "" {
		t.Errorf("equal frames differ: %s", d)
	}
}
