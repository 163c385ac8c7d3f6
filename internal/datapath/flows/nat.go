package flows

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

// Full NAT's ports are used in buckets; the header of its table is as large as one (SNAT_BUCKET).
const (
	BucketPorts = len(abi.SnatBucket{}.Flows)
	BucketBytes = int(unsafe.Sizeof(abi.SnatBucket{}))
	sourcesMax  = len(abi.SnatHeader{}.Sources) // SNAT_SOURCES_MAX
)

// Layout is the header of full NAT's table: whose addresses and ports its places are.
type Layout struct{ abi.SnatHeader }

// LayoutOf is the layout for these addresses and ports, except for its salt. Left-over ports that do
// not fill a bucket are not used.
func LayoutOf(s model.SNAT) (Layout, error) {
	var header Layout
	ports := s.Ports
	if ports.All() {
		ports = model.DefaultSNATPorts
	}
	header.PortsFirst = uint32(ports.First)
	header.Ports = (uint32(ports.Last-ports.First) + 1) / uint32(BucketPorts) * uint32(BucketPorts)
	switch {
	case len(s.Addresses) > sourcesMax:
		return header, fmt.Errorf("%d addresses in director.snat.addresses are more than %d", len(s.Addresses), sourcesMax)
	case header.Ports == 0:
		return header, fmt.Errorf("director.snat.ports %s are fewer than %d ports", ports, BucketPorts)
	}
	sources := slices.SortedStableFunc(slices.Values(s.Addresses), func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
	for i, a := range sources {
		header.Sources[i] = abi.AddressBytes(a)
		if a.Is4() {
			header.Addresses4++
		} else {
			header.Addresses6++
		}
	}
	return header, nil
}

// NATTable is full NAT's table, by the numbers of flows without the header's place.
type NATTable struct {
	Layout
	Flows  []abi.SnatFlow
	memory bpfload.Memory[abi.SnatFlow]
}

// OpenNAT maps a table into memory.
func OpenNAT(table *ebpf.Map, layout Layout) (*NATTable, error) {
	memory, err := bpfload.Map[abi.SnatFlow](table)
	if err != nil {
		return nil, err
	}
	return &NATTable{layout, memory.Entries[BucketPorts:], memory}, nil
}

// Close lets go of the memory.
func (t *NATTable) Close() error { return t.memory.Close() }

// Read returns a flow as it was at one moment; false: its place is free, or is being written.
func (t *NATTable) Read(i int) (abi.SnatFlow, bool) {
	if i < 0 || i >= len(t.Flows) {
		return abi.SnatFlow{}, false
	}
	entry := AtOneMoment(&t.Flows[i])
	return entry, entry.State > uint8(abi.SnatStateSNAT_CLAIMED)
}

// Choices are the first numbers of the buckets in which a flow may be: snat_choose.
func (h *Layout) Choices(f model.Flow) []uint32 {
	hash := f.Hash(h.Salt, model.AffinityFlow)
	buckets, first, count := h.Ports/uint32(BucketPorts), uint32(0), h.Addresses4
	if f.Source.Is6() {
		first, count = h.Addresses4, h.Addresses6
	}
	if buckets*count == 0 {
		return nil
	}
	var numbers []uint32
	for _, half := range []uint64{hash >> 32, hash & 0xffffffff} {
		chosen := uint32(half * uint64(count*buckets) >> 32)
		numbers = append(numbers, h.number(first+chosen/buckets, f.Protocol, chosen%buckets*uint32(BucketPorts)))
	}
	return numbers
}

// number is a flow's number, given the port's place among the ports: snat_number.
func (h *Layout) number(address uint32, protocol uint8, offset uint32) uint32 {
	kind := address * 2
	if model.Protocol(protocol) != model.TCP { // UDP and SCTP share their ports
		kind++
	}
	return uint32(BucketPorts) + kind*h.Ports + offset
}

// ReplyTo is the number of the flow to which a packet to one of this director's addresses replies;
// 0: it is not a reply.
func (h *Layout) ReplyTo(f model.Flow) uint32 {
	first, count := uint32(0), h.Addresses4
	if f.Source.Is6() {
		first, count = h.Addresses4, h.Addresses6
	}
	offset := uint32(f.DestinationPort) - h.PortsFirst
	for i := first; i < first+count; i++ {
		if h.Sources[i] == abi.AddressBytes(f.Destination) && offset < h.Ports {
			return h.number(i, f.Protocol, offset)
		}
	}
	return 0
}

// PlaceOf is the number that stands for an address and port; 0: they are not this director's.
func (h *Layout) PlaceOf(own netip.AddrPort, protocol model.Protocol) uint32 {
	if !own.IsValid() {
		return 0
	}
	return h.ReplyTo(model.Flow{Source: own.Addr(), Destination: own.Addr(), Protocol: uint8(protocol), DestinationPort: own.Port()})
}

// Source is the address and port that a number stands for.
func (h *Layout) Source(number uint32) netip.AddrPort {
	if number < uint32(BucketPorts) || h.Ports == 0 {
		return netip.AddrPort{}
	}
	address, offset := (number-uint32(BucketPorts))/h.Ports/2, (number-uint32(BucketPorts))%h.Ports
	if int(address) >= len(h.Sources) {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(abi.AddressOf(h.Sources[address], address >= h.Addresses4), uint16(h.PortsFirst+offset))
}

// Kind is the protocol and the family of a flow with this number.
func (h *Layout) Kind(number uint32, e *abi.SnatFlow) (protocol model.Protocol, ipv6 bool) {
	if number < uint32(BucketPorts) || h.Ports == 0 {
		return model.TCP, false
	}
	kind := (number - uint32(BucketPorts)) / h.Ports
	if kind%2 == 1 && e.Asked.Sequence == uint32(model.SCTP) { // snat_has_protocol
		return model.SCTP, kind/2 >= h.Addresses4
	}
	if kind%2 == 1 {
		return model.UDP, kind/2 >= h.Addresses4
	}
	return model.TCP, kind/2 >= h.Addresses4
}

// ClientFlow is a flow of full NAT as its client sees it.
func ClientFlow(e *abi.SnatFlow, protocol model.Protocol, ipv6 bool) model.Flow {
	return model.Flow{
		Segment: model.SegmentOf(e.Segment), Source: abi.AddressOf(e.Client, ipv6), Destination: abi.AddressOf(e.Vip, ipv6), Protocol: uint8(protocol),
		SourcePort: abi.BigEndian16(e.ClientPort), DestinationPort: abi.BigEndian16(e.VipPort),
	}
}

// natTimeout is how long a flow of full NAT lives in a state, in the clock's units: snat_timeout in
// bpf/director/nat/snat_state.h.
func natTimeout(state abi.SnatState) uint32 {
	seconds := 60
	switch state {
	case abi.SnatStateSNAT_ESTABLISHED:
		seconds = 7440
	case abi.SnatStateSNAT_TWO_WAY:
		seconds = 300
	case abi.SnatStateSNAT_CLOSING:
		seconds = 240
	case abi.SnatStateSNAT_ONE_WAY, abi.SnatStateSNAT_TRIED:
		seconds = 30
	}
	return uint32(uint64(seconds)*1e9>>30) + 1
}

// NATMeaningOf is what an entry's state means to people.
func NATMeaningOf(e *abi.SnatFlow) Meaning {
	switch abi.SnatState(e.State) {
	case abi.SnatStateSNAT_SYN, abi.SnatStateSNAT_ONE_WAY:
		return Meaning{model.FreshFlow, model.FlowOpening}
	case abi.SnatStateSNAT_ANSWERED, abi.SnatStateSNAT_TRIED:
		return Meaning{model.FreshFlow, model.FlowOpen}
	case abi.SnatStateSNAT_ESTABLISHED, abi.SnatStateSNAT_TWO_WAY:
		return Meaning{model.ProvedFlow, model.FlowOpen}
	case abi.SnatStateSNAT_CLOSING, abi.SnatStateSNAT_CLOSED:
		return Meaning{model.ProvedFlow, model.FlowClosing}
	case abi.SnatStateSNAT_RESET:
		if e.Proof&uint8(abi.SnatProofSNAT_HALVES) != 0 {
			return Meaning{model.ProvedFlow, model.FlowReset}
		}
		return Meaning{model.FreshFlow, model.FlowReset}
	}
	return Meaning{}
}

// NATStateOf is the state of a flow that another director shares; 0: there is none.
func NATStateOf(f *model.NATFlow) abi.SnatState {
	tcp, fresh := f.Service.Protocol == model.TCP, f.Class == model.FreshFlow
	switch {
	case f.Class == model.SustainedFlow || (!tcp || fresh) && f.State != model.FlowOpen || tcp && fresh && !f.Numbers.Known:
		return abi.SnatStateSNAT_FREE
	case tcp && fresh:
		return abi.SnatStateSNAT_ANSWERED
	case fresh:
		return abi.SnatStateSNAT_TRIED
	case !tcp:
		return abi.SnatStateSNAT_TWO_WAY
	case f.State == model.FlowOpen:
		return abi.SnatStateSNAT_ESTABLISHED
	case f.State == model.FlowClosing && f.ClientClosed && f.BackendClosed:
		return abi.SnatStateSNAT_CLOSED
	case f.State == model.FlowClosing:
		return abi.SnatStateSNAT_CLOSING
	case f.State == model.FlowReset:
		return abi.SnatStateSNAT_RESET
	}
	return abi.SnatStateSNAT_FREE
}

// NATWord is the first word of a flow of full NAT, which changes as a whole.
func NATWord(e *abi.SnatFlow) *uint64 { return (*uint64)(unsafe.Pointer(e)) }

// LiveNAT is Live for a flow of full NAT.
func LiveNAT(backends []abi.Backend, flow *abi.SnatFlow, now uint32) bool {
	if int(flow.Backend) >= len(backends) {
		return false
	}
	b := &backends[flow.Backend]
	return uint32(max(0, int32(now-flow.Seen))) <= natTimeout(abi.SnatState(flow.State)) &&
		b.Epoch == flow.Epoch && b.State != uint8(abi.BackendStateBACKEND_FREE)
}

// NewNAT makes an empty table: the kernel's memory is zero, and a flow of zeros is free.
func NewNAT(header Layout) (*ebpf.Map, error) {
	buckets := 2 * (header.Addresses4 + header.Addresses6) * header.Ports / uint32(BucketPorts)
	table, err := ebpf.NewMap(&ebpf.MapSpec{
		Type:       ebpf.Array,
		KeySize:    4,
		ValueSize:  uint32(BucketBytes),
		MaxEntries: 1 + buckets,
		Flags:      unix.BPF_F_INNER_MAP | unix.BPF_F_MMAPABLE,
	})
	if err != nil {
		return nil, fmt.Errorf("create table of full NAT (%d bytes): %w", (1+int(buckets))*BucketBytes, err)
	}
	if err := table.Put(uint32(0), unsafe.Slice((*byte)(unsafe.Pointer(&header)), BucketBytes)); err != nil {
		return nil, errors.Join(fmt.Errorf("write header of full NAT's table: %w", err), table.Close())
	}
	return table, nil
}

// The header must fill a bucket.
var _ [BucketBytes]byte = [unsafe.Sizeof(abi.SnatHeader{})]byte{}
