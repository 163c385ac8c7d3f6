package datapath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
	optiontwin "weir.io/weir/lab/twin"
)

// explainLimits keep the maps small enough to be read as a whole again and again.
var explainLimits = model.Limits{Services: 64, Backends: 256, RingMemory: 4 << 20, Fragments: 64, Flows: 8192}

// The program does with random packets of random histories what Explain has said
// before, and Explain changes nothing.
func TestExplain(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	wire, err := netlink.LinkByName("wire0")
	must(t, err)
	// Else the other end of the wire would multicast, and packets would come in between.
	must(t, os.WriteFile("/proc/sys/net/ipv6/conf/wire1/disable_ipv6", []byte("1"), 0))
	for n := range 60 {
		addNeighbor(t, netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + n)}))
		addNeighbor(t, explainBackend(false, n))
	}
	for n := range 6 { // the way back to clients
		for _, is4 := range []bool{true, false} {
			client := numbered(is4, 9, n)
			must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: wire.Attrs().Index, Scope: netlink.SCOPE_LINK,
				Dst: &net.IPNet{IP: client.AsSlice(), Mask: net.CIDRMask(client.BitLen(), client.BitLen())}}))
			addNeighbor(t, client)
		}
	}
	seen := map[model.Chosen]int{}
	reasons, asked := map[string]int{}, map[string]int{}
	for seed := range uint64(2) {
		x := &explainRun{T: t, r: rand.New(rand.NewPCG(seed, 9)), d: openUnswept(t), wire: wire.Attrs().Index,
			seen: seen, reasons: reasons, asked: asked}
		for range rounds(16) {
			x.change()
			for i := range 60 {
				x.step(i%15 == 0)
			}
		}
		must(t, x.d.Set(model.Table{Interfaces: []string{"wire0"}}))
		must(t, x.d.Close())
	}
	for _, chosen := range []model.Chosen{model.ChosenByFragment, model.ChosenBySNAT, model.ChosenByMemory, model.ChosenByLoad, model.ChosenByTurn, model.ChosenByRow, model.ChosenByAge} {
		if seen[chosen] == 0 {
			t.Errorf("no packet's backend was chosen by %s: %v", chosen, seen)
		}
	}
	for _, state := range []string{"open", "plain", "taken"} {
		if asked[state] == 0 {
			t.Errorf("no flow that asks was %s: %v", state, asked)
		}
	}
	for _, reason := range []string{"pass_no_service", "forward_l2dsr", "forward_ipip", "forward_gue", "forward_nat", "forward_redirect", "forward_reply", "forward_fragment",
		"answer_echo", "answer_too_big", "drop_no_backend", "drop_fragment_unknown", "drop_snat_unknown"} {
		if reasons[reason] == 0 {
			t.Errorf("no packet was counted under %s: %v", reason, reasons)
		}
	}
}

// openUnswept opens a datapath that does not change its maps by itself.
func openUnswept(t *testing.T) *Datapath {
	t.Helper()
	d := openTest(t, explainLimits)
	d.sweeper.close()
	d.sweeper = startSweeper(func() {})
	return d
}

type explainRun struct {
	*testing.T
	r       *rand.Rand
	d       *Datapath
	wire    int
	table   model.Table
	sent    [][]byte // what left, some of it
	seen    map[model.Chosen]int
	reasons map[string]int
	asked   map[string]int // states of flows that ask
}

func explainBackend(is4 bool, n int) netip.Addr {
	if is4 {
		return netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + n)})
	}
	return netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", 0x11+n))
}

// change sets a random table; services with numbers that are there already go on.
func (x *explainRun) change() {
	x.table = x.random()
	must(x.T, x.d.Set(x.table))
}

func (x *explainRun) random() model.Table {
	t := model.Table{Interfaces: []string{"wire0"}, ICMPRate: 1000, TunnelSource: []netip.Prefix{tunnel4, tunnel6},
		SNAT: model.SNAT{Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::1")},
			Ports: model.PortRange{First: 20000, Last: 20000 + 63}}}
	for n := range 14 {
		if x.r.IntN(8) > 0 {
			t.Services = append(t.Services, x.service(n))
		}
	}
	return t
}

// service is one whose kind is its number's, with random backends and rows.
func (x *explainRun) service(n int) model.TableService {
	r, kind := x.r, n%7
	mode := []model.Mode{model.L2DSR, model.IPIP, model.GUE, model.GUE, model.NAT, model.NAT, model.L2DSR}[kind]
	is4 := n < 7
	s := model.TableService{Name: fmt.Sprint("s", n), VIP: vipAddress(is4, n), Protocol: model.TCP, Salt: uint64(n) + 1, Affinity: model.Affinity(r.IntN(2)),
		Port: model.PortRange{First: servicePort, Last: servicePort}}
	if kind == 0 || kind == 2 {
		s.Protocol = model.UDP
	}
	if kind == 3 && is4 {
		s.Policy = model.P2C
	}
	if kind == 6 {
		s.Port = model.PortRange{First: 70, Last: 90}
		s.Segment = vlan(7)
	}
	for i := range 1 + r.IntN(5) {
		number := n*4 + i
		over4 := is4 || mode == model.IPIP || mode == model.GUE
		b := model.TableBackend{Name: fmt.Sprint("b", number), Address: explainBackend(over4, number%60), Mode: mode, Weight: uint16(1 + r.IntN(3)),
			State: []model.BackendState{model.Active, model.Active, model.Active, model.Draining, model.Down}[r.IntN(5)]}
		b.SNAT, b.Asks = kind == 5, kind == 5
		b.Redirect = kind == 3 && !is4 && i != 1
		if mode == model.NAT {
			b.Port = backendPort
		}
		s.Backends = append(s.Backends, b)
	}
	for range r.IntN(2) * r.IntN(4) {
		p, err := clientOf(is4).Prefix(r.IntN(s.VIP.BitLen() + 1))
		must(x.T, err)
		if r.IntN(2) == 0 { // or it is in none
			p = netip.PrefixFrom(explainBackend(is4, 1), s.VIP.BitLen())
		}
		s.SourceRanges = append(s.SourceRanges, p)
	}
	candidate := func() uint32 { return uint32(r.IntN(len(s.Backends))) }
	// The policies that draw something do not draw the same twice.
	if (kind == 1 || kind == 5) && len(s.Backends)%2 == 0 || handsOver(&s) {
		s.Policy = model.RoundRobin
		for i := range 13 * len(s.Backends) {
			s.Ring.Turns = append(s.Ring.Turns, uint32((i*i+n)%len(s.Backends)))
		}
	}
	active := slices.DeleteFunc(slices.Clone(s.Backends), func(b model.TableBackend) bool { return b.State != model.Active })
	if kind == 1 && len(s.Backends)%2 == 1 && len(active) == 1 { // whatever is drawn it is that one
		s.Policy = model.P2C
		for i := range s.Backends {
			s.Ring.Turns = append(s.Ring.Turns, uint32(i))
		}
	}
	for range 31 {
		slot := model.Slot{Owner: candidate(), Next: model.NoBackend}
		switch next := candidate(); {
		case r.IntN(3) == 0 && kind != 3:
			list := model.CandidateList{Next: []uint32{next, candidate()}, Oldest: []uint8{2, 1, 0}}
			slot.Next = model.ListFlag | uint32(len(s.Ring.Lists))
			s.Ring.Lists = append(s.Ring.Lists, list)
		case next != slot.Owner:
			slot.Next = next
		}
		s.Ring.Slots = append(s.Ring.Slots, slot)
	}
	return s
}

// handsOver says whether connections of a service may be handed over.
func handsOver(s *model.TableService) bool {
	return slices.ContainsFunc(s.Backends, func(b model.TableBackend) bool { return b.Redirect })
}

// step asks about a packet, and then sends it.
func (x *explainRun) step(whole bool) {
	frame := x.frame()
	var before map[string][]byte
	if whole {
		before = x.dump()
	}
	e, err := x.d.Explain("wire0", frame)
	must(x.T, err)
	if whole {
		x.unchanged(before)
	}
	x.seen[e.Chosen]++
	x.reasons[e.Reason]++
	if e.Backend != nil && e.Backend.Asked != nil {
		x.asked[e.Backend.Asked.State]++
	}
	counters := x.counters()
	var action uint32
	var out []byte
	onCPU(x.T, 0, func() {
		o := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+512), Context: &testContext{DataEnd: uint32(len(frame)), Ingress: uint32(x.wire)}}
		action, err = x.d.kernel.program.Run(o)
		out = o.DataOut
	})
	must(x.T, err)
	now := x.counters()
	for name, n := range now {
		if want := counters[name]; n-want != 0 != (name == e.Reason) {
			x.Errorf("the program counted %s, explained was %s\n%s", name, e.Reason, packet.Describe(frame))
		}
	}
	want := map[uint32][]model.Outcome{xdpPass: {model.OutcomePass}, xdpDrop: {model.OutcomeDrop},
		xdpTX: {model.OutcomeForward, model.OutcomeAnswer}, xdpRedirect: {model.OutcomeForward}}[action]
	if !slices.Contains(want, e.Outcome) {
		x.Errorf("verdict %d, explained was %s", action, e.Outcome)
	}
	if action != xdpDrop {
		if d := packet.Diff(out, e.Out); d != "" {
			x.Errorf("%s (chosen by %s) left otherwise than explained: %s", e.Reason, e.Chosen, d)
		}
	}
	x.consistent(&e)
	if action == xdpTX && e.Outcome == model.OutcomeForward {
		x.sent = append(x.sent, out)
	}
	if x.Failed() {
		x.Fatalf("%+v", e)
	}
}

// unchanged checks that all maps are as they were.
func (x *explainRun) unchanged(before map[string][]byte) {
	x.Helper()
	for name, was := range x.dump() {
		if !bytes.Equal(was, before[name]) {
			x.Errorf("explaining a packet changed map %s", name)
		}
	}
}

// consistent checks what an explanation says of its parts.
func (x *explainRun) consistent(e *model.Explanation) {
	if e.Memory != nil && e.Memory.Follows != (e.Chosen == model.ChosenByMemory) {
		x.Errorf("chosen by %q with %+v", e.Chosen, *e.Memory)
	}
	if e.Memory != nil && e.Memory.Follows && e.Backend.Backend != e.Memory.Backend {
		x.Errorf("the flow is remembered at %v and goes to %v", e.Memory.Backend, e.Backend.Backend)
	}
	if e.Slot == nil || e.Backend == nil {
		return
	}
	first := func(before func(a, b model.ExplainedCandidate) bool) (best model.ExplainedCandidate, any bool) {
		for _, c := range e.Slot.Candidates {
			if c.State.Alive() && (!any || before != nil && before(c, best)) {
				best, any = c, true
			}
		}
		return best, any
	}
	if e.Service.Policy == model.RoundRobin && len(e.Slot.Candidates) == 0 {
		x.Errorf("%s is chosen by %s, and its slot %d has no row", e.Reason, e.Chosen, e.Slot.Number)
	}
	switch e.Chosen {
	case model.ChosenByRow:
		if c, any := first(nil); any && c.Backend != e.Backend.Backend {
			x.Errorf("chosen by its row is %v, not %v", e.Backend.Backend, c.Backend)
		}
	case model.ChosenByAge:
		if c, any := first(func(a, b model.ExplainedCandidate) bool { return a.Age < b.Age }); any && c.Backend != e.Backend.Backend {
			x.Errorf("chosen by age is %v, not %v of %+v", e.Backend.Backend, c.Backend, e.Slot.Candidates)
		}
	}
}

// frame is a random packet: to a service, or about it, or of none.
func (x *explainRun) frame() []byte { return x.frameOf(x.table.Services) }

func (x *explainRun) frameOf(services []model.TableService) []byte {
	r := x.r
	if len(x.sent) > 0 && r.IntN(6) == 0 {
		if frame := reply(x.sent[r.IntN(len(x.sent))]); frame != nil {
			return frame
		}
	}
	s := &services[r.IntN(len(services))]
	headers := []packet.Header{packet.EthernetHeader{Dst: ownMAC, Src: clientMAC}}
	if s.Segment != (model.Segment{}) && r.IntN(8) > 0 {
		headers = append(headers, packet.VLANTag{ID: uint16(s.Segment.ID)})
	}
	client, kind := numbered(s.VIP.Is4(), 9, r.IntN(6)), r.IntN(12)
	if kind == 1 {
		client = numbered(s.VIP.Is4(), 9, 0) // so that some of its fragments belong together
	}
	headers = append(headers, ip(client, s.VIP))
	port, from := s.Port.First+uint16(r.IntN(int(s.Port.Last-s.Port.First)+1)), uint16(40000+r.IntN(6))
	if r.IntN(12) == 0 {
		port = otherPort + 100
	}
	payload := packet.Zeros(r.IntN(60))
	switch kind {
	case 0:
		return packet.Build(append(headers, ping(s.VIP.Is4()))...)
	case 1:
		fragments := packet.Fragments(1, 64, append(headers, l4(s.Protocol, from, port), packet.Zeros(150))...)
		return fragments[r.IntN(len(fragments))]
	case 2:
		payload = packet.Zeros(1440)
	case 3:
		return packet.Build(append(headers, packet.Zeros(r.IntN(30)))...)
	}
	l4 := l4(s.Protocol, from, port)
	if tcp, is := l4.(packet.TCPHeader); is {
		tcp.Flags = []uint8{packet.SYN, packet.SYN, packet.ACK, packet.ACK, packet.FIN | packet.ACK, packet.RST}[r.IntN(6)]
		if tcp.Flags == packet.SYN && handsOver(s) && r.IntN(3) > 0 {
			tcp.Options, payload = asking(linuxSYN...), nil
		}
		if tcp.Flags == packet.SYN && s.Backends[0].Asks && r.IntN(3) > 0 {
			tcp.Seq, tcp.Options, payload = r.Uint32(), linuxSYN, nil
		}
		l4 = tcp
	}
	return packet.Build(append(headers, l4, payload)...)
}

func ping(is4 bool) packet.Header {
	if is4 {
		return packet.ICMPv4Header{Type: packet.EchoRequest, Rest: packet.EchoID(1, 2)}
	}
	return packet.ICMPv6Header{Type: packet.EchoRequest6, Rest: packet.EchoID(1, 2)}
}

// reply is the answer of the host that gets an untagged TCP or UDP packet; nil: the frame is
// no such packet.
func reply(frame []byte) []byte {
	ethernet, rest := frame[:14], frame[14:]
	var from, to netip.Addr
	var protocol uint8
	switch {
	case len(rest) > 40 && rest[0] == 0x45:
		from, to, protocol, rest = netip.AddrFrom4([4]byte(rest[12:])), netip.AddrFrom4([4]byte(rest[16:])), rest[9], rest[20:]
	case len(rest) > 60 && rest[0]>>4 == 6:
		from, to, protocol, rest = netip.AddrFrom16([16]byte(rest[8:])), netip.AddrFrom16([16]byte(rest[24:])), rest[6], rest[40:]
	default:
		return nil
	}
	if protocol != uint8(model.TCP) {
		return nil
	}
	_ = ethernet
	source, destination := uint16(rest[0])<<8|uint16(rest[1]), uint16(rest[2])<<8|uint16(rest[3])
	if asked := bytes.HasSuffix(frame, asking()); asked {
		return echoOf(rest, end{from, source}, end{to, destination})
	}
	return build(ip(to, from), packet.TCPHeader{Src: destination, Dst: source, Flags: packet.SYN | packet.ACK}, packet.Text("reply"))
}

// echoOf is the answer of a backend beside the one that was asked to take a connection over.
func echoOf(tcp []byte, from, asked end) []byte {
	n := 0
	for explainBackend(asked.address.Is4(), n) != asked.address {
		n++
	}
	return build(ip(explainBackend(asked.address.Is4(), n^1), from.address), packet.TCPHeader{Src: podPort, Dst: from.port, Seq: 5,
		Ack: binary.BigEndian.Uint32(tcp[4:]) + 1, Flags: packet.SYN | packet.ACK, Options: optiontwin.AppendRedirect(slices.Clone(linuxSYN), netip.AddrPortFrom(asked.address, asked.port))})
}

// counters are the packets of each reason.
func (x *explainRun) counters() map[string]uint64 {
	all := map[string]uint64{}
	for i, name := range x.d.kernel.reasons {
		c, err := readTally(x.d.kernel.Reasons, uint32(i))
		must(x.T, err)
		all[name] = c.packets
	}
	return all
}

// dump is everything that is in the director's maps.
func (x *explainRun) dump() map[string][]byte {
	all := map[string][]byte{}
	for name, m := range x.d.kernel.all {
		all[name] = dumpMap(x.T, name, m)
	}
	if table, err := ebpf.LoadPinnedMap(x.d.kernel.snatTable.pin, nil); err == nil {
		all["snat_table"] = dumpMap(x.T, "snat_table", table)
		table.Close()
	}
	return all
}

func dumpMap(t *testing.T, name string, m *ebpf.Map) []byte {
	t.Helper()
	if m.Type() == ebpf.RingBuf { // its second page says how far it is written
		page := unix.Getpagesize()
		position, err := unix.Mmap(m.FD(), int64(page), page, unix.PROT_READ, unix.MAP_SHARED)
		must(t, err)
		defer unix.Munmap(position)
		return slices.Clone(position[:8])
	}
	if m.Flags()&unix.BPF_F_MMAPABLE != 0 {
		memory, err := bpfload.Map[byte](m)
		must(t, err)
		defer memory.Close()
		return slices.Clone(memory.Bytes)
	}
	var all []string
	for key, err := m.NextKeyBytes(nil); key != nil || err != nil; key, err = m.NextKeyBytes(key) {
		must(t, err)
		value := reflect.New(reflect.ArrayOf(int(m.ValueSize()), reflect.TypeFor[byte]()))
		if strings.HasPrefix(m.Type().String(), "PerCPU") {
			value = reflect.New(reflect.SliceOf(value.Elem().Type()))
		}
		if err := m.Lookup(key, value.Interface()); errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		} else if err != nil {
			t.Fatalf("read %s: %v", name, err)
		}
		all = append(all, fmt.Sprintf("%x %x", key, value.Elem().Interface()))
	}
	slices.Sort(all)
	return []byte(strings.Join(all, "\n"))
}
