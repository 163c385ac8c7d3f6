package agent

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.io/weir/lab/packet"
)

// The row of a datagram (bpf/abi/row_types.h).
const (
	datagramRow = 0x55
	rowReturned = 0x80
	talkPort    = 3478
	unknown     = time.Duration(-1)
)

// walked is the row of a datagram on its way.
type walked struct {
	next, down, claim int
	hops              []netip.Addr
}

func (w walked) private() []byte {
	b := []byte{datagramRow, byte(len(w.hops) | w.down<<4), byte(w.next), byte(w.claim)}
	for _, hop := range w.hops {
		b = append(b, hop.AsSlice()...)
	}
	return b
}

// first returns the row with another first host.
func (w walked) first(first netip.Addr) walked {
	w.hops = append([]netip.Addr{first}, w.hops[1:]...)
	return w
}

// step is what a host does with a datagram that it gets.
type step struct {
	name    string
	age     time.Duration // how long ago this host kept one of its flow; or unknown
	begun   bool          // which was the first one
	from    netip.Addr    // unset: the director
	in      walked
	asked   map[netip.Addr]bpfHostQuestion // ages, of which 0 is no question
	reason  bpfHostReason
	to      netip.Addr // and where it goes, with this row
	out     walked
	noticed bool // every question is answered to its sender
}

// talk is one flow of UDP or SCTP at the wire.
type talk struct {
	vip, client netip.Addr
	port        uint16
	sctp        bool
}

func (f talk) header(from, to uint16) packet.Header {
	if f.sctp {
		return packet.SCTPHeader{Src: from, Dst: to, Tag: 7}
	}
	return packet.UDPHeader{Src: from, Dst: to}
}

func (r *second) talk(vip netip.Addr) talk {
	f := r.flow(vip)
	return talk{vip: vip, client: f.client, port: f.port}
}

func (f talk) datagram() frame {
	return frame{ip(f.client, f.vip), f.header(f.port, talkPort), packet.Text("hello")}
}

// refused is an ICMP error about a datagram that the VIP sent.
func (f talk) refused() frame {
	quote := packet.Quote(8, ip(f.vip, f.client), f.header(talkPort, f.port))
	if f.vip.Is4() {
		return frame{ip(f.client, f.vip), packet.ICMPv4Header{Type: 3, Code: 3}, quote}
	}
	return frame{ip(f.client, f.vip), packet.ICMPv6Header{Type: 1, Code: 4}, quote}
}

// isTalk says whether a packet is of a flow that is remembered, and not an error about one.
func isTalk(inner frame) bool {
	_, udp := inner[1].(packet.UDPHeader)
	_, sctp := inner[1].(packet.SCTPHeader)
	return udp || sctp
}

func (f talk) key() bpfHostFlow {
	key := bpfHostFlow{Client: address(f.client), Vip: address(f.vip), ClientPort: networkOrder(f.port), VipPort: networkOrder(talkPort)}
	if f.sctp {
		key.Client.Bytes[0] ^= sctpBit
	}
	return key
}

// monotonic is the clock of what programs remember.
func monotonic(t testing.TB) uint64 {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now); err != nil {
		t.Fatal(err)
	}
	return uint64(now.Nano())
}

// remember makes the host have kept a datagram of the flow so long ago.
func (h *testHost) remember(t testing.TB, f talk, age time.Duration) {
	t.Helper()
	key, seen := f.key(), monotonic(t)-uint64(max(age, 0))
	for _, m := range []*ebpf.Map{h.UdpFlows, h.UdpFresh} {
		if err := m.Delete(&key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Fatal(err)
		}
	}
	if age == unknown {
		return
	}
	if err := h.UdpFlows.Put(&key, &seen); err != nil {
		t.Fatal(err)
	}
}

// rememberBegun does it with a flow of which there was that datagram alone.
func (h *testHost) rememberBegun(t testing.TB, f talk, age time.Duration) {
	t.Helper()
	h.remember(t, f, unknown)
	if age == unknown {
		return
	}
	key, seen := f.key(), monotonic(t)-uint64(age)
	if err := h.UdpFresh.Put(&key, &bpfHostFresh{Seen: seen, Since: seen, Datagrams: 1}); err != nil {
		t.Fatal(err)
	}
}

// remembered is when a datagram of the flow was kept; 0: never.
func (h *testHost) remembered(f talk) uint64 {
	if seen := h.sustained(f); seen > 0 {
		return seen
	}
	var fresh bpfHostFresh
	key := f.key()
	_ = h.UdpFresh.Lookup(&key, &fresh)
	return fresh.Seen
}

// sustained is the same of flows that are sustained alone.
func (h *testHost) sustained(f talk) (seen uint64) {
	key := f.key()
	_ = h.UdpFlows.Lookup(&key, &seen)
	return seen
}

// ask makes the host have asked others, so long ago.
func (h *testHost) ask(t testing.TB, asked map[netip.Addr]bpfHostQuestion) {
	t.Helper()
	for _, host := range []netip.Addr{peer4, peer6, third4, third6} {
		key := address(host)
		_ = h.Questions.Delete(&key)
	}
	now := monotonic(t)
	for host, ages := range asked {
		key, q := address(host), bpfHostQuestion{Since: now - ages.Since, Last: now - ages.Last}
		if ages.Open > 0 {
			q.Open = now - ages.Open
		}
		if err := h.Questions.Put(&key, &q); err != nil {
			t.Fatal(err)
		}
	}
}

// hooks are the programs that see a packet, and what they say if it is passed on.
func (r *second) hooks() []hook {
	return []hook{
		{"xdp", r.HostXdp, xdpPass, xdpDrop, xdpPass},
		{"tc", r.HostIngress, tcNext, tcShot, tcRedirect},
		{"tc after xdp", r.HostAfterXdp, tcNext, tcShot, tcRedirect},
	}
}

type hook struct {
	name           string
	program        *ebpf.Program
	up, drop, pass uint32
}

// aged is how long a step may take: ages are no more what they were half a second later.
const aged = 300 * time.Millisecond

// walk checks a step of a packet about a flow, at every hook. Only a datagram that is
// kept is remembered.
func (r *second) walk(t *testing.T, o rowTunnel, f talk, inner frame, s step) {
	t.Helper()
	from := s.from
	if !from.IsValid() {
		from = o.from
	}
	isDatagram := isTalk(inner)
	in := o.wrap(from, o.to, s.in.private(), inner)
	for _, h := range r.hooks() {
		var options *ebpf.RunOptions
		var verdict uint32
		var before counts
		var seen uint64
		for tries := 0; tries < 50; tries++ { // once, unless the machine stands still meanwhile
			before = r.counts(t)
			options = &ebpf.RunOptions{Data: in, DataOut: make([]byte, len(in)+256)}
			began := time.Now()
			if s.begun {
				r.rememberBegun(t, f, s.age)
			} else {
				r.remember(t, f, s.age)
			}
			r.ask(t, s.asked)
			seen = r.remembered(f)
			do(t, r.street.host, "run "+h.name, func() (err error) {
				verdict, err = h.program.Run(options)
				return err
			})
			if time.Since(began) < aged {
				break
			}
		}
		want, wantOut, service, length := h.up, build(frame{ether}, inner), serviceOf(inner), 0
		passed := s.reason == bpfHostReasonHOST_PASSED_ON
		switch {
		case isDrop(s.reason):
			want, wantOut, service = h.drop, nil, ""
		case passed:
			want, service = h.pass, ""
			wantOut = o.wrap(o.to, s.to, s.out.private(), inner)
			if h.name == "xdp" {
				wantOut = in // the next one does it
			}
		default:
			length = len(wantOut) - 14
		}
		if verdict != want {
			t.Errorf("%s, %s: verdict is %d, want %d", s.name, h.name, verdict, want)
		}
		if wantOut != nil {
			packet.Equal(t, options.DataOut, wantOut)
			checkChecksums(t, options.DataOut)
		}
		if !passed || h.name != "xdp" {
			checkCounts(t, before, r.counts(t), s.reason, len(in)-14, service, length)
		}
		keeps := isDatagram && !passed && !isDrop(s.reason)
		now := r.remembered(f)
		if noted := now > seen; noted != keeps && (noted || s.age != 0) {
			t.Errorf("%s, %s: the flow was kept at %d before and at %d now", s.name, h.name, seen, now)
		}
		r.checkQuestions(t, s, from)
		if t.Failed() {
			t.Fatalf("%s, %s, over %v, checksum %v", s.name, h.name, o.to, !o.noChecksum)
		}
	}
}

// checkQuestions: a packet that goes to a host that is down is a question, and one that
// comes from it an answer.
func (r *second) checkQuestions(t *testing.T, s step, from netip.Addr) {
	t.Helper()
	var q bpfHostQuestion
	key := address(from)
	if err := r.Questions.Lookup(&key, &q); s.noticed && (err != nil || q.Open != 0) {
		t.Errorf("%s: after its answer %v has question %+v, error %v", s.name, from, q, err)
	}
	toDown := s.reason == bpfHostReasonHOST_PASSED_ON && s.out.next <= len(s.out.hops) && s.out.next > len(s.out.hops)-s.out.down
	if !toDown {
		return
	}
	key = address(s.to)
	if err := r.Questions.Lookup(&key, &q); err != nil || q.Open == 0 {
		t.Errorf("%s: %v was asked, and has question %+v, error %v", s.name, s.to, q, err)
	}
}
