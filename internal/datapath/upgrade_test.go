package datapath

import (
	"io/fs"
	"net/netip"
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
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// otherABI makes a version whose maps are others: one more, and rings of another size.
func otherABI(spec *ebpf.CollectionSpec) {
	spec.Maps["later"] = &ebpf.MapSpec{Name: "later", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}
	spec.Maps[directorMapRingLines].MaxEntries++
}

// refused makes a version whose program the kernel does not load.
func refused(spec *ebpf.CollectionSpec) {
	otherABI(spec)
	spec.Programs[directorProgDirector].Instructions = asm.Instructions{asm.Return()} // of what nobody has set
}

// smallFrames makes a version whose program is not for frames of several buffers,
// which drivers refuse where the MTU is large.
func smallFrames(spec *ebpf.CollectionSpec) {
	otherABI(spec)
	spec.Programs[directorProgDirector].Flags &^= unix.BPF_F_XDP_HAS_FRAGS
}

// smallLimits keep the kernel from zeroing memory that nobody uses.
var smallLimits = model.Limits{Services: 16, Backends: 64, RingMemory: 1 << 20, Fragments: 64, Flows: 4096, SourceRanges: 16}

// openVersion opens the datapath as a version does. It stays open until the test ends,
// or is killed.
func openVersion(t *testing.T, differs func(*ebpf.CollectionSpec)) *Datapath {
	t.Helper()
	d, err := Open(Options{Pin: "/sys/fs/bpf/weir", Limits: smallLimits, differs: differs})
	must(t, err)
	t.Cleanup(func() { d.Close() })
	d.sweepsByHand()
	return d
}

// kill ends a process without its knowing: what is pinned stays.
func kill(t *testing.T, d *Datapath) {
	t.Helper()
	d.kernel.inUse = true
	must(t, d.Close())
}

// pinnedTree is everything below the pin directory.
func pinnedTree(t *testing.T) (paths []string) {
	t.Helper()
	must(t, filepath.WalkDir("/sys/fs/bpf/weir", func(path string, _ fs.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	}))
	return paths
}

// runningPrograms are the programs of the links on those interfaces.
func runningPrograms(t *testing.T, interfaces ...string) (ids []ebpf.ProgramID) {
	t.Helper()
	for _, name := range interfaces {
		l, err := link.LoadPinnedLink("/sys/fs/bpf/weir/xdp-"+name, nil)
		must(t, err)
		info, err := l.Info()
		must(t, err)
		ids = append(ids, info.Program)
		must(t, l.Close())
	}
	return ids
}

func wantRunning(t *testing.T, d *Datapath, interfaces ...string) {
	t.Helper()
	own, err := idOf(d.kernel.program)
	must(t, err)
	for i, id := range runningPrograms(t, interfaces...) {
		if id != own {
			t.Errorf("%s has program %d, want %d", interfaces[i], id, own)
		}
	}
}

// wantTidy checks that nothing of another version is pinned, nor of an interrupted one.
func wantTidy(t *testing.T, d *Datapath) {
	t.Helper()
	for _, path := range pinnedTree(t) {
		name := filepath.Base(path)
		of, isABI := strings.CutPrefix(name, mapsPrefix)
		if !isABI {
			of, isABI = strings.CutPrefix(name, programsPrefix)
		}
		if strings.HasSuffix(name, beside) || isABI && of != d.kernel.abi {
			t.Errorf("%s is left over", path)
		}
	}
	if !d.kernel.runs(map[ebpf.ProgramID]bool{runningPrograms(t, "wire0")[0]: true}) {
		t.Error("the program that runs is not pinned beside its maps")
	}
}

func addNeighbors(t *testing.T, n int) {
	t.Helper()
	for i := range n {
		addNeighbor(t, netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + i)}))
	}
}

// TestOtherABIGoesOn: a version with other maps, and the one before after it, give
// everything the index that it had, so that remembered flows and counters go on; and
// they take up neither more nor less of the file system.
func TestOtherABIGoesOn(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 4)
	onCPU(t, 0, func() { testOtherABI(t) })
}

func testOtherABI(t *testing.T) {
	d := openVersion(t, nil)
	must(t, d.Set(tableOf(3, 3, 0)))
	must(t, d.Set(tableOf(1, 4, 0))) // so that indexes are not those of a first Set
	must(t, d.Set(tableOf(4, 4, 1)))
	backend := d.sends(t, packet.SYN)
	forwarded := d.services[keyOf(&d.table.Services[2])].order[1].index
	must(t, d.kernel.BackendCounters.Put(forwarded, countOnce(t, 7, 700)))
	places, linkID, tree := placesOf(d), pinnedLinkID(t), len(pinnedTree(t))
	for i, version := range []func(*ebpf.CollectionSpec){otherABI, nil, otherABI} {
		must(t, d.Close())
		d = openVersion(t, version)
		if d.kernel.adopted {
			t.Fatal("the maps of another ABI were adopted")
		}
		must(t, d.Set(tableOf(4, 4, 2+i)))
		for place, index := range placesOf(d) {
			if places[place] != index {
				t.Errorf("version %d: %s has index %d, had %d", i, place, index, places[place])
			}
		}
		if to := d.sends(t, packet.ACK); to != backend {
			t.Errorf("version %d: the connection went from %v to %v", i, backend, to)
		}
		if b := statusOf(t, d).Services[2].Backends[1]; b.Packets != 7 || b.Bytes != 700 {
			t.Errorf("version %d: the backend's counter is %d packets, %d bytes; want 7 and 700", i, b.Packets, b.Bytes)
		}
		if id := pinnedLinkID(t); id != linkID {
			t.Errorf("version %d: the link was made anew", i)
		}
		wantRunning(t, d, "wire0")
		wantTidy(t, d)
		if version == nil && len(pinnedTree(t)) != tree {
			t.Errorf("%d pins after the downgrade, %d before the upgrade", len(pinnedTree(t)), tree)
		}
	}
}

// TestSameProgramIsTaken: a process that starts again, also after one that was killed, goes
// on with the program that runs instead of loading it anew; not with one that was built
// from something else, though its maps are the same.
func TestSameProgramIsTaken(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 3)
	d := openVersion(t, nil)
	must(t, d.Set(tableOf(1, 2, 0)))
	running := runningPrograms(t, "wire0")[0]
	for i, end := range []func(*testing.T, *Datapath){func(t *testing.T, d *Datapath) { must(t, d.Close()) }, kill} {
		end(t, d)
		d = openVersion(t, nil)
		if own, err := idOf(d.kernel.program); err != nil || own != running {
			t.Errorf("start %d: the program is %d, error %v; want %d, which runs", i, own, err, running)
		}
		must(t, d.Set(tableOf(1, 3, i)))
		wantRunning(t, d, "wire0")
		wantTidy(t, d)
		d.sends(t, packet.SYN) // or fails
	}
	for i, version := range []func(*ebpf.CollectionSpec){func(*ebpf.CollectionSpec) {}, nil} {
		must(t, d.Close())
		d = openVersion(t, version)
		must(t, d.Set(tableOf(1, 3, i)))
		wantRunning(t, d, "wire0")
		if now := runningPrograms(t, "wire0")[0]; now == running {
			t.Errorf("version %d goes on with the program of another one", i)
		}
		running = runningPrograms(t, "wire0")[0]
	}
}

// TestIndexesOfOtherABIAreNotReused: what remembers a backend that is gone must not
// take another for it, though the maps that had its epoch are gone too.
func TestIndexesOfOtherABIAreNotReused(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	first := openVersion(t, nil)
	must(t, first.Set(tableOf(1, 4, 0)))
	gone := first.services[keyOf(&first.table.Services[0])].order[3].index
	epoch := first.entries.Entries[gone].Epoch
	must(t, first.Set(tableOf(1, 3, 0)))
	must(t, first.Close())
	second := openVersion(t, otherABI)
	must(t, second.Set(tableOf(1, 3, 0)))
	must(t, second.Set(tableOf(2, 3, 0)))
	if e := second.entries.Entries[gone]; e.State == uint8(abi.BackendStateBACKEND_FREE) || e.Epoch <= epoch {
		t.Errorf("index %d is used again (state %d) with epoch %d, want one after %d", gone, e.State, e.Epoch, epoch)
	}
}

// TestRefusedProgram: a version whose program the kernel refuses changes nothing.
func TestRefusedProgram(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openVersion(t, nil)
	must(t, d.Set(tableOf(1, 2, 0)))
	must(t, d.Close())
	programs, tree := runningPrograms(t, "wire0"), pinnedTree(t)
	_, err := Open(Options{Pin: "/sys/fs/bpf/weir", Limits: smallLimits, differs: refused})
	if err == nil || !strings.Contains(err.Error(), "the kernel's verifier refuses it") {
		t.Errorf("error is %v, want the verifier's", err)
	}
	if now := runningPrograms(t, "wire0"); !slices.Equal(now, programs) {
		t.Errorf("programs %v run, want %v as before", now, programs)
	}
	if now := pinnedTree(t); !slices.Equal(now, tree) {
		t.Errorf("pinned is %q, want %q as before", now, tree)
	}
}

// addJumbo adds an interface whose other end has an MTU that takes frames of several
// buffers.
func addJumbo(t *testing.T) {
	t.Helper()
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "jumbo0", MTU: 9000}, PeerName: "jumbo1", PeerMTU: 9000}))
	for _, name := range []string{"jumbo0", "jumbo1"} {
		l, err := netlink.LinkByName(name)
		must(t, err)
		must(t, netlink.LinkSetUp(l))
	}
}

// TestRefusedLink: a version that one of two interfaces does not take runs on neither.
func TestRefusedLink(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addJumbo(t)
	table := tableOf(1, 2, 0)
	table.Interfaces = []string{"wire0", "jumbo0"}
	first := openVersion(t, nil)
	must(t, first.Set(table))
	must(t, first.Close())
	programs, tree := runningPrograms(t, table.Interfaces...), pinnedTree(t)
	second := openVersion(t, smallFrames)
	for range 2 {
		if err := second.Set(table); err == nil || !strings.Contains(err.Error(), "attach to jumbo0") {
			t.Errorf("error is %v, want one that names jumbo0", err)
		}
		second.hopsChanged() // a change of routes attaches nothing, either
		if now := runningPrograms(t, table.Interfaces...); !slices.Equal(now, programs) {
			t.Errorf("programs %v run, want %v as before", now, programs)
		}
	}
	must(t, second.Close())
	if now := pinnedTree(t); !slices.Equal(now, tree) {
		t.Errorf("pinned is %q, want %q as before", now, tree)
	}
	third := openVersion(t, nil)
	if !third.kernel.adopted {
		t.Error("the maps that are in use were not adopted")
	}
	must(t, third.Set(table))
	wantRunning(t, third, table.Interfaces...)
	wantTidy(t, third)
}

// interruptions are the moments at which a process is killed: it has opened the
// datapath and filled its maps, and done this.
var interruptions = []struct {
	name string
	upTo func(d *Datapath, interfaces []string, links []netlink.Link) error
}{
	{"nothing more", func(*Datapath, []string, []netlink.Link) error { return nil }},
	{"maps half pinned", func(d *Datapath, _ []string, _ []netlink.Link) error {
		return makeDirectory(d.kernel.mapsDir()+beside, func(dir string) error {
			return pinClone(d.kernel.Rings, filepath.Join(dir, directorMapRings))
		})
	}},
	{"everything pinned", func(d *Datapath, _ []string, _ []netlink.Link) error { return d.kernel.publish() }},
	{"one of two links switched", func(d *Datapath, interfaces []string, links []netlink.Link) error {
		if err := d.kernel.publish(); err != nil {
			return err
		}
		_, err := d.attachTo(interfaces[0], links[0])
		return err
	}},
	{"both links switched", func(d *Datapath, interfaces []string, links []netlink.Link) error {
		return d.switchPrograms(interfaces, links, false)
	}},
	{"the other of two links switched", func(d *Datapath, interfaces []string, links []netlink.Link) error {
		if err := d.kernel.publish(); err != nil {
			return err
		}
		_, err := d.attachTo(interfaces[1], links[1])
		return err
	}},
}

// TestInterrupted: wherever a change to another version is interrupted, either
// version finishes it, in turns the one that ran before and the one that was killed.
func TestInterrupted(t *testing.T) {
	if testing.Short() {
		t.Skip("loads the program 13 times, each of which takes an emulated guest half a minute")
	}
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 2)
	addJumbo(t)
	table := tableOf(2, 2, 0)
	table.Interfaces = []string{"wire0", "jumbo0"}
	running, other := (func(*ebpf.CollectionSpec))(nil), otherABI
	d := openVersion(t, running)
	must(t, d.Set(table))
	places := placesOf(d)
	whole := t
	for i, at := range interruptions {
		t.Run(at.name, func(t *testing.T) {
			kill(t, d)
			killed := openVersion(whole, other)
			links := killed.findInterfaces(table.Interfaces)
			killed.table = table
			want, err := killed.assignIndexes(&killed.table)
			must(t, err)
			must(t, killed.switchRings(want.changed))
			must(t, at.upTo(killed, table.Interfaces, links))
			kill(t, killed)
			if i%2 == 1 {
				running, other = other, running
			}
			d = openVersion(whole, running)
			must(t, d.Set(table))
			wantRunning(t, d, table.Interfaces...)
			wantTidy(t, d)
			for place, index := range placesOf(d) {
				if places[place] != index {
					t.Errorf("%s has index %d, had %d", place, index, places[place])
				}
			}
			if n := entriesInUse(d); n != 4 {
				t.Errorf("%d backend entries are in use, want 4", n)
			}
		})
	}
}

// TestUnknownPinsDoNotStop: what a newer version has pinned is no reason to stop: what
// is the director's goes, what is not stays.
func TestUnknownPinsDoNotStop(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openVersion(t, otherABI)
	must(t, d.Set(tableOf(1, 1, 0)))
	newer := pinClone(d.kernel.program, "/sys/fs/bpf/weir/later-wire0")
	must(t, newer)
	must(t, pinClone(d.kernel.Rings, d.kernel.statePin("later-1")))
	must(t, makeDirectory("/sys/fs/bpf/weir/other", func(dir string) error { return pinClone(d.kernel.Rings, filepath.Join(dir, "map")) }))
	must(t, d.Close())
	older := openVersion(t, nil)
	must(t, older.Set(tableOf(1, 1, 0)))
	for _, path := range pinnedTree(t) {
		if strings.Contains(path, "later") {
			t.Errorf("%s is left over", path)
		}
	}
	if !slices.Contains(pinnedTree(t), "/sys/fs/bpf/weir/other/map") {
		t.Error("what is not the director's was removed")
	}
}
