package flowsync

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"

	"weir.io/weir/internal/model"
)

const (
	flowIPv6     = 1 << 0
	backendIPv6  = 1 << 1
	stateShift   = 2
	classShift   = 4
	flagsKnown   = flowIPv6 | backendIPv6 | 3<<stateShift // of unclassed
	fixedLength  = 18                                     // before the addresses, of unclassed
	numberLength = 4                                      // behind that, of classed
	segmentKinds = model.SegmentGeneve
)

// appendFlow writes a flow behind others.
func appendFlow(b []byte, f *model.RememberedFlow, v version) []byte {
	flags := uint8(f.State) << stateShift
	if f.Service.VIP.Is6() {
		flags |= flowIPv6
	}
	if f.Backend.Addr().Is6() {
		flags |= backendIPv6
	}
	if v >= classed {
		flags |= uint8(f.Class) << classShift
	}
	b = append(b, flags, uint8(f.Service.Protocol))
	b = binary.BigEndian.AppendUint16(b, uint16(min(f.Age, math.MaxUint16)))
	b = binary.BigEndian.AppendUint32(b, f.Service.Segment.Key())
	for _, port := range []uint16{f.Service.Port.First, f.Service.Port.Last, f.Port, f.Source.Port(), f.Backend.Port()} {
		b = binary.BigEndian.AppendUint16(b, port)
	}
	if v >= classed {
		b = binary.BigEndian.AppendUint32(b, f.Next)
	}
	b = append(b, f.Service.VIP.AsSlice()...)
	b = append(b, f.Source.Addr().AsSlice()...)
	return append(b, f.Backend.Addr().AsSlice()...)
}

var errCutShort = errors.New("a flow is cut short")

// readFlow reads the first flow, and returns what follows it.
func readFlow(b []byte, v version) (f model.RememberedFlow, rest []byte, err error) {
	fixed, known := fixedLength, flagsKnown
	if v >= classed {
		fixed, known = fixedLength+numberLength, flagsKnown|3<<classShift
	}
	if len(b) < fixed {
		return f, nil, errCutShort
	}
	flags, segment := b[0], binary.BigEndian.Uint32(b[4:])
	port := func(i int) uint16 { return binary.BigEndian.Uint16(b[8+2*i:]) }
	f = model.RememberedFlow{
		Service: model.ServiceID{
			Segment:  model.SegmentOf(segment),
			Protocol: model.Protocol(b[1]), Port: model.PortRange{First: port(0), Last: port(1)},
		},
		Port: port(2), State: model.RememberedState(flags >> stateShift & 3), Age: uint32(binary.BigEndian.Uint16(b[2:])),
	}
	if v >= classed {
		f.Class, f.Next = model.FlowClass(flags>>classShift&3), binary.BigEndian.Uint32(b[fixedLength:])
	}
	vip, rest, vipErr := readAddress(b[fixed:], flags&flowIPv6 != 0)
	source, rest, sourceErr := readAddress(rest, flags&flowIPv6 != 0)
	backend, rest, backendErr := readAddress(rest, flags&backendIPv6 != 0)
	if err := cmp.Or(vipErr, sourceErr, backendErr); err != nil {
		return f, nil, err
	}
	f.Service.VIP, f.Source, f.Backend = vip, netip.AddrPortFrom(source, port(3)), netip.AddrPortFrom(backend, port(4))
	return f, rest, check(&f, flags, uint8(known))
}

// appendNATFlow writes a flow of full NAT behind others.
func appendNATFlow(b []byte, f *model.NATFlow) []byte {
	b = appendFlow(b, &f.RememberedFlow, translated)
	flags := uint8(0)
	for bit, is := range []bool{f.Numbers.Known, f.Announced, f.ClientClosed, f.BackendClosed, f.ByOwner} {
		if is {
			flags |= 1 << bit
		}
	}
	b = append(b, flags)
	b = binary.BigEndian.AppendUint16(b, f.Own.Port())
	b = binary.BigEndian.AppendUint16(b, f.Taken)
	b = binary.BigEndian.AppendUint32(b, f.Numbers.Client)
	b = binary.BigEndian.AppendUint32(b, f.Numbers.Backend)
	return append(b, f.Own.Addr().AsSlice()...)
}

const natLength = 13 // of what a flow of full NAT has behind it, before the address

// readNATFlow reads the first flow, and returns what follows it.
func readNATFlow(b []byte) (f model.NATFlow, rest []byte, err error) {
	if f.RememberedFlow, b, err = readFlow(b, translated); err != nil {
		return f, nil, err
	}
	if len(b) < natLength {
		return f, nil, errCutShort
	}
	flags := b[0]
	own, rest, err := readAddress(b[natLength:], f.Service.VIP.Is6())
	if err != nil {
		return f, nil, err
	}
	f.Own, f.Taken = netip.AddrPortFrom(own, binary.BigEndian.Uint16(b[1:])), binary.BigEndian.Uint16(b[3:])
	f.Announced, f.ClientClosed, f.BackendClosed, f.ByOwner = flags&2 != 0, flags&4 != 0, flags&8 != 0, flags&16 != 0
	f.Numbers = model.NATNumbers{Known: flags&1 != 0, Client: binary.BigEndian.Uint32(b[5:]), Backend: binary.BigEndian.Uint32(b[9:])}
	switch {
	case flags > 31:
		return f, nil, fmt.Errorf("a flow of full NAT has the flags %#x", flags)
	case f.Class == model.SustainedFlow || f.Class == model.FreshFlow && f.State != model.FlowOpen:
		return f, nil, fmt.Errorf("a flow of full NAT has class %d and state %d", f.Class, f.State)
	case f.Own.Port() == 0:
		return f, nil, fmt.Errorf("a flow of full NAT has port 0 of %s", own)
	case own.Is4In6() || own.IsUnspecified() || own.IsMulticast() || own.IsLoopback() || own.IsLinkLocalUnicast() || own == f.Service.VIP:
		return f, nil, fmt.Errorf("a flow of full NAT has the address %s", own)
	case f.Service.Protocol.Datagrams() && (f.Taken != 0 || f.Numbers != model.NATNumbers{} || f.ClientClosed || f.BackendClosed):
		return f, nil, errors.New("a UDP flow has what only TCP flows have")
	}
	return f, rest, nil
}

func readAddress(b []byte, ipv6 bool) (netip.Addr, []byte, error) {
	length := 4
	if ipv6 {
		length = 16
	}
	if len(b) < length {
		return netip.Addr{}, nil, errCutShort
	}
	a, _ := netip.AddrFromSlice(b[:length])
	return a, b[length:], nil
}

// check refuses what no director writes.
func check(f *model.RememberedFlow, flags, known uint8) error {
	ports := f.Service.Port
	switch {
	case flags&^known != 0:
		return fmt.Errorf("a flow has the flags %#x", flags)
	case f.Class > model.ProvedFlow:
		return fmt.Errorf("a flow has class %d", f.Class)
	case f.Service.Protocol != model.TCP && !f.Service.Protocol.Datagrams():
		return fmt.Errorf("a flow is of protocol %d", uint8(f.Service.Protocol))
	case f.State == 0 || f.State != model.FlowOpen && f.Service.Protocol.Datagrams():
		return fmt.Errorf("a flow of protocol %d has state %d", uint8(f.Service.Protocol), f.State)
	case !ports.Contains(f.Port):
		return fmt.Errorf("a flow to port %d is of a service with ports %s", f.Port, ports)
	}
	return checkService(&f.Service)
}

// checkService says what is wrong with a shared service.
func checkService(s *model.ServiceID) error {
	switch {
	case s.Segment.Kind > segmentKinds || s.Segment.Kind == model.SegmentNone && s.Segment.ID != 0:
		return fmt.Errorf("a service is of segment %#x", s.Segment.Key())
	case s.Port.First > s.Port.Last || s.Port.First == 0 && s.Port.Last != 0:
		return fmt.Errorf("a service has ports %s", s.Port)
	}
	return nil
}

// readFlows reads all flows of a frame.
func readFlows(b []byte, v version) ([]model.RememberedFlow, error) {
	return readAll(b, func(b []byte) (model.RememberedFlow, []byte, error) { return readFlow(b, v) })
}

func readNATFlows(b []byte) ([]model.NATFlow, error) { return readAll(b, readNATFlow) }

func readAll[Flow any](b []byte, read func(b []byte) (f Flow, rest []byte, err error)) (flows []Flow, err error) {
	for len(b) > 0 {
		var f Flow
		if f, b, err = read(b); err != nil {
			return nil, err
		}
		flows = append(flows, f)
	}
	return flows, nil
}
