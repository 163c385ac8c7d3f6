package agent

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"weir.io/weir/lab/packet"
)

// The rows of segments of internal/datapath's proof, for what hosts remember of redirected
// connections. Both sides' numbers wrap soon.
const redirectClientISN, redirectBackendISN = 0xffffff00, 0xfffffff0

// from is the end that has sent a segment.
type from int

const (
	ofClient from = iota
	ofBackend
	ofVIP
	ofStranger // an address of no backend
)

// uttered is a segment, by its numbers beyond those of both sides' SYNs.
type uttered struct {
	from     from
	flags    uint8
	seq, ack uint32
	data     int
	option   optionSaid
}

// optionSaid is which VIP a segment's option says that the client has called.
type optionSaid int

const (
	noOption optionSaid = iota
	thisVIP
	otherVIP
)

const (
	utSYN, utACK, utFIN, utRST, utPSH = packet.SYN, packet.ACK, packet.FIN, packet.RST, packet.PSH
	utFar                             = 1 << 30 // a number that nobody waits for
	forgotten                         = time.Duration(0)
)

var (
	uttersSYN    = uttered{flags: utSYN}
	uttersSYNACK = uttered{from: ofBackend, flags: utSYN | utACK, ack: 1, option: thisVIP}
	uttersACK    = uttered{flags: utACK, seq: 1, ack: 1}
)

func opened(more ...uttered) []uttered {
	return append([]uttered{uttersSYN, uttersSYNACK, uttersACK}, more...)
}

// redirectProofRows say for how long the client's host remembers a connection that is silent then.
var redirectProofRows = []struct {
	name  string
	steps []uttered
	lives time.Duration
}{
	{"SYN", []uttered{uttersSYN}, forgotten},
	{"SYN-ACK", []uttered{uttersSYN, uttersSYNACK}, openTimeout},
	{"handshake", opened(), openTimeout},
	{"handshake with data", []uttered{uttersSYN, uttersSYNACK, {flags: utACK | utPSH, seq: 1, ack: 1, data: 100}}, openTimeout},
	{"SYN-ACK sent again", []uttered{uttersSYN, uttersSYNACK, uttersSYNACK, uttersACK}, openTimeout},
	{"SYN-ACK without a SYN", []uttered{uttersSYNACK}, forgotten},
	{"SYN-ACK acknowledges too little", []uttered{uttersSYN, {from: ofBackend, flags: utSYN | utACK, ack: 0, option: thisVIP}}, forgotten},
	{"SYN-ACK acknowledges too much", []uttered{uttersSYN, {from: ofBackend, flags: utSYN | utACK, ack: 2, option: thisVIP}}, forgotten},
	{"SYN-ACK of another SYN", []uttered{uttersSYN, {from: ofBackend, flags: utSYN | utACK, ack: utFar, option: thisVIP}}, forgotten},
	{"wrong SYN-ACK, and then the right one", []uttered{uttersSYN, {from: ofBackend, flags: utSYN | utACK, ack: utFar, option: thisVIP}, uttersSYNACK}, openTimeout},
	{"SYN-ACK without the option", []uttered{uttersSYN, {from: ofBackend, flags: utSYN | utACK, ack: 1}}, forgotten},
	{"SYN-ACK for another VIP", []uttered{uttersSYN, {from: ofBackend, flags: utSYN | utACK, ack: 1, option: otherVIP}}, forgotten},
	{"SYN-ACK of a stranger's who guesses right", []uttered{uttersSYN, {from: ofStranger, flags: utSYN | utACK, ack: 1, option: thisVIP}}, forgotten},
	{"the same, and then the backend's", []uttered{uttersSYN, {from: ofStranger, flags: utSYN | utACK, ack: 1, option: thisVIP}, uttersSYNACK}, openTimeout},
	{"SYN-ACK with a RST", []uttered{uttersSYN, {from: ofBackend, flags: utSYN | utACK | utRST, ack: 1, option: thisVIP}}, forgotten},
	{"SYN-ACK with a FIN", []uttered{uttersSYN, {from: ofBackend, flags: utSYN | utACK | utFIN, ack: 1, option: thisVIP}}, forgotten},
	{"ACK in the place of the SYN-ACK", []uttered{uttersSYN, {from: ofBackend, flags: utACK, seq: 1, ack: 1, option: thisVIP}}, forgotten},
	{"data in the place of the SYN-ACK", []uttered{uttersSYN, {from: ofBackend, flags: utACK | utPSH, seq: 1, ack: 1, data: 10}}, forgotten},
	{"PSH without ACK in its place", []uttered{uttersSYN, {from: ofBackend, flags: utPSH, seq: 1}}, forgotten},
	{"refused", []uttered{uttersSYN, {from: ofBackend, flags: utRST | utACK, ack: 1, option: thisVIP}}, forgotten},
	{"the VIP has answered before the backend", []uttered{uttersSYN, {from: ofVIP, flags: utSYN | utACK, ack: 1}, uttersSYNACK}, forgotten},
	{"the VIP has answered, and the SYN has left again before the client knew", []uttered{uttersSYN, {from: ofVIP, flags: utSYN | utACK, ack: 1}, uttersSYN, uttersSYNACK}, forgotten},
	{"the same after the SYN had left without the option", []uttered{uttersSYN, uttersSYN, {from: ofVIP, flags: utSYN | utACK, ack: 1}, uttersSYN, uttersSYNACK}, forgotten},
	{"the VIP has answered, and another connection begins", []uttered{uttersSYN, {from: ofVIP, flags: utSYN | utACK, ack: 1}, {flags: utSYN, seq: 777}, {from: ofBackend, flags: utSYN | utACK, ack: 778, option: thisVIP}}, openTimeout},
	{"somebody in the VIP's name, with another number", []uttered{uttersSYN, {from: ofVIP, flags: utSYN | utACK, ack: utFar}, uttersSYNACK}, openTimeout},
	{"the SYN has left again without the option", []uttered{uttersSYN, uttersSYN, uttersSYNACK}, forgotten},
	{"another SYN, and an answer to the first", []uttered{uttersSYN, {flags: utSYN, seq: 777}, uttersSYNACK}, forgotten},
	{"another SYN, and an answer to it", []uttered{uttersSYN, {flags: utSYN, seq: 777}, {from: ofBackend, flags: utSYN | utACK, ack: 778, option: thisVIP}}, openTimeout},
	{"SYN cookie: the SYN-ACK again with another number", []uttered{uttersSYN, uttersSYNACK, {from: ofBackend, flags: utSYN | utACK, seq: 777, ack: 1, option: thisVIP}, {flags: utACK, seq: 1, ack: 778}}, openTimeout},
	{"data in the SYN", []uttered{{flags: utSYN, data: 100}, {from: ofBackend, flags: utSYN | utACK, ack: 101, option: thisVIP}}, forgotten},
	{"SYN with a FIN", []uttered{{flags: utSYN | utFIN}, uttersSYNACK}, forgotten},
	{"simultaneous open", []uttered{uttersSYN, {from: ofBackend, flags: utSYN}, {flags: utSYN | utACK, ack: 1}, uttersSYNACK, uttersACK}, openTimeout},
	{"a SYN of the backend alone", []uttered{uttersSYN, {from: ofBackend, flags: utSYN, option: thisVIP}}, forgotten},
	{"the client alone", []uttered{uttersSYN, uttersACK, {flags: utACK | utPSH, seq: 1, ack: 1, data: 10}}, forgotten},
	{"the backend alone", []uttered{uttersSYNACK, {from: ofBackend, flags: utACK, seq: 1, ack: 1, data: 10}}, forgotten},
	{"the backend alone goes on", []uttered{uttersSYN, uttersSYNACK, {from: ofBackend, flags: utACK | utPSH, seq: 1, ack: 1, data: 10}}, openTimeout},
	{"the client acknowledges too much", []uttered{uttersSYN, uttersSYNACK, {flags: utACK, seq: 1, ack: 2}}, openTimeout},
	{"RST in sequence", opened(uttered{from: ofBackend, flags: utRST, seq: 1}), resetTimeout},
	{"RST behind data under way", opened(uttered{from: ofBackend, flags: utRST, seq: 900_000}), resetTimeout},
	{"RST of who guesses", opened(uttered{from: ofBackend, flags: utRST, seq: utFar}), openTimeout},
	{"RST far behind", opened(uttered{from: ofBackend, flags: utRST, seq: 1<<32 - 200_000}), openTimeout},
	{"RST before the client has acknowledged the SYN-ACK", []uttered{uttersSYN, uttersSYNACK, {from: ofBackend, flags: utRST, seq: 1}}, resetTimeout},
	{"the client's RST", opened(uttered{flags: utRST, seq: 1}), resetTimeout},
	{"a RST that the client has not believed", opened(uttered{from: ofBackend, flags: utRST, seq: 100}, uttersACK), openTimeout},
	{"FIN in sequence", opened(uttered{from: ofBackend, flags: utFIN | utACK, seq: 1, ack: 1}), halfTimeout},
	{"FIN of who guesses", opened(uttered{from: ofBackend, flags: utFIN | utACK, seq: utFar, ack: 1}), openTimeout},
	{"FIN without ACK", opened(uttered{from: ofBackend, flags: utFIN, seq: 1}), openTimeout},
	{"the client's FIN", opened(uttered{flags: utFIN | utACK, seq: 1, ack: 1}), halfTimeout},
	{"FINs of both", opened(uttered{flags: utFIN | utACK, seq: 1, ack: 1}, uttered{from: ofBackend, flags: utFIN | utACK, seq: 1, ack: 2}), closedTimeout},
	{"FINs of both, one of who guesses", opened(uttered{flags: utFIN | utACK, seq: 1, ack: 1}, uttered{from: ofBackend, flags: utFIN | utACK, seq: utFar, ack: 2}), halfTimeout},
	{"data of who guesses, and a RST behind it", opened(uttered{from: ofBackend, flags: utACK, seq: utFar, ack: 1, data: 9}, uttered{from: ofBackend, flags: utRST, seq: utFar + 9}), openTimeout},
	{"SYN-ACK in a connection, to what nobody has sent", opened(uttered{from: ofBackend, flags: utSYN | utACK, ack: utFar, option: thisVIP}), openTimeout},
	{"SYN in a connection, in the backend's name", opened(uttered{from: ofBackend, flags: utSYN, seq: utFar, option: thisVIP}), openTimeout},
	{"the client's SYN again", opened(uttersSYN), openTimeout},
	{"another SYN of the client's", opened(uttered{flags: utSYN, seq: utFar}), forgotten},
}

// utter gives the host a segment, whatever becomes of it.
func (h *redirectHost) utter(c connection, s uttered) {
	h.t.Helper()
	source, to, program := c.client, c.vip, h.RedirectLeave
	if s.from != ofClient {
		to, program = c.client, h.RedirectArrive
		source = map[from]netip.AddrPort{ofBackend: c.backend, ofVIP: c.vip, ofStranger: netip.AddrPortFrom(stranger4, c.backend.Port())}[s.from]
		if s.from == ofStranger && c.vip.Addr().Is6() {
			source = netip.AddrPortFrom(stranger6, c.backend.Port())
		}
	}
	run(h.t, program, build(frame{ether}, s.segment(c, source, to)), nil)
}

// segment is what is uttered of a connection, from one end to another.
func (s uttered) segment(c connection, source, to netip.AddrPort) frame {
	own, other := uint32(redirectClientISN), uint32(redirectBackendISN)
	if s.from != ofClient {
		own, other = other, own
	}
	header := packet.TCPHeader{Seq: own + s.seq, Flags: s.flags, Window: 512, Options: linuxSYN}
	if s.flags&packet.ACK != 0 {
		header.Ack = other + s.ack
	}
	switch {
	case s.option == thisVIP:
		header.Options = withOption(c.vip, linuxSYN)
	case s.option == otherVIP && c.vip == portVIP4:
		header.Options = withOption(handedVIP4, linuxSYN)
	case s.option == otherVIP:
		header.Options = withOption(portVIP4, linuxSYN)
	}
	return segment(source, to, header, packet.Zeros(s.data))
}

// lives returns for how long a connection is remembered that is silent now. Both directions are
// there, or none.
func (h *redirectHost) lives(c connection) time.Duration {
	h.t.Helper()
	back := h.flow(connection{client: c.client, vip: c.backend})
	var out, in redirectRedirectWay
	leaves, comes := h.RedirectLeaving.Lookup(h.flow(c), &out), h.RedirectArriving.Lookup(back, &in)
	if (leaves == nil) != (comes == nil) {
		h.t.Fatalf("half a connection is there: %v, %v", leaves, comes)
	}
	if leaves != nil {
		return forgotten
	}
	return timeoutOf(out.Ends, in.Ends)
}

// TestRedirectProof is the table of what makes a redirected connection one that the client's host
// remembers, and of what ends it.
func TestRedirectProof(t *testing.T) {
	for _, row := range redirectProofRows {
		for _, c := range connections() {
			t.Run(row.name+", "+c.service, func(t *testing.T) {
				h := newRedirectHost(t)
				for _, s := range row.steps {
					h.utter(c, s)
				}
				if got := h.lives(c); got != row.lives {
					t.Errorf("it is remembered for %v, want %v", got, row.lives)
				}
				if n := entries(t, h.RedirectLeaving); n > 1 {
					t.Errorf("%d connections are remembered", n)
				}
			})
		}
	}
}

// TestRedirectEchoes is the same of a backend's host, which sees the client alone: an answer has the
// option if it acknowledges a SYN that said which VIP the client has called.
func TestRedirectEchoes(t *testing.T) {
	const syn, synACK = packet.SYN, packet.SYN | packet.ACK
	step := func(seq uint32, option optionSaid) uttered { return uttered{flags: syn, seq: seq, option: option} }
	answer := func(ack uint32) uttered { return uttered{from: ofBackend, flags: synACK, ack: ack} }
	var strangers []uttered
	for i := range uint32(3) {
		strangers = append(strangers, step(utFar+i, thisVIP))
	}
	for _, row := range []struct {
		name   string
		comes  []uttered
		answer uttered
		echoed bool
	}{
		{"SYN-ACK", []uttered{step(0, thisVIP)}, answer(1), true},
		{"the SYN is sent again", []uttered{step(0, thisVIP), step(0, thisVIP)}, answer(1), true},
		{"RST of a port that nobody listens at", []uttered{step(0, thisVIP)}, uttered{from: ofBackend, flags: packet.RST | packet.ACK, seq: 1<<32 - redirectBackendISN, ack: 1}, true},
		{"SYN without the option", []uttered{step(0, noOption)}, answer(1), false},
		{"SYN that names another VIP", []uttered{step(0, otherVIP)}, answer(1), false},
		{"nothing came", nil, answer(1), false},
		{"SYN-ACK of another number", []uttered{step(0, thisVIP)}, answer(2), false},
		{"RST with a number", []uttered{step(0, thisVIP)}, uttered{from: ofBackend, flags: packet.RST | packet.ACK, seq: 5, ack: 1}, false},
		{"bare ACK", []uttered{step(0, thisVIP)}, uttered{from: ofBackend, flags: packet.ACK, seq: 1, ack: 1}, false},
		{"data", []uttered{step(0, thisVIP)}, uttered{from: ofBackend, flags: packet.ACK | packet.PSH, seq: 1, ack: 1, data: 10}, false},
		{"PSH without ACK came", []uttered{{flags: packet.PSH, option: thisVIP}}, answer(1), false},
		{"SYN with an ACK came", []uttered{{flags: synACK, option: thisVIP}}, answer(1), false},
		{"stranger's SYN behind it", []uttered{step(0, thisVIP), step(utFar, thisVIP)}, answer(1), true},
		{"stranger's SYN before it", []uttered{step(utFar, thisVIP), step(0, thisVIP)}, answer(1), true},
		{"stranger's SYN without the option", []uttered{step(0, thisVIP), step(utFar, noOption)}, answer(1), true},
		{"stranger's SYNs behind it", append([]uttered{step(0, thisVIP)}, strangers...), answer(1), true},
		{"stranger's FIN, RST and data", []uttered{step(0, thisVIP), {flags: packet.FIN | packet.ACK, seq: 1, ack: utFar}, {flags: packet.RST, seq: utFar}, {flags: packet.ACK, seq: 1, ack: utFar, data: 9}}, answer(1), true},
	} {
		for _, c := range connections()[:2] {
			t.Run(row.name+", "+c.service, func(t *testing.T) {
				h := newRedirectHost(t)
				here := c.asked()
				for _, s := range row.comes {
					h.speaks(h.RedirectArrive, here, s)
				}
				if echoed := h.speaks(h.RedirectLeave, here, row.answer); echoed != row.echoed {
					t.Errorf("the answer has the option: %v, want %v", echoed, row.echoed)
				}
			})
		}
	}
}

// asked is a connection with this host as its backend, from a client elsewhere.
func (c connection) asked() connection {
	c.backend = netip.AddrPortFrom(host4, 443)
	c.client = netip.AddrPortFrom(third4, 40000)
	if c.vip.Addr().Is6() {
		c.backend, c.client = netip.AddrPortFrom(host6, 443), netip.AddrPortFrom(third6, 40000)
	}
	return c
}

// speaks gives a backend's host a segment of the client's that comes, or its own that leaves, and
// reports whether it has become longer by the option.
func (h *redirectHost) speaks(program *ebpf.Program, c connection, s uttered) (longer bool) {
	h.t.Helper()
	source, to := c.client, c.backend
	if s.from == ofBackend {
		source, to = to, source
	}
	in := build(frame{ether}, s.segment(c, source, to))
	_, out := run(h.t, program, in, nil)
	return len(out) > len(in)
}

// TestDisplacedEchoesAreHarmless: with more SYNs by the client's port than there are places, within
// the time that an answer takes, a stranger displaces what the answer repeats. So the answer has no
// option: the client's host does not take it, its SYN leaves once more without the option, and the
// VIP has the connection.
func TestDisplacedEchoesAreHarmless(t *testing.T) {
	for _, c := range connections()[:2] {
		h := newRedirectHost(t)
		here := c.asked()
		h.speaks(h.RedirectArrive, here, uttered{flags: packet.SYN, option: thisVIP})
		for i := range uint32(4) {
			h.speaks(h.RedirectArrive, here, uttered{flags: packet.SYN, seq: utFar + i, option: thisVIP})
		}
		if echoed := h.speaks(h.RedirectLeave, here, uttered{from: ofBackend, flags: packet.SYN | packet.ACK, ack: 1}); echoed {
			t.Errorf("%s: five SYNs share four places, and the oldest has one", c.service)
		}

		client := newRedirectHost(t)
		bare := synAckOf(linuxSYN...)
		client.check(c.asks(),
			arrivesAs("SYN-ACK without the option", "", segment(c.backend, c.client, bare), nil),
			leavesAs("SYN again", c.service+" again", segment(c.client, c.vip, synOf(linuxSYN...)), nil),
			arrivesAs("SYN-ACK of the VIP", "", segment(c.vip, c.client, bare), nil),
			leavesAs("data to the VIP", "", segment(c.client, c.vip, dataOf(packet.ACK)), nil),
			arrivesAs("data of the VIP", "", segment(c.vip, c.client, dataOf(packet.ACK)), nil))
		client.remembers(t, "after it fell back", 0, 0)
	}
}
