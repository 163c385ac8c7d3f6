package datapath

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
	optiontwin "weir.io/weir/lab/twin"
)

// A service whose director asks, in its clients' place, to be redirected. Its backends are
// directors; the first one is asked, and any other one may answer.

// ISN of the client's SYN, and the port at which a pod answers on a backend's host.
const (
	askISN  = 0xfffffffe // with that the acknowledgement is the largest number
	podPort = 9090
)

// asker is such a service in a director of its own.
type asker struct {
	scenario
	*testDirector
}

// newAsker has four backends: the one that is asked, another one, one of another VLAN, and
// one that is this host. A second service has the backends of none of them.
func newAsker(t *testing.T, is4 bool, change ...func(*testService)) *asker {
	t.Helper()
	s := testService{vip: vipAddress(is4, 1), protocol: model.TCP, port: singlePort(servicePort)}
	for i := range 4 {
		s.backends = append(s.backends, testBackend{mode: model.NAT, snat: true, asks: true, address: backendAddress(is4, i), port: backendPort})
	}
	s.backends[2].vlan, s.backends[3].local = 7, true
	for _, c := range change {
		c(&s)
	}
	w := &testWorld{}
	a := &asker{scenario: scenario{testService: w.add(s), client: clientOf(is4)}}
	w.add(testService{vip: vipAddress(is4, 2), protocol: model.TCP, port: singlePort(servicePort),
		backends: []testBackend{{mode: model.NAT, snat: true, asks: true, address: backendAddress(is4, 9), port: backendPort}}})
	a.testDirector = loadTestDirector(t, w)
	a.put(t, "egress", wireNumber, wireNumber)
	return a
}

// askEvents are enum ask_event, in its order.
func askEvents(t testing.TB) []string {
	t.Helper()
	spec, err := loadDirector()
	must(t, err)
	names, err := bpfload.EnumNames(spec.Types, "ask_event", "")
	must(t, err)
	return names
}

var (
	askEventNames []string
	askEventsHit  = map[string]bool{} // that some row was about
)

// events are how often each has happened.
func (a *asker) events(t testing.TB) map[string]uint64 {
	t.Helper()
	if askEventNames == nil {
		askEventNames = askEvents(t)
	}
	out := map[string]uint64{}
	for i, name := range askEventNames {
		count, err := readTally(a.Maps[directorMapAskEvents], uint32(i))
		must(t, err)
		out[strings.TrimPrefix(name, "ask_")] = count.packets
	}
	return out
}

// expect runs rows, each of which is one event; "": none.
func (a *asker) expect(t *testing.T, event string, rows ...row) {
	t.Helper()
	for _, r := range rows {
		before := a.events(t)
		a.check(t, []row{r})
		got := map[string]uint64{}
		for name, n := range a.events(t) {
			if n != before[name] {
				got[name] = n - before[name]
			}
		}
		want := map[string]uint64{}
		if event != "" {
			want[event] = 1
			askEventsHit[event] = true
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: events %v, want %v", r.name, got, want)
		}
	}
}

// syn is a SYN of the client from a port.
func (a *asker) syn(port uint16, options []byte) []packet.Header {
	h := syn(options)
	h.Src, h.Seq = port, askISN
	return []packet.Header{ip(a.client, a.vip), h}
}

// left is what leaves for a backend at a port, of what the client sends from a port.
func (a *asker) sentTo(t *testing.T, port uint16, backend int, at uint16, headers []packet.Header) []byte {
	t.Helper()
	_, e := a.flowOf(t, a.testDirector, port)
	link := []packet.Header{a.left(backend)}
	if b := a.backends[backend]; b.vlan != 0 {
		link = append(link, packet.VLANTag{ID: b.vlan})
	}
	return packet.Build(append(link, translated(headers, e.source, end{a.backends[backend].address, at}, 1)...)...)
}

// goes is the row of a client's packet that goes to a backend at a port, as these headers.
func (a *asker) goes(name string, port uint16, backend int, at uint16, in, out []packet.Header) row {
	r := row{name: name, in: build(in...)}.forwarded(abi.ReasonFORWARD_NAT, a.testService, backend, nil)
	r.late = func(t *testing.T, _ []byte) []byte { return a.sentTo(t, port, backend, at, out) }
	return r
}

// withOptions is a packet with other options.
func withOptions(headers []packet.Header, options []byte) []packet.Header {
	out := slices.Clone(headers)
	h := out[1].(packet.TCPHeader)
	h.Options = options
	out[1] = h
	return out
}

// start sends a first SYN that asks, and returns the source that it left with.
func (a *asker) start(t *testing.T, port uint16) end {
	t.Helper()
	in := a.syn(port, linuxSYN)
	a.expect(t, "asked", a.goes("first SYN", port, 0, backendPort, in, withOptions(in, asking(linuxSYN...))))
	_, e := a.flowOf(t, a.testDirector, port)
	return e.source
}

// askEcho is what a pod's host answers to a SYN that the first backend has handed over.
type askEcho struct {
	from    end
	to      end
	ack     uint32
	names   netip.AddrPort
	before  []byte // options
	flags   uint8
	segment uint16
}

// echoTo is the right one, of the second backend's host.
func (a *asker) echoTo(source end) askEcho {
	return askEcho{from: end{a.backends[1].address, podPort}, to: source, ack: askISN + 1, flags: packet.SYN | packet.ACK,
		names: netip.AddrPortFrom(a.backends[0].address, backendPort), before: linuxSYN}
}

func (e askEcho) headers() []packet.Header {
	options := slices.Clone(e.before)
	if e.names.IsValid() {
		options = optiontwin.AppendRedirect(options, e.names)
	}
	return []packet.Header{ip(e.from.address, e.to.address),
		packet.TCPHeader{Src: e.from.port, Dst: e.to.port, Seq: 77, Ack: e.ack, Flags: e.flags, Window: 65160, Options: options}}
}

func (e askEcho) frame() []byte {
	if e.segment != 0 {
		return packet.Build(append([]packet.Header{arrived, packet.VLANTag{ID: e.segment}}, e.headers()...)...)
	}
	return build(e.headers()...)
}

// nops are options as they leave for the client.
func (e askEcho) nops() []byte {
	return append(slices.Clone(e.before), slices.Repeat([]byte{1}, 12)...)
}

// taken is the row of an echo on its way to the client.
func (a *asker) taken(name string, e askEcho, port uint16) row {
	out := translated(withOptions(e.headers(), e.nops()), a.vipEnd(), end{a.client, port}, 1)
	return a.sent(name, abi.ReasonFORWARD_REPLY, e.frame(), out...)
}

// refused is the row of an answer that is nobody's.
func (a *asker) refused(name string, e askEcho) row {
	return row{name: name, in: e.frame()}.passed(abi.ReasonPASS_NO_SERVICE)
}

// asks is what is remembered of the flow from a client's port, without its time.
func (a *asker) asks(t *testing.T, port uint16) abi.SnatFlow {
	t.Helper()
	_, e := a.flowOf(t, a.testDirector, port)
	e.Seen = 0
	return e.SnatFlow
}
