package datapath

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/checks"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/upkeep"
)

// differences are those of one part.
func differences(t *testing.T, parts []upkeep.Part, name string) []upkeep.Difference {
	t.Helper()
	i := slices.IndexFunc(parts, func(p upkeep.Part) bool { return p.Name == name })
	if i < 0 {
		t.Fatalf("there is no part %s", name)
	}
	found, err := parts[i].Look()
	must(t, err)
	return found
}

// wantDifference checks that a part has one difference alone, and what its repair says; empty: it
// has none.
func wantDifference(t *testing.T, parts []upkeep.Part, name, what, found, refusal string) {
	t.Helper()
	list := differences(t, parts, name)
	if len(list) != 1 || list[0].What != what || !strings.Contains(list[0].Found, found) {
		t.Errorf("part %s differs in %+v, want %s that %s", name, list, what, found)
		return
	}
	repair := list[0].Repair
	switch {
	case refusal == "" && repair != nil:
		t.Errorf("%s of part %s is repaired, want it waited for", what, name)
	case refusal != "" && repair == nil:
		t.Errorf("%s of part %s is waited for, want it repaired", what, name)
	case refusal != "":
		if err := repair(); err == nil || !strings.Contains(err.Error(), refusal) {
			t.Errorf("the repair of %s says %v, want %q", what, err, refusal)
		}
	}
}

// repair repairs what differs in a part, and nothing differs then.
func repair(t *testing.T, parts []upkeep.Part, name string) error {
	t.Helper()
	var errs []error
	for _, d := range differences(t, parts, name) {
		if d.Repair != nil {
			errs = append(errs, d.Repair())
		}
	}
	if left := differences(t, parts, name); len(left) > 0 && errors.Join(errs...) == nil {
		t.Errorf("after it was repaired part %s differs in %+v", name, left)
	}
	return errors.Join(errs...)
}

// natTable is of full NAT, to which all parts belong.
func natTable() model.Table {
	t := tableOf(1, 1, 0)
	t.SNAT = model.SNAT{Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Ports: model.PortRange{First: 20000, Last: 29999}}
	t.Services[0].Backends[0].Mode, t.Services[0].Backends[0].SNAT = model.NAT, true
	t.ReplyInterfaces = []string{"wire1"}
	return t
}

// detachLink takes a program off its interface through its link, as bpftool link detach does.
func detachLink(t *testing.T, pin string) {
	t.Helper()
	l, err := link.LoadPinnedLink(pin, nil)
	must(t, err)
	defer l.Close()
	must(t, l.Detach())
}

// deleteFirst removes an entry of a map.
func deleteFirst(t *testing.T, m *ebpf.Map) {
	t.Helper()
	var key []byte
	must(t, m.NextKey(nil, &key))
	must(t, m.Delete(key))
}

// TestPartsAreRepaired puts a hand on each part, twice in a row: what differs is found, and is as it
// was after its repair.
func TestPartsAreRepaired(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	const pins = "/sys/fs/bpf/weir"
	addNeighbor(t, netip.MustParseAddr("10.0.0.11"))
	d := openTest(t, model.Limits{})
	parts := d.Parts(nil)
	for _, p := range parts {
		if found := differences(t, parts, p.Name); len(found) > 0 {
			t.Errorf("before the first Set part %s differs in %+v", p.Name, found)
		}
	}
	table := natTable()
	table.Group = []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.11")}
	table.Services[0].SourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	table.Services = append(table.Services, tableOf(2, 1, 0).Services[1]) // l2dsr needs the host's MAC addresses
	must(t, d.Set(table))
	before := pinsBelow(t, pins)
	hands := []struct {
		part, what string
		touch      func()
	}{
		{"xdp", "wire0", func() { detachLink(t, pins+"/xdp-wire0") }},
		{"xdp", "wire0", func() {
			other, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, AttachType: ebpf.AttachXDP, Flags: unix.BPF_F_XDP_HAS_FRAGS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
			must(t, err)
			defer other.Close()
			l, err := link.LoadPinnedLink(pins+"/xdp-wire0", nil)
			must(t, err)
			defer l.Close()
			must(t, l.Update(other))
		}},
		{"tables", "map services", func() { deleteFirst(t, d.kernel.Services4) }},
		{"tables", "map services", func() { must(t, d.kernel.Services4.Put(abi.Endpoint4{Port: 77}, uint32(1))) }},
		{"tables", "map ranges", func() { must(t, d.kernel.Ranges4.Put(abi.Range4{PrefixLen: fixedBits4}, uint32(1))) }},
		{"tables", "map replies", func() { deleteFirst(t, d.kernel.Replies4) }},
		{"tables", "map ask_backends", func() { must(t, d.kernel.AskBackends.Put(abi.AskBackend{Service: 5}, uint32(1))) }},
		{"tables", "map backend_sources", func() { deleteFirst(t, d.kernel.BackendSources) }},
		{"tables", "map own_macs", func() { must(t, d.kernel.OwnMacs.Put(uint64(7), uint8(1))) }},
		{"tables", "map source_ranges", func() { deleteFirst(t, d.kernel.SourceRanges) }},
		{"tables", "map peers", func() { must(t, d.kernel.Peers.Put(uint32(1), abi.Peer{Ifindex: 7})) }},
		{"tables", "map peer_macs", func() { deleteFirst(t, d.kernel.PeerMacs) }},
		{"tables", "map this_director", func() { must(t, d.kernel.ThisDirector.Put(uint32(0), abi.Settings{})) }},
		{"tables", "map egress", func() { deleteFirst(t, d.kernel.Egress) }},
		{"tc", "wire0 egress", func() { detachLink(t, pins+"/undo-wire0") }},
		{"tc", "wire1 ingress", func() { must(t, os.Remove(pins+"/reply-wire1")) }},
		{"sysctls", "net.ipv4.conf.wire0.forwarding", func() {
			must(t, os.WriteFile("/proc/sys/net/ipv4/conf/wire0/forwarding", []byte("0"), 0))
		}},
		{"sysctls", "net.ipv4.conf.wire1.forwarding", func() {
			must(t, os.WriteFile("/proc/sys/net/ipv4/conf/wire1/forwarding", []byte("0"), 0))
		}},
		{"pins", "xdp-wire0", func() { must(t, os.Remove(pins+"/xdp-wire0")) }},
		{"pins", "maps", func() { must(t, os.RemoveAll(globOne(t, pins+"/maps-*"))) }},
		{"pins", "programs", func() { must(t, os.RemoveAll(globOne(t, pins+"/programs-*"))) }},
		{"pins", "state", func() { must(t, os.Remove(globOne(t, pins+"/state/snat_table-*"))) }},
		{"pins", "state", func() { must(t, os.RemoveAll(pins+"/state")) }},
	}
	for _, hand := range hands {
		for range 2 {
			for _, p := range parts {
				if found := differences(t, parts, p.Name); len(found) > 0 {
					t.Fatalf("before there is a hand on %s part %s differs in %+v", hand.what, p.Name, found)
				}
			}
			open := egressOf(t, d)
			hand.touch()
			found := differences(t, parts, hand.part)
			// News of an interface has the datapath open egress again, and count no hand: the kernel
			// itself may have closed it (openEgress). A busy machine brings such news late.
			for hand.what == "map egress" && len(found) == 0 && slices.Equal(egressOf(t, d), open) {
				hand.touch()
				found = differences(t, parts, hand.part)
			}
			if len(found) != 1 || found[0].What != hand.what {
				t.Fatalf("after a hand on %s part %s differs in %+v", hand.what, hand.part, found)
			}
			must(t, repair(t, parts, hand.part))
			if after := pinsBelow(t, pins); !slices.Equal(after, before) {
				t.Fatalf("after the repair of %s %v are pinned, want %v", hand.what, after, before)
			}
		}
	}
	// All at once: the lock is of a directory that is gone.
	must(t, os.RemoveAll(pins))
	for _, p := range parts {
		must(t, repair(t, parts, p.Name))
	}
	if after := pinsBelow(t, pins); !slices.Equal(after, before) {
		t.Errorf("after all pins were removed %v are pinned, want %v", after, before)
	}
	if _, err := Open(Options{Pin: pins}); !errors.Is(err, ErrRunning) {
		t.Errorf("a second director takes the pins: %v", err)
	}
	index := d.services[keyOf(&d.table.Services[0])].index
	must(t, d.Close())
	next := openTest(t, model.Limits{})
	must(t, next.Set(natTable()))
	if !next.kernel.adopted || next.services[keyOf(&next.table.Services[0])].index != index {
		t.Error("the next process does not go on with what was pinned again")
	}
}

// TestHandsBeforeASetAreTold puts a hand on an entry just before a Set writes another one in its place:
// no look finds it, and it is told nevertheless, once. Without a hand nothing is told.
func TestHandsBeforeASetAreTold(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	for i := range 3 {
		addNeighbor(t, netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + i)}))
	}
	d := openTest(t, model.Limits{})
	parts := d.Parts(nil)
	for _, hand := range []struct {
		name, what    string // empty: nothing is told
		first, second func(*model.Table)
		touch         func()
	}{
		{"none", "", nil, nil, func() {}},
		{"none, a narrower range", "", ranged(0, 8000, 8015), ranged(0, 8000, 8007), func() {}},
		{"none, a range within", "", ranged(0, 9000, 9015), both(ranged(0, 9000, 9015), ranged(1, 9000, 9007)), func() {}},
		{"service that comes", "map services", nil, nil, func() {
			must(t, d.kernel.Services4.Put(endpoint{address: tableOf(3, 1, 0).Services[2].VIP, protocol: uint8(model.TCP), port: 80}.v4(), uint32(77)))
		}},
		{"range of another service", "map ranges", ranged(0, 8000, 8015), both(ranged(0, 8000, 8031), ranged(1, 8000, 8015)), func() { deleteFirst(t, d.kernel.Ranges4) }},
		{"backend of another service", "map replies", nil, nil, func() { deleteFirst(t, d.kernel.Replies4) }},
		{"source of a backend that comes", "map backend_sources", nil, nil, func() {
			index := d.services[keyOf(&d.table.Services[0])].index
			must(t, d.kernel.BackendSources.Put(abi.BackendSource{Service: index, Address: abi.AddressBytes(netip.MustParseAddr("10.0.0.12")), Port: abi.BigEndian16(80)}, uint8(1)))
		}},
		{"settings", "map this_director", nil, nil, func() { must(t, d.kernel.ThisDirector.Put(uint32(0), abi.Settings{})) }},
		{"other director", "map peers", grouped(12), grouped(13), func() { must(t, d.kernel.Peers.Put(uint32(1), abi.Peer{Ifindex: 7})) }},
		{"way out", "map egress", nil, nil, func() { must(t, d.kernel.Egress.Delete(uint32(linkIndex(t, "wire0")))) }},
		{"way out that leads nowhere", "map egress", nil, nil, func() { must(t, d.kernel.Egress.Put(uint32(linkIndex(t, "lo")), uint32(linkIndex(t, "lo")))) }},
		{"none again", "", nil, nil, func() {}},
	} {
		first, second := tableOf(2, 1, 0), tableOf(3, 1, 0)
		for i := range first.Services {
			b := &first.Services[i].Backends[0]
			b.Mode, b.Address = model.NAT, netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + i)})
		}
		for i := range first.Services { // each has the other's backend
			second.Services[i].Backends = first.Services[1-i].Backends
		}
		second.ICMPRate = first.ICMPRate + 1
		if hand.first != nil {
			hand.first(&first)
			hand.second(&second)
		}
		must(t, d.Set(first))
		if found := differences(t, parts, "tables"); len(found) > 0 {
			t.Fatalf("%s: before it the maps differ: %+v", hand.name, found)
		}
		hand.touch()
		must(t, d.Set(second))
		found := differences(t, parts, "tables")
		if hand.what == "" && len(found) > 0 || hand.what != "" && (len(found) != 1 || found[0].What != hand.what) {
			t.Errorf("%s: after the Set %+v is told", hand.name, found)
		}
		for _, f := range found {
			must(t, f.Repair())
		}
		if again := differences(t, parts, "tables"); len(again) > 0 {
			t.Errorf("%s: it is told twice: %+v", hand.name, again)
		}
	}
}

// ranged gives a service a range of ports, in l2dsr.
func ranged(service int, first, last uint16) func(*model.Table) {
	return func(t *model.Table) {
		s := &t.Services[service]
		s.VIP, s.Port, s.Backends = t.Services[0].VIP, model.PortRange{First: first, Last: last}, tableOf(1, 1, 0).Services[0].Backends
	}
}

func both(first, second func(*model.Table)) func(*model.Table) {
	return func(t *model.Table) {
		first(t)
		second(t)
	}
}

// grouped has another director of the group.
func grouped(other byte) func(*model.Table) {
	return func(t *model.Table) {
		t.Group = []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.AddrFrom4([4]byte{10, 0, 0, other})}
	}
}

func linkIndex(t *testing.T, name string) int {
	t.Helper()
	link, err := net.InterfaceByName(name)
	must(t, err)
	return link.Index
}

// TestWhatAnEarlierProcessLeftIsNoHand: a process that takes over finds entries that it has not written,
// among them some that its table no longer wants.
func TestWhatAnEarlierProcessLeftIsNoHand(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	for i := range 3 {
		addNeighbor(t, netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + i)}))
	}
	d := openTest(t, model.Limits{})
	before := tableOf(3, 1, 0)
	grouped(13)(&before)
	before.Services[0].SourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	before.KernelSources = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	ranged(1, 8000, 8015)(&before)
	must(t, d.Set(before))
	must(t, d.Close())
	d = openTest(t, model.Limits{})
	parts := d.Parts(nil)
	for i, table := range []model.Table{natTable(), before, natTable()} {
		must(t, d.Set(table))
		d.hopsChanged()
		d.groupChanged()
		if found := differences(t, parts, "tables"); len(found) > 0 {
			t.Errorf("after Set %d %+v is told", i+1, found)
		}
	}
}

// TestMapsAreNotComparedBeforeTheyAreSettled: while maps cannot be compared, it is not said that nothing
// differs.
func TestMapsAreNotComparedBeforeTheyAreSettled(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, model.Limits{})
	table := tableOf(3, 1, 0)
	must(t, d.Set(table))
	parts := d.Parts(nil)
	reconciler := upkeep.New(upkeep.Deps{Log: slog.New(slog.DiscardHandler)}, parts...)
	unknown := func() bool {
		reconciler.Look()
		i := slices.IndexFunc(reconciler.Status(), func(u model.Upkeep) bool { return u.Part == "tables" })
		return reconciler.Status()[i].Unknown
	}
	if unknown() {
		t.Error("after a change that has succeeded it is not known what differs")
	}
	d.mu.Lock()
	d.whole = false // as after a change that has not
	d.mu.Unlock()
	if !unknown() {
		t.Error("after a change that has not succeeded as a whole, nothing differs")
	}
	must(t, d.Set(table))
	if unknown() {
		t.Error("after the change has been made again it is not known what differs")
	}
	must(t, d.Set(model.Table{Interfaces: []string{"wire0"}}))
	must(t, d.Close())
}

// TestMapsAreComparedBesideChanges: changes that are made while the maps are compared are not taken for
// differences, and what somebody has changed is found beside them.
func TestMapsAreComparedBesideChanges(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbor(t, netip.MustParseAddr("10.0.0.11"))
	d := openTest(t, model.Limits{})
	parts := d.Parts(nil)
	many, few := tableOf(40, 2, 0), tableOf(3, 1, 0)
	must(t, d.Set(few))
	changed := make(chan error)
	go func() {
		var err error
		for range 40 {
			err = errors.Join(err, d.Set(many), d.Set(few))
		}
		changed <- err
	}()
	for looks := 0; ; looks++ {
		select {
		case err := <-changed:
			must(t, err)
			t.Logf("%d comparisons beside 80 changes", looks)
			deleteFirst(t, d.kernel.Services4)
			if found := differences(t, parts, "tables"); len(found) != 1 || found[0].What != "map services" {
				t.Errorf("after a hand on the map it differs in %+v", found)
			}
			must(t, repair(t, parts, "tables"))
			return
		default:
		}
		if found := differences(t, parts, "tables"); len(found) > 0 {
			t.Fatalf("a change is taken for a difference: %+v", found)
		}
	}
}

// TestTakenPinsAreLeftAlone: what another director has pinned in the directory that was this one's
// stays on its interfaces, whatever becomes of this one's interfaces; this one goes on, and says so.
func TestTakenPinsAreLeftAlone(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	const pins = "/sys/fs/bpf/weir"
	addNeighbor(t, netip.MustParseAddr("10.0.0.11"))
	d := openTest(t, model.Limits{})
	parts := d.Parts(nil)
	table := natTable()
	must(t, d.Set(table))
	must(t, os.RemoveAll(pins))
	must(t, os.MkdirAll(pins, 0o700))
	lock, err := lockPins(pins) // as another director, of another network namespace, does
	must(t, err)
	wire1, err := net.InterfaceByName("wire1")
	must(t, err)
	theirs := map[string]link.Link{}
	theirs["xdp-elsewhere"], err = link.AttachXDP(link.XDPOptions{Interface: wire1.Index, Program: passProgram(t, ebpf.XDP)})
	must(t, err)
	if l, err := link.AttachTCX(link.TCXOptions{Interface: wire1.Index, Program: passProgram(t, ebpf.SchedCLS), Attach: ebpf.AttachTCXEgress}); err == nil {
		theirs["undo-wire0"] = l // of the same name, on another interface
	} else if !errors.Is(err, ebpf.ErrNotSupported) {
		t.Fatal(err)
	}
	for name, l := range theirs {
		must(t, l.Pin(pins+"/"+name))
		must(t, l.Close())
	}
	taken := pinsBelow(t, pins)
	same := func(when string) {
		t.Helper()
		if now := pinsBelow(t, pins); !slices.Equal(now, taken) {
			t.Errorf("%s the other director's pins are %v, want %v", when, now, taken)
		}
	}
	table.Services[0].Backends[0].Weight++
	if err := d.Set(table); err != nil {
		t.Errorf("a change of a backend: %v", err)
	}
	same("after it")
	table.Interfaces = append([]string{"wire1"}, table.Interfaces...)
	if err := d.Set(table); !errors.Is(err, ErrRunning) {
		t.Errorf("a new interface: %v, want %v", err, ErrRunning)
	}
	same("after it")
	table.Interfaces = nil
	if err := d.Set(table); err != nil {
		t.Errorf("no interface any more: %v", err)
	}
	same("after it")
	if n := len(d.attached); n != 0 {
		t.Errorf("the programs are on %d interfaces, want none", n)
	}
	d.hopsChanged()
	same("after a look at the interfaces")
	for _, p := range parts {
		_ = repair(t, parts, p.Name) // it may be refused
		same("after a repair of " + p.Name)
	}
	if found := differences(t, parts, "pins"); len(found) == 0 {
		t.Error("it is not told that the pins are another director's")
	}
	must(t, lock.Close())
	must(t, d.Set(natTable()))
	if found := pinsBelow(t, pins); !slices.Contains(found, pins+"/xdp-wire0") {
		t.Errorf("when the other director has ended, %v are pinned", found)
	}
}

// passProgram lets every packet go on.
func passProgram(t *testing.T, kind ebpf.ProgramType) *ebpf.Program {
	t.Helper()
	verdict := map[ebpf.ProgramType]int32{ebpf.XDP: 2, ebpf.SchedCLS: -1}[kind]
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: kind, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()}})
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

// TestChecksAreRepaired: what leads probes is of tables of which others think that they are theirs.
func TestChecksAreRepaired(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbor(t, netip.MustParseAddr("10.0.0.11"))
	d := openTest(t, model.Limits{})
	c := d.Checks()
	t.Cleanup(func() { c.Close() })
	parts := []upkeep.Part{c.Part(nil)}
	if found := differences(t, parts, "checks"); len(found) > 0 {
		t.Errorf("before anything is checked part checks differs in %+v", found)
	}
	c.Set([]model.Check{checkBy(model.L2DSR, "198.51.100.1", "10.0.0.11")})
	name, _ := checks.Names("/sys/fs/bpf/weir")
	ip := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	for what, hand := range map[string]func(){
		"rules":  func() { ip("rule", "del", "pref", "1") },
		"routes": func() { ip("route", "flush", "table", "all", "dev", name) },
		"down":   func() { ip("link", "set", name, "down") },
		"device": func() { ip("link", "del", name) },
		"filter": func() {
			if out, err := exec.Command("tc", "filter", "del", "dev", name, "egress").CombinedOutput(); err != nil {
				t.Fatalf("tc filter del: %v: %s", err, out)
			}
		},
	} {
		for range 2 {
			hand()
			if found := differences(t, parts, "checks"); len(found) != 1 || found[0].What != name {
				t.Fatalf("after a hand on its %s part checks differs in %+v", what, found)
			}
			must(t, repair(t, parts, "checks"))
		}
	}
}

func globOne(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	must(t, err)
	if len(found) != 1 {
		t.Fatalf("%s is %v, want one", pattern, found)
	}
	return found[0]
}

// pinsBelow are the paths below a directory.
func pinsBelow(t *testing.T, dir string) (paths []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	}))
	return paths
}

// TestRenamedInterface: an interface that is renamed keeps the program, also when the process begins
// anew, and everything shows the name that it has.
func TestRenamedInterface(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, model.Limits{})
	must(t, d.Set(natTable()))
	id := pinnedLinkID(t)
	link := wire(t)
	must(t, netlink.LinkSetDown(link))
	must(t, netlink.LinkSetName(link, "wan0"))
	must(t, netlink.LinkSetUp(link))
	check := func(d *Datapath) {
		t.Helper()
		if i := statusOf(t, d).Interfaces; len(i) != 1 || i[0].Name != "wan0" || i[0].Configured != "wire0" || i[0].XDP != "native" {
			t.Errorf("interfaces are %+v, want wan0 with native XDP, by the name wire0", i)
		}
		eventually(t, "forwarding is on under the new name", func() bool {
			value, err := os.ReadFile("/proc/sys/net/ipv4/conf/wan0/forwarding")
			return err == nil && string(value) == "1\n"
		})
		eventually(t, "it is said that wire0 is wan0", func() bool {
			got := d.Renamed()
			return len(got) == 1 && got["wire0"] == "wan0"
		})
		if found := differences(t, d.Parts(nil), "xdp"); len(found) > 0 {
			t.Errorf("part xdp differs in %+v", found)
		}
		eventually(t, "packets come in by wan0", func() bool {
			name, _, err := d.Entrance("wan0", netip.Addr{})
			return err == nil && name == "wan0"
		})
	}
	check(d)
	must(t, d.Close())
	next := openTest(t, model.Limits{})
	must(t, next.Set(natTable()))
	check(next)
	if now := pinnedLinkID(t); now != id {
		t.Errorf("the XDP link was made anew (id %d, was %d): packets slipped through", now, id)
	}
}

// Where no packet can come in, the error names the interfaces that are asked for, and those that there are.
func TestEntranceWithoutInterfaces(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, model.Limits{})
	table := tableOf(1, 1, 0)
	must(t, d.Set(table))
	if name, _, err := d.Entrance("", netip.Addr{}); err != nil || name != "wire0" {
		t.Errorf("packets come in by %q: %v, want the director's interface", name, err)
	}
	table.Interfaces = []string{"gone0"}
	must(t, d.Set(table))
	if _, _, err := d.Entrance("", netip.Addr{}); err == nil || !strings.Contains(err.Error(), "interfaces, gone0, is there; there are: wire0") {
		t.Errorf("without an interface it is said: %v", err)
	}
}
