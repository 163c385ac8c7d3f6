package agent

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"weir.io/weir/lab/packet"
	"weir.io/weir/lab/twin"
)

func (f *flow) key() bpfHostFlow { return flowKey(f.connection()) }

func flowKey(c twin.Connection) bpfHostFlow {
	return bpfHostFlow{Client: address(c.Client.Addr()), Vip: address(c.VIP.Addr()),
		ClientPort: networkOrder(c.Client.Port()), VipPort: networkOrder(c.VIP.Port())}
}

// noted returns the acknowledgement of a cookie that the host remembers of a connection.
func (h *testHost) noted(key bpfHostFlow) (cookie bpfHostCookie, known bool) {
	return cookie, h.Cookies.Lookup(&key, &cookie) == nil
}

// note makes the host have had one, or none.
func (h *testHost) note(t testing.TB, key bpfHostFlow, cookie *bpfHostCookie) {
	t.Helper()
	err := h.Cookies.Delete(&key)
	if cookie != nil {
		err = h.Cookies.Put(&key, cookie)
	}
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Fatal(err)
	}
}

// A cookie was acknowledged just now, or long ago. The first is of a later time: however
// slow the test is, it stays of this moment.
func justNow(t testing.TB) uint64 { return monotonic(t) + uint64(time.Hour) }
func longAgo(t testing.TB) uint64 { return monotonic(t) - uint64(time.Second) }

// testBehindCookie: a cookie of the flow was acknowledged here, and no socket has come of
// it yet. Segments that the client has sent right behind it belong here, too, for a short
// time. Segments that follow another host's answer do not.
func (r *second) testBehindCookie(t *testing.T, f *flow) {
	cookie, known := r.noted(f.key())
	if !known || cookie.Sequence != f.next || cookie.Acknowledgement != f.ack {
		t.Fatalf("the host remembers %v %+v, want the acknowledgement of %d by %d", known, cookie, f.ack, f.next)
	}
	cookie.Seen = justNow(t)
	r.note(t, f.key(), &cookie)
	behind := func(here bool) {
		t.Helper()
		r.judge(t, f.segment(packet.ACK|packet.PSH, f.next+7, f.ack, "more"), here)
		r.judge(t, f.segment(packet.ACK|packet.FIN, f.next+65535, f.ack, ""), here)
		r.judge(t, f.segment(packet.RST|packet.ACK, f.next, f.ack, ""), here)
		r.judge(t, f.segment(packet.RST, f.next+7, 0, ""), here)
	}
	behind(true)
	r.judge(t, f.segment(packet.ACK, f.next+65536, f.ack, ""), false)
	r.judge(t, f.segment(packet.ACK, f.next-9, f.ack, ""), false)
	r.judge(t, f.segment(packet.ACK, f.next+7, f.ack+80, ""), false)
	r.judge(t, f.segment(packet.ACK|packet.PSH, f.next+7, f.ack-1, "to another"), false)
	other := r.flow(f.vip)
	r.judge(t, other.segment(packet.ACK, f.next+7, f.ack, ""), false)
	if now, _ := r.noted(f.key()); now != cookie {
		t.Errorf("what is behind has changed what the host remembers from %+v to %+v", cookie, now)
	}
	cookie.Seen = longAgo(t)
	r.note(t, f.key(), &cookie)
	behind(false)
	r.judge(t, f.segment(packet.ACK, f.next, f.ack, ""), true) // it proves itself
	if now, _ := r.noted(f.key()); now.Seen <= cookie.Seen {
		t.Errorf("the cookie was acknowledged again, and the host remembers %+v of before", now)
	}
}

// TestAcknowledgedCookiesAreBounded: whoever opens many connections by cookies only makes
// the host forget those of others that are older.
func TestAcknowledgedCookiesAreBounded(t *testing.T) {
	h := newTestHost(t)
	most := h.Cookies.MaxEntries()
	key := bpfHostFlow{Client: address(client4), Vip: address(vip4), VipPort: networkOrder(443)}
	all := most + most/8
	for i := range all {
		key.ClientPort = uint16(i)
		if err := h.Cookies.Put(&key, &bpfHostCookie{Sequence: i}); err != nil {
			t.Fatal(err)
		}
	}
	if last, known := h.noted(key); !known || last.Sequence != all-1 {
		t.Errorf("the last of %d connections is %v %+v", all, known, last)
	}
	remembered := uint32(0)
	var cookie bpfHostCookie
	for entries := h.Cookies.Iterate(); entries.Next(&key, &cookie); remembered++ {
		if remembered > most {
			t.Fatalf("more than %d are remembered", most)
		}
	}
}

// acknowledged is a cookie of a random packet's connection that was acknowledged before.
type acknowledged struct {
	of     twin.Connection
	cookie twin.Cookie
	old    bool // no more of this moment
}

// proven is what the twin is told of what the host remembers.
func (c *carried) proven() map[twin.Connection]twin.Cookie {
	if c.before == nil || c.before.old {
		return nil
	}
	return map[twin.Connection]twin.Cookie{c.before.of: c.before.cookie}
}

// recall makes the host remember that, and nothing else of the connection. It returns how.
func (z *zoo) recall(t *testing.T, c *carried) *bpfHostCookie {
	if c.packet.Segment == nil {
		return nil
	}
	var noted *bpfHostCookie
	if c.before != nil {
		noted = &bpfHostCookie{Seen: justNow(t), Sequence: c.before.cookie.Sequence, Acknowledgement: c.before.cookie.Ack}
		if c.before.old {
			noted.Seen = longAgo(t)
		}
	}
	z.note(t, flowKey(c.packet.Segment.Connection), noted)
	return noted
}

// notes says whether the host remembers something else now than the cookie that was
// acknowledged or, if none was, what it remembered before.
func (z *zoo) notes(c *carried, before *bpfHostCookie, proven *twin.Cookie) error {
	if c.packet.Segment == nil {
		return nil
	}
	noted, known := z.noted(flowKey(c.packet.Segment.Connection))
	same := known == (before != nil) && (before == nil || noted == *before)
	if proven != nil {
		same = known && noted.Sequence == proven.Sequence && noted.Acknowledgement == proven.Ack && (before == nil || noted.Seen != before.Seen)
	}
	if !same {
		return fmt.Errorf("the host remembers %v %+v, want %+v, or %+v of before", known, noted, proven, before)
	}
	return nil
}
