package histories

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
	"weir.io/weir/lab/twin"
)

// speaker is a client of UDP with one flow at a time.
type speaker struct {
	*life
	flow     model.Flow
	host     *host // the last one to keep a datagram; nil: none
	backend  netip.AddrPort
	revision int    // of the director that placed it
	id       []byte // QUIC's connection ID that the server has given out
	sent     time.Time
}

// longest is how long a datagram may take before ages have changed.
const longest = 300 * time.Millisecond

// fail ends the history because of a wrong result, unless the machine stalled meanwhile.
func (s *speaker) fail(format string, args ...any) {
	s.Helper()
	if took := time.Since(s.sent); took > longest {
		s.Skipf("step %d: a datagram took %v, in which ages have changed", s.happened, took)
	}
	s.Fatalf("step %d: "+format, append([]any{s.happened}, args...)...)
}

// forget drops the flow: no more of its datagrams come.
func (s *speaker) forget() {
	for _, h := range s.hosts {
		delete(h.kept, s.flow)
	}
	*s = speaker{life: s.life}
}

// goOn sends some datagrams, of the present flow or of a new one.
func (s *speaker) goOn() {
	s.Helper()
	if s.host == nil || s.r.IntN(12) == 0 {
		s.forget()
		s.flow = s.newFlow()
		s.start()
	}
	for s.host != nil && s.r.IntN(3) > 0 {
		s.speak()
	}
}

// start sends a flow's first datagram.
func (s *speaker) start() {
	s.Helper()
	d := s.directors[s.r.IntN(len(s.directors))]
	end, path := s.carry(d)
	if end == nil {
		return
	}
	s.host, s.backend, s.revision = end, netip.AddrPortFrom(path[len(path)-1], 0), d.revision
	s.conclusions.opened++
	switch {
	case s.codec != nil:
		s.id = s.newID(s.backend)
	case !s.promises():
		s.forget()
	}
}

// promises reports whether later datagrams must find the new flow. They need not find a backup's if
// its slot has no list; and a director that has not learned of the log's last changes may know a
// backend that others no longer name.
func (s *speaker) promises() bool {
	for _, r := range s.revisions[s.revision:] {
		if !r.has(s.backend) || !s.owned(r.log, 0, s.backend, s.flow) {
			return false
		}
	}
	return true
}

// speak sends another datagram, which the host that has the flow must keep.
func (s *speaker) speak() {
	s.Helper()
	d := s.directors[s.r.IntN(len(s.directors))]
	if s.id != nil && s.r.IntN(4) == 0 {
		s.flow = s.newFlow() // the client now has another address
	}
	end, path := s.carry(d)
	switch {
	case end == nil:
		return
	case s.id != nil && s.named(d) < 0: // "QUIC": a director that does not know the backend goes by the ring
		s.conclusions.behind++
		s.forget()
		return
	case s.id == nil && d.revision < s.revision:
		s.conclusions.behind++
		if end != s.host {
			s.conclusions.misdirected++
			s.forget()
		}
		return
	}
	if s.conclusions.walked++; len(path) > 1 {
		s.conclusions.passed++
	}
	if s.full(d, s.flow); end != s.host {
		s.fail("a flow of %s (%v) that a director placed at revision %d: a datagram by %s, at %d of %d, went over %v\nrow %s",
			s.host.Name, s.backend, s.revision, d.wire, d.revision, len(s.revisions)-1, path, s.describeRow(d, s.flow))
	}
}

// carry takes a datagram of the flow to the server that gets it; nil: the director drops it.
func (s *speaker) carry(d *director) (end *host, path []netip.Addr) {
	s.Helper()
	data := s.data()
	frame := packet.Build(ether, ip(s.flow.Source, s.flow.Destination),
		packet.UDPHeader{Src: s.flow.SourcePort, Dst: s.flow.DestinationPort}, packet.Text(data))
	s.sent = time.Now()
	verdict, out := run(s, d.program, frame)
	named := s.named(d)
	up := named >= 0 && d.service.Backends[named].State.Alive()
	if to, _ := twin.Forward(&d.service, s.flow); verdict == xdpDrop && to < 0 && !up {
		return nil, nil
	}
	if verdict != xdpRedirect {
		s.fail("%s: the verdict is %d\nrow %s", d.wire, verdict, s.describeRow(d, s.flow))
	}
	t := s.read(out)
	to := s.position(d, t)
	row := s.row(d, to, named)
	d.sent[s.flow] = t.to
	for at := s.expectDatagram(t, d.wire, t.to, row, frame); ; {
		path = append(path, t.to)
		at.age(s, s.flow, s.now)
		keeps, next := s.judge(at, t, row)
		kept, on := at.judge(s, out)
		if keeps != (kept != nil) || keeps && !bytes.Equal(kept, frame[etherLength:]) {
			s.fail("that %s keeps it is %v for the twin, over %v, %+v", at.Name, keeps, path, row)
		}
		if keeps {
			at.kept[s.flow] = s.now
			at.deliver(s, kept)
			at.hears(s, s.flow, data)
			return at, path
		}
		out, row, t = on, &next.row, s.read(on)
		at = s.expectDatagram(t, at.Name, next.to, row, frame)
	}
}

// row is the row of a datagram that a director sends to a backend.
func (s *speaker) row(d *director, to, named int) *twin.DatagramRow {
	s.Helper()
	switch {
	case named < 0:
		s.checkGuess(d, to)
		return twin.RowOf(&d.service, s.flow, to)
	case d.service.Backends[named].State.Alive():
		if to != named {
			s.fail("%s sends a connection ID of %v to %v", d.wire, s.backend, d.service.Backends[to].Address)
		}
		return nil
	}
	s.conclusions.relayed++
	s.checkGuess(d, to)
	return &twin.DatagramRow{Hops: []netip.Addr{s.backend.Addr()}, Claim: twin.Relay}
}

// checkGuess: a director asks a candidate first, or the backend to which it has sent the flow.
func (s *speaker) checkGuess(d *director, to int) {
	s.Helper()
	table := &d.service
	all := table.Ring.Row(table.Ring.SlotOf(s.flow.Hash(table.Salt, table.Affinity)))
	if table.Before != nil {
		all = slices.Concat(all, table.Before.Ring.Row(table.Before.Ring.SlotOf(s.flow.Hash(table.Salt, table.Before.Affinity))))
	}
	b := table.Backends[to]
	if !b.State.Alive() || !slices.Contains(all, uint32(to)) && d.sent[s.flow] != b.Address {
		s.fail("%s sends a datagram to %v, %v\nrow %s", d.wire, b.Address, b.State, s.describeRow(d, s.flow))
	}
}

func (s *speaker) expectDatagram(t tunnelled, from string, to netip.Addr, row *twin.DatagramRow, frame []byte) *host {
	s.Helper()
	var private []byte
	if row != nil {
		private = row.Bytes()
	}
	if t.to != to || !bytes.Equal(t.private, private) || !bytes.Equal(t.inner, frame[etherLength:]) {
		s.fail("%s sends a datagram to %v with row %x, the twin to %v with %x", from, t.to, t.private, to, private)
	}
	return s.at[t.to]
}

// onward is where a datagram goes next.
type onward struct {
	to  netip.Addr
	row twin.DatagramRow
}

// judge returns the twin's verdict on a datagram, and counts it.
func (s *speaker) judge(at *host, t tunnelled, row *twin.DatagramRow) (keeps bool, next onward) {
	if row == nil {
		at.counts["decap_gue"]++
		return true, next
	}
	age := time.Duration(-1)
	if kept, has := at.kept[s.flow]; has {
		age = ageOf(s.now.Sub(kept))
	}
	keeps, known, to, onto := at.twin.Walk(twin.Datagram{From: t.from, To: t.to, Age: age, Serves: true, Row: *row,
		Asks: func(netip.Addr) bool { return true }})
	switch {
	case !keeps:
		at.counts["passed_on"]++
	case known:
		at.counts["decap_gue"]++
	default:
		at.counts["decap_new_flow"]++
	}
	return keeps, onward{to, onto}
}

// ageOf is the age for kernels of something that was this long ago by the history's clock: in the
// middle of a row's unit of time, so that a moment does not matter.
func ageOf(ago time.Duration) time.Duration {
	const unit = 1 << 30 * time.Nanosecond
	if ago < unit {
		return 100 * time.Millisecond
	}
	return ago/unit*unit + unit/2
}

// age makes the agent's memory of a flow as old as it is by the history's clock.
func (h *host) age(t testing.TB, f model.Flow, now time.Time) {
	t.Helper()
	kept, has := h.kept[f]
	if !has {
		return
	}
	client, vip := f.Source.As16(), f.Destination.As16()
	key := slices.Concat(client[:], vip[:])
	key = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(key, f.SourcePort), f.DestinationPort)
	var clock unix.Timespec
	must(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &clock))
	must(t, h.maps["udp_flows"].Put(key, uint64(clock.Nano()-int64(ageOf(now.Sub(kept))))))
}

// forgetQuestions deletes questions: by the kernel's clock histories follow each other too fast.
func (h *host) forgetQuestions(t testing.TB) {
	t.Helper()
	for _, a := range backends() {
		key := a.As16()
		_ = h.maps["questions"].Delete(key[:]) // it may not exist
	}
}

// hears waits for a datagram in the server.
func (h *host) hears(t testing.TB, f model.Flow, data string) {
	t.Helper()
	socket, b := h.sockets[f.Destination], make([]byte, 2048)
	must(t, socket.SetReadDeadline(time.Now().Add(patience)))
	n, from, err := socket.ReadFromUDPAddrPort(b)
	if err != nil || string(b[:n]) != data || from.Addr().Unmap() != f.Source || from.Port() != f.SourcePort {
		t.Fatalf("%s: the server got %q of %v, want %q: %v", h.Name, b[:n], from, data, err)
	}
}
