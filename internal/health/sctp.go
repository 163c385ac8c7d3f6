package health

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"golang.org/x/net/bpf"
)

// A probe of SCTP is an INIT from a raw socket, so that this host's kernel needs no SCTP. The answer, an
// INIT ACK, makes no association: the server keeps nothing of it until its cookie comes back (RFC 9260,
// 5.1), which it does not.

var initiating = step{"waiting for the INIT ACK", "no answer to an INIT within %v: the host is gone, or something drops it"}

// The parts of SCTP that are read and written (RFC 9260, 3).
const (
	sctpHeader      = 12 // ports, verification tag and checksum
	chunkInit       = 1
	chunkInitAck    = 2
	chunkAbort      = 6
	initLength      = 20 // of INIT and INIT ACK, before their parameters
	parameterIPv4   = 5
	parameterIPv6   = 6
	parameterCookie = 7
)

// castagnoli is the table of SCTP's checksum (RFC 9260, Appendix A).
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// probeSCTP sends an INIT, and waits for an INIT ACK.
func probeSCTP(ctx context.Context, a *attempt) error {
	said, err := initSCTP(ctx, a)
	if isOneOf(err, syscall.ENOPROTOOPT, syscall.EPROTO) { // of ICMP: unreachable protocol; of ICMPv6: unknown next header
		return failure(Unreachable, "the host refuses the protocol: nothing there speaks SCTP")
	}
	if err == nil {
		a.listed = slices.DeleteFunc(said.addresses, func(listed netip.Addr) bool { return listed == a.way.Target().Addr() })
	}
	return err
}

// sctpAnswer is what a server says of itself in its INIT ACK.
type sctpAnswer struct {
	addresses []netip.Addr // that it lists
}

func initSCTP(ctx context.Context, a *attempt) (sctpAnswer, error) {
	a.at = initiating
	to := a.way.To
	network := "ip6:132"
	if to.Addr().Is4() {
		network = "ip4:132"
	}
	// A raw socket has no port. This one's is no other program's, and by it the director's program knows
	// that the answer is for this host (is_own_flow in bpf/director/nat/nat.h, is_for_check in vtep/answer.h).
	port, err := a.dial(ctx, "udp", to.String(), nil)
	if err != nil {
		return sctpAnswer{}, err
	}
	defer port.Close()
	from := a.from.Port()
	conn, err := a.dial(ctx, network, to.Addr().String(), func(fd int) error {
		if err := attach(fd, associationsOf(from, to)); err != nil {
			return err
		}
		return a.allErrors(fd)
	})
	if err != nil {
		return sctpAnswer{}, err
	}
	defer conn.Close()
	conn = bound(ctx, conn)
	tag := rand.Uint32() | 1 // 0 is none
	if _, err := conn.Write(sctpInit(from, to.Port(), tag)); err != nil {
		return sctpAnswer{}, err
	}
	buffer := make([]byte, largest)
	for {
		n, _, err := conn.(*boundConn).Conn.(*net.IPConn).ReadFromIP(buffer) // without the IPv4 header
		if err != nil {
			return sctpAnswer{}, err
		}
		if said, answers, err := readInitAck(buffer[:n], tag); answers {
			return said, err
		}
	}
}

// sctpInit is a packet with an INIT. It asks for one stream in each direction, and supports no extensions.
func sctpInit(from, to uint16, tag uint32) []byte {
	b := binary.BigEndian.AppendUint16(nil, from)
	b = binary.BigEndian.AppendUint16(b, to)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0) // an INIT has no verification tag; the checksum follows
	b = append(b, chunkInit, 0)
	b = binary.BigEndian.AppendUint16(b, initLength)
	b = binary.BigEndian.AppendUint32(b, tag)
	b = binary.BigEndian.AppendUint32(b, 1<<16) // window
	b = append(b, 0, 1, 0, 1)                   // streams
	b = binary.BigEndian.AppendUint32(b, rand.Uint32())
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli))
	return b
}

// readInitAck says whether a packet answers the INIT with this tag, and how. A checksum of 0 is one that is yet
// to be computed: the packet has not left this host.
func readInitAck(b []byte, tag uint32) (said sctpAnswer, answers bool, err error) {
	if len(b) < sctpHeader+4 || binary.BigEndian.Uint32(b[4:]) != tag {
		return said, false, nil
	}
	if sum := binary.LittleEndian.Uint32(b[8:]); sum != 0 {
		binary.LittleEndian.PutUint32(b[8:], 0)
		if crc32.Checksum(b, castagnoli) != sum {
			return said, false, nil
		}
	}
	kind, chunk := b[sctpHeader], b[sctpHeader:]
	length := int(binary.BigEndian.Uint16(chunk[2:]))
	switch {
	case kind == chunkAbort:
		return said, true, failure(Refused, "an ABORT: no server listens at the port, or it takes no associations")
	case kind != chunkInitAck:
		return said, true, failure(Malformed, "a chunk of type %d where an INIT ACK is expected", kind)
	case length < initLength || length > len(chunk):
		return said, true, failure(Malformed, "an INIT ACK that is cut short")
	}
	said, has := readParameters(chunk[initLength:length])
	if !has {
		return said, true, failure(Malformed, "an INIT ACK without a cookie")
	}
	return said, true, nil
}

// readParameters reads an INIT ACK's parameters, and says whether a cookie is among them.
func readParameters(b []byte) (said sctpAnswer, cookie bool) {
	for len(b) >= 4 {
		kind, length := binary.BigEndian.Uint16(b), int(binary.BigEndian.Uint16(b[2:]))
		if length < 4 || length > len(b) {
			break
		}
		switch value := b[4:length]; kind {
		case parameterIPv4, parameterIPv6:
			if address, is := netip.AddrFromSlice(value); is {
				said.addresses = append(said.addresses, address.Unmap())
			}
		case parameterCookie:
			cookie = true
		}
		b = b[min(len(b), (length+3)&^3):] // padded to words
	}
	return said, cookie
}

// associationsOf lets packets from there to this port through.
func associationsOf(port uint16, from netip.AddrPort) []bpf.Instruction {
	return []bpf.Instruction{
		pastHeader(from),
		bpf.LoadIndirect{Off: 0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(from.Port())<<16 | uint32(port), SkipTrue: 1},
		bpf.RetConstant{Val: 0xffff},
		bpf.RetConstant{Val: 0},
	}
}
