package twin

import "net/netip"

// TCP's flags that matter here (RFC 9293 section 3.1).
const (
	fin = 1 << 0
	syn = 1 << 1
	rst = 1 << 2
	ack = 1 << 4
)

// Connection names one of TCP: the client's end and the VIP's.
type Connection struct {
	Client, VIP netip.AddrPort
}

// State is the kind of socket that a host has of a connection.
type State int

// The states. A socket that only listens is none of a connection.
const (
	Open  State = iota // with a socket of its own: from ESTABLISHED to LAST_ACK
	Asked              // a SYN was answered, and that was not acknowledged yet
	Ended              // TIME_WAIT
)

// Socket is what a host's kernel has of a connection.
type Socket struct {
	State State
	// Of Asked: the numbers of the client's SYN and of the answer.
	SYN, Answer uint32
	// Of Ended: the number that the client would go on with, and how many bytes it may
	// still send from there.
	Next, Window uint32
}

// Cookie is an answer to a SYN that the host can tell again without remembering it: the
// numbers of the segment that acknowledges it, for a SYN that named no segment size.
type Cookie struct {
	Sequence, Ack uint32
}

// cookieSizes is how many segment sizes a cookie of Linux tells apart. The number of the
// client's is added to it, from 0 for the smallest, so what would be the same connection
// with another size is as good.
const cookieSizes = 4

func (c Cookie) accepts(s Segment) bool {
	return s.Flags&(rst|ack) == ack && s.Ack-s.Sequence-(c.Ack-c.Sequence) < cookieSizes
}

// proves says whether a segment may have been sent right behind the one that acknowledged
// the cookie, before the client had another answer: no further than a window that is not
// scaled.
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

// has says whether the socket is the one that the segment is for.
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

// ahead is how far a sequence number is ahead of another one, of which both ways round
// the shorter one counts.
func ahead(a, b uint32) int32 { return int32(a - b) }

// sent says whether the socket may have sent what is quoted. One that has ended sends
// nothing that an error would matter to.
func (s Socket) sent(quote Quote) bool {
	return s.State == Open || s.State == Asked && quote.Sequence == s.Answer
}
