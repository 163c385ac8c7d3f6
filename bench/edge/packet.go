package edge

import (
	"encoding/binary"
	"net"

	"golang.org/x/sys/unix"
)

// mac is a MAC address that can be compared.
type mac [6]byte

func macOf(address net.HardwareAddr) (m mac) {
	copy(m[:], address)
	return m
}

// sighting is a packet of a client's connection with the VIP, as seen on a cable.
type sighting struct {
	from, to mac
	client   uint16 // its port
	reply    bool   // to the client
	flags    byte   // of TCP
}

// TCP's flags (RFC 9293, section 3.1).
const (
	fin = 1 << iota
	syn
	rst
	_
	ack
)

const guePort = 6080

// begins is whether it is the first packet of a connection, or its retransmission.
func (p sighting) begins() bool { return !p.reply && p.flags&(syn|ack) == syn }

// kind names the flags as tcpdump does.
func (p sighting) kind() string {
	text := ""
	for _, f := range []struct {
		bit  byte
		name string
	}{{syn, "S"}, {fin, "F"}, {rst, "R"}, {ack, "."}} {
		if p.flags&f.bit != 0 {
			text += f.name
		}
	}
	return text
}

// read takes a frame apart: TCP over IPv4 between the client and the VIP, alone or in GUE.
func read(frame []byte) (p sighting, is bool) {
	if len(frame) < 14 || binary.BigEndian.Uint16(frame[12:]) != unix.ETH_P_IP {
		return p, false
	}
	p.to, p.from = mac(frame[:6]), mac(frame[6:12])
	ip, rest := ipv4(frame[14:])
	if rest == nil {
		return p, false
	}
	if ip[9] == unix.IPPROTO_UDP && len(rest) >= 12 && binary.BigEndian.Uint16(rest[2:]) == guePort {
		header := 8 + 4 + int(rest[8]&0x1f)*4 // UDP's and GUE's, draft-ietf-intarea-gue-09, section 3.1
		if len(rest) < header {
			return p, false
		}
		ip, rest = ipv4(rest[header:])
	}
	if rest == nil || ip[9] != unix.IPPROTO_TCP || len(rest) < 20 {
		return p, false
	}
	p.flags = rest[13]
	switch source, destination := [4]byte(ip[12:]), [4]byte(ip[16:]); {
	case source == clientAddress.As4() && destination == vip.As4():
		p.client = binary.BigEndian.Uint16(rest)
	case source == vip.As4() && destination == clientAddress.As4():
		p.client, p.reply = binary.BigEndian.Uint16(rest[2:]), true
	default:
		return p, false
	}
	return p, true
}

// ipv4 returns a packet, and what is behind its header; nil if it is not IPv4.
func ipv4(b []byte) (header, rest []byte) {
	if len(b) < 20 || b[0]>>4 != 4 {
		return nil, nil
	}
	n := int(b[0]&0xf) * 4
	if n < 20 || len(b) < n {
		return nil, nil
	}
	return b[:n], b[n:]
}
