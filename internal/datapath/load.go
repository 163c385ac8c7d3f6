package datapath

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

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

	take       *ebpf.Program // what other directors remember of flows, into the memory
	collection *ebpf.Collection
	records    *indexRecords
	all        map[string]*ebpf.Map // of the collection that are pinned, by their names
	reasons    []string             // names of enum reason, by number
	flowEvents []string             // of enum flow_event
	quicEvents []string             // of enum quic_event
	askEvents  []string             // of enum ask_event
	told       []string             // of enum told_outcome
	kept       map[string]bool      // maps whose content an earlier process has made
	snatTable  *ebpf.Map            // full NAT's, while there is one; nil: there is none, or it was not looked for yet
	former     formerCounts         // what an earlier version has counted in another format
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
	if k.reasons, err = enumNames(spec.Types, "reason"); err != nil {
		return nil, err
	}
	if k.flowEvents, err = enumNames(spec.Types, "flow_event"); err != nil {
		return nil, err
	}
	if k.quicEvents, err = enumNames(spec.Types, "quic_event"); err != nil {
		return nil, err
	}
	if k.askEvents, err = enumNames(spec.Types, "ask_event"); err != nil {
		return nil, err
	}
	if k.told, err = enumNames(spec.Types, "told_outcome"); err != nil {
		return nil, err
	}
	if k.pins, err = openPins(o, spec); err != nil {
		return nil, err
	}
	if err := k.load(spec); err != nil {
		return nil, errors.Join(err, k.unlock())
	}
	if k.former, err = k.openFormer(); err != nil {
		return nil, errors.Join(err, k.close())
	}
	if k.records, err = openIndexRecords(k.pins, o.Limits); err != nil {
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
	size(spec, o)
	for _, m := range spec.Maps {
		if m.InnerMap != nil {
			// Tables are made without BTF: 6.1 wants them and their template alike.
			m.InnerMap.Key, m.InnerMap.Value = nil, nil
		}
	}
	if o.differs != nil {
		o.differs(spec)
	}
	return spec, nil
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
		case name == constants:
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
	if programs != nil {
		spec.Programs = nil
		delete(spec.Maps, constants)
	}
	k.collection, err = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: pinned})
	for name, m := range pinned {
		k.kept[name] = true
		m.Close() // the collection has its own
	}
	if err != nil {
		closeAll(programs)
		return loadError(err)
	}
	maps.Copy(k.collection.Programs, programs)
	k.all = maps.Clone(k.collection.Maps)
	delete(k.all, constants)
	if err := k.collection.Assign(&k.directorMaps); err != nil {
		k.collection.Close()
		return fmt.Errorf("assign maps: %w", err)
	}
	k.program = k.collection.Programs[directorProgDirector]
	k.undo = k.collection.Programs[natTCProgUndoNat]
	k.takeReply = k.collection.Programs[natTCProgTakeReply]
	k.takeBareReply = k.collection.Programs[natTCProgTakeBareReply]
	k.take = k.collection.Programs[directorProgTakeTellings]
	if err := k.keepSNAT(); err != nil {
		return errors.Join(err, k.directorMaps.Close())
	}
	return nil
}

func (k *kernel) close() error {
	err := k.withdraw()
	if k.records != nil {
		err = errors.Join(err, k.records.close())
	}
	k.collection.Close() // programs; the maps were assigned
	if k.snatTable != nil {
		k.snatTable.Close()
	}
	return errors.Join(err, k.former.close(), k.directorMaps.Close(), k.unlock())
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
	name, _ := checkNames(pin)
	lock, err := nslock.Take("director-" + name)
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
func size(spec *ebpf.CollectionSpec, o Options) {
	services, backends := o.Limits.Services, o.Limits.Backends
	for name, entries := range map[string]uint32{
		directorMapServices4:       2 * services, // a VIP takes one more than its services
		directorMapServices6:       2 * services,
		directorMapRanges4:         32 * (services + backends), // a range is at most 30 prefixes
		directorMapRanges6:         32 * (services + backends), // of a service, and of each backend's replies
		directorMapSourceRanges:    2 * o.Limits.SourceRanges,  // those before and after a Set
		directorMapRings:           services,
		directorMapRingLines:       1 + uint32(o.Limits.RingMemory/lineSize), // line 0 is no ring's
		directorMapServiceDrops:    services,
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
		directorMapFlows:           max(1, o.Limits.Flows/flowWays),
		directorMapFlowTags:        max(1, o.Limits.Flows/flowWays),
		directorMapEgress:          1024,
	} {
		spec.Maps[name].MaxEntries = entries
	}
}

// enumNames are the names of an enum's values up to the one that counts them, in lower case. They
// are the labels of metrics, and are written only in bpf/abi/types.h.
func enumNames(types *btf.Spec, name string) ([]string, error) {
	var enum *btf.Enum
	if err := types.TypeByName(name, &enum); err != nil {
		return nil, fmt.Errorf("find enum %s: %w", name, err)
	}
	var names []string
	for _, v := range enum.Values {
		if strings.HasSuffix(v.Name, "_COUNT") {
			return names, nil
		}
		names = append(names, strings.ToLower(v.Name))
	}
	return names, nil
}

// enumValues are the names of all of an enum's values, in lower case and without a prefix.
func enumValues(types *btf.Spec, name, prefix string) (map[uint32]string, error) {
	var enum *btf.Enum
	if err := types.TypeByName(name, &enum); err != nil {
		return nil, fmt.Errorf("find enum %s: %w", name, err)
	}
	values := map[uint32]string{}
	for _, v := range enum.Values {
		values[uint32(v.Value)] = strings.ToLower(strings.TrimPrefix(v.Name, prefix))
	}
	return values, nil
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

// loadError says what a refused program or map most likely means.
func loadError(err error) error {
	var verifier *ebpf.VerifierError
	switch {
	case errors.As(err, &verifier):
		return fmt.Errorf("load director program: the kernel's verifier refuses it: %w", err)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("load director program: run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON: %w", err)
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("load director program: this kernel has no BPF (CONFIG_BPF_SYSCALL): %w", err)
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.E2BIG):
		return fmt.Errorf("create maps: the kernel refuses their memory; lower director.limits (services, backends, ring-memory, fragments, flows): %w", err)
	}
	return fmt.Errorf("load director program: %w", err)
}
