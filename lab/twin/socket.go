package twin

import "net/netip"

// TCP's flags that matter here (RFC 9293 section 3.1).
const (
	fin = 1 << 0
	syn = 1 << 1
	rst = 1 << 2
	ack = 1 << 4
)

// Connection names a TCP connection: the client's end and the VIP's.
type Connection struct {
	Client, VIP netip.AddrPort
}

// State is the kind of socket that a host has for a connection.
type State int

// The states. A socket that only listens belongs to no connection.
const (
	Open  State = iota // with a socket of its own: from ESTABLISHED to LAST_ACK
	Asked              // a SYN was answered, and the answer is not acknowledged yet
	Ended              // TIME_WAIT
)

// Socket is a host's kernel's socket for a connection.
type Socket struct {
	State State
	// For Asked: the numbers of the client's SYN and of the answer.
	SYN, Answer uint32
	// For Ended: the client's next sequence number, and how many bytes it may still send from
	// there.
	Next, Window uint32
}

// Cookie is an answer to a SYN that the host can recognize without remembering it: the numbers of
// the segment that acknowledges it, for a SYN that named no segment size.
type Cookie struct {
	Sequence, Ack uint32
}

// cookieSizes is how many segment sizes a Linux cookie distinguishes. The number of the client's
// size is added to the cookie, from 0 for the smallest, so the same connection with another size is
// as good.
const cookieSizes = 4

func (c Cookie) accepts(s Segment) bool {
	return s.Flags&(rst|ack) == ack && s.Ack-s.Sequence-(c.Ack-c.Sequence) < cookieSizes
}

// proves says whether a segment may have been sent right after the one that acknowledged the
// cookie, before the client had another answer: at most an unscaled window further.
func (c Cookie) proves(s Segment) bool {
	return (s.Flags&ack == 0 || s.Ack == c.Ack) && s.Sequence-c.Sequence < 1<<16
}

// Segment is what is read of a client's TCP packet.
type Segment struct {
	Connection
	Flags         uint8
	Sequence, Ack uint32
	Length        uint32 // of the data
}

// Quote is what is read of the packet that an ICMP error is about: a host has sent it.
type Quote struct {
	Connection
	Sequence uint32
}

// has says whether the segment is for this socket.
func (s Socket) has(segment Segment) bool {
	switch s.State {
	case Asked:
		if segment.Flags&ack != 0 {
			return segment.Ack == s.Answer+1
		}
		return segment.Sequence == s.SYN+1
	case Ended:
		end := segment.Sequence + segment.Length
		if segment.Flags&fin != 0 {
			end++
		}
		return ahead(end, s.Next-1) >= 0 && ahead(s.Next+s.Window, segment.Sequence) >= 0
	}
	return true
}

// ahead is how far a sequence number is ahead of another one, the shorter way round.
func ahead(a, b uint32) int32 { return int32(a - b) }

// sent says whether the socket may have sent what is quoted. A socket that has ended sends nothing
// for which an error would matter.
func (s Socket) sent(quote Quote) bool {
	return s.State == Open || s.State == Asked && quote.Sequence == s.Answer
}
