package datapath

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/checks"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/nslock"
)

// kernel is what is loaded: the program and its maps, and where they are pinned.
type kernel struct {
	directorMaps
	*pins
	program *ebpf.Program
	undo    *ebpf.Program // translates local backends' replies
	// Take full NAT's replies from interfaces with and without Ethernet.
	takeReply, takeBareReply *ebpf.Program

	importFlows    *ebpf.Program // what other directors remember of flows, into the memory
	collection     *ebpf.Collection
	records        *indexRecords
	all            map[string]*ebpf.Map // of the collection that are pinned, by their names
	reasons        []string             // names of enum reason, by number
	flowEvents     []string             // of enum flow_event
	quicEvents     []string             // of enum quic_event
	askEvents      []string             // of enum ask_event
	importOutcomes []string             // of enum told_outcome
	kept           map[string]bool      // maps whose content an earlier process has made
	snatTable      heldTable            // full NAT's
	sharedTable    heldTable            // of full NAT's flows that other directors have told of
	former         formerCounts         // what an earlier version has counted in another format
	formerQueues   formerQueues         // what was counted by receive queues in maps that are left
	formerTable    formerTable          // flow memory of versions before 0.2
	resized        resizedFlows         // flow memory of an earlier process that had another size
}

func loadKernel(o Options) (*kernel, error) {
	if err := checkHost(o.Pin); err != nil {
		return nil, err
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		// Since Linux 5.11 BPF memory is charged to the cgroup: no need, then.
		o.Log.Debug("memlock limit stays", "error", err)
	}
	spec, err := directorSpec(o)
	if err != nil {
		return nil, err
	}
	k := &kernel{kept: map[string]bool{}}
	if k.reasons, err = bpfload.EnumNames(spec.Types, "reason", ""); err != nil {
		return nil, err
	}
	if k.flowEvents, err = bpfload.EnumNames(spec.Types, "flow_event", ""); err != nil {
		return nil, err
	}
	if k.quicEvents, err = bpfload.EnumNames(spec.Types, "quic_event", ""); err != nil {
		return nil, err
	}
	if k.askEvents, err = bpfload.EnumNames(spec.Types, "ask_event", ""); err != nil {
		return nil, err
	}
	if k.importOutcomes, err = bpfload.EnumNames(spec.Types, "told_outcome", ""); err != nil {
		return nil, err
	}
	if k.pins, err = openPins(o, spec); err != nil {
		return nil, err
	}
	if k.formerTable, err = newFormerTable(k.pins, spec); err != nil {
		return nil, errors.Join(err, k.unlock())
	}
	if err := k.load(spec); err != nil {
		return nil, errors.Join(err, k.unlock())
	}
	if k.former, err = k.openFormer(); err != nil {
		return nil, errors.Join(err, k.close())
	}
	if k.formerQueues, err = k.openFormerQueues(); err != nil {
		return nil, errors.Join(err, k.close())
	}
	if k.records, err = openIndexRecords(k.pins, o.Limits); err != nil {
		return nil, errors.Join(err, k.close())
	}
	if err := k.openFormerTable(); err != nil {
		return nil, errors.Join(err, k.close())
	}
	if err := k.openResized(spec); err != nil {
		return nil, errors.Join(err, k.close())
	}
	return k, nil
}

// directorSpec is the program with its maps, as large as the limits say.
func directorSpec(o Options) (*ebpf.CollectionSpec, error) {
	spec, err := loadPrograms()
	if err != nil {
		return nil, err
	}
	clear(spec.Variables) // source_filter is written through its map, not as a variable
	o.choosePrograms(spec)
	if err := o.addVTEP(spec); err != nil {
		return nil, err
	}
	o.shape(spec)
	return spec, nil
}

// choosePrograms leaves the director's program for hosts whose NICs steer flows, that for hosts with more CPUs
// than receive queues, or the one for all others: under one name, because each takes the other's place.
func (o Options) choosePrograms(spec *ebpf.CollectionSpec) {
	if o.steers() {
		steering := spec.Programs[directorProgDirectorSteering].Copy()
		steering.Name = directorProgDirector // by which others know it
		spec.Programs[directorProgDirector] = steering
	}
	if o.fansOut() {
		fanOut := spec.Programs[directorProgDirectorFanOut].Copy()
		fanOut.Name = directorProgDirector
		spec.Programs[directorProgDirector] = fanOut
	} else {
		delete(spec.Programs, directorProgDirectorOnCpu)
	}
	delete(spec.Programs, directorProgDirectorSteering)
	delete(spec.Programs, directorProgDirectorFanOut)
}

// innerMaps are the maps of maps whose tables the process makes when they are needed.
var innerMaps = []string{directorMapSnatTables, directorMapSharedTables, directorMapSharedClients, directorMapSharedEnds}

// shape gives the maps of a program the form that all programs with these maps agree about.
func (o Options) shape(spec *ebpf.CollectionSpec) {
	o.size(spec)
	for _, m := range spec.Maps {
		if m.InnerMap != nil && slices.Contains(innerMaps, m.Name) {
			// Their tables are made without BTF: 6.1 wants them and their template alike.
			m.InnerMap.Key, m.InnerMap.Value = nil, nil
		}
	}
	if o.differs != nil {
		o.differs(spec)
	}
}

// loadPrograms reads the director's program, and the tc programs that have its maps.
func loadPrograms() (*ebpf.CollectionSpec, error) {
	spec, err := loadDirector()
	if err != nil {
		return nil, fmt.Errorf("read director program: %w", err)
	}
	tc, err := loadNatTC()
	if err != nil {
		return nil, fmt.Errorf("read tc programs: %w", err)
	}
	if err := addPrograms(spec, tc); err != nil {
		return nil, fmt.Errorf("add tc programs: %w", err)
	}
	return spec, nil
}

// addPrograms adds another object's programs, which then use the maps of spec: maps are found by
// their names, so each has to be the same in both. Constants are not: each object places its own.
func addPrograms(spec, other *ebpf.CollectionSpec) error {
	for name, theirs := range other.Maps {
		ours, found := spec.Maps[name]
		switch {
		case name == bpfload.Constants:
			return fmt.Errorf("they have constants (%s), which would be read from the director's", name)
		case !found:
			return fmt.Errorf("the director has no map %s", name)
		case ours.Type != theirs.Type || ours.KeySize != theirs.KeySize || ours.ValueSize != theirs.ValueSize || ours.Flags != theirs.Flags:
			return fmt.Errorf("map %s differs from the director's: %v, the director's is %v", name, theirs, ours)
		}
	}
	for name, program := range other.Programs {
		if spec.Programs[name] != nil {
			return fmt.Errorf("the director has a program %s, too", name)
		}
		spec.Programs[name] = program
	}
	return nil
}

// load loads the program beside the one that runs, with the pinned maps or with new ones. If the
// one that runs was built from the same bytes, load takes that one. Nothing is pinned yet, so that
// a program that is refused leaves nothing behind.
func (k *kernel) load(spec *ebpf.CollectionSpec) error {
	pinned, err := k.reusable(spec)
	if err != nil {
		return err
	}
	programs := k.loaded(k.attached)
	k.same = programs != nil
	if k.same {
		spec.Programs = nil
		delete(spec.Maps, bpfload.Constants)
	}
	k.collection, err = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: pinned})
	for name, m := range pinned {
		k.kept[name] = true
		m.Close() // the collection has its own
	}
	if err != nil {
		closeAll(programs)
		return bpfload.Error(err)
	}
	maps.Copy(k.collection.Programs, programs)
	k.all = maps.Clone(k.collection.Maps)
	delete(k.all, bpfload.Constants)
	if err := k.collection.Assign(&k.directorMaps); err != nil {
		k.collection.Close()
		return fmt.Errorf("assign maps: %w", err)
	}
	k.program = k.collection.Programs[directorProgDirector]
	k.undo = k.collection.Programs[natTCProgUndoNat]
	k.takeReply = k.collection.Programs[natTCProgTakeReply]
	k.takeBareReply = k.collection.Programs[natTCProgTakeBareReply]
	k.importFlows = k.collection.Programs[directorProgTakeTellings]
	k.snatTable = heldTable{what: "table of full NAT", outer: k.SnatTables, pin: k.tables[snatPin]}
	k.sharedTable = heldTable{what: "table of full NAT's shared flows", outer: k.SharedTables, pin: k.tables[sharedPin]}
	if k.adopted {
		return nil
	}
	for _, h := range k.heldTables() {
		if err := h.keep(); err != nil {
			return errors.Join(err, k.directorMaps.Close())
		}
	}
	return nil
}

func (k *kernel) heldTables() []*heldTable { return []*heldTable{&k.snatTable, &k.sharedTable} }

func (k *kernel) holdTables() error {
	var errs []error
	for _, h := range k.heldTables() {
		errs = append(errs, h.hold())
	}
	return errors.Join(errs...)
}

func (k *kernel) close() error {
	err := k.withdraw()
	if k.records != nil {
		err = errors.Join(err, k.records.close())
	}
	k.collection.Close() // programs; the maps were assigned
	for _, h := range k.heldTables() {
		h.letGo()
	}
	return errors.Join(err, k.former.close(), k.formerQueues.close(), k.resized.close(), k.directorMaps.Close(), k.unlock())
}

// ErrRunning says that another process keeps the pinned datapath up to date.
var ErrRunning = errors.New("another director runs on it")

// lockPins makes sure that only one process at a time writes to what is pinned. The lock ends with
// the process, the pins do not.
func lockPins(pin string) (*os.File, error) {
	lock, err := os.Open(pin)
	if err != nil {
		return nil, fmt.Errorf("open pin directory: %w", err)
	}
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrRunning
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", pin, err), lock.Close())
	}
	return lock, nil
}

// lockNamespace makes sure that only one process of this network namespace works with a pin directory
// of that name, also where two of them have BPF file systems of their own: the device of checks is
// named by it.
func lockNamespace(pin string) (*nslock.Lock, error) {
	name, _ := checks.Names(pin)
	lock, err := nslock.Acquire("director-" + name)
	if held := (*nslock.HeldError)(nil); errors.As(err, &held) && !held.Foreign() {
		return lock, fmt.Errorf("%w: %w, by which one director works with pin directory %s, also where that was removed or is on another BPF file system: end that process, or name another directory in --bpffs", ErrRunning, held, pin)
	}
	return lock, err
}

// named names the director that has locked a pin directory, if it is of this network namespace.
func named(pin string, err error) error {
	if !errors.Is(err, ErrRunning) {
		return err
	}
	sole, running := lockNamespace(pin)
	if errors.Is(running, ErrRunning) {
		return running
	}
	return errors.Join(err, sole.Close())
}

// size sets the maps' sizes from the limits. Where a map is not allocated ahead, its size costs
// little, and the limit is that of services and backends.
func (o Options) size(spec *ebpf.CollectionSpec) {
	services, backends := o.Limits.Services, o.Limits.Backends
	for name, entries := range map[string]uint32{
		directorMapServices4:       2 * services, // a VIP takes one more than its services
		directorMapServices6:       2 * services,
		directorMapRanges4:         32 * (services + backends), // a range is at most 30 prefixes
		directorMapRanges6:         32 * (services + backends), // of a service, and of each backend's replies
		directorMapSourceRanges:    2 * o.Limits.SourceRanges,  // those before and after a Set
		directorMapRings:           services,
		directorMapRingLines:       1 + uint32(o.Limits.RingMemoryTaken()/abi.LineSize), // line 0 is no ring's
		directorMapServiceDrops:    services,
		directorMapServiceQuotas:   services,
		directorMapBackends:        backends + 1, // index 0 is no backend's
		directorMapBackendCounters: backends + 1,
		directorMapBackendOpened:   backends + 1,
		directorMapLoads:           backends + 1,
		directorMapNextTurns:       services,
		directorMapReplies4:        2 * backends, // those before and after a Set
		directorMapReplies6:        2 * backends,
		directorMapAskBackends:     2 * backends,
		directorMapBackendSources:  2 * backends,
		directorMapFragments:       o.Limits.Fragments,
		directorMapGuesses:         services,
		directorMapFlowTable:       max(1, o.Limits.Flows/flows.Ways),
		directorMapEgress:          1024,
		directorMapSteeredQueues:   o.steeredQueues(),
		directorMapSteeredWords:    o.steeredWords(),
		directorMapSteeredFlows:    o.steeredPlaces(),
		directorMapHeavyFlows:      o.heavyLines(),
		directorMapFanOutCpus:      o.fanOutCPUs(),
		directorMapFanOutList:      o.fanOutCPUs(),
	} {
		if m := spec.Maps[name]; m != nil { // an observer has not all of them
			m.MaxEntries = entries
		}
	}
	for name, entries := range o.vtepSizes() {
		if m := spec.Maps[name]; m != nil {
			m.MaxEntries = entries
		}
	}
	for _, name := range formerMaps {
		spec.Maps[name].InnerMap.MaxEntries = max(1, o.Limits.Flows/flows.FormerWays)
	}
}

// minKernel is the oldest kernel that weir is tested on.
var minKernel = [2]int{6, 1}

// checkHost reports now, as an error, what would be hard to explain later.
func checkHost(pin string) error {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return fmt.Errorf("read kernel version: %w", err)
	}
	release := unix.ByteSliceToString(name.Release[:])
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("read kernel version %q: %w", release, err)
	}
	if major < minKernel[0] || major == minKernel[0] && minor < minKernel[1] {
		return fmt.Errorf("kernel %s is too old: weir needs Linux %d.%d or newer", release, minKernel[0], minKernel[1])
	}
	return checkBPFFS(pin)
}

// checkBPFFS finds the nearest directory that exists and asks for its file system.
func checkBPFFS(pin string) error {
	for dir := filepath.Clean(pin); ; dir = filepath.Dir(dir) {
		var fs unix.Statfs_t
		err := unix.Statfs(dir, &fs)
		switch {
		case errors.Is(err, unix.ENOENT) && dir != filepath.Dir(dir):
			continue
		case err != nil:
			return fmt.Errorf("look at %s: %w", dir, err)
		case fs.Type != unix.BPF_FS_MAGIC:
			return fmt.Errorf("%s is not on a BPF file system (mount one: mount -t bpf bpf /sys/fs/bpf)", pin)
		}
		return nil
	}
}

// The kernel takes seconds to verify the program. A process that starts again finds it loaded, and
// until it has it, forwards what the group wanted before. So it takes over a program that was built
// from the same bytes.

// buildPrefix begins the second name under which the director's program is pinned: the rest of that
// name says what it was built from.
const buildPrefix = "build-"

// programNames are the programs that one process loads together.
func (o Options) programNames() []string {
	names := []string{directorProgDirector, natTCProgUndoNat, natTCProgTakeReply, natTCProgTakeBareReply, directorProgTakeTellings}
	if o.fansOut() {
		names = append(names, directorProgDirectorOnCpu)
	}
	return names
}

// buildName names what the programs are built from, besides the maps.
func buildName(o Options, spec *ebpf.CollectionSpec) string {
	if o.differs != nil {
		return "" // it cannot be told how
	}
	built := builtFrom()
	if o.steers() {
		built.Write([]byte(directorProgDirectorSteering))
	}
	if o.isVTEP() {
		built.Write(_VtepBytes)
	}
	if o.fansOut() {
		fmt.Fprint(built, directorProgDirectorFanOut, o.FanOut) // other CPUs begin anew
	}
	if m := spec.Maps[bpfload.Constants]; m != nil {
		for _, content := range m.Contents {
			if bytes, ok := content.Value.([]byte); ok {
				built.Write(bytes)
			}
		}
	}
	return buildPrefix + hex.EncodeToString(built.Sum(nil)[:16])
}

// builtFrom hashes the objects whose programs are attached to interfaces.
func builtFrom() hash.Hash {
	objects := sha256.New()
	objects.Write(_DirectorBytes)
	objects.Write(_NatTCBytes)
	return objects
}

// Build names the director's programs by the objects that they are loaded from.
func Build() string { return hex.EncodeToString(builtFrom().Sum(nil)[:16]) }

// loaded opens the programs that were built from the same bytes for the same maps, if they are
// attached; nil: there are none.
func (p *pins) loaded(attached map[ebpf.ProgramID]bool) map[string]*ebpf.Program {
	if p.build == "" || !p.adopted {
		return nil
	}
	for _, dir := range []string{p.programsDir() + beside, p.programsDir()} {
		id, err := pinnedProgramID(filepath.Join(dir, p.build))
		if err != nil || !attached[id] {
			continue
		}
		programs := map[string]*ebpf.Program{}
		for _, name := range p.programs {
			program, err := ebpf.LoadPinnedProgram(filepath.Join(dir, name), nil)
			if err != nil {
				closeAll(programs)
				break
			}
			programs[name] = program
		}
		if len(programs) == len(p.programs) {
			return programs
		}
	}
	return nil
}

func closeAll(programs map[string]*ebpf.Program) {
	for name, program := range programs {
		program.Close()
		delete(programs, name)
	}
}

// pinBuild says what the program in a directory was built from.
func (k *kernel) pinBuild(dir string) error {
	if k.build == "" {
		return nil
	}
	return pinClone(k.program, filepath.Join(dir, k.build))
}
