// Package traffic is the two ends of a benchmark: a [Source] that sends packets as fast as one CPU
// can, or at a rate, and a [Sink] that counts them by backend and checks them. Both are XDP
// programs (lab/traffic/bpf/traffic.bpf.c); the kernel returns the source's frames to it when the sink has
// dropped them.
package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"weir.io/weir/internal/model"
)

// FCS is the length of an Ethernet frame's checksum, which frame lengths include by convention (RFC
// 2544) and which no program sees.
const FCS = 4

// IMIX is the simple Internet mix: IP packets of 40, 576 and 1500 bytes as 7 : 4 : 1,
// the smallest padded to Ethernet's minimum.
var IMIX = []int{64, 594, 64, 594, 64, 64, 1518, 64, 594, 64, 594, 64}

// IMIXByBytes is the same mix where 7 : 4 : 1 are the bytes that frames of each length have: 166 of 64
// bytes, 10 of 594 and one of 1,518.
var IMIXByBytes = func() (frames []int) {
	for i := range 177 {
		switch {
		case i == 88:
			frames = append(frames, 1518)
		case i%18 == 9:
			frames = append(frames, 594)
		default:
			frames = append(frames, 64)
		}
	}
	return frames
}()

// framesRoom is FRAME_SIZES_ROOM.
const framesRoom = 256

// tagLength is how long an 802.1Q tag is.
const tagLength = 4

// Traffic is what packets look like. The number of a packet's flow determines its source address
// and port, and its VIP.
type Traffic struct {
	IPv6     bool
	Protocol model.Protocol // TCP or UDP
	Flows    int
	VIPs     int    // flow n is sent to VIP n % VIPs
	Frames   []int  // lengths in turns, at most 256, without a tag
	VLAN     uint16 // of all frames, which are longer by their tag; 0: they have none
	// Overlay is the tunnel that all frames are in: they are longer by its headers.
	Overlay Overlay
	// SYNEvery makes one in this many TCP packets a SYN; the others have an ACK.
	SYNEvery int
	InTurn   bool // one flow after the other, not at random
	// Zipf makes the n-th largest flow have a share of the packets like n^-Zipf, see [Traffic.Order]; 0: all
	// have the same. It is above 1.
	Zipf float64
	// First is the number of the source's first flow, where sources share the traffic of a sink.
	First int
	// Asks gives every TCP packet a SYN's options, and the one that asks to be redirected. Frames
	// have length [AskingFrame].
	Asks bool
}

// AskingFrame is the length of a SYN over IPv4 that asks to be redirected, with Linux's 20 bytes of
// options and the 12 of that one. It has no data: a SYN with data is not redirected.
const AskingFrame = 14 + 20 + 52 + FCS

// Port is the port of every VIP.
const Port = 80

// sourceBits bits of a flow's number are its address, the others its port.
const (
	sourceBits      = 17
	sourcePortFirst = 1024
)

// The addresses with number 0. Sources are in the networks for benchmarks (RFC 2544 appendix C, RFC
// 5180), VIPs in those for documentation.
var (
	source4, source6   = netip.MustParseAddr("198.18.0.0"), netip.MustParseAddr("2001:2::")
	vip4, vip6         = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	backend4, backend6 = netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fd00:1::1")
)

// VIP returns the address of a VIP.
func VIP(n int, ipv6 bool) netip.Addr { return numbered(vip4, vip6, n, ipv6) }

// Backend returns the address of a backend.
func Backend(n int, ipv6 bool) netip.Addr { return numbered(backend4, backend6, n, ipv6) }

// BackendMAC returns the MAC address of a backend.
func BackendMAC(n int) net.HardwareAddr {
	address := Backend(n, false).As4()
	return append(net.HardwareAddr{0x02, 0x00}, address[:]...)
}

func numbered(base4, base6 netip.Addr, n int, ipv6 bool) netip.Addr {
	if ipv6 {
		b := base6.As16()
		binary.BigEndian.PutUint32(b[12:], binary.BigEndian.Uint32(b[12:])+uint32(n))
		return netip.AddrFrom16(b)
	}
	b := base4.As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
	return netip.AddrFrom4(b)
}

// Flow returns the fields by which a flow's packets are placed.
func (t Traffic) Flow(n int) model.Flow {
	tenant := t.Tenant(n)
	n /= t.Overlay.tenants()
	return model.Flow{
		Source:          numbered(source4, source6, n&(1<<sourceBits-1), t.IPv6),
		Destination:     VIP(n%t.VIPs, t.IPv6),
		SourcePort:      uint16(sourcePortFirst + n>>sourceBits),
		DestinationPort: Port,
		Protocol:        uint8(t.Protocol),
		Segment:         t.SegmentOf(tenant),
	}
}

// Number is the number of the flow with this source, over IPv4.
func Number(source netip.AddrPort) int {
	return int(word4(source.Addr())-word4(source4)) | int(source.Port()-sourcePortFirst)<<sourceBits
}

// Tenant is whose flow it is.
func (t Traffic) Tenant(flow int) int { return flow % t.Overlay.tenants() }

// VIPOf is the number of the VIP that a flow is sent to.
func (t Traffic) VIPOf(flow int) int { return flow / t.Overlay.tenants() % t.VIPs }

// Tenants is how many have networks with the same addresses.
func (t Traffic) Tenants() int { return t.Overlay.tenants() }

// Longer is how much longer frames are by their tag, or by their outer headers.
func (t Traffic) Longer() int {
	if t.VLAN == 0 {
		return t.Overlay.length()
	}
	return tagLength
}

// Segment is the segment that the frames are in, of the first tenant.
func (t Traffic) Segment() model.Segment { return t.SegmentOf(0) }

// SegmentOf is a tenant's.
func (t Traffic) SegmentOf(tenant int) model.Segment {
	if t.Overlay.Given() {
		return t.Overlay.Segment(tenant)
	}
	if t.VLAN == 0 {
		return model.Segment{}
	}
	return model.Segment{Kind: model.SegmentVLAN, ID: uint32(t.VLAN)}
}

// BackendsOf returns which of that many backends a VIP has: from first up to, but not including,
// end. All VIPs have the same number; the last one also has the rest.
func (t Traffic) BackendsOf(vip, backends int) (first, end int) {
	each := max(backends/t.VIPs, 1)
	if vip == t.VIPs-1 {
		return vip * each, backends
	}
	return vip * each, (vip + 1) * each
}

// orderLength is how many flows are drawn for [Traffic.Zipf]: a flow has a millionth of the packets in the
// mean four times.
const orderLength = 1 << 22

// Order are flows as Zipf's law has drawn them, counted from the first one. What is sent is drawn from them,
// evenly. They are always the same for the same traffic.
func (t Traffic) Order() []uint32 {
	rng := rand.New(rand.NewPCG(1, uint64(t.Flows)))
	byRank := rng.Perm(t.Flows) // neighbors in size are none in their addresses
	law := rand.NewZipf(rng, t.Zipf, 1, uint64(t.Flows-1))
	order := make([]uint32, orderLength)
	for i := range order {
		order[i] = uint32(byRank[law.Uint64()])
	}
	return order
}

// maxFlows is how many flows a source's addresses and ports allow.
const maxFlows = (math.MaxUint16 - sourcePortFirst + 1) << sourceBits

func (t Traffic) validate() error {
	headers := 54 // Ethernet, IPv4, and 20 bytes that the sink reads
	if t.IPv6 {
		headers = 74
	}
	switch {
	case t.Protocol != model.TCP && t.Protocol != model.UDP:
		return fmt.Errorf("protocol %v is neither TCP nor UDP", t.Protocol)
	case t.Flows < 1 || t.First < 0 || t.First+t.Flows > maxFlows:
		return fmt.Errorf("%d flows from %d on are not in 1 to %d", t.Flows, t.First, maxFlows)
	case t.Zipf != 0 && (!(t.Zipf > 1) || t.InTurn):
		return fmt.Errorf("zipf %v is not above 1, or flows are in turn", t.Zipf)
	case t.VIPs < 1 || t.VIPs > 254:
		return fmt.Errorf("%d VIPs are not in 1 to 254", t.VIPs)
	case t.Asks && (t.Protocol != model.TCP || t.IPv6 || len(t.Frames) != 1 || t.Frames[0] != AskingFrame):
		return fmt.Errorf("who asks to be redirected does it by TCP over IPv4, in frames of %d bytes", AskingFrame)
	case len(t.Frames) < 1 || len(t.Frames) > framesRoom:
		return fmt.Errorf("%d frame lengths are not in 1 to %d", len(t.Frames), framesRoom)
	case t.VLAN != 0 && t.Overlay.Given():
		return errors.New("frames in a tunnel have no tag here")
	case t.VLAN > 4094:
		return fmt.Errorf("VLAN %d is not in 1 to 4094", t.VLAN)
	}
	if err := t.Overlay.validate(); err != nil {
		return err
	}
	for _, length := range t.Frames {
		if length < headers+FCS || length > 3000 {
			return fmt.Errorf("a frame of %d bytes is not in %d to 3000", length, headers+FCS)
		}
	}
	return nil
}

// constants are what both programs need to know about the traffic.
func (t Traffic) constants() map[string]any {
	return map[string]any{
		"flows": uint32(t.Flows), "vips": uint32(t.VIPs), "ipv6": truth(t.IPv6), "protocol": uint8(t.Protocol), "asks_redirect": truth(t.Asks),
		"service_port": uint16(Port), "source4": word4(source4), "vip4": word4(vip4),
		"source6": words6(source6), "vip6": words6(vip6), "vlan": t.VLAN,
	}
}

func truth(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

func word4(address netip.Addr) uint32 {
	b := address.As4()
	return binary.BigEndian.Uint32(b[:])
}

func words6(address netip.Addr) [4]uint32 {
	var words [4]uint32
	b := address.As16()
	for i := range words {
		words[i] = binary.BigEndian.Uint32(b[4*i:])
	}
	return words
}

//go:generate ../../bpf/generate -no-global-types -type arrival_shape -type arrival_problem -type arrival -type expectation -type evidence traffic bpf/traffic.bpf.c

// load loads one program, and the maps that it uses, with these constants and sizes.
func load(program string, constants map[string]any, sizes map[string]int, into any) error {
	// Before Linux 5.11 this limits the memory of maps; without the right to lift it the loader
	// says what is missing.
	_ = rlimit.RemoveMemlock()
	spec, err := loadTraffic()
	if err != nil {
		return fmt.Errorf("read the traffic programs: %w", err)
	}
	for name := range spec.Programs {
		if name != program {
			delete(spec.Programs, name)
		}
	}
	for name, value := range constants {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	for name, size := range sizes {
		spec.Maps[name].MaxEntries = uint32(max(size, 1))
	}
	if err := spec.LoadAndAssign(into, nil); err != nil {
		var verifier *ebpf.VerifierError
		if errors.As(err, &verifier) {
			return fmt.Errorf("load %s: %+v", program, verifier)
		}
		return fmt.Errorf("load %s: %w", program, err)
	}
	return nil
}
