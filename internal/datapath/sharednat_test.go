package datapath

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// natGroup are directors of a group, side by side, which share full NAT's flows by hand: what
// internal/flowsync does over a network.
type natGroup struct {
	ports     model.PortRange
	directors []*natDirector
}

type natDirector struct {
	*Datapath
	pin, wire string
	address   netip.Addr
	stop      func()                     // to follow
	differs   func(*ebpf.CollectionSpec) // its version

	mu   sync.Mutex
	news []model.NATFlow
}

func newNATGroup(t *testing.T, n int, ports model.PortRange) *natGroup {
	t.Helper()
	must(t, device.SetEthtool("wire1", unix.ETHTOOL_SGRO, 1)) // XDP sends into wire0 whoever has a program at its other end
	g := &natGroup{ports: ports}
	for i := range n {
		d := &natDirector{pin: fmt.Sprint("nat", i), wire: fmt.Sprint("wire", i), address: netip.AddrFrom4([4]byte{192, 0, 2, byte(5 + i)})}
		if i > 1 {
			veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: d.wire, MTU: 1500}, PeerName: d.wire + "far"}
			must(t, netlink.LinkAdd(veth))
			t.Cleanup(func() { must(t, netlink.LinkDel(veth)) })
			for _, name := range []string{d.wire, d.wire + "far"} {
				link, err := netlink.LinkByName(name)
				must(t, err)
				must(t, netlink.LinkSetUp(link))
			}
		}
		g.directors = append(g.directors, d)
		g.start(t, d)
	}
	t.Cleanup(func() {
		for _, d := range g.directors {
			d.lose(t)
		}
	})
	return g
}

// start begins a director's process. The group's other directors have told it of all flows before
// it forwards, as flowsync.Await does.
func (g *natGroup) start(t *testing.T, d *natDirector) {
	t.Helper()
	var err error
	limits := smallLimits
	limits.Flows = 1 << 16
	d.Datapath, err = Open(Options{Pin: "/sys/fs/bpf/" + d.pin, Limits: limits, differs: d.differs})
	must(t, err)
	d.sweepsByHand()
	d.sweepShared() // as on a slow machine, before the first Set
	table := tableOf(2, 3, 0)
	table.Interfaces = []string{d.wire}
	table.SNAT = model.SNAT{Addresses: []netip.Addr{d.address}, Ports: g.ports}
	for i := range table.Services {
		for j := range table.Services[i].Backends {
			b := &table.Services[i].Backends[j]
			b.Mode, b.SNAT, b.Port = model.NAT, true, 8080
		}
	}
	if len(g.directors)%2 == 1 { // directors' indexes differ
		slices.Reverse(table.Services)
	}
	must(t, d.Set(table))
	for _, other := range g.directors {
		if other != d && other.Datapath != nil {
			must(t, other.SharedNATFlows(func(some []model.NATFlow) bool { must(t, d.RememberNAT(some)); return true }))
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	begun := make(chan bool)
	done.Go(func() {
		err := d.FollowFlows(ctx, func(news model.FlowNews, unshared bool) {
			if unshared {
				close(begun)
			}
			d.mu.Lock()
			defer d.mu.Unlock()
			d.news = append(d.news, news.NAT...)
		})
		if err != nil {
			t.Errorf("follow flows: %v", err)
		}
	})
	<-begun
	d.stop = func() { cancel(); done.Wait() }
}

// end ends a director's process.
func (d *natDirector) end(t *testing.T) {
	t.Helper()
	if d.Datapath == nil {
		return
	}
	d.stop()
	must(t, d.Close())
	d.Datapath, d.news = nil, nil
}

// lose ends it, and what the kernel has of it: its host is gone.
func (d *natDirector) lose(t *testing.T) {
	t.Helper()
	d.end(t)
	must(t, Detach("/sys/fs/bpf/"+d.pin))
}

// share waits for what a director's program has told of, up to a flow that has a state or more, and
// tells the others.
func (g *natGroup) share(t *testing.T, from *natDirector, until func(f *model.NATFlow) bool) {
	t.Helper()
	var some []model.NATFlow
	eventually(t, "the director tells of a flow", func() bool {
		from.mu.Lock()
		defer from.mu.Unlock()
		some = from.news
		return slices.ContainsFunc(some, func(f model.NATFlow) bool { return until(&f) })
	})
	from.mu.Lock()
	from.news = nil
	from.mu.Unlock()
	for _, d := range g.directors {
		if d != from && d.Datapath != nil {
			must(t, d.RememberNAT(some))
		}
	}
}

// natConnection is a TCP connection of a client to the first service.
type natConnection struct {
	port            uint16
	client, backend uint32 // next sequence numbers
	own             netip.AddrPort
	server          netip.Addr
	director        *natDirector // that has begun it
	proved          bool
}

var natVIP = netip.MustParseAddr("198.51.0.0")

// fromClient sends a segment of the client's through a director, and returns the one that leaves to
// a backend; false: the director drops it.
func (c *natConnection) fromClient(t *testing.T, d *natDirector, flags uint8) (own netip.AddrPort, server netip.Addr, left bool) {
	t.Helper()
	h := packet.TCPHeader{Src: c.port, Dst: 80, Flags: flags, Seq: c.client, Ack: c.backend}
	action, out, err := d.kernel.program.Test(build(ip(client4, natVIP), h, packet.Text("client")))
	must(t, err)
	if action != xdpTX && action != unix.BPF_REDIRECT && action != 4 {
		return own, server, false
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(out[26:30])), binary.BigEndian.Uint16(out[34:])), netip.AddrFrom4([4]byte(out[30:34])), true
}

// fromBackend sends a segment of the backend's through a director, and says whether the client gets
// it from the VIP.
func (c *natConnection) fromBackend(t *testing.T, d *natDirector, flags uint8) bool {
	t.Helper()
	h := packet.TCPHeader{Src: 8080, Dst: c.own.Port(), Flags: flags, Seq: c.backend, Ack: c.client}
	_, out, err := d.kernel.program.Test(build(ip(c.server, c.own.Addr()), h, packet.Text("backend")))
	must(t, err)
	return netip.AddrFrom4([4]byte(out[26:30])) == natVIP && netip.AddrFrom4([4]byte(out[30:34])) == client4 &&
		binary.BigEndian.Uint16(out[34:]) == 80 && binary.BigEndian.Uint16(out[36:]) == c.port
}

// open opens the connection at a director, as far as a segment of the client's proves it.
func (c *natConnection) open(t *testing.T, d *natDirector) {
	t.Helper()
	c.begin(t, d)
	c.want(t, d, packet.ACK, "it is proved")
	c.proved = true
}

// begin opens it as far as the backend's SYN-ACK.
func (c *natConnection) begin(t *testing.T, d *natDirector) {
	t.Helper()
	var left bool
	if c.own, c.server, left = c.fromClient(t, d, packet.SYN); !left {
		t.Fatalf("the SYN from port %d is dropped", c.port)
	}
	c.client++
	c.backend = 7000 + uint32(c.port)
	if !c.fromBackend(t, d, packet.SYN|packet.ACK) {
		t.Fatalf("the SYN-ACK to port %d does not arrive", c.port)
	}
	c.backend++
	c.director = d
}

// want sends a segment each way through a director: both must arrive as the connection's.
func (c *natConnection) want(t *testing.T, d *natDirector, flags uint8, why string) {
	t.Helper()
	if own, server, left := c.fromClient(t, d, flags); !left || own != c.own || server != c.server {
		t.Errorf("%s: the client's segment from port %d leaves: %v, from %v to %v; want %v to %v: %s", d.pin, c.port, left, own, server, c.own, c.server, why)
	}
	if !c.fromBackend(t, d, flags) {
		t.Errorf("%s: the reply to %v does not come to port %d: %s", d.pin, c.own, c.port, why)
	}
}

// is says whether a flow that was told of is the connection's, as it is now.
func (c *natConnection) is(f *model.NATFlow) bool {
	return f.Own == c.own && f.Source.Port() == c.port && c.proved == (f.Class == model.ProvedFlow)
}

// A connection of full NAT goes on at every director of the group, with the address and port that it
// has, and through the director's loss and return, with and without its memory.
func TestSharedNATGoesOn(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 3)
	g := newNATGroup(t, 3, model.PortRange{First: 1024, Last: 2047})
	a, b, c := g.directors[0], g.directors[1], g.directors[2]
	first := &natConnection{port: 20000, client: 1000}
	first.open(t, a)
	if _, _, left := first.fromClient(t, b, packet.ACK); left {
		t.Error("a director forwards a connection that it has not been told of")
	}
	g.share(t, a, first.is)
	first.want(t, b, packet.ACK, "it was told of it")
	first.want(t, c, packet.ACK, "it was told of it")
	explained, err := b.Explain(b.wire, build(ip(client4, natVIP), packet.TCPHeader{Src: first.port, Dst: 80, Flags: packet.ACK, Seq: first.client, Ack: first.backend}, packet.Text("x")))
	must(t, err)
	if explained.Chosen != model.ChosenBySNAT || explained.Backend == nil || explained.Backend.Source != first.own {
		t.Errorf("a packet is explained by %q, with %+v; want full NAT's flow with %v", explained.Chosen, explained.Backend, first.own)
	}
	explained, err = b.Explain(b.wire, build(ip(first.server, first.own.Addr()), packet.TCPHeader{Src: 8080, Dst: first.own.Port(), Flags: packet.ACK, Seq: first.backend, Ack: first.client}, packet.Text("x")))
	must(t, err)
	if explained.Backend == nil || explained.Backend.Backend.Addr() != first.server || explained.Outcome == model.OutcomeDrop {
		t.Errorf("a reply is explained by %+v, %s", explained.Backend, explained.Reason)
	}
	var listed []model.NATFlow
	must(t, b.NATFlows(func(some []model.NATFlow) bool { listed = append(listed, some...); return true }))
	if len(listed) != 1 || !first.is(&listed[0]) || statusOf(t, b.Datapath).NAT.Shared != 1 {
		t.Errorf("the other director lists %+v", listed)
	}
	if own, _, _ := (&natConnection{port: 20001, client: 5000}).fromClient(t, b, packet.SYN); own.Addr() != b.address {
		t.Errorf("a new connection at director b has the address %v", own)
	}

	a.lose(t)
	first.want(t, b, packet.ACK, "its director is lost")
	b.end(t)
	g.start(t, b)
	first.want(t, b, packet.ACK, "its director is lost, and this one's process is another one")
	c.end(t) // nobody else knows the connection
	b.end(t)
	b.differs = otherABI
	g.start(t, b)
	g.start(t, c)
	first.want(t, b, packet.ACK, "its director is lost, and this one's version is another one")
	g.start(t, a)
	first.want(t, a, packet.ACK, "its director has returned without memory")
	first.want(t, b, packet.ACK, "the other one still knows it")
	second := &natConnection{port: 20002, client: 9000}
	second.open(t, a)
	if second.own == first.own {
		t.Errorf("two connections have %v", first.own)
	}
	g.share(t, a, second.is)
	second.want(t, c, packet.ACK, "of the director that has returned")
	a.end(t)
	g.start(t, a)
	first.want(t, a, packet.ACK, "the process of a director that has returned without memory is another one")

	// The end is told, and so is what comes after it.
	first.want(t, b, packet.RST, "the end")
	g.share(t, b, first.is)
	if status := statusOf(t, a.Datapath).NAT; status.Flows != 2 {
		t.Errorf("%d flows are in the table of the director that has begun them, want 2", status.Flows)
	}
	second.want(t, a, packet.ACK, "another connection")
}

// A client uses its port again at another director, which begins another connection: that is the one
// that goes on, wherever its packets come.
func TestSharedNATPortIsUsedAgain(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 3)
	g := newNATGroup(t, 2, model.PortRange{First: 1024, Last: 2047})
	a, b := g.directors[0], g.directors[1]
	old := &natConnection{port: 20000, client: 1000}
	old.open(t, a) // of which the other director has not heard
	a.age(t, old.own, 10)
	again := &natConnection{port: 20000, client: 1 << 30}
	again.open(t, b)
	g.share(t, b, again.is)
	again.want(t, b, packet.ACK, "its own director")
	again.want(t, a, packet.ACK, "the director of the connection before")
}

// A connection whose backend has just answered goes on at another director, which proves it by its
// numbers. A flood's are a part of the table at most, and push no flow out.
func TestSharedNATFresh(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 3)
	g := newNATGroup(t, 2, model.PortRange{First: 1024, Last: 2047})
	a, b := g.directors[0], g.directors[1]
	c := &natConnection{port: 20000, client: 1000}
	c.begin(t, a)
	g.share(t, a, c.is)
	guessed := *c
	guessed.client, guessed.backend = c.client+1<<30, c.backend+1<<30
	guessed.fromClient(t, b, packet.ACK)
	if state := b.stateOf(t, c); state != abi.SnatStateSNAT_ANSWERED {
		t.Errorf("a guessed segment makes the flow's state %d", state)
	}
	again := *c
	again.client--
	if own, _, left := again.fromClient(t, b, packet.SYN); !left || own != c.own {
		t.Errorf("the SYN that is sent again leaves: %v, from %v, want %v", left, own, c.own)
	}
	a.lose(t)
	c.want(t, b, packet.ACK, "its director was lost before it was proved")
	if state := b.stateOf(t, c); state != abi.SnatStateSNAT_ESTABLISHED {
		t.Errorf("the flow's state is %d, want that it is proved", state)
	}
	c.proved = true
	g.share(t, b, c.is)

	b.options.Limits.Flows = 64
	flood := make([]model.NATFlow, 200)
	for i := range flood {
		flood[i] = toldFlow(netip.AddrPortFrom(client4, uint16(30000+i)), netip.AddrPortFrom(a.address, uint16(1024+i)))
		flood[i].Class, flood[i].Numbers = model.FreshFlow, model.NATNumbers{Known: true, Client: 1, Backend: 2}
		if flood[i].Own == c.own { // what is proved is not touched
			flood[i].Source = netip.AddrPortFrom(client4, 50000)
		}
	}
	must(t, b.RememberNAT(flood))
	if fresh := b.shared.fresh; fresh > 64/sharedFresh {
		t.Errorf("%d fresh flows are kept, of 64", fresh)
	}
	c.want(t, b, packet.ACK, "beside a flood")
}

// stateOf is the state of a connection of another director.
func (d *natDirector) stateOf(t *testing.T, c *natConnection) abi.SnatState {
	t.Helper()
	place, known := d.shared.places[abi.SnatEnd{Address: abi.AddressBytes(c.own.Addr()), Port: abi.BigEndian16(c.own.Port()), Protocol: uint8(model.TCP)}]
	if !known {
		t.Fatalf("%v is not known", c.own)
	}
	return abi.SnatState(d.shared.memory.Entries[place].Flow.State)
}

// toldFlow is a proved flow that another director tells of: of a client, with an address and port.
func toldFlow(client, own netip.AddrPort) model.NATFlow {
	return model.NATFlow{
		RememberedFlow: model.RememberedFlow{
			Service: model.ServiceID{VIP: natVIP, Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}},
			Backend: netip.MustParseAddrPort("10.0.0.11:8080"), Source: client, Port: 80, Class: model.ProvedFlow, State: model.FlowOpen,
		},
		Own: own,
	}
}

// age makes a flow of the director's own as old as this, in the table's units.
func (d *natDirector) age(t *testing.T, own netip.AddrPort, units uint32) {
	t.Helper()
	table, err := d.kernel.mapNAT()
	must(t, err)
	defer table.Close()
	number := table.ReplyTo(model.Flow{Source: client4, Destination: own.Addr(), Protocol: uint8(model.TCP), DestinationPort: own.Port()})
	table.Flows[int(number)-flows.BucketPorts].Seen -= units
}

// A connection that ends at once is over at the other directors, too, and does not keep its port when
// its director returns without memory.
func TestSharedNATEndsAtOnce(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 3)
	g := newNATGroup(t, 2, model.PortRange{First: 1024, Last: 2047})
	a, b := g.directors[0], g.directors[1]
	reset, closed := &natConnection{port: 20000, client: 1000}, &natConnection{port: 20001, client: 1000}
	for _, c := range []*natConnection{reset, closed} {
		c.open(t, a)
	}
	reset.fromClient(t, a, packet.RST|packet.ACK)
	closed.fromClient(t, a, packet.FIN|packet.ACK)
	closed.fromBackend(t, a, packet.FIN|packet.ACK)
	g.share(t, a, func(f *model.NATFlow) bool { return closed.is(f) && f.ClientClosed && f.BackendClosed })
	for c, want := range map[*natConnection]abi.SnatState{reset: abi.SnatStateSNAT_RESET, closed: abi.SnatStateSNAT_CLOSED} {
		if state := b.stateOf(t, c); state != want {
			t.Errorf("the flow from port %d is in state %d at the other director, want %d", c.port, state, want)
		}
	}
	a.lose(t)
	g.start(t, a)
	for c, want := range map[*natConnection]abi.SnatState{reset: abi.SnatStateSNAT_RESET, closed: abi.SnatStateSNAT_CLOSED} {
		if e := a.ownFlow(t, c.own); abi.SnatState(e.State) != want {
			t.Errorf("the flow from port %d is in state %d at its director, want %d", c.port, e.State, want)
		}
	}
}

// A director that returns without memory takes all its flows back, however many, and so does its next
// process; then it gets fewer ports.
func TestSharedNATTakesAllBack(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 3)
	g := newNATGroup(t, 1, model.PortRange{First: 1024, Last: 1024 + 16383})
	d := g.directors[0]
	told := make([]model.NATFlow, 3*sharedFirst)
	for i := range told {
		told[i] = toldFlow(netip.AddrPortFrom(client4, uint16(1024+i)), netip.AddrPortFrom(d.address, uint16(1024+i)))
	}
	must(t, d.RememberNAT(told))
	outside := len(d.shared.own)
	if outside < 2*sharedFirst {
		t.Fatalf("%d flows are outside of their buckets: this test shows nothing", outside)
	}
	d.end(t)
	g.start(t, d)
	if n := len(d.shared.own); n != outside {
		t.Errorf("the next process finds %d flows outside of their buckets, want %d", n, outside)
	}
	c := &natConnection{port: told[len(told)-1].Source.Port(), own: told[len(told)-1].Own, server: netip.MustParseAddr("10.0.0.11"), proved: true}
	c.want(t, d, packet.ACK, "the last one")
	table := d.table
	table.SNAT.Ports.Last = 2047
	must(t, d.Set(table))
	d.sweepShared()
	if n := len(d.shared.own); n > 1024 {
		t.Errorf("%d flows of a table with 1,024 ports are known", n)
	}
	c = &natConnection{port: told[0].Source.Port(), own: told[0].Own, server: netip.MustParseAddr("10.0.0.11"), proved: true}
	c.want(t, d, packet.ACK, "its port is still among the director's")
}

// Which of two flows has a port is what the port's own director says, also after a split in which
// another director went on with the other one, at the same moment. And an own director that hears of
// the other one tells of its own again.
func TestSharedNATOwnerKnowsBest(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 3)
	g := newNATGroup(t, 2, model.PortRange{First: 1024, Last: 2047})
	a, b := g.directors[0], g.directors[1]
	c := &natConnection{port: 20000, client: 1000}
	c.open(t, a)
	var told []model.NATFlow
	must(t, a.SharedNATFlows(func(some []model.NATFlow) bool { told = append(told, some...); return true }))
	stale := told[0]
	stale.Source, stale.ByOwner, stale.Numbers = netip.AddrPortFrom(client4, 30000), false, model.NATNumbers{}
	must(t, b.RememberNAT([]model.NATFlow{stale}))
	must(t, b.RememberNAT(told))
	c.want(t, b, packet.ACK, "its own director has told of it")
	must(t, b.RememberNAT([]model.NATFlow{stale}))
	c.want(t, b, packet.ACK, "and another director of another flow with its port")
	must(t, a.RememberNAT([]model.NATFlow{stale}))
	c.want(t, a, packet.ACK, "another director goes on with another flow")
	if again := a.tellAgain(); len(again) != 1 || again[0].Flow.ClientPort != abi.BigEndian16(c.port) {
		t.Errorf("the director tells again of %+v", again)
	}

	told[0].Announced = true
	must(t, b.RememberNAT(told))
	if sources := b.SharedSources(); !slices.Equal(sources, []netip.Addr{a.address}) {
		t.Errorf("announced for others are %v, want %v", sources, a.address)
	}
	told[0].Announced = false
	must(t, b.RememberNAT(told))
	if sources := b.SharedSources(); len(sources) != 0 {
		t.Errorf("announced for others are %v, and their director announces none", sources)
	}
}

// ownFlow is a flow in the director's own table.
func (d *natDirector) ownFlow(t *testing.T, own netip.AddrPort) abi.SnatFlow {
	t.Helper()
	table, err := d.kernel.mapNAT()
	must(t, err)
	defer table.Close()
	number := table.ReplyTo(model.Flow{Source: client4, Destination: own.Addr(), Protocol: uint8(model.TCP), DestinationPort: own.Port()})
	e, _ := table.Read(int(number) - flows.BucketPorts)
	return e
}

// Places of flows that have ended are used again, and the table of shared flows grows as far as it may.
func TestSharedNATHasRoom(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 3)
	g := newNATGroup(t, 1, model.PortRange{First: 1024, Last: 2047})
	d := g.directors[0]
	told := func(n int) (list []model.NATFlow) {
		for i := range n {
			list = append(list, toldFlow(netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, byte(i >> 14), 1}), uint16(1024+i&0x3fff)), netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + i>>14)}), uint16(1024+i&0x3fff))))
		}
		return list
	}
	const many = 3 * sharedFirst
	must(t, d.RememberNAT(told(many)))
	if n := len(d.shared.places); n != many {
		t.Errorf("%d flows are kept, want %d", n, many)
	}
	must(t, d.RememberNAT(told(many)))
	if n, again := len(d.shared.places), d.outcome(t, abi.ToldOutcomeTOLD_OLDER)+d.outcome(t, abi.ToldOutcomeTOLD_AGAIN); n != many || again != many {
		t.Errorf("%d flows are kept, and %d were known, want %d", n, again, many)
	}
	c := &natConnection{port: 1024, client: 1, own: told(1)[0].Own, server: netip.MustParseAddr("10.0.0.11")}
	if _, out, err := d.kernel.program.Test(build(ip(netip.AddrFrom4([4]byte{203, 0, 0, 1}), natVIP), packet.TCPHeader{Src: 1024, Dst: 80, Flags: packet.ACK}, packet.Text("x"))); err != nil || netip.AddrFrom4([4]byte(out[26:30])) != c.own.Addr() {
		t.Errorf("the first flow has gone: %v, % x", err, out[26:38])
	}
	for _, place := range d.shared.places {
		d.shared.memory.Entries[place].Flow.Seen -= 1 << 20
	}
	d.sweepShared()
	if n := len(d.shared.places); n != 0 || len(d.shared.rests) != many {
		t.Errorf("of flows that have ended %d are kept, and %d places rest", n, len(d.shared.rests))
	}
	for _, m := range []interface{ NextKey(any, any) error }{d.shared.clients, d.shared.ends} {
		if err := m.NextKey(nil, new([20]byte)); err == nil {
			t.Error("an index still has a flow")
		}
	}
	d.options.Limits.Flows = uint32(len(d.shared.memory.Entries))
	must(t, d.RememberNAT(told(1<<15)))
	if refused := d.outcome(t, abi.ToldOutcomeTOLD_REFUSED); refused == 0 {
		t.Error("more flows are kept than director.limits.flows")
	}
}

// A random history: directors are lost and return, their processes end and begin, and clients'
// packets and replies come to any of them. No two connections ever leave with one address and port,
// and no connection that was told of ends.
func TestSharedNATHistory(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 3)
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { testSharedNATHistory(t, seed) })
	}
}

func testSharedNATHistory(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 25))
	g := newNATGroup(t, 3, model.PortRange{First: 1024, Last: 1024 + 63})
	var open []*natConnection
	used := map[netip.AddrPort]*natConnection{}
	alive := func() (list []*natDirector) {
		for _, d := range g.directors {
			if d.Datapath != nil {
				list = append(list, d)
			}
		}
		return list
	}
	next := uint16(20000)
	for range rounds(300) {
		directors := alive()
		d := directors[r.IntN(len(directors))]
		switch r.IntN(10) {
		case 0: // a director is lost
			if len(directors) > 1 {
				d.lose(t)
			}
		case 1: // all that are lost return
			for _, d := range g.directors {
				if d.Datapath == nil {
					g.start(t, d)
				}
			}
		case 2: // another process
			d.end(t)
			g.start(t, d)
		case 3, 4, 5: // a connection begins
			if len(open) > 40 {
				break
			}
			next++
			c := &natConnection{port: next, client: r.Uint32()}
			c.open(t, d)
			if other := used[c.own]; other != nil {
				t.Fatalf("connections from ports %d and %d both have %v", other.port, c.port, c.own)
			}
			used[c.own] = c
			g.share(t, d, c.is)
			open = append(open, c)
		default:
			for _, c := range open {
				c.want(t, directors[r.IntN(len(directors))], packet.ACK, "it goes on")
			}
		}
		if t.Failed() {
			return
		}
	}
}
