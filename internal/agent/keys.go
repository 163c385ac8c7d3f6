package agent

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"golang.org/x/sys/unix"
)

// address writes an address as the maps have it: IPv4 as ::ffff:a.b.c.d.
func address(a netip.Addr) bpfAddress { return bpfAddress{Bytes: a.As16()} }

// networkOrder returns the number whose bytes in memory are the port's in network
// order.
func networkOrder(port uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, port))
}

// endpoint returns the key of a service with one port, or of a VIP.
func (s service) endpoint() bpfHostEndpoint {
	key := bpfHostEndpoint{Address: address(s.vip), Port: networkOrder(s.port.First), Protocol: uint8(s.protocol)}
	switch {
	case s.protocol != 0:
	case s.vip.Is4():
		key.Protocol = unix.IPPROTO_ICMP
	default:
		key.Protocol = unix.IPPROTO_ICMPV6
	}
	return key
}

// isRange says whether the service's keys are ranges.
func (s service) isRange() bool { return s.protocol != 0 && !s.port.Single() }

// ranges returns the keys of a service with several ports: the prefixes that together make up its
// range.
func (s service) ranges() []bpfHostRange {
	const fixed = 8 * (16 + 1 + 1) // address, protocol and padding
	var keys []bpfHostRange
	key := bpfHostRange{Address: address(s.vip), Protocol: uint8(s.protocol)}
	if s.port.All() {
		key.PrefixLen = fixed
		return append(keys, key)
	}
	for first, end := uint32(s.port.First), uint32(s.port.Last)+1; first < end; {
		size := uint32(1) << min(bits.TrailingZeros32(first), bits.Len32(end-first)-1)
		key.PrefixLen = fixed + 16 - uint32(bits.TrailingZeros32(size))
		key.Port = networkOrder(uint16(first))
		keys = append(keys, key)
		first += size
	}
	return keys
}

// sourceKey returns the LPM key of a prefix.
func sourceKey(p netip.Prefix) bpfHostSource {
	length := p.Bits()
	if p.Addr().Is4() {
		length += 96
	}
	return bpfHostSource{PrefixLen: uint32(length), Address: address(p.Addr())}
}

// describe names a service for errors.
func (s service) describe() string {
	if s.protocol == 0 {
		return s.vip.String()
	}
	return s.name + " (" + s.vip.String() + " " + s.protocol.String() + " " + s.port.String() + ")"
}
