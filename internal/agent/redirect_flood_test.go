package agent

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"weir.io/weir/lab/packet"
	"weir.io/weir/lab/twin"
)

// FuzzAnswer gives a client's host any answer to a SYN that asked. It is taken over if,
// and only if, it acknowledges that SYN, comes from where the service has backends, and
// has the option as the twin reads it.
func FuzzAnswer(f *testing.F) {
	c := connections()[0]
	good := withOption(c.vip, linuxSYN)
	peer := binary.BigEndian.Uint32(c.backend.Addr().AsSlice())
	f.Add(good, uint32(0), uint8(packet.SYN|packet.ACK), peer, uint16(443), uint16(40000))
	f.Add(good, uint32(1), uint8(packet.SYN|packet.ACK), peer, uint16(443), uint16(40000))
	f.Add(good, uint32(0), uint8(packet.SYN|packet.ACK|packet.RST), peer, uint16(443), uint16(40000))
	f.Add(good, uint32(0), uint8(packet.SYN|packet.ACK), uint32(0x0a000707), uint16(443), uint16(40000))
	f.Add(withOption(netip.MustParseAddrPort("192.0.2.21:80"), nil), uint32(0), uint8(packet.SYN|packet.ACK), peer, uint16(443), uint16(40000))
	f.Add(withOption(c.vip, []byte{34, 2, 1, 1}), uint32(0), uint8(packet.SYN|packet.ACK), peer, uint16(8080), uint16(40000))
	f.Add([]byte{254, 10, 0x57}, uint32(0), uint8(packet.SYN|packet.ACK), peer, uint16(443), uint16(40000))
	f.Fuzz(func(t *testing.T, options []byte, ack uint32, flags uint8, source uint32, from, to uint16) {
		if len(options) > 40 || len(options)%4 != 0 {
			return
		}
		h := newRedirectHost(t)
		h.check(c.asks())
		sender := netip.AddrPortFrom(netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, source))), from)
		in := segment(sender, netip.AddrPortFrom(c.client.Addr(), to), packet.TCPHeader{Seq: 77, Ack: ack, Flags: flags, Options: options})
		option := twin.ReadRedirect(options)
		const mask = packet.FIN | packet.SYN | packet.RST | packet.ACK
		taken := flags&mask == packet.SYN|packet.ACK && ack == 0 && to == c.client.Port() && sender != c.vip &&
			(sender.Addr() == host4 || sender.Addr() == peer4) && // those that four lists
			option.At >= 0 && option.VIP == c.vip.Addr().As4() && option.Port == c.vip.Port()
		verdict, out := run(t, h.RedirectArrive, build(frame{ether}, in), nil)
		want := in
		if taken {
			want = segment(c.vip, c.client, packet.TCPHeader{Seq: 77, Ack: ack, Flags: flags, Options: options})
		}
		if verdict != tcNext {
			t.Fatalf("verdict %d, want %d", int32(verdict), -1)
		}
		packet.Equal(t, out, build(frame{ether}, want))
	})
}

func entries(t *testing.T, m *ebpf.Map) (n int) {
	t.Helper()
	var key, value []byte
	for all := m.Iterate(); all.Next(&key, &value); {
		n++
	}
	return n
}

func eachSlot[S any](t *testing.T, m *ebpf.Map, found func(S)) {
	t.Helper()
	slots, values := make([]uint32, m.MaxEntries()), make([]S, m.MaxEntries())
	if n, err := m.BatchLookup(new(ebpf.MapBatchCursor), slots, values, nil); n != len(values) {
		t.Fatalf("read %d of %d slots of %s: %v", n, len(values), m, err)
	}
	for _, value := range values {
		found(value)
	}
}

// Packets that come take no memory of a client's host, and a bounded one of a backend's;
// a connection that was there before goes on.
func TestRedirectFlood(t *testing.T) {
	h := newRedirectHost(t)
	c := connections()[0]
	h.check(c.asks(), c.taken())
	const many = 17000
	here := netip.AddrPortFrom(host4, 443)
	flood := func(what string, program *ebpf.Program, make func(from netip.AddrPort) frame) {
		t.Helper()
		for i := range many {
			from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{100, 64, byte(i >> 8), byte(i)}), uint16(1024+i>>4))
			if _, _, err := program.Test(build(frame{ether}, make(from))); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	flood("answers", h.RedirectArrive, func(from netip.AddrPort) frame {
		return segment(netip.AddrPortFrom(peer4, from.Port()), c.client, synAckOf(withOption(c.vip, nil)...))
	})
	flood("handed over", h.RedirectArrive, func(from netip.AddrPort) frame { return segment(from, here, synOf(withOption(handedVIP4, nil)...)) })
	if n := entries(t, h.RedirectDirects); n != 0 {
		t.Errorf("%d ports are remembered because of what came, want none", n)
	}
	n := 0
	eachSlot(t, h.RedirectSyns, func(syn redirectRedirectSyn) {
		if syn.State != 0 && syn.Flow != h.flow(c) {
			n++
		}
	})
	if n != 0 {
		t.Errorf("%d SYNs are remembered because of what came, want none", n)
	}
	eachSlot(t, h.RedirectEchoes, func(kept redirectRedirectEchoSlot) {
		if kept.Echo.Service != 0 {
			n++
		}
	})
	// As many as slots that some of that many have: each with its own hash.
	if most := int(h.RedirectEchoes.MaxEntries()); n < many/2 || n > most {
		t.Errorf("%d SYNs are remembered to be echoed, want %d to %d", n, many/2, most)
	}
	if n := entries(t, h.RedirectArriving); n != 1 {
		t.Errorf("%d connections are remembered, want the one", n)
	}
	h.check(c.sends(packet.ACK, 5), c.receives(packet.ACK, 5))
}

// Others' SYNs take the places of those that the VIP has answered last of all: such a SYN may leave
// once more, and must not ask then.
func TestPlacesOfAnsweredSYNs(t *testing.T) {
	h := newRedirectHost(t)
	c := connections()[0]
	var answered []connection
	for i := range uint16(200) {
		one := c
		one.client = netip.AddrPortFrom(c.client.Addr(), 10000+i)
		h.utter(one, uttersSYN)
		h.utter(one, uttered{from: ofVIP, flags: utSYN | utACK, ack: 1})
		answered = append(answered, one)
	}
	for i := range uint16(8000) {
		from := netip.AddrPortFrom(c.client.Addr(), 20000+i)
		run(t, h.RedirectLeave, build(frame{ether}, segment(from, c.vip, synOf(linuxSYN...))), nil)
	}
	asked := 0
	for _, one := range answered {
		in := build(frame{ether}, uttersSYN.segment(one, one.client, one.vip))
		if _, out := run(t, h.RedirectLeave, in, nil); len(out) > len(in) {
			asked++
		}
	}
	if asked > len(answered)/20 {
		t.Errorf("%d of %d SYNs that the VIP has answered ask again", asked, len(answered))
	}
}

// A SYN that finds its place taken by one that may be answered yet does not ask, and leaves that
// one its place.
func TestPlacesOfSYNs(t *testing.T) {
	h := newRedirectHost(t)
	c := connections()[0]
	h.check(c.asks())
	before := h.events()
	const many = 8000
	plain := uint64(0)
	for i := range many {
		from := netip.AddrPortFrom(c.client.Addr(), uint16(20000+i))
		in := build(frame{ether}, segment(from, c.vip, synOf(linuxSYN...)))
		verdict, out := run(t, h.RedirectLeave, in, nil)
		if verdict != tcNext {
			t.Fatalf("a SYN has the verdict %d", int32(verdict))
		}
		if len(out) == len(in) {
			packet.Equal(t, out, in)
			plain++
		}
	}
	after := h.events()
	counted := func(event string) uint64 { return after[c.service+" "+event] - before[c.service+" "+event] }
	if plain == 0 || counted("no_place") != plain || counted("asked") != many-plain {
		t.Errorf("of %d SYNs %d have left without the option, and %d were counted as no_place and %d as asked", many, plain, counted("no_place"), counted("asked"))
	}
	h.check(c.taken())
}

// Hundreds of connections that have begun and are not answered yet all have places: on a client's
// host, and on a backend's, whose guests take their time to answer.
func TestManyBeginAtOnce(t *testing.T) {
	h := newRedirectHost(t)
	var secret uint64
	if err := h.RedirectMemory.Lookup(seedIndex, &secret); err != nil {
		t.Fatal(err)
	}
	// With this one some of the flows share their first place.
	if err := h.RedirectMemory.Put(seedIndex, uint64(1)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.RedirectMemory.Put(seedIndex, secret); err != nil {
			t.Error(err)
		}
	})
	const many = 1000
	for i := range many {
		c := connections()[0]
		c.client = netip.AddrPortFrom(c.client.Addr(), uint16(20000+i))
		h.passes(fmt.Sprintf("SYN %d", i), c.asks())
		c.client = netip.AddrPortFrom(third4, uint16(20000+i))
		h.passes(fmt.Sprintf("SYN %d to be repeated", i), c.arrivesHere())
	}
	for i := range many {
		c := connections()[0]
		c.client = netip.AddrPortFrom(c.client.Addr(), uint16(20000+i))
		h.passes(fmt.Sprintf("answer %d", i), c.taken())
		c.client = netip.AddrPortFrom(third4, uint16(20000+i))
		h.passes(fmt.Sprintf("answer %d that repeats the option", i), c.repeats())
	}
	if n := h.events()["four no_place"]; n != 0 {
		t.Errorf("%d SYNs found no place", n)
	}
}

// passes takes a step and looks at the packet alone.
func (h *redirectHost) passes(name string, s hostStep) {
	h.t.Helper()
	program := h.RedirectLeave
	if s.arrives {
		program = h.RedirectArrive
	}
	in, want := build(frame{ether}, s.in), build(frame{ether}, s.in)
	if s.out != nil {
		want = build(frame{ether}, s.out)
	}
	verdict, out := run(h.t, program, in, nil)
	if verdict != s.verdict || !bytes.Equal(out, want) {
		h.t.Fatalf("%s: verdict %d, want %d, and the packet\n%s\nwant\n%s", name, int32(verdict), int32(s.verdict), packet.Describe(out), packet.Describe(want))
	}
}

// arrivesHere is the step of a SYN that a director hands over to this host.
func (c connection) arrivesHere() hostStep {
	here := netip.AddrPortFrom(host4, c.vip.Port())
	return arrivesAs("SYN", c.service+" received", segment(c.client, here, synOf(withOption(c.vip, linuxSYN)...)), nil)
}

// repeats is the step of this host's answer to it.
func (c connection) repeats() hostStep {
	here := netip.AddrPortFrom(host4, c.vip.Port())
	return leavesAs("SYN-ACK", c.service+" echoed", segment(here, c.client, synAckOf(linuxSYN...)), segment(here, c.client, synAckOf(withOption(c.vip, linuxSYN)...)))
}

// Without a place for one more the connection falls back; those that are there go on.
func TestNoPlaceForAConnection(t *testing.T) {
	spec, err := loadRedirect()
	if err != nil {
		t.Fatal(err)
	}
	spec.Maps["redirect_leaving"].MaxEntries = 1
	h := &redirectHost{loadTestRedirector(t, spec), t}
	t.Cleanup(func() { _ = h.Close() })
	first, second := connections()[0], connections()[1]
	h.check(first.asks(), first.taken(), second.asks(),
		arrivesAs("SYN-ACK", "six full", second.answers(), nil),
		leavesAs("SYN again", "", segment(second.client, second.vip, synOf(linuxSYN...)), nil),
		arrivesAs("data of nobody", "", segment(second.backend, second.client, dataOf(packet.ACK)), nil),
		first.sends(packet.ACK, 5), first.receives(packet.ACK, 5))
}
