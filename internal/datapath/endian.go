package datapath

import (
	"encoding/binary"
	"net/netip"
)

// bigEndian16 is a number as __be16 fields hold it.
func bigEndian16(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// bigEndianAddress is an IPv4 address as __be32 fields hold it.
func bigEndianAddress(a netip.Addr) uint32 {
	b := a.As4()
	return binary.NativeEndian.Uint32(b[:])
}

// addressOf reads struct address.
func addressOf(a directorAddress, ipv6 bool) netip.Addr {
	if ipv6 {
		return netip.AddrFrom16(a.Bytes)
	}
	return netip.AddrFrom4([4]byte(a.Bytes[:4]))
}

// address4 reads a __be32 field.
func address4(v uint32) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.NativeEndian.AppendUint32(nil, v)))
}
