package datapath

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// directors are two directors of a group beside each other, and what each of them shares.
type directors struct {
	one, other *Datapath
	news       [2]func() []model.RememberedFlow
	heard      [2]int // news that the other one has heard
}

// newDirectors gives both directors services whose packets all ask flow memory.
func newDirectors(t *testing.T) *directors {
	t.Helper()
	addNeighbors(t, 3)
	must(t, device.SetEthtool("wire1", unix.ETHTOOL_SGRO, 1)) // XDP sends into wire0 whoever has a program at its other end
	p := &directors{one: openShare(t, "one"), other: openShare(t, "other")}
	p.set(t, nil, listedRing(0, 1, 2))
	p.news = [2]func() []model.RememberedFlow{follow(t, p.one), follow(t, p.other)}
	return p
}

// set gives both directors a ring, and lets some backends drain.
func (p *directors) set(t *testing.T, draining []int, rings ...model.Ring) {
	t.Helper()
	for i, d := range []*Datapath{p.one, p.other} {
		table := shareTable([]string{"wire0", "wire1"}[i], 3, 0, i > 0)
		for j := range table.Services {
			table.Services[j].Ring = rings[min(i, len(rings)-1)]
			for _, b := range draining {
				table.Services[j].Backends[b].State = model.Draining
			}
		}
		must(t, d.Set(table))
	}
}

// learned waits until a director has shared so many flows more, which the other one has not heard.
func (p *directors) learned(t *testing.T, from, flows int) []model.RememberedFlow {
	t.Helper()
	eventually(t, "the director shares", func() bool { return len(p.news[from]()) >= p.heard[from]+flows })
	some := p.news[from]()[p.heard[from]:]
	if len(some) != flows {
		t.Fatalf("director %d shares %+v, want %d flows", from, some, flows)
	}
	p.heard[from] += flows
	return some
}

// share lets one director import the next flows that the other one shares.
func (p *directors) share(t *testing.T, from, flows int) {
	t.Helper()
	must(t, []*Datapath{p.other, p.one}[from].Remember(p.learned(t, from, flows)))
}

// sends runs a segment through a director's program, and returns the number of its backend.
func (p *directors) sends(t *testing.T, d *Datapath, port uint16, flags uint8, sequence uint32) int {
	t.Helper()
	frame := build(ip(client4, netip.MustParseAddr("198.51.0.0")), packet.TCPHeader{Src: port, Dst: 80, Flags: flags, Seq: sequence}, packet.Text("client"))
	_, out, err := d.kernel.program.Test(frame)
	must(t, err)
	for b := range 3 {
		if neighborMAC(netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + b)})) == model.MAC(out[:6]) {
			return b
		}
	}
	return -1
}

func (p *directors) want(t *testing.T, d *Datapath, port uint16, flags uint8, sequence uint32, want int, why string) {
	t.Helper()
	if got := p.sends(t, d, port, flags, sequence); got != want {
		t.Errorf("port %d, flags %#x: backend %d, want %d: %s", port, flags, got, want, why)
	}
}

// A client ends a connection at one director and uses its port again at once at another director,
// which knows the old connection from the first one. The new connection has one backend, wherever
// its packets come, and whenever the directors hear of the end.
func TestPortIsUsedAgainElsewhere(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	p := newDirectors(t)
	onCPU(t, 0, func() { testPortUsedAgain(t, p) })
}

func testPortUsedAgain(t *testing.T, p *directors) {
	const known, late, moved, begun = 20000, 20001, 20002, 20003
	const first, second = 1000, 1 << 30 // numbers of the old and the new connection
	const syn, ack, fin = packet.SYN, packet.ACK, packet.FIN | packet.ACK
	for _, port := range []uint16{known, late, begun} {
		p.want(t, p.one, port, syn, first, 0, "the owner")
		p.want(t, p.one, port, ack, first+7, 0, "it goes on")
		p.share(t, 0, 1)
	}
	p.want(t, p.one, moved, syn, first, 0, "the owner")
	p.want(t, p.one, moved, ack, first+7, 0, "it goes on")
	p.learned(t, 0, 1) // and is lost
	for _, port := range []uint16{known, late, moved, begun} {
		p.want(t, p.one, port, fin, first+13, 0, "it ends")
		if port == known {
			p.share(t, 0, 1)
		}
	}
	ends := p.learned(t, 0, 3)
	p.want(t, p.other, late, syn, second, 0, "nobody has said that the connection before has ended")
	p.want(t, p.other, begun, syn, second, 0, "nobody has said that the connection before has ended")
	p.want(t, p.other, begun, ack, second+7, 0, "it goes on")
	p.share(t, 1, 1)
	p.set(t, []int{0}, listedRing(1, 0, 2))
	p.want(t, p.other, known, syn, second, 1, "the backend drains, and the connection before has ended")
	p.want(t, p.other, moved, syn, second, 1, "the owner")
	for i := range p.other.flows.Entries {
		p.other.flows.Entries[i].Seen-- // so that the ends seem to be younger, as another host's clock may show it
	}
	must(t, p.other.Remember(ends))
	for i, backend := range []int{1, 0, 1, 0} {
		port := uint16(known + i)
		p.want(t, p.other, port, ack, second+7, backend, "it goes on")
		p.want(t, p.other, port, syn, second, backend, "a SYN that is sent again")
		p.want(t, p.other, port, ack, second+7, backend, "it goes on")
		p.share(t, 1, []int{2, 2, 2, 1}[i]) // of one, the beginning was shared before
		p.want(t, p.one, port, ack, second+20, backend, "the other director has shared it")
		p.want(t, p.one, port, syn, second, backend, "a SYN that is sent again")
		p.want(t, p.other, port, ack, second+30, backend, "it goes on")
	}
}

// Somebody sends two packets in a client's name to each of two directors, which guess where they
// belong and share them. That breaks no connection of that client for good: not one that begins
// later, not one that a director has seen begin, and, once a connection lasts, not where the guesses
// differ.
func TestForgedGuessesDoNotLast(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	p := newDirectors(t)
	onCPU(t, 0, func() { testForgedGuesses(t, p) })
}

func testForgedGuesses(t *testing.T, p *directors) {
	const later, shared, unshared, differs = 21000, 21001, 21002, 21003
	const real, forged = 1000, 1 << 30 // numbers of the client's segments, and of the others
	const syn, ack = packet.SYN, packet.ACK
	forge := func(port uint16, one, other int, why string) {
		t.Helper()
		for range 2 {
			p.want(t, p.one, port, ack, forged, one, why)
			p.want(t, p.other, port, ack, forged, other, why)
		}
	}
	begins := func(port uint16, backend int, why string) {
		t.Helper()
		p.want(t, p.one, port, syn, real, backend, why)
		p.want(t, p.one, port, ack, real+7, backend, why)
	}
	lasts := func(port uint16, backend int) {
		t.Helper()
		p.want(t, p.one, port, ack, real+13, backend, "it goes on")
		for i := range p.one.flows.Entries {
			p.one.flows.Entries[i].Since -= 3
		}
		p.want(t, p.one, port, ack, real+19, backend, "it goes on for a while")
		p.share(t, 0, 1)
		p.want(t, p.other, port, ack, real+25, backend, "a connection that lasts is known")
	}

	forge(later, 2, 2, "a guess: the oldest owner")
	p.share(t, 0, 1)
	p.share(t, 1, 1)
	begins(later, 2, "both directors know the port")
	p.share(t, 0, 1)
	p.want(t, p.other, later, ack, real+7, 2, "the connection is where its SYN went")
	lasts(later, 2)

	begins(shared, 0, "the owner")
	p.share(t, 0, 1)
	forge(shared, 0, 0, "both directors know the connection")
	lasts(shared, 0)

	begins(unshared, 0, "the owner")
	forge(unshared, 0, 2, "only one director knows the connection")
	for i := range p.one.flows.Entries {
		p.one.flows.Entries[i].Seen -= 5 // so that what the other director shares is younger
	}
	p.share(t, 1, 1)
	p.want(t, p.one, unshared, ack, real+13, 0, "the connection has gone on here")
	p.share(t, 0, 1)
	lasts(unshared, 0)

	p.set(t, nil, listedRing(0, 1, 2), listedRing(0, 2, 1))
	forge(differs, 2, 1, "the directors differ about the oldest owner")
	p.share(t, 0, 1)
	p.share(t, 1, 1)
	begins(differs, 2, "this director knows the port")
	p.share(t, 0, 1)
	lasts(differs, 2)
}
