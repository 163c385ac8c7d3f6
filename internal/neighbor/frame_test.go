package neighbor

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

var (
	ownMAC, otherMAC = mac{2, 0, 0, 0, 0, 1}, mac{2, 0, 0, 0, 0, 2}
	vip4, other4     = netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("203.0.113.7")
	vip6, other6     = netip.MustParseAddr("2001:db8::10"), netip.MustParseAddr("2001:db8::7")
)

// frameOf writes layers as another program than weir does, with lengths and checksums.
func frameOf(t *testing.T, list ...gopacket.SerializableLayer) []byte {
	t.Helper()
	buffer := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, list...); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

func arpFrame(t *testing.T, operation uint16, sender, target netip.Addr) []byte {
	return frameOf(t, &layers.Ethernet{SrcMAC: otherMAC[:], DstMAC: broadcast[:], EthernetType: layers.EthernetTypeARP},
		&layers.ARP{AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4, Operation: operation,
			SourceHwAddress: otherMAC[:], SourceProtAddress: sender.AsSlice(), DstHwAddress: make([]byte, 6), DstProtAddress: target.AsSlice()})
}

// ndpFrame is what an NDP message comes in, from a host and with the hop limit.
func ndpFrame(t *testing.T, source, destination netip.Addr, hops uint8, kind uint8, message gopacket.SerializableLayer) []byte {
	ip := &layers.IPv6{Version: 6, NextHeader: layers.IPProtocolICMPv6, HopLimit: hops, SrcIP: source.AsSlice(), DstIP: destination.AsSlice()}
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind, 0)}
	if err := icmp.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	return frameOf(t, &layers.Ethernet{SrcMAC: otherMAC[:], DstMAC: ownMAC[:], EthernetType: layers.EthernetTypeIPv6}, ip, icmp, message)
}

func option(kind layers.ICMPv6Opt, a mac) layers.ICMPv6Options {
	return layers.ICMPv6Options{{Type: kind, Data: a[:]}}
}

func TestParse(t *testing.T) {
	var nobody netip.Addr
	third := mac{2, 0, 0, 0, 0, 3}
	ask := func(target netip.Addr, options layers.ICMPv6Options) gopacket.SerializableLayer {
		return &layers.ICMPv6NeighborSolicitation{TargetAddress: target.AsSlice(), Options: options}
	}
	say := func(flags uint8, options layers.ICMPv6Options) gopacket.SerializableLayer {
		return &layers.ICMPv6NeighborAdvertisement{Flags: flags, TargetAddress: vip6.AsSlice(), Options: options}
	}
	group, unspecified := solicitedNode(vip6), netip.IPv6Unspecified()
	source := option(layers.ICMPv6OptSourceAddress, third)
	damaged := ndpFrame(t, other6, group, 255, neighborSolicitation, ask(vip6, source))
	damaged[len(damaged)-1] ^= 1
	for name, test := range map[string]struct {
		frame []byte
		want  heard
		no    bool
	}{
		"an ARP request":                            {frame: arpFrame(t, arpRequest, other4, vip4), want: heard{vip4, other4, otherMAC}},
		"an ARP probe":                              {frame: arpFrame(t, arpRequest, netip.IPv4Unspecified(), vip4), want: heard{vip4, nobody, otherMAC}},
		"an ARP announcement":                       {frame: arpFrame(t, arpRequest, vip4, vip4), want: heard{nobody, vip4, otherMAC}},
		"an ARP reply":                              {frame: arpFrame(t, arpReply, vip4, other4), want: heard{nobody, vip4, otherMAC}},
		"another ARP operation":                     {frame: arpFrame(t, 3, other4, vip4), no: true},
		"an ARP probe for nothing":                  {frame: arpFrame(t, arpRequest, netip.IPv4Unspecified(), netip.IPv4Unspecified()), no: true},
		"a solicitation from a group":               {frame: ndpFrame(t, allNodes, group, 255, neighborSolicitation, ask(vip6, source)), no: true},
		"ARP that is cut short":                     {frame: arpFrame(t, arpRequest, other4, vip4)[:41], no: true},
		"a solicitation":                            {frame: ndpFrame(t, other6, group, 255, neighborSolicitation, ask(vip6, source)), want: heard{vip6, other6, third}},
		"a solicitation to the VIP, without option": {frame: ndpFrame(t, other6, vip6, 255, neighborSolicitation, ask(vip6, nil)), want: heard{vip6, other6, otherMAC}},
		"duplicate address detection":               {frame: ndpFrame(t, unspecified, group, 255, neighborSolicitation, ask(vip6, nil)), want: heard{vip6, nobody, otherMAC}},
		"the same with an address":                  {frame: ndpFrame(t, unspecified, group, 255, neighborSolicitation, ask(vip6, source)), no: true},
		"the same to the VIP":                       {frame: ndpFrame(t, unspecified, vip6, 255, neighborSolicitation, ask(vip6, nil)), no: true},
		"a solicitation from behind a router":       {frame: ndpFrame(t, other6, group, 254, neighborSolicitation, ask(vip6, source)), no: true},
		"a solicitation for a group":                {frame: ndpFrame(t, other6, group, 255, neighborSolicitation, ask(allNodes, source)), no: true},
		"a solicitation with a wrong checksum":      {frame: damaged, no: true},
		"an advertisement":                          {frame: ndpFrame(t, vip6, allNodes, 255, neighborAdvert, say(0x20, option(layers.ICMPv6OptTargetAddress, third))), want: heard{nobody, vip6, third}},
		"an answer to this host":                    {frame: ndpFrame(t, vip6, other6, 255, neighborAdvert, say(0x60, nil)), want: heard{nobody, vip6, otherMAC}},
		"an answer to everybody":                    {frame: ndpFrame(t, vip6, allNodes, 255, neighborAdvert, say(0x60, nil)), no: true},
		"an echo request":                           {frame: ndpFrame(t, other6, vip6, 255, layers.ICMPv6TypeEchoRequest, &layers.ICMPv6Echo{}), no: true},
		"nothing":                                   {no: true},
	} {
		got, ok := parse(test.frame)
		if ok == test.no || ok && got != test.want {
			t.Errorf("%s is heard as %+v, %v, want %+v", name, got, ok, test.want)
		}
	}
}

// decode reads a frame as another program than weir does.
func decode(t *testing.T, frame []byte) gopacket.Packet {
	t.Helper()
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	if e := p.ErrorLayer(); e != nil {
		t.Fatalf("%x is not understood: %v", frame, e.Error())
	}
	return p
}

func checkARP(t *testing.T, frame []byte, to mac, operation uint16, targetMAC mac, target netip.Addr) {
	t.Helper()
	p := decode(t, frame)
	ethernet, arp := p.Layer(layers.LayerTypeEthernet).(*layers.Ethernet), p.Layer(layers.LayerTypeARP).(*layers.ARP)
	if !bytes.Equal(ethernet.DstMAC, to[:]) || !bytes.Equal(ethernet.SrcMAC, ownMAC[:]) || arp.Operation != operation ||
		!bytes.Equal(arp.SourceHwAddress, ownMAC[:]) || !bytes.Equal(arp.SourceProtAddress, vip4.AsSlice()) ||
		!bytes.Equal(arp.DstHwAddress, targetMAC[:]) || !bytes.Equal(arp.DstProtAddress, target.AsSlice()) {
		t.Errorf("sent is %v", p)
	}
}

func checkAdvert(t *testing.T, frame []byte, to mac, destination netip.Addr, flags uint8) {
	t.Helper()
	p := decode(t, frame)
	ethernet, ip := p.Layer(layers.LayerTypeEthernet).(*layers.Ethernet), p.Layer(layers.LayerTypeIPv6).(*layers.IPv6)
	icmp, is := p.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6), p.Layer(layers.LayerTypeICMPv6NeighborAdvertisement)
	if is == nil {
		t.Fatalf("sent is %v", p)
	}
	message := is.(*layers.ICMPv6NeighborAdvertisement)
	if !bytes.Equal(ethernet.DstMAC, to[:]) || !bytes.Equal(ethernet.SrcMAC, ownMAC[:]) || ip.HopLimit != 255 ||
		!ip.SrcIP.Equal(vip6.AsSlice()) || !ip.DstIP.Equal(destination.AsSlice()) || message.Flags != flags ||
		!message.TargetAddress.Equal(vip6.AsSlice()) || len(message.Options) != 1 ||
		message.Options[0].Type != layers.ICMPv6OptTargetAddress || !bytes.Equal(message.Options[0].Data, ownMAC[:]) {
		t.Errorf("sent is %v", p)
	}
	if err := icmp.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	if mismatch, result := icmp.VerifyChecksum(); mismatch != nil || !result.Valid {
		t.Errorf("the checksum is wrong: %v, %+v", mismatch, result)
	}
}

func TestAnswer(t *testing.T) {
	checkARP(t, answer(heard{vip4, other4, otherMAC}, ownMAC), otherMAC, arpReply, otherMAC, other4)
	checkARP(t, answer(heard{asks: vip4, from: otherMAC}, ownMAC), otherMAC, arpReply, otherMAC, netip.IPv4Unspecified())
	checkAdvert(t, answer(heard{vip6, other6, otherMAC}, ownMAC), otherMAC, other6, 0x60)
	everybody := mac{0x33, 0x33, 0, 0, 0, 1}
	checkAdvert(t, answer(heard{asks: vip6, from: otherMAC}, ownMAC), everybody, allNodes, 0x20)
}

func TestAnnouncements(t *testing.T) {
	four := announcements(vip4, ownMAC)
	if len(four) != 2 {
		t.Fatalf("%d frames", len(four))
	}
	checkARP(t, four[0], broadcast, arpRequest, mac{}, vip4)
	checkARP(t, four[1], broadcast, arpReply, ownMAC, vip4)
	six := announcements(vip6, ownMAC)
	if len(six) != 1 {
		t.Fatalf("%d frames", len(six))
	}
	checkAdvert(t, six[0], mac{0x33, 0x33, 0, 0, 0, 1}, allNodes, 0x20)
}

// The example of RFC 4291 2.7.1, and where its Ethernet address goes by RFC 2464 7.
func TestSolicitedNode(t *testing.T) {
	group := solicitedNode(netip.MustParseAddr("4037::01:800:200e:8c6c"))
	if group != netip.MustParseAddr("ff02::1:ff0e:8c6c") {
		t.Errorf("the group is %v", group)
	}
	if m := multicast(group); net.HardwareAddr(m[:]).String() != "33:33:ff:0e:8c:6c" || m.String() != "33:33:ff:0e:8c:6c" {
		t.Errorf("its Ethernet address is %v", m)
	}
}

// Each frame that is understood asks or claims something, each question can be
// answered, and no frame does harm.
func FuzzParse(f *testing.F) {
	f.Add(announcements(vip4, ownMAC)[0])
	f.Add(announcements(vip6, ownMAC)[0])
	f.Fuzz(func(t *testing.T, frame []byte) {
		h, ok := parse(frame)
		if !ok {
			return
		}
		if !h.asks.IsValid() && !h.claims.IsValid() {
			t.Errorf("%x says nothing, and is heard", frame)
		}
		if h.asks.IsValid() {
			if a, ok := parse(answer(h, ownMAC)); !ok || a.claims != h.asks || a.from != ownMAC {
				t.Errorf("%x is answered by what is heard as %+v", frame, a)
			}
		}
	})
}
