package test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
)

// floodRate is how many packets a flood sends in a second.
const floodRate = 20000

// floodMode is the content of a flood. Every flow has its own made-up source, so the sender sees no
// answer.
type floodMode struct {
	name     string
	protocol string
	segments []floodSegment // of each flow
}

type floodSegment struct {
	flags           byte
	sequence        uint32
	acknowledgement uint32
}

// Flags of a TCP header.
const (
	flagFIN = 0x01
	flagSYN = 0x02
	flagRST = 0x04
	flagPSH = 0x08
	flagACK = 0x10
)

var floodModes = []floodMode{
	{"syn", "tcp", []floodSegment{{flags: flagSYN, sequence: 1000}}},
	// A listener silently drops segments without ACK.
	{"synpsh", "tcp", []floodSegment{{flags: flagSYN, sequence: 1000}, {flags: flagPSH, sequence: 1001}}},
	{"synack", "tcp", []floodSegment{{flags: flagSYN, sequence: 1000}, {flags: flagACK, sequence: 1001, acknowledgement: 12345}}},
	{"dns", "udp", []floodSegment{{}}},
}

// flooder is a host that sends packets with other hosts' sources.
//
//	flooder --- router --- ...
type flooder struct {
	host *netlab.Host
	out  *netlab.Port
	to   net.HardwareAddr // the router
	next uint32           // the next flow
	from netip.Prefix     // the made-up sources
	rate int              // packets in a second
}

// The sources of floods. The router has a route to them, and packets to them are lost there.
var (
	floodSources  = netip.MustParsePrefix("198.18.0.0/15")
	floodSources6 = netip.MustParsePrefix("2001:db8:f000::/36")
)

func newFlooder(l *lab) *flooder {
	l.t.Helper()
	f := &flooder{host: l.Host("flooder"), from: floodSources, rate: floodRate}
	link := l.Link(f.host, l.router, netlab.LinkOptions{A: []string{"10.0.7.2/24", "fd00:7::2/64"}, B: []string{"10.0.7.1/24", "fd00:7::1/64"}})
	f.out, f.to = link.A, link.B.MAC
	f.host.Route("default", "10.0.7.1")
	l.router.Route(floodSources.String(), "10.0.7.2")
	l.router.Route(floodSources6.String(), "fd00:7::2")
	l.must(l.Err())
	return f
}

// send floods a service until the time is over or the flood has had that many packets, and returns
// how many there were.
func (f *flooder) send(mode floodMode, to netip.AddrPort, duration time.Duration) (sent int, err error) {
	err = f.host.Do(func() error {
		socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("packet socket: %w", err)
		}
		defer unix.Close(socket)
		at := &unix.SockaddrLinklayer{Ifindex: f.out.Index}
		most := int(duration.Seconds() * float64(f.rate))
		for began := time.Now(); sent < most; {
			due := min(most, int(time.Since(began).Seconds()*float64(f.rate))+1)
			for sent < due {
				for _, segment := range mode.segments {
					frame := f.frame(mode.protocol, segment, to)
					if err := unix.Sendto(socket, frame, 0, at); err != nil && !errors.Is(err, unix.ENOBUFS) {
						return fmt.Errorf("send a frame: %w", err)
					}
					sent++
				}
				f.next++
			}
			time.Sleep(time.Millisecond) // the pace of the flood
		}
		return nil
	})
	return sent, err
}

// frame is a packet of the next flow.
func (f *flooder) frame(protocol string, segment floodSegment, to netip.AddrPort) []byte {
	source := binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(f.from.Addr().AsSlice())+f.next&(1<<(32-f.from.Bits())-1))
	from := netip.AddrPortFrom(netip.AddrFrom4([4]byte(source)), uint16(1024+f.next*7919%60000))
	if to.Addr().Is6() {
		from = netip.AddrPortFrom(f.source6(), from.Port())
	}
	packet := spoofed(protocol, segment, from, to, []byte("hi"))
	if to.Addr().Is6() && f.next%4 == 0 {
		packet = extended(packet)
	}
	return f.framed(packet)
}

// source6 is the source of the next flow. Every second flow has a network of its own (/64); the
// others share one.
func (f *flooder) source6() netip.Addr {
	bytes := floodSources6.Addr().As16()
	at := 12
	if f.next%2 == 0 {
		at = 4
		bytes[15] = 1
	}
	number := binary.BigEndian.Uint32(bytes[at:]) + f.next
	binary.BigEndian.PutUint32(bytes[at:], number)
	return netip.AddrFrom16(bytes)
}

// extended puts hop-by-hop options into an IPv6 packet: four bytes of padding (RFC 8200, 4.3).
func extended(packet []byte) []byte {
	const head = 40
	options := []byte{packet[6], 0, 1, 4, 0, 0, 0, 0}
	all := append(append(append([]byte{}, packet[:head]...), options...), packet[head:]...)
	all[6] = unix.IPPROTO_HOPOPTS
	binary.BigEndian.PutUint16(all[4:], uint16(len(all)-head))
	return all
}

// emit sends frames once, not so fast that a link loses them.
func (f *flooder) emit(frames [][]byte) error {
	return f.host.Do(func() error {
		socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("packet socket: %w", err)
		}
		defer unix.Close(socket)
		for _, frame := range frames {
			if err := unix.Sendto(socket, frame, 0, &unix.SockaddrLinklayer{Ifindex: f.out.Index}); err != nil {
				return fmt.Errorf("send a frame: %w", err)
			}
			time.Sleep(100 * time.Microsecond) // the pace
		}
		return nil
	})
}

// framed is a packet in a frame to the router.
func (f *flooder) framed(packet []byte) []byte {
	frame := append(append([]byte{}, f.to...), f.out.MAC...)
	kind := []byte{0x08, 0x00}
	if packet[0]>>4 == 6 {
		kind = []byte{0x86, 0xdd}
	}
	return append(append(frame, kind...), packet...)
}

// spoofed is a packet from that source; a TCP segment has no data.
func spoofed(protocol string, segment floodSegment, from, to netip.AddrPort, data []byte) []byte {
	head, number := make([]byte, 20), byte(unix.IPPROTO_TCP)
	binary.BigEndian.PutUint16(head, from.Port())
	binary.BigEndian.PutUint16(head[2:], to.Port())
	if protocol == "udp" {
		number = unix.IPPROTO_UDP
		binary.BigEndian.PutUint16(head[4:], uint16(8+len(data)))
		head = append(head[:8], data...) // without a checksum
	} else {
		binary.BigEndian.PutUint32(head[4:], segment.sequence)
		binary.BigEndian.PutUint32(head[8:], segment.acknowledgement)
		head[12], head[13] = 5<<4, segment.flags
		binary.BigEndian.PutUint16(head[14:], 65535)
	}
	if to.Addr().Is6() {
		return spoofed6(number, head, from.Addr(), to.Addr())
	}
	packet := make([]byte, 20, 20+len(head))
	packet[0], packet[8], packet[9] = 0x45, 64, number
	binary.BigEndian.PutUint16(packet[2:], uint16(20+len(head)))
	copy(packet[12:], from.Addr().AsSlice())
	copy(packet[16:], to.Addr().AsSlice())
	binary.BigEndian.PutUint16(packet[10:], internetChecksum(0, packet))
	if number == unix.IPPROTO_TCP {
		sum := uint32(number) + uint32(len(head))
		binary.BigEndian.PutUint16(head[16:], internetChecksum(sum, packet[12:20], head))
	}
	return append(packet, head...)
}

// spoofed6 is an IPv6 packet from that source, with its checksum filled in.
func spoofed6(number byte, content []byte, from, to netip.Addr) []byte {
	packet := make([]byte, 40, 40+len(content))
	packet[0], packet[6], packet[7] = 0x60, number, 64
	binary.BigEndian.PutUint16(packet[4:], uint16(len(content)))
	copy(packet[8:], from.AsSlice())
	copy(packet[24:], to.AsSlice())
	at := 16
	if number == unix.IPPROTO_UDP {
		at = 6
	}
	sum := internetChecksum(uint32(number)+uint32(len(content)), packet[8:40], content)
	binary.BigEndian.PutUint16(content[at:], sum)
	return append(packet, content...)
}

// internetChecksum is the checksum of RFC 1071 over parts with an even number of bytes.
func internetChecksum(sum uint32, parts ...[]byte) uint16 {
	for _, part := range parts {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
