package agent

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
	"weir.io/weir/lab/twin"
)

// handedVIP4 and handedVIP6 are redirected; tail6 ends like handedVIP6 but has another
// port, same6 has the same one as twinVIP6.
var (
	handedVIP4 = netip.MustParseAddrPort("192.0.2.20:443")
	handedVIP6 = netip.MustParseAddrPort("[2001:db8::20]:443")
	portVIP4   = netip.MustParseAddrPort("192.0.2.21:80") // redirected to another port
	alikeVIP6  = netip.MustParseAddrPort("[2001:db8:a::21]:443")
	alikeToo6  = netip.MustParseAddrPort("[2001:db8:b::21]:443")
	shared4    = netip.MustParseAddrPort("192.0.2.23:80")      // its backends are portVIP4's, too
	shared6    = netip.MustParseAddrPort("[2001:db8::23]:443") // handedVIP6's
)

// redirectConfig is what the host of these tables is told: it is a client's and, with
// host4 and host6, a backend's.
func redirectConfig() model.Config {
	service := func(name string, vip netip.AddrPort, backends ...model.Backend) model.Service {
		return model.Service{Name: name, VIP: vip.Addr(), Protocol: model.TCP, Port: model.PortRange{First: vip.Port(), Last: vip.Port()},
			Mode: model.Redirect, Backends: backends}
	}
	at := func(a netip.Addr) model.Backend {
		return model.Backend{Name: a.String(), Address: a, Weight: 1, State: model.Active}
	}
	gue, nat := model.GUE, model.NAT
	own := at(third4)
	own.Mode = &gue
	other := at(peer4)
	other.Port = 8080
	ported := service("port", portVIP4, other)
	ported.Fallback = &nat
	sharing := service("shared four", shared4, other)
	sharing.Fallback = &nat
	c := model.Config{Services: []model.Service{
		service("four", handedVIP4, at(host4), at(peer4), own),
		service("six", handedVIP6, at(host6), at(peer6)),
		ported,
		sharing,
		service("shared six", shared6, at(host6), at(peer6)),
		service("alike", alikeVIP6, at(third6)),
		service("alike too", alikeToo6, at(third6)),
		{Name: "tunnelled", VIP: vip4, Protocol: model.TCP, Port: model.PortRange{First: 443, Last: 443}, Mode: model.GUE, Backends: []model.Backend{at(otherPeer4)}},
	}}
	return c
}

// redirectHost is the programs with the maps of a plan.
type redirectHost struct {
	*redirector
	t testing.TB
}

// sharedRedirector is loaded once: that takes longer than the tests.
var sharedRedirector *redirector

// newRedirectHost returns a host that remembers nothing, and whose programs know that.
func newRedirectHost(t testing.TB) *redirectHost {
	t.Helper()
	if sharedRedirector == nil {
		spec, err := loadRedirect()
		if err != nil {
			t.Fatal(err)
		}
		sharedRedirector = loadTestRedirector(t, spec)
	}
	h := &redirectHost{sharedRedirector, t}
	for _, m := range []*ebpf.Map{h.RedirectDirects, h.RedirectHolders, h.RedirectLeaving, h.RedirectArriving, h.Neighbors} {
		empty(t, m)
	}
	h.emptySlots(t)
	var indexes []uint32
	for _, index := range h.indexes {
		indexes = append(indexes, index)
	}
	if err := h.clear(indexes); err != nil {
		t.Fatal(err)
	}
	h.ages(t, now(), nil)
	if !h.remembersNothing(t) {
		t.Fatal("a host without connections says it may have some")
	}
	return h
}

// Of arrays that most tests empty: made once, and of bytes, which need not be encoded.
var (
	noSyns   [redirectSlots][unsafe.Sizeof(redirectRedirectSyn{})]byte
	noEchoes [redirectSlots][unsafe.Sizeof(redirectRedirectEchoSlot{})]byte
	slots    = sync.OnceValue(func() []uint32 {
		indexes := make([]uint32, redirectSlots)
		for i := range indexes {
			indexes[i] = uint32(i)
		}
		return indexes
	})
)

const redirectSlots = 32768 // REDIRECT_SLOTS in bpf/abi/redirect_types.h

// emptySlots forgets what has not been answered.
func (h *redirectHost) emptySlots(t testing.TB) {
	t.Helper()
	_, syns := h.RedirectSyns.BatchUpdate(slots(), noSyns[:], nil)
	_, echoes := h.RedirectEchoes.BatchUpdate(slots(), noEchoes[:], nil)
	if err := errors.Join(syns, echoes); err != nil {
		t.Fatal(err)
	}
}

func empty(t testing.TB, m *ebpf.Map) {
	t.Helper()
	var keys [][]byte
	var key []byte
	for entries := m.Iterate(); entries.Next(&key, new([]byte)); {
		keys = append(keys, slices.Clone(key))
	}
	for _, key := range keys {
		if err := m.Delete(key); err != nil {
			t.Fatal(err)
		}
	}
}

func loadTestRedirector(t testing.TB, spec *ebpf.CollectionSpec) *redirector {
	t.Helper()
	if err := markSent(spec); err != nil {
		t.Fatal(err)
	}
	r := &redirector{redirectObjects: new(redirectObjects)}
	if err := spec.LoadAndAssign(r.redirectObjects, nil); err != nil {
		var refusal *ebpf.VerifierError
		if errors.As(err, &refusal) {
			t.Fatalf("load programs: %+v", refusal)
		}
		t.Fatalf("load programs: %v", err)
	}
	if err := r.seed(); err != nil {
		t.Fatal(err)
	}
	if err := r.set(redirects(redirectConfig(), host{addresses: map[netip.Addr]int{host4: loopbackIndex, host6: loopbackIndex}})); err != nil {
		t.Fatal(err)
	}
	return r
}

// events are all that were counted, by service and name. Service 0 is none.
func (h *redirectHost) events() map[string]uint64 {
	h.t.Helper()
	names, err := redirectEventNames()
	if err != nil {
		h.t.Fatal(err)
	}
	list, err := h.status()
	if err != nil {
		h.t.Fatal(err)
	}
	events := map[string]uint64{}
	for _, s := range list {
		for _, e := range s.Events {
			events[s.Name+" "+e.Name] = e.Count
		}
	}
	for i, name := range names {
		var perCPU []uint64
		if err := h.RedirectEvents.Lookup(uint32(i), &perCPU); err != nil {
			h.t.Fatal(err)
		}
		for _, n := range perCPU {
			events["nobody's "+name] += n
		}
	}
	return events
}

// hostStep is a packet that leaves or comes, what must become of it, and what must be counted.
type hostStep struct {
	name    string
	arrives bool
	in      frame
	out     frame // none: unchanged
	verdict uint32
	event   string // service and event; none: nothing is counted
}

// check takes the steps one after the other.
func (h *redirectHost) check(steps ...hostStep) {
	h.t.Helper()
	before := h.events()
	for _, s := range steps {
		program := h.RedirectLeave
		if s.arrives {
			program = h.RedirectArrive
		}
		in := build(frame{ether}, s.in)
		verdict, out := run(h.t, program, in, nil)
		if verdict != s.verdict {
			h.t.Errorf("%s: verdict %d, want %d\n%s", s.name, int32(verdict), int32(s.verdict), packet.Describe(in))
		}
		want := in
		if s.out != nil {
			want = build(frame{ether}, s.out)
		}
		if s.verdict != tcShot {
			packet.Equal(h.t, out, want)
			if err := packet.VerifyChecksums(out); err != nil {
				h.t.Errorf("%s: packet out: %v\n%s", s.name, err, packet.Describe(out))
			}
		}
		after := h.events()
		for name, n := range after {
			got, want := n-before[name], uint64(0)
			if name == s.event {
				want = 1
			}
			if got != want {
				h.t.Errorf("%s: counted %q %d times, want %d", s.name, name, got, want)
			}
		}
		if h.t.Failed() {
			h.t.FailNow()
		}
		before = after
	}
}

// leaves and arrives are steps of packets that change, or do not.
func leavesAs(name, event string, in, out frame) hostStep {
	return hostStep{name: name, in: in, out: out, verdict: tcNext, event: event}
}

func arrivesAs(name, event string, in, out frame) hostStep {
	return hostStep{name: name, arrives: true, in: in, out: out, verdict: tcNext, event: event}
}

// segment is a TCP packet from one end to another.
func segment(from, to netip.AddrPort, h packet.TCPHeader, payload ...packet.Header) frame {
	h.Src, h.Dst = from.Port(), to.Port()
	return append(frame{ip(from.Addr(), to.Addr()), h}, payload...)
}

// linuxSYN is what Linux puts into a SYN: MSS, SACK, timestamps, window scale.
var linuxSYN = []byte{2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7}

const firstNumber = 0xffffffff // of a SYN: what acknowledges it is 0

func synOf(options ...byte) packet.TCPHeader {
	return packet.TCPHeader{Seq: firstNumber, Flags: packet.SYN, Window: 64240, Options: options}
}

func synAckOf(options ...byte) packet.TCPHeader {
	return packet.TCPHeader{Seq: 77, Ack: 0, Flags: packet.SYN | packet.ACK, Window: 65160, Options: options}
}

func dataOf(flags uint8) packet.TCPHeader {
	return packet.TCPHeader{Seq: 78, Ack: 78, Flags: flags, Window: 501, Options: []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2}}
}

// withOption adds the option for a VIP; none: one that asks.
func withOption(vip netip.AddrPort, options []byte) []byte {
	return twin.AppendRedirect(slices.Clone(options), vip)
}

// connection is one of a client's with a VIP and the backend that it is handed over to.
type connection struct {
	service              string
	client, vip, backend netip.AddrPort
}

func connections() []connection {
	return []connection{
		{"four", netip.AddrPortFrom(client4, 40000), handedVIP4, netip.AddrPortFrom(peer4, 443)},
		{"six", netip.AddrPortFrom(client6, 40000), handedVIP6, netip.AddrPortFrom(peer6, 443)},
		{"port", netip.AddrPortFrom(client4, 40001), portVIP4, netip.AddrPortFrom(peer4, 8080)},
	}
}

// asks is the step of a first SYN.
func (c connection) asks() hostStep {
	return leavesAs("SYN", c.service+" asked", segment(c.client, c.vip, synOf(linuxSYN...)), segment(c.client, c.vip, synOf(withOption(netip.AddrPort{}, linuxSYN)...)))
}

// answers is the SYN-ACK of the backend.
func (c connection) answers() frame {
	return segment(c.backend, c.client, synAckOf(withOption(c.vip, linuxSYN)...))
}

// taken is the step in which the connection becomes the backend's.
func (c connection) taken() hostStep {
	return arrivesAs("SYN-ACK", c.service+" taken", c.answers(), segment(c.vip, c.client, synAckOf(withOption(c.vip, linuxSYN)...)))
}

// sends is the step of a packet to the backend.
func (c connection) sends(flags uint8, payload int) hostStep {
	data := packet.Zeros(payload)
	return hostStep{name: "data out", in: segment(c.client, c.vip, dataOf(flags), data), out: segment(c.client, c.backend, dataOf(flags), data), verdict: tcRedirect}
}

// receives is the step of a packet from the backend.
func (c connection) receives(flags uint8, payload int) hostStep {
	data := packet.Zeros(payload)
	return arrivesAs("data in", "", segment(c.backend, c.client, dataOf(flags), data), segment(c.vip, c.client, dataOf(flags), data))
}
