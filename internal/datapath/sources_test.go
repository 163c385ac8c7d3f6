package datapath

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// Packets of clients outside of a service's ranges are dropped in every mode, whatever they
// are; others are forwarded as if there were no ranges.
func testSourceRanges(t *testing.T) {
	w := &testWorld{}
	scenarios := w.scenarios(notFullNAT)
	full := w.scenarios(isFullNAT)
	wide := scenario{client: client4, testService: w.add(testService{vip: vipAddress(true, 0x300), protocol: model.TCP, segment: vlan(7), port: model.PortRange{First: 70, Last: 90},
		backends: []testBackend{{address: backendAddress(true, 0x300)}}, sourceRanges: prefixes("198.51.100.6/31", "0.0.0.0/1")})}
	empty := scenario{client: client6, testService: w.add(testService{vip: vipAddress(false, 0x301), protocol: model.UDP, port: singlePort(servicePort), noRing: true,
		sourceRanges: prefixes("2001:db8:c::/125")})}
	everybody := scenario{client: client6, testService: w.add(testService{vip: vipAddress(false, 0x302), protocol: model.TCP, port: singlePort(servicePort),
		backends: []testBackend{{address: backendAddress(false, 0x302)}}, sourceRanges: prefixes("::/0")})}
	nobody := scenario{client: client6, testService: w.add(testService{vip: vipAddress(false, 0x303), protocol: model.TCP, port: singlePort(servicePort),
		backends: []testBackend{{address: backendAddress(false, 0x303)}}, sourceRanges: prefixes("::/128")})}
	nobody4 := scenario{client: client4, testService: w.add(testService{vip: vipAddress(true, 0x303), protocol: model.TCP, port: singlePort(servicePort),
		backends: []testBackend{{address: backendAddress(true, 0x303)}}, sourceRanges: prefixes("0.0.0.0/32")})}
	for _, s := range append(scenarios, full...) {
		s.sourceRanges = prefixes("10.200.0.0/16", "198.51.100.4/30", "198.51.100.128/25")
		if s.vip.Is6() {
			s.sourceRanges = prefixes("2001:db8:c::/126", "2001:db8:c::7", "2001:db8:d::/48")
		}
	}
	d := loadTestDirector(t, w)
	for i, s := range scenarios {
		t.Run(s.name, func(t *testing.T) { d.check(t, s.sourceRows(uint32(100*i))) })
	}
	for _, s := range full { // what it does with clients inside has tests of its own
		t.Run(s.name, func(t *testing.T) { d.check(t, s.outside().refusedRows(0)) })
	}
	tagged := func(s scenario, port uint16) []byte {
		return packet.Build(arrived, packet.VLANTag{ID: 7}, ip(s.client, s.vip), l4(s.protocol, clientPort, port))
	}
	out := wide.outside()
	d.check(t, []row{
		row{name: "a range of ports in a VLAN", in: tagged(out, 77)}.dropped(abi.ReasonDROP_SOURCE_RANGE, out.testService),
		row{name: "nobody's, outside", in: build(empty.outside().data(5)...)}.dropped(abi.ReasonDROP_SOURCE_RANGE, empty.testService),
		row{name: "nobody's, inside", in: build(empty.data(5)...)}.dropped(abi.ReasonDROP_NO_BACKEND, empty.testService),
		row{name: "nobody is let in over IPv6", in: build(nobody.data(5)...)}.dropped(abi.ReasonDROP_SOURCE_RANGE, nobody.testService),
		row{name: "nobody is let in over IPv4", in: build(nobody4.data(5)...)}.dropped(abi.ReasonDROP_SOURCE_RANGE, nobody4.testService),
		everybody.forward("every address", everybody.flow(), 0, everybody.data(5)...),
	})
	if action, _ := d.run(t, tagged(wide, 77), 0); action != xdpTX {
		t.Errorf("verdict %d for a client inside in a VLAN, want %d", action, xdpTX)
	}
}

// prefixes are those that texts say; an address is one of its own.
func prefixes(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		if !strings.Contains(text, "/") {
			a := netip.MustParseAddr(text)
			list = append(list, netip.PrefixFrom(a, a.BitLen()))
			continue
		}
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

// outside is the scenario with a client beside the one that is let in.
func (s scenario) outside() scenario {
	s.client = netip.MustParseAddr("198.51.100.8")
	if s.vip.Is6() {
		s.client = netip.MustParseAddr("2001:db8:c::8")
	}
	return s
}

func (s scenario) sourceRows(id uint32) []row {
	return append([]row{
		s.forward("inside", s.flow(), 0, s.data(5)...),
		s.forward("inside, more", s.flow(), 0, s.data(500)...),
	}, s.outside().refusedRows(id)...)
}

// refusedRows are packets of a client that is not let in.
func (s scenario) refusedRows(id uint32) []row {
	refused := func(name string, frame []byte) row {
		return row{name: name, in: frame}.dropped(abi.ReasonDROP_SOURCE_RANGE, s.testService)
	}
	rows := []row{
		refused("outside", build(s.data(5)...)),
		refused("outside, too long", build(s.data(1600)...)),
		s.pass("outside, no service", ip(s.client, s.vip), l4(s.protocol, clientPort, otherPort)),
	}
	if s.protocol == model.TCP {
		rows = append(rows, refused("SYN", build(ip(s.client, s.vip), packet.TCPHeader{Src: clientPort, Dst: servicePort, Flags: packet.SYN})))
	}
	pieces := pieces(id+90, s.data(600)...)
	later := row{name: "later fragment", in: pieces[1], before: pieces[:1]}.dropped(abi.ReasonDROP_FRAGMENT_UNKNOWN, nil)
	e := icmpErrors(s.vip.Is4())[0]
	return append(rows, refused("first fragment", pieces[0]), later,
		refused("error about its flow", build(s.router(), e.header, packet.Quote(8, s.reply(servicePort)...))))
}

// withSources is a table in which a service has ranges.
func withSources(vary int, ranges ...string) model.Table {
	t := tableOf(3, 2, vary)
	t.Services[1].SourceRanges = prefixes(ranges...)
	return t
}

// letsIn sends a client's packet to the second service.
func (d *Datapath) letsIn(client string) (bool, error) {
	action, _, err := d.kernel.program.Test(build(ip(netip.MustParseAddr(client), netip.MustParseAddr("198.51.0.1")),
		packet.TCPHeader{Src: 7, Dst: 80, Flags: packet.ACK}, packet.Text("client")))
	if err == nil && action != xdpRedirect && action != xdpDrop {
		err = fmt.Errorf("verdict %d", action)
	}
	return action == xdpRedirect, err
}

func (d *Datapath) wantSources(t *testing.T, what string, want map[string]bool) {
	t.Helper()
	for client, in := range want {
		if got, err := d.letsIn(client); got != in || err != nil {
			t.Errorf("%s: %s is let in: %v, want %v (%v)", what, client, got, in, err)
		}
	}
}

// sourcesInKernel counts what the map has.
func (d *Datapath) sourcesInKernel(t *testing.T) (n int) {
	t.Helper()
	var key abi.SourceRange
	var there uint8
	all := d.kernel.SourceRanges.Iterate()
	for all.Next(&key, &there) {
		n++
	}
	must(t, all.Err())
	return n
}

// Ranges come, change and go with a Set, and a process that starts again, of this version or
// of another, goes on with them. Nothing of those before is left in the kernel.
func TestSourceRangesSet(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 2)
	d := openVersion(t, nil)
	set := func(what string, table model.Table, left int, want map[string]bool) {
		t.Helper()
		must(t, d.Set(table))
		d.wantSources(t, what, want)
		if n := d.sourcesInKernel(t); n != left {
			t.Errorf("%s: the kernel has %d ranges, want %d", what, n, left)
		}
	}
	both, none := map[string]bool{"10.9.0.1": true, "10.8.0.1": true}, map[string]bool{"10.9.0.1": false, "10.8.0.1": false}
	nine, eight := map[string]bool{"10.9.0.1": true, "10.8.0.1": false}, map[string]bool{"10.9.0.1": false, "10.8.0.1": true}
	set("no ranges", withSources(0), 0, both)
	set("one range", withSources(0, "10.9.0.0/16"), 1, nine)
	set("another ring", withSources(1, "10.9.0.0/16"), 1, nine)
	set("another range", withSources(1, "10.8.0.0/16"), 1, eight)
	set("both, one of them twice", withSources(1, "10.8.0.0/16", "10.9.0.0/16", "10.8.0.0/16"), 2, both)
	set("the first again", withSources(1, "10.9.0.0/16"), 1, nine)
	for _, version := range []func(*ebpf.CollectionSpec){nil, otherABI, nil} {
		must(t, d.Close())
		d = openVersion(t, version)
		d.wantSources(t, "opened again", map[bool]map[string]bool{true: nine, false: {}}[d.kernel.adopted])
		set("started again", withSources(1, "10.9.0.0/16"), 1, nine)
	}
	must(t, d.Close())
	d = openVersion(t, nil)
	set("started again with others", withSources(1, "10.7.0.0/16", "10.8.0.0/16"), 2, eight)
	set("nobody", withSources(1, "10.7.0.0/16"), 1, none)
	must(t, d.Set(tableOf(1, 2, 1)))
	if n := d.sourcesInKernel(t); n != 0 {
		t.Errorf("the service is gone, and %d of its ranges are left", n)
	}
	set("it comes again, for all", withSources(1), 0, both)
	many := withSources(0)
	for i := range smallLimits.SourceRanges + 1 {
		many.Services[i%3].SourceRanges = append(many.Services[i%3].SourceRanges, netip.PrefixFrom(numbered(true, 1, int(i)), 32))
	}
	if err := d.Set(many); err == nil || !strings.Contains(err.Error(), "17 source ranges are more than director.limits.source-ranges, 16") {
		t.Errorf("more ranges than there is room for: %v", err)
	}
	d.wantSources(t, "after what is refused", both)
	for _, s := range many.Services[:2] { // as many as there may be, all of them replaced at once
		must(t, d.Set(withSources(1, textsOf(s.SourceRanges)...)))
	}
}

func textsOf(list []netip.Prefix) (texts []string) {
	for _, p := range list {
		texts = append(texts, p.String())
	}
	return texts
}

// While ranges change, a client that is in the ranges before and after is always let
// in, and one that is in neither never is.
func TestSourceRangesChangeAtOnce(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 2)
	d := openVersion(t, nil)
	must(t, d.Set(withSources(0, "10.9.0.0/16")))
	stop := make(chan struct{})
	var senders sync.WaitGroup
	for _, client := range []string{"10.9.0.1", "10.6.0.1"} {
		senders.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if in, err := d.letsIn(client); in != (client == "10.9.0.1") || err != nil {
					t.Errorf("%s is let in: %v (%v)", client, in, err)
					return
				}
			}
		})
	}
	for i := range 60 {
		ranges := [][]string{{"10.8.0.0/16", "10.9.0.0/16"}, {"10.9.0.1/32"}, {"10.9.0.0/24", "10.7.0.0/16", "10.5.0.0/16"}, {"10.8.0.0/15"}}[i%4]
		must(t, d.Set(withSources(i/8, ranges...)))
	}
	close(stop)
	senders.Wait()
}
