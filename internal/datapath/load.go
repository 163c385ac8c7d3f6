package datapath

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// kernel is what is loaded: the program and its maps, as pinned in dir.
type kernel struct {
	directorMaps
	program    *ebpf.Program
	undo       *ebpf.Program // translates local backends' replies
	collection *ebpf.Collection
	reasons    []string // names of enum reason, by number
	flowEvents []string // of enum flow_event
	pin        string   // Options.Pin
	dir        string   // below it: the maps of this ABI
	lock       *os.File // of pin
}

// innerTypes are in no map's declared value, but part of the ABI all the same.
var innerTypes = []string{"ring_header", "slot", "candidates", "snat_header", "snat_bucket"}

func loadKernel(o Options) (*kernel, error) {
	if err := checkHost(o.Pin); err != nil {
		return nil, err
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		// Since Linux 5.11 BPF memory is charged to the cgroup: no need, then.
		o.Log.Debug("memlock limit stays", "error", err)
	}
	spec, err := loadDirector()
	if err != nil {
		return nil, fmt.Errorf("read director program: %w", err)
	}
	// Variables only keep types in the BTF; nothing reads them.
	delete(spec.Maps, ".bss")
	clear(spec.Variables)
	size(spec, o)
	abi, err := abiHash(spec)
	if err != nil {
		return nil, err
	}
	k := &kernel{pin: o.Pin, dir: filepath.Join(o.Pin, "maps-"+abi)}
	if k.reasons, err = enumNames(spec.Types, "reason"); err != nil {
		return nil, err
	}
	if k.flowEvents, err = enumNames(spec.Types, "flow_event"); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(k.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make pin directory: %w", err)
	}
	if k.lock, err = lockPins(o.Pin); err != nil {
		return nil, err
	}
	for _, m := range spec.Maps {
		m.Pinning = ebpf.PinByName
		if m.InnerMap != nil {
			// Tables are made without BTF: 6.1 wants them and their template alike.
			m.InnerMap.Key, m.InnerMap.Value = nil, nil
		}
	}
	k.collection, err = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: k.dir}})
	if err != nil {
		k.lock.Close()
		return nil, loadError(err)
	}
	if err := k.collection.Assign(&k.directorMaps); err != nil {
		k.collection.Close()
		k.lock.Close()
		return nil, fmt.Errorf("assign maps: %w", err)
	}
	k.program = k.collection.Programs[directorProgDirector]
	k.undo = k.collection.Programs[directorProgUndoNat]
	return k, nil
}

func (k *kernel) close() error {
	k.collection.Close() // programs; the maps were assigned
	return errors.Join(k.directorMaps.Close(), k.lock.Close())
}

// ErrRunning says that another process keeps the pinned datapath up to date.
var ErrRunning = errors.New("another director runs on it")

// lockPins makes sure that one process at a time writes to what is pinned. The
// lock goes with the process, the pins do not.
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

// size sets the maps' sizes from the limits. Where a map is not allocated ahead,
// its size costs little and the limit is that of services and backends.
func size(spec *ebpf.CollectionSpec, o Options) {
	services, backends := o.Limits.Services, o.Limits.Backends
	for name, entries := range map[string]uint32{
		directorMapServices4:       2 * services, // a VIP takes one more than its services
		directorMapServices6:       2 * services,
		directorMapRanges4:         32 * (services + backends), // a range is at most 30 prefixes
		directorMapRanges6:         32 * (services + backends), // of a service, and of each backend's replies
		directorMapRings:           services,
		directorMapRingLines:       1 + uint32(o.Limits.RingMemory/lineSize), // line 0 is nobody's
		directorMapServiceDrops:    services,
		directorMapBackends:        backends + 1, // index 0 is nobody
		directorMapBackendCounters: backends + 1,
		directorMapReplies4:        2 * backends, // those before and after a Set
		directorMapReplies6:        2 * backends,
		directorMapFragments:       o.Limits.Fragments,
		directorMapFlows:           max(1, o.Limits.Flows/flowWays),
		directorMapEgress:          1024,
	} {
		spec.Maps[name].MaxEntries = entries
	}
}

// abiHash names what a program and its maps must agree on: the maps' kinds and
// sizes and the layout of everything in them.
func abiHash(spec *ebpf.CollectionSpec) (string, error) {
	hash := sha256.New()
	gf := btf.GoFormatter{}
	write := func(name string, t btf.Type) error {
		if t == nil {
			return nil
		}
		text, err := gf.TypeDeclaration(name, t)
		if err != nil {
			return fmt.Errorf("describe layout of %s: %w", name, err)
		}
		_, err = hash.Write([]byte(text))
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Maps)) {
		m := spec.Maps[name]
		fmt.Fprintln(hash, name, m.Type, m.KeySize, m.ValueSize, m.MaxEntries, m.Flags)
		if err := errors.Join(write("key", m.Key), write("value", m.Value)); err != nil {
			return "", err
		}
	}
	for _, name := range innerTypes {
		t, err := spec.Types.AnyTypeByName(name)
		if err != nil {
			return "", fmt.Errorf("find type %s: %w", name, err)
		}
		if err := write(name, t); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(hash.Sum(nil)[:8]), nil
}

// enumNames are the names of an enum's values up to the one that counts them, in
// lower case: labels of metrics, written only in bpf/types.h.
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

// minKernel is the oldest kernel that weir is tested on.
var minKernel = [2]int{6, 1}

// checkHost turns what would be a riddle later into an error now.
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
