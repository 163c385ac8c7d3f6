package datapath

import (
	"fmt"
	"net/netip"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/contents"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

var (
	redInside  = model.Segment{Kind: model.SegmentVXLAN, ID: 5001}
	blueInside = model.Segment{Kind: model.SegmentVXLAN, ID: 5002}
)

// vtepOnWire is a director as a VTEP at wire0.
func vtepOnWire() model.VTEP {
	return model.VTEP{Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, VXLANPort: model.DefaultVXLANPort, GenevePort: model.DefaultGenevePort}
}

func openVTEP(t *testing.T) *Datapath {
	t.Helper()
	return openOptions(t, Options{VTEP: vtepOnWire(), InVLANs: true})
}

// insideTable is a table of one service in no segment, and these segments.
func insideTable(segments ...model.SegmentSettings) model.Table {
	table := tableOf(1, 1, 0)
	table.VTEP, table.Segments = vtepOnWire(), segments
	return table
}

// hostInside is one at a VTEP on wire0: 10.0.0.N.
func hostInside(address string, n byte) model.SegmentHost {
	return model.SegmentHost{Address: netip.MustParseAddr(address), MAC: model.MAC{2, 0, 0, 0, 0, n}, VTEP: netip.AddrFrom4([4]byte{10, 0, 0, n})}
}

func learned(segment model.Segment, hosts ...model.SegmentHost) map[model.Segment][]model.SegmentHost {
	return map[model.Segment][]model.SegmentHost{segment: hosts}
}

// hostsInKernel are the hosts that the program knows.
func hostsInKernel(t *testing.T, d *Datapath) map[abi.VtepAddress]abi.VtepHost {
	t.Helper()
	hosts, err := contents.Read[abi.VtepAddress, abi.VtepHost](d.kernel.all[vtepMapVtepHosts])
	must(t, err)
	return hosts
}

// amissOf writes the problems of segments.
func amissOf(d *Datapath) string {
	var all []string
	for _, p := range d.SegmentProblems() {
		all = append(all, fmt.Sprintf("%s: %s", p.Segment, p.Text))
	}
	return strings.Join(all, "\n")
}

// Hosts beyond those that a director has room for are problems of their segments, and everything else runs: tables are
// set, and other hosts take the place of all.
func TestMoreHostsThanRoom(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	for n := range byte(4) {
		addNeighbor(t, netip.AddrFrom4([4]byte{10, 0, 0, 11 + n}))
	}
	d := openVTEP(t)
	own := hostInside("172.16.0.1", 11)
	must(t, d.Set(insideTable(model.SegmentSettings{ID: blueInside, Hosts: []model.SegmentHost{own}})))
	hosts := func(first byte, count int) (list []model.SegmentHost) {
		for i := range count {
			h := hostInside("10.0.0.1", 11+byte(i)%4)
			h.Address = netip.AddrFrom4([4]byte{first + byte(i>>16), 1, byte(i >> 8), byte(i)})
			list = append(list, h)
		}
		return list
	}
	for _, first := range []byte{10, 100} {
		must(t, d.SetHosts(learned(redInside, hosts(first, 2*model.MaxSegmentHosts+1)...)))
		have := hostsInKernel(t, d)
		if _, is := have[insideKey(blueInside, own.Address)]; len(have) != model.MaxSegmentHosts || !is {
			t.Errorf("the program knows %d hosts, want %d; the configured one: %v", len(have), model.MaxSegmentHosts, is)
		}
		if _, is := have[insideKey(redInside, netip.AddrFrom4([4]byte{first, 1, 0, 0}))]; !is {
			t.Error("the first host that was learned is not known")
		}
		told := amissOf(d)
		if want := fmt.Sprintf("vxlan:5001: no packets go to host %d.1.255.255: 131074 hosts in all are more than the 65536 that a director has room for", first); !strings.HasPrefix(told, want) {
			t.Errorf("problems begin with %.300q, want %q", told, want)
		}
		if want := "\nvxlan:5001: and 65518 more of its hosts and addresses"; !strings.HasSuffix(told, want) || strings.Count(told, "\n") != mostAmiss {
			t.Errorf("problems end with %q, want %q", told[strings.LastIndex(told, "\n"):], want)
		}
	}
	must(t, d.Set(insideTable()))
	must(t, d.SetHosts(learned(redInside, own)))
	if told := amissOf(d); told != "" || len(hostsInKernel(t, d)) != 1 {
		t.Errorf("with one host the program knows %d, and problems are %q", len(hostsInKernel(t, d)), told)
	}
}

// If the kernel takes no hosts a table is set without them, VTEPs that are gone are let in no more, and hosts are
// written as soon as it takes them.
func TestHostsThatAreNotTaken(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	for n := range byte(3) {
		addNeighbor(t, netip.AddrFrom4([4]byte{10, 0, 0, 11 + n}))
	}
	d := openVTEP(t)
	first, second, third := hostInside("172.16.0.1", 11), hostInside("172.16.0.2", 12), hostInside("172.16.0.3", 13)
	must(t, d.Set(insideTable(model.SegmentSettings{ID: redInside})))
	must(t, d.SetHosts(learned(redInside, first)))
	small, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: uint32(unsafe.Sizeof(abi.VtepAddress{})), ValueSize: uint32(unsafe.Sizeof(abi.VtepHost{})), MaxEntries: 1})
	must(t, err)
	defer small.Close()
	whole := d.overlay.maps.hosts
	d.overlay.maps.hosts = small
	before := d.overlay.self.Entries[0].Generation
	if err := d.SetHosts(learned(redInside, second, third)); err == nil {
		t.Error("two hosts were written to a map of one element")
	}
	peers, err := contents.Read[abi.VtepPeer, uint8](d.kernel.all[vtepMapVtepPeers])
	must(t, err)
	is := func(h model.SegmentHost) bool {
		return peers[abi.VtepPeer{PrefixLen: 96, Address: abi.AddressBytes(h.VTEP)}] != 0
	}
	if is(first) || !is(second) || !is(third) || len(d.overlay.wrote.peers) != 2 {
		t.Errorf("the VTEPs are %v, and %v are kept; want those of the two hosts", peers, d.overlay.wrote.peers)
	}
	if after := d.overlay.self.Entries[0].Generation; after == before {
		t.Error("CPUs go on with what they have found out about a VTEP that is gone")
	}
	table := insideTable(model.SegmentSettings{ID: redInside})
	table.Services[0].Name = "renamed"
	must(t, d.Set(table))
	if told := amissOf(d); !strings.Contains(told, "not all clients in VXLAN and Geneve get replies") || !strings.Contains(told, "1 elements") {
		t.Errorf("problems are %q", told)
	}
	d.overlay.maps.hosts = whole
	d.sweep()
	if have := hostsInKernel(t, d); len(have) != 2 || amissOf(d) != "" {
		t.Errorf("the program knows %d hosts, want 2; problems are %q", len(have), amissOf(d))
	}
}

// What is learned while something else is learned is not lost, and checks do not take back what a table has said.
func TestLearnTogether(t *testing.T) {
	o := &overlay{indexes: newIndexes(1, 1)}
	o.known.Store(&knownInside{})
	vtep := netip.MustParseAddr("192.0.2.1")
	first := true
	o.learn(func(known *knownInside) bool {
		if first {
			first = false
			o.learn(func(known *knownInside) bool {
				known.vnis = map[model.Segment]uint32{redInside: 7}
				return true
			})
		}
		known.vteps = []netip.Addr{vtep}
		return true
	})
	if known := o.known.Load(); known.vnis[redInside] != 7 || !slices.Equal(known.vteps, []netip.Addr{vtep}) {
		t.Errorf("after both there are %v and %v", known.vnis, known.vteps)
	}
	table, checks := []model.SegmentSettings{{ID: redInside, MTU: 1400}}, []model.SegmentSettings{{ID: redInside, MTU: 1500}}
	o.expect(&model.CheckHost{Segments: checks})
	if mtu := o.known.Load().segments[redInside].MTU; mtu != 1500 {
		t.Errorf("before there is a table the MTU is %d, want 1500", mtu)
	}
	o.learn(func(known *knownInside) bool {
		known.know(&model.VTEP{}, table, true)
		return true
	})
	o.expect(&model.CheckHost{Segments: checks})
	if mtu := o.known.Load().segments[redInside].MTU; mtu != 1400 {
		t.Errorf("checks have changed the table's MTU to %d", mtu)
	}
}

// Packets to a host may leave by an interface that nothing else uses, as soon as the host is there.
func TestHostBehindAnotherInterface(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "other0"}, PeerName: "other1"}))
	for _, name := range []string{"other0", "other1"} {
		l, err := netlink.LinkByName(name)
		must(t, err)
		must(t, netlink.LinkSetUp(l))
	}
	other, err := netlink.LinkByName("other0")
	must(t, err)
	address, err := netlink.ParseAddr("10.9.0.1/24")
	must(t, err)
	must(t, netlink.AddrAdd(other, address))
	mac := model.MAC{2, 9, 9, 9, 9, 9}
	must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: other.Attrs().Index, IP: []byte{10, 9, 0, 11}, HardwareAddr: mac[:], State: netlink.NUD_PERMANENT}))
	addNeighbor(t, netip.MustParseAddr("10.0.0.11"))
	d := openVTEP(t)
	must(t, d.Set(insideTable(model.SegmentSettings{ID: redInside})))
	h := hostInside("172.16.0.1", 11)
	must(t, d.SetHosts(learned(redInside, h)))
	before, err := d.egress()
	must(t, err)
	h.VTEP = netip.MustParseAddr("10.9.0.11")
	must(t, d.SetHosts(learned(redInside, h)))
	// The kernel sends into the other interface: XDP cannot.
	index := d.overlay.places.Entries[hostsInKernel(t, d)[insideKey(redInside, h.Address)].Place].Ifindex
	if index == 0 || before[index] != 0 {
		t.Fatalf("the host's packets leave by interface %d, want one that nothing has used: %v are open", index, before)
	}
	if open, err := d.egress(); err != nil || open[index] != index {
		t.Errorf("packets cannot leave by interface %d: %v, %v", index, open, err)
	}
	must(t, d.Set(insideTable(model.SegmentSettings{ID: redInside})))
	if open, err := d.egress(); err != nil || open[index] != index {
		t.Errorf("after a table, packets cannot leave by interface %d: %v, %v", index, open, err)
	}
}

// Hosts and gateways to which there is no way are told, with the reason.
func TestNoWayInside(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbor(t, netip.MustParseAddr("10.0.0.11"))
	d := openVTEP(t)
	far := hostInside("172.16.0.2", 12)
	far.VTEP = netip.MustParseAddr("192.0.2.9")
	self := hostInside("172.16.0.3", 1)
	red := model.SegmentSettings{ID: redInside, Hosts: []model.SegmentHost{hostInside("172.16.0.1", 11), far, self}, Gateway: []netip.Addr{netip.MustParseAddr("172.16.0.254")}}
	must(t, d.Set(insideTable(red)))
	const want = `vxlan:5001: no packets go to gateway 172.16.0.254: nothing says at which VTEP it is
vxlan:5001: no packets go to host 172.16.0.2: VTEP 192.0.2.9: there is no route to it
vxlan:5001: no packets go to host 172.16.0.3: its VTEP 10.0.0.1 is this host itself`
	if told := amissOf(d); told != want {
		t.Errorf("problems are\n%s\nwant\n%s", told, want)
	}
	silent := hostInside("172.16.0.2", 13)
	red.Hosts, red.Gateway = []model.SegmentHost{silent}, nil
	must(t, d.Set(insideTable(red)))
	const waits = "vxlan:5001: no packets go to host 172.16.0.2: nothing answers on the way to VTEP 10.0.0.13"
	if told := amissOf(d); told != waits {
		t.Errorf("problems are\n%s\nwant\n%s", told, waits)
	}
	addNeighbor(t, silent.VTEP)
	eventually(t, "the VTEP is reached", func() bool { return amissOf(d) == "" })
}

// A VLAN's own address has no entry as long as it has no MAC address.
func TestOwnAddressWithoutMAC(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openVTEP(t)
	vlan := model.SegmentSettings{ID: model.Segment{Kind: model.SegmentVLAN, ID: 7}, Interface: "gone0", Addresses: []netip.Addr{netip.MustParseAddr("172.16.7.1")}}
	must(t, d.Set(insideTable(vlan)))
	own := func() map[abi.VtepAddress]abi.VtepOwn {
		own, err := contents.Read[abi.VtepAddress, abi.VtepOwn](d.kernel.all[vtepMapVtepOwnAddresses])
		must(t, err)
		return own
	}
	if have := own(); len(have) != 0 {
		t.Errorf("without its interface there is %+v", have)
	}
	if told := amissOf(d); told != "vlan:7: this director is not found at 172.16.7.1: there is no interface by which packets leave for it" {
		t.Errorf("problems are %q", told)
	}
	vlan.Interface = "wire0"
	must(t, d.Set(insideTable(vlan)))
	if have := own(); have[insideKey(vlan.ID, vlan.Addresses[0])].Mac != ownMAC || amissOf(d) != "" {
		t.Errorf("with its interface there is %+v, and problems are %q", have, amissOf(d))
	}
}

// Of two places that an earlier process has left with one key the next one keeps the one that is used, and frees the
// other.
func TestPlacesWithOneKey(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	for n := range byte(2) {
		addNeighbor(t, netip.AddrFrom4([4]byte{10, 0, 0, 11 + n}))
	}
	d := openVTEP(t)
	table := insideTable(model.SegmentSettings{ID: redInside, Hosts: []model.SegmentHost{hostInside("172.16.0.1", 11), hostInside("172.16.0.2", 12)}})
	must(t, d.Set(table))
	for _, h := range table.Segments[0].Hosts {
		if place := hostsInKernel(t, d)[insideKey(redInside, h.Address)].Place; place != 1 && place != 2 {
			t.Fatalf("%v has the place %d of two", h.Address, place)
		}
	}
	// Freed before and after the one that is used. What follows the host's neighbors writes no place any more.
	d.mu.Lock()
	d.begun = false
	d.mu.Unlock()
	entries := d.overlay.places.Entries
	entries[5], entries[6] = entries[1], entries[2]
	entries[5].Ifindex, entries[6].Ifindex = 0, 0
	entries[1], entries[5] = entries[5], entries[1]
	hosts := hostsInKernel(t, d)
	for key, h := range hosts {
		if h.Place == 1 {
			h.Place = 5
			must(t, d.kernel.all[vtepMapVtepHosts].Put(key, h))
		}
	}
	must(t, d.Close())

	d = openVTEP(t)
	must(t, d.Set(table))
	named := map[uint32]bool{}
	for _, h := range hostsInKernel(t, d) {
		named[h.Place] = true
	}
	if len(named) != 2 || named[1] || named[6] {
		t.Errorf("hosts have the places %v, and 1 and 6 were free", named)
	}
	if len(d.overlay.twins) != 0 {
		t.Errorf("the places %v are still taken", d.overlay.twins)
	}
	d.overlay.indexes.now = func() (later time.Time) { return time.Now().Add(rest) }
	var again []uint32
	for range 3 {
		index, err := d.overlay.indexes.allocate()
		must(t, err)
		again = append(again, index)
	}
	if !slices.Contains(again, 1) || !slices.Contains(again, 6) {
		t.Errorf("the next places are %v, want 1 and 6 among them", again)
	}
}

// Where a tunnel comes from is there before a backend has one, and until it has none any more. The words that must not
// be written yet are in memory that cannot be written to.
func TestTunnelsWithTheirSources(t *testing.T) {
	page := unix.Getpagesize()
	memory, err := unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must(t, err)
	defer func() { must(t, unix.Munmap(memory)) }()
	stored := (*abi.VtepBackend)(unsafe.Pointer(&memory[page-16])) // the source is in the second page
	tunnel := abi.VtepBackend{Place: 1, Segment: 2, ServiceSegment: 3, Uses: 1, Source: abi.AddressBytes(netip.MustParseAddr("2001:db8::1"))}
	write := func(want abi.VtepBackend, half []byte) {
		must(t, unix.Mprotect(half, unix.PROT_READ))
		defer func() {
			must(t, unix.Mprotect(half, unix.PROT_READ|unix.PROT_WRITE))
			if recover() == nil {
				t.Error("nothing was written to one half")
			}
		}()
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		storeBackend((*backendWords)(unsafe.Pointer(stored)), (*backendWords)(unsafe.Pointer(&want)))
	}
	write(tunnel, memory[:page])
	if stored.Source != tunnel.Source {
		t.Errorf("a tunnel begins when it comes from %v", stored.Source)
	}
	*stored = tunnel
	write(abi.VtepBackend{Place: 1, Segment: 2, ServiceSegment: 3}, memory[page:])
	if stored.Uses != 0 {
		t.Error("a tunnel has no source any more, and goes on")
	}
}

// Of what programs read of a VTEP itself only the words that differ are written.
func TestOwnEntryByWords(t *testing.T) {
	page := unix.Getpagesize()
	memory, err := unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must(t, err)
	defer func() { must(t, unix.Munmap(memory)) }()
	stored := (*abi.VtepSelf)(unsafe.Pointer(&memory[page-8])) // the address of IPv6 and all that follows are in the second page
	vtep := vtepOnWire()
	*stored = selfOf(&vtep)
	vtep.Addresses[0] = netip.MustParseAddr("10.0.0.2")
	want := selfOf(&vtep)
	must(t, unix.Mprotect(memory[page:], unix.PROT_READ))
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	storeSelf(stored, &want)
	if *stored != want {
		t.Errorf("stored is %+v, want %+v", *stored, want)
	}
}

// A backend of which only its MAC address is known somewhere is there, if its own is configured.
func TestBackendByMAC(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	for n := range byte(2) {
		addNeighbor(t, netip.AddrFrom4([4]byte{10, 0, 0, 11 + n}))
	}
	d := openVTEP(t)
	table := insideTable(model.SegmentSettings{ID: redInside})
	table.Services[0].Segment = redInside
	b := &table.Services[0].Backends[0]
	b.Segment, b.Address, b.MAC = redInside, netip.MustParseAddr("172.16.0.1"), model.MAC{2, 0, 0, 0, 0, 7}
	must(t, d.Set(table))
	problem := func() string { return statusOf(t, d).Services[0].Backends[0].Unreachable }
	if got := problem(); !strings.HasPrefix(got, "nothing says at which VTEP it is") {
		t.Errorf("a backend that is nowhere has the problem %q", got)
	}
	macs := func(m model.MAC, n byte) map[model.Segment][]model.SegmentMAC {
		return map[model.Segment][]model.SegmentMAC{redInside: {{MAC: m, VTEP: netip.AddrFrom4([4]byte{10, 0, 0, n}), VNI: 9}}}
	}
	must(t, d.SetMACs(macs(model.MAC{2, 0, 0, 0, 0, 8}, 11)))
	if got := problem(); !strings.Contains(got, "neither its address nor its mac, 02:00:00:00:00:07") {
		t.Errorf("where another MAC address is known the problem is %q", got)
	}
	for _, n := range []byte{11, 12} {
		must(t, d.SetMACs(macs(b.MAC, n)))
		if got := problem(); got != "" {
			t.Errorf("a backend whose MAC address is at a VTEP has the problem %q", got)
		}
		at, _ := d.overlay.inside(*b)
		if want := (netip.AddrFrom4([4]byte{10, 0, 0, n})); at.Host.VTEP != want || at.Host.MAC != b.MAC || at.VNI != 9 {
			t.Errorf("the backend is at %+v, want VTEP %v and VNI 9", at, want)
		}
	}
	// A host that has the address with another MAC address is not the backend: that was told before.
	must(t, d.SetHosts(learned(redInside, hostInside("172.16.0.1", 11))))
	if at, _ := d.overlay.inside(*b); at.Host.VTEP != (netip.AddrFrom4([4]byte{10, 0, 0, 12})) {
		t.Errorf("a backend's MAC address counts less than a host that has its address: it is at %v", at.Host.VTEP)
	}
	must(t, d.SetMACs(nil))
	if at, _ := d.overlay.inside(*b); at.Host.VTEP != (netip.AddrFrom4([4]byte{10, 0, 0, 11})) {
		t.Errorf("where no MAC address is known, a host of the backend's address counts nothing: it is at %v", at.Host.VTEP)
	}
}
