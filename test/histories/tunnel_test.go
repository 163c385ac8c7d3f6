package histories

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	etherLength = 14
	gueNumber   = 6080
	gueLength   = 4
)

// tunnelled is a GUE packet.
type tunnelled struct {
	from, to netip.Addr
	private  []byte
	inner    []byte
}

var errNoTunnel = errors.New("no packet in GUE")

// readTunnel reads a frame with a GUE packet.
func readTunnel(frame []byte) (p tunnelled, err error) {
	if len(frame) < etherLength+20 {
		return p, errNoTunnel
	}
	outer, headers := frame[etherLength:], 0
	switch {
	case binary.BigEndian.Uint16(frame[12:]) == unix.ETH_P_IP && outer[9] == unix.IPPROTO_UDP:
		p.from, p.to, headers = netip.AddrFrom4([4]byte(outer[12:])), netip.AddrFrom4([4]byte(outer[16:])), 20
	case binary.BigEndian.Uint16(frame[12:]) == unix.ETH_P_IPV6 && len(outer) >= 40 && outer[6] == unix.IPPROTO_UDP:
		p.from, p.to, headers = netip.AddrFrom16([16]byte(outer[8:])), netip.AddrFrom16([16]byte(outer[24:])), 40
	default:
		return p, errNoTunnel
	}
	gue := outer[headers:]
	if len(gue) < 8+gueLength || binary.BigEndian.Uint16(gue[2:]) != gueNumber {
		return p, errNoTunnel
	}
	gue = gue[8:]
	private := 4 * int(gue[0]&31)
	if len(gue) < gueLength+private {
		return p, errNoTunnel
	}
	p.private, p.inner = gue[gueLength:gueLength+private], gue[gueLength+private:]
	return p, nil
}
