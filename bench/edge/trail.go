package edge

import (
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/packet"
)

// trail is what the switch has seen of clients' packets.
type trail struct {
	stations map[mac]station
	fd       int

	mu       sync.Mutex
	arrivals []arrival
	last     map[*Backend]time.Time // when a director last sent the backend anything
	steps    []step                 // the last ones, in a ring
	next     int                    // place of the next one
	problem  error
}

// station is the host with a MAC address.
type station struct {
	name     string
	director *Director // nil: it is not a director
	backend  *Backend
}

// arrival is the beginning of a connection on its way from a director to a backend.
type arrival struct {
	at       time.Time
	director *Director
	backend  *Backend
}

// step is a packet that one host sent to another.
type step struct {
	at time.Time
	sighting
}

// rememberedSteps is enough for some 20 seconds of requests.
const rememberedSteps = 1 << 18

// trailBuffer holds what comes while it is not read: the machine may be busy elsewhere.
const trailBuffer = 32 << 20

func newTrail() *trail {
	return &trail{stations: map[mac]station{}, fd: -1, last: map[*Backend]time.Time{}, steps: make([]step, rememberedSteps)}
}

// watch begins to see everything that comes in at a switch's ports.
func (t *trail) watch(lan *netlab.Host) error {
	err := lan.Do(func() (err error) {
		all := binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xff})
		if t.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all)); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(t.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
			return err
		}
		// With a timeout the reader can be stopped.
		if err := unix.SetsockoptTimeval(t.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}); err != nil {
			return err
		}
		return unix.SetsockoptInt(t.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, trailBuffer)
	})
	if err != nil {
		return fmt.Errorf("watch the switch: %w", err)
	}
	return nil
}

// follow notes what comes, until done is closed.
func (t *trail) follow(done <-chan struct{}) {
	defer unix.Close(t.fd)
	frame := make([]byte, 256) // headers
	for {
		select {
		case <-done:
			return
		default:
		}
		n, _, err := unix.Recvfrom(t.fd, frame, 0)
		switch err {
		case nil:
			if p, is := read(frame[:n]); is {
				t.note(time.Now(), p)
			}
		case unix.EINTR, unix.EAGAIN, unix.ENETDOWN:
		default:
			t.mu.Lock()
			t.problem = fmt.Errorf("watch the switch: %w", err)
			t.mu.Unlock()
			return
		}
	}
}

func (t *trail) note(at time.Time, p sighting) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.steps[t.next%len(t.steps)] = step{at, p}
	t.next++
	d, b := t.stations[p.from].director, t.stations[p.to].backend
	if d == nil || b == nil {
		return
	}
	t.last[b] = at
	if p.opens() {
		t.arrivals = half(append(t.arrivals, arrival{at, d, b}))
	}
}

// whole says whether everything was seen.
func (t *trail) whole() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.problem != nil {
		return t.problem
	}
	count, err := unix.GetsockoptTpacketStats(t.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return fmt.Errorf("ask what was not seen at the switch: %w", err)
	}
	if count.Drops > 0 {
		return fmt.Errorf("%d packets at the switch were not seen: the machine is too busy for these measurements", count.Drops)
	}
	return nil
}

// lastSent returns when a director last sent a backend a client's packet.
func (t *trail) lastSent(b *Backend) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last[b]
}

// lastBegun returns the last arrival of a kind since then; the zero time if there was none.
func (t *trail) lastBegun(since time.Time, of func(arrival) bool) (at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := len(t.arrivals) - 1; i >= 0 && t.arrivals[i].at.After(since); i-- {
		if of(t.arrivals[i]) {
			return t.arrivals[i].at
		}
	}
	return at
}

// firstBegun returns the first such arrival.
func (t *trail) firstBegun(since time.Time, of func(arrival) bool) (at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := len(t.arrivals) - 1; i >= 0 && t.arrivals[i].at.After(since); i-- {
		if of(t.arrivals[i]) {
			at = t.arrivals[i].at
		}
	}
	return at
}

// story tells what became of the packets of a client's port since a time.
func (t *trail) story(port uint16, since time.Time) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var told []string
	for i := max(0, t.next-len(t.steps)); i < t.next; i++ {
		s := t.steps[i%len(t.steps)]
		if s.client != port || s.at.Before(since) {
			continue
		}
		told = append(told, fmt.Sprintf("%.1f ms %s to %s %s", float64(s.at.Sub(since).Microseconds())/1e3, t.name(s.from), t.name(s.to), s.kind()))
	}
	return strings.Join(told, ", ")
}

func (t *trail) name(m mac) string {
	if s, known := t.stations[m]; known {
		return s.name
	}
	return fmt.Sprintf("%x", m)
}

// mac is a MAC address that can be compared.
type mac [6]byte

// sighting is a packet of a client's connection with the VIP, as seen on a cable.
type sighting struct {
	from, to mac
	client   uint16 // its port
	reply    bool   // to the client
	flags    byte   // of TCP
}

const guePort = 6080

// opens is whether it is the first packet of a connection, or its retransmission.
func (p sighting) opens() bool { return !p.reply && p.flags&(packet.SYN|packet.ACK) == packet.SYN }

// kind names the flags as tcpdump does.
func (p sighting) kind() string {
	text := ""
	for _, f := range []struct {
		bit  byte
		name string
	}{{packet.SYN, "S"}, {packet.FIN, "F"}, {packet.RST, "R"}, {packet.ACK, "."}} {
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
