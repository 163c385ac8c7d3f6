package datapath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/checks"
	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
)

// The topology of these tests, in a network namespace of their own:
//
//	wire0 (director: 10.0.0.1/24, 2001:db8::1/64) ---- wire1
//	backends: 10.0.0.11.., next hops given as permanent neighbors of wire0

// inNamespace runs the calling test or benchmark in a child process with a network
// namespace and a BPF file system of its own; goroutines cannot change theirs one
// by one. It returns true in the child.
func inNamespace(tb testing.TB) bool {
	tb.Helper()
	const child = "WEIR_TEST_IN_NAMESPACE"
	if os.Getenv(child) == tb.Name() {
		buildWire(tb)
		return true
	}
	args := []string{"-test.run=^" + tb.Name() + "$", "-test.v"}
	if _, ok := tb.(*testing.B); ok {
		args = []string{"-test.run=^$", "-test.bench=^" + tb.Name() + "$"}
	}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	command := exec.Command(os.Args[0], args...)
	command.Env = append(os.Environ(), child+"="+tb.Name())
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS}
	output, err := command.CombinedOutput()
	tb.Logf("in its namespace:\n%s", output)
	if err != nil {
		tb.Fatal(err)
	}
	if !strings.Contains(string(output), tb.Name()) {
		tb.Fatal("the child ran no test")
	}
	return false
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func buildWire(tb testing.TB) {
	tb.Helper()
	must(tb, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	must(tb, unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, ""))
	must(tb, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wire0", MTU: 1500, HardwareAddr: ownMAC[:]}, PeerName: "wire1"}))
	for _, name := range []string{"lo", "wire0", "wire1"} {
		l, err := netlink.LinkByName(name)
		must(tb, err)
		must(tb, netlink.LinkSetUp(l))
	}
	wire, err := netlink.LinkByName("wire0")
	must(tb, err)
	for _, address := range []string{"10.0.0.1/24", "2001:db8::1/64"} {
		a, err := netlink.ParseAddr(address)
		must(tb, err)
		a.Flags = unix.IFA_F_NODAD
		must(tb, netlink.AddrAdd(wire, a))
	}
}

// neighborMAC is the next hop that addNeighbor gives an address.
func neighborMAC(address netip.Addr) model.MAC {
	b := address.As16()
	return model.MAC{2, 0, b[12], b[13], b[14], b[15]}
}

func addNeighbor(tb testing.TB, address netip.Addr) {
	tb.Helper()
	wire, err := netlink.LinkByName("wire0")
	must(tb, err)
	mac := neighborMAC(address)
	must(tb, netlink.NeighSet(&netlink.Neigh{LinkIndex: wire.Attrs().Index, IP: address.AsSlice(),
		HardwareAddr: net.HardwareAddr(mac[:]), State: netlink.NUD_PERMANENT}))
}

// tableOf is a table of n services with m backends each, every backend owning the
// same number of slots. vary changes every ring.
func tableOf(n, m, vary int) model.Table {
	t := model.Table{Interfaces: []string{"wire0"}, ICMPRate: 100}
	for i := range n {
		s := model.TableService{
			Name: fmt.Sprint("s", i), VIP: netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}),
			Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}, Salt: uint64(i) + 1,
		}
		for j := range m {
			address := netip.AddrFrom4([4]byte{10, 0, byte(j >> 8), byte(11 + j)})
			s.Backends = append(s.Backends, model.TableBackend{Name: address.String(), Address: address, Mode: model.L2DSR, State: model.Active})
		}
		slots := max(1021, 100*m)
		for k := range slots {
			s.Ring.Slots = append(s.Ring.Slots, model.Slot{Owner: uint32((k + vary) % m), Next: uint32((k + vary + 1) % m)})
		}
		t.Services = append(t.Services, s)
	}
	return t
}

func openTest(tb testing.TB, limits model.Limits) *Datapath {
	tb.Helper()
	return openOptions(tb, Options{Limits: limits})
}

func openOptions(tb testing.TB, options Options) *Datapath {
	tb.Helper()
	options.Pin = "/sys/fs/bpf/weir"
	d, err := Open(options)
	must(tb, err)
	tb.Cleanup(func() { d.wantOwners(tb); d.Close() })
	d.sweepsByHand()
	return d
}

// wantOwners: whatever has changed slots of the rings has told their owners, too.
func (d *Datapath) wantOwners(tb testing.TB) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed() {
		return
	}
	for _, s := range d.services {
		if s.ring.lines == 0 {
			continue
		}
		image := d.rings.bytes(s.ring)
		slots, _ := ringSlots(image)
		if ownerLines(s.desired) > 0 && !s.changed && toldOwners(image) == nil {
			tb.Errorf("service %s: owners are not told", s.desired.Name)
		}
		for i, told := range toldOwners(image) {
			for j := range min(2, len(slots)-2*i) {
				slot, owner := slots[2*i+j], told>>(16*j)&0xffff
				if want := slot.Owner; slot.Next>>30 == 0 && owner != want || slot.Next>>30 != 0 && owner != 0 {
					tb.Errorf("service %s: slot %d is %+v, and its owner is told as %d", s.desired.Name, 2*i+j, slot, owner)
				}
			}
		}
	}
}

// sweepsByHand lets nobody but the test sweep: on a slow machine the one that comes every five
// seconds would be one more between two of the test's.
func (d *Datapath) sweepsByHand() {
	d.sweeper.close()
	d.sweeper = startSweeper(func() {})
}

func statusOf(tb testing.TB, d *Datapath) model.DatapathStatus {
	tb.Helper()
	status, err := d.Status()
	must(tb, err)
	return status
}

func TestSetShowsInStatus(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	for i := range 3 {
		addNeighbor(t, netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + i)}))
	}
	d := openTest(t, model.Limits{})
	must(t, d.Set(tableOf(2, 3, 0)))
	status := statusOf(t, d)
	if len(status.Services) != 2 || len(status.Services[1].Backends) != 3 {
		t.Fatalf("status shows %+v, want 2 services of 3 backends", status.Services)
	}
	b := status.Services[1].Backends[2]
	if b.NextHop != neighborMAC(b.Address) || b.Interface != "wire0" || b.MTU != 1500 || b.State != model.Active || b.Slots != 340 {
		t.Errorf("backend is %+v, want its neighbor on wire0, 1500 bytes, active, 340 slots", b)
	}
	if want := []model.InterfaceStatus{{Name: "wire0", Index: status.Interfaces[0].Index, XDP: "native", MTU: 1500}}; !slices.Equal(status.Interfaces, want) {
		t.Errorf("interfaces are %+v, want %+v", status.Interfaces, want)
	}
}

// TestStatusIsOfOneTable: that a service panics, and the states that come from it, are of one table, also
// while tables change.
func TestStatusIsOfOneTable(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	for i := range 3 {
		addNeighbor(t, netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + i)}))
	}
	d := openTest(t, model.Limits{})
	panics, calm := tableOf(1, 3, 0), tableOf(1, 3, 0)
	panics.Services[0].Health = &model.ServiceHealth{Kind: model.CheckTCP, Up: 1, Down: 2, Panic: true}
	calm.Services[0].Health = &model.ServiceHealth{Kind: model.CheckTCP, Up: 2, Down: 1}
	calm.Services[0].Backends[0].State = model.Down
	must(t, d.Set(calm))
	var changing sync.WaitGroup
	changing.Go(func() {
		for range 100 {
			if err := errors.Join(d.Set(panics), d.Set(calm)); err != nil {
				t.Error(err)
			}
		}
	})
	defer changing.Wait()
	for range 200 {
		s := statusOf(t, d).Services[0]
		if down := s.Backends[0].State == model.Down; s.Health == nil || s.Health.Panic == down {
			t.Fatalf("health is %+v, and a backend that counts only in panic is %s", s.Health, s.Backends[0].State)
		}
	}
}

func TestUnknownNextHopIsDownUntilKnown(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, model.Limits{})
	must(t, d.Set(tableOf(1, 1, 0)))
	if b := statusOf(t, d).Services[0].Backends[0]; b.State != model.Down {
		t.Fatalf("a backend without a neighbor is %s, want down", b.State)
	}
	addNeighbor(t, netip.MustParseAddr("10.0.0.11"))
	eventually(t, "the backend becomes active when its neighbor appears", func() bool {
		b := statusOf(t, d).Services[0].Backends[0]
		return b.State == model.Active && b.NextHop == neighborMAC(b.Address)
	})
}

func eventually(tb testing.TB, claim string, holds func() bool) {
	tb.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			tb.Fatalf("not seen within a minute: %s", claim)
		}
		time.Sleep(5 * time.Millisecond) // between two looks at the condition
	}
}

// TestRestartAdopts: what a process leaves behind is taken over by the next, index
// by index, so that counters and remembered flows go on.
func TestRestartAdopts(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	for i := range 4 {
		addNeighbor(t, netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + i)}))
	}
	first := openTest(t, model.Limits{})
	table := tableOf(4, 4, 0)
	table.Services[3].Port = model.PortRange{First: 1000, Last: 2999}
	must(t, first.Set(table))
	linkID := pinnedLinkID(t)
	before := placesOf(first)
	must(t, first.kernel.BackendCounters.Put(first.services[keyOf(&table.Services[1])].order[2].index, countOnce(t, 7, 700)))
	must(t, first.Close())

	second := openTest(t, model.Limits{})
	table = tableOf(4, 4, 1)
	table.Services[3].Port = model.PortRange{First: 1000, Last: 2999}
	table.Services = append(table.Services[1:], tableOf(5, 4, 0).Services[4])
	must(t, second.Set(table))
	after := placesOf(second)
	for place, index := range before {
		if strings.HasPrefix(place, "s0 ") {
			continue
		}
		if after[place] != index {
			t.Errorf("%s has index %d after the restart, had %d", place, after[place], index)
		}
	}
	if id := pinnedLinkID(t); id != linkID {
		t.Errorf("the XDP link was made anew (id %d, was %d): packets slipped through", id, linkID)
	}
	if b := statusOf(t, second).Services[0].Backends[2]; b.Packets != 7 || b.Bytes != 700 {
		t.Errorf("the backend's counter is %d packets, %d bytes; want 7 and 700 from before the restart", b.Packets, b.Bytes)
	}
	if n := entriesInUse(second); n != 16 {
		t.Errorf("%d backend entries are in use, want 16: the removed service's are free", n)
	}
}

// TestRestartWithOtherLimits: the maps are made anew, the link is not.
func TestRestartWithOtherLimits(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	first := openTest(t, model.Limits{})
	must(t, first.Set(tableOf(4, 4, 0)))
	linkID := pinnedLinkID(t)
	must(t, first.Close())

	second := openTest(t, model.Limits{Services: 17})
	must(t, second.Set(tableOf(4, 4, 0)))
	if id := pinnedLinkID(t); id != linkID {
		t.Errorf("the XDP link was made anew (id %d, was %d): packets slipped through", id, linkID)
	}
	dirs, err := filepath.Glob("/sys/fs/bpf/weir/maps-*")
	must(t, err)
	if len(dirs) != 1 {
		t.Errorf("maps are pinned in %q, want only those in use", dirs)
	}
}

func countOnce(tb testing.TB, packets, bytes uint64) []abi.Counter {
	tb.Helper()
	cpus, err := ebpf.PossibleCPU()
	must(tb, err)
	perCPU := make([]abi.Counter, cpus)
	perCPU[0] = abi.Counter{Packets: packets, Bytes: bytes}
	return perCPU
}

func placesOf(d *Datapath) map[string]uint32 {
	places := map[string]uint32{}
	for _, s := range d.services {
		places[s.desired.Name+" itself"] = s.index
		for _, b := range s.order {
			places[s.desired.Name+" "+b.desired.Name] = b.index
		}
	}
	return places
}

func entriesInUse(d *Datapath) (n int) {
	for _, e := range d.entries.Entries {
		if e.State != uint8(abi.BackendStateBACKEND_FREE) {
			n++
		}
	}
	return n
}

func pinnedLinkID(tb testing.TB) link.ID {
	tb.Helper()
	l, err := link.LoadPinnedLink("/sys/fs/bpf/weir/xdp-wire0", nil)
	must(tb, err)
	defer l.Close()
	info, err := l.Info()
	must(tb, err)
	return info.ID
}

func TestLimitsAreNamed(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, model.Limits{Services: 4, Backends: 8, RingMemory: 1 << 20})
	for want, table := range map[string]model.Table{
		"5 services are more than director.limits.services, 4":                                     tableOf(5, 1, 0),
		"9 backends are more than director.limits.backends, 8 (a backend counts once per service)": tableOf(3, 3, 0),
		"rings of 1310784 bytes are more than director.limits.ring-memory, 1048576":                bigRing(1, 163840),
	} {
		if err := d.Set(table); err == nil || err.Error() != want {
			t.Errorf("error is %v, want %s", err, want)
		}
	}
	must(t, d.Set(tableOf(4, 2, 0)))
}

func bigRing(backends, slots int) model.Table {
	t := tableOf(1, backends, 0)
	t.Services[0].Ring.Slots = make([]model.Slot, slots)
	return t
}

// TestIndexesAreReused: a director that replaces its backends for ever does not
// run out of indexes.
func TestIndexesAreReused(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, model.Limits{Services: 2, Backends: 4})
	for i := range 20 {
		table := tableOf(2, 2, 0)
		for j := range table.Services {
			table.Services[j].VIP = netip.AddrFrom4([4]byte{198, 51, 100, byte(i)})
			table.Services[j].Port = model.PortRange{First: uint16(80 + j), Last: uint16(80 + j)}
		}
		must(t, d.Set(table))
		must(t, d.Set(model.Table{Interfaces: table.Interfaces}))
	}
	if n := entriesInUse(d); n != 0 {
		t.Errorf("%d backend entries are in use after the last service went, want 0", n)
	}
}

// TestOneProcessAtATime: two that write to the same maps would undo each other.
func TestOneProcessAtATime(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, model.Limits{})
	must(t, d.Set(tableOf(1, 1, 0)))
	if _, err := Open(Options{Pin: "/sys/fs/bpf/weir"}); !errors.Is(err, ErrRunning) {
		t.Errorf("a second process gets %v, want %v", err, ErrRunning)
	}
	if err := Detach("/sys/fs/bpf/weir"); !errors.Is(err, ErrRunning) {
		t.Errorf("detaching under a running process gets %v, want %v", err, ErrRunning)
	}
	must(t, d.Close())
	must(t, Detach("/sys/fs/bpf/weir"))
}

// TestOnePinDirectoryOfANamespace: a second director with a pin directory of the same name is kept out
// of the network namespace also where that is another directory, and is told which process is there:
// it would take the first one's device of checks for its own.
func TestOnePinDirectoryOfANamespace(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	const pins = "/sys/fs/bpf/weir"
	d := openTest(t, model.Limits{})
	must(t, d.Set(tableOf(1, 1, 0)))
	ways := d.Checks()
	ways.Set([]model.Check{checkBy(model.L2DSR, "198.51.100.1", "10.0.0.11")})
	must(t, os.Rename(pins, pins+"-elsewhere"))
	if _, err := Open(Options{Pin: pins}); !errors.Is(err, ErrRunning) {
		t.Errorf("a second director gets %v, want %v", err, ErrRunning)
	}
	for _, what := range []string{"an empty pin directory", "no pin directory"} {
		if err := Detach(pins); !errors.Is(err, ErrRunning) {
			t.Errorf("detaching %s under a running director gets %v", what, err)
		}
		must(t, os.RemoveAll(pins))
	}
	if name, _ := checks.Names(pins); device.ByName(name) == nil {
		t.Error("the director's device of checks is gone")
	}
	must(t, ways.Close())
	if other, err := Open(Options{Pin: pins + "-other"}); err != nil {
		t.Errorf("a director with a pin directory of another name: %v", err)
	} else {
		must(t, other.Close())
	}
	must(t, d.Close())
	next := openTest(t, model.Limits{})
	must(t, next.Close())
}

func TestRefusedMemoryNamesTheLimits(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	_, err := Open(Options{Pin: "/sys/fs/bpf/weir", Limits: model.Limits{Backends: 1<<32 - 2}})
	if err == nil || !strings.Contains(err.Error(), "lower director.limits") {
		t.Errorf("error is %v, want one that names director.limits", err)
	}
	if left := pinnedTree(t); !slices.Equal(left, []string{"/sys/fs/bpf/weir", "/sys/fs/bpf/weir/state"}) {
		t.Errorf("pinned is %q, want two empty directories", left)
	}
}

func TestPinsNeedABPFFileSystem(t *testing.T) {
	_, err := Open(Options{Pin: filepath.Join(t.TempDir(), "weir")})
	if err == nil || !strings.Contains(err.Error(), "is not on a BPF file system (mount one: mount -t bpf bpf /sys/fs/bpf)") {
		t.Errorf("error is %v, want one that says what to mount", err)
	}
}

func TestDetachLeavesNothing(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, model.Limits{})
	must(t, d.Set(tableOf(1, 1, 0)))
	must(t, d.Close())
	must(t, Detach("/sys/fs/bpf/weir"))
	left, err := filepath.Glob("/sys/fs/bpf/weir*")
	must(t, err)
	if len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
	eventually(t, "no program is on wire0", func() bool {
		wire, err := netlink.LinkByName("wire0")
		must(t, err)
		return wire.Attrs().Xdp == nil || !wire.Attrs().Xdp.Attached
	})
	must(t, Detach("/sys/fs/bpf/weir"))
}
