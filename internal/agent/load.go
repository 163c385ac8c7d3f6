package agent

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/nslock"
)

// ErrRunning says that another process is this host's agent.
var ErrRunning = errors.New("another weir agent is running here")

// ErrNoBPFFS says that the pin directory would not keep anything.
var ErrNoBPFFS = errors.New("not on a BPF file system (mount -t bpf bpf /sys/fs/bpf)")

// pins is the agent's directory on a BPF file system. The maps are in a directory whose name is the
// hash of their ABI: what another version pinned is either the same or not looked at. Links are
// named by hook and interface index.
type pins struct {
	root      string
	lock      *os.File
	namespace *nslock.Lock // one that was not taken is tried again
}

// close lets another agent begin, which takes the lock of the directory first.
func (p *pins) close() error { return errors.Join(p.namespace.Close(), p.lock.Close()) }

// namespaceLock is the name of the lock of an agent's network namespace.
const namespaceLock = "agent"

// lockNamespace keeps a second agent out of this network namespace, whose pins may be on a BPF file
// system of its own: the VIPs on lo and the programs at the interfaces are the namespace's. An agent
// works without the lock: its part of the host tells of that.
func (p *pins) lockNamespace() error {
	lock, err := nslock.Take(namespaceLock)
	p.namespace = lock
	if held := (*nslock.HeldError)(nil); errors.As(err, &held) && !held.Foreign() {
		return fmt.Errorf("%w: %w, perhaps with a --bpffs of its own: it has the VIPs on lo and the programs at the interfaces: end that process, or let it do the work", ErrRunning, held)
	}
	return nil
}

// openPins makes the directory and locks it: two agents would undo each other's
// work.
func openPins(pin string) (*pins, error) {
	p := &pins{root: filepath.Join(pin, "agent")}
	if err := os.MkdirAll(p.links(), 0o700); err != nil {
		return nil, fmt.Errorf("make pin directory: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(p.root, &fs); err != nil {
		return nil, fmt.Errorf("look at pin directory %s: %w", p.root, err)
	}
	if fs.Type != unix.BPF_FS_MAGIC {
		_ = os.RemoveAll(p.root)
		return nil, fmt.Errorf("pin directory %s: %w", pin, ErrNoBPFFS)
	}
	lock, err := lockDirectory(p.root)
	if errors.Is(err, ErrRunning) { // the namespace's lock says which, if it is of this one
		if running := p.lockNamespace(); running != nil {
			err = running
		}
		return nil, errors.Join(err, p.namespace.Close())
	}
	if err != nil {
		return nil, err
	}
	p.lock = lock
	return p, nil
}

func lockDirectory(path string) (*os.File, error) {
	lock, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open pin directory: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, ErrRunning)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return lock, nil
}

func (p *pins) links() string { return filepath.Join(p.root, "links") }

// state is the directory of maps whose content cannot be made again.
func (p *pins) state() string { return filepath.Join(p.root, "state") }

func (p *pins) maps(abi string) string { return filepath.Join(p.root, "maps-"+abi) }

// removeOtherMaps removes what other versions pinned. Links hold on to the maps of
// their programs, so this is safe once all links run the new ones.
func (p *pins) removeOtherMaps(abi string) error {
	dirs, err := filepath.Glob(p.maps("*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		if dir != p.maps(abi) {
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	return errors.Join(errs...)
}

// isShared says whether the programs of all versions share a map, so that it belongs to none of
// them.
func isShared(name string) bool {
	return name == flowsName || name == freshName || name == reasonsName || slices.Contains(podMaps, name)
}

// abi returns the hash of what programs and Go must agree about: each map's shape, and the types in
// it. It leaves out maps that belong to no version.
func abi(spec *ebpf.CollectionSpec) string {
	hash := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(spec.Maps)) {
		m := spec.Maps[name]
		if isShared(name) {
			continue
		}
		fmt.Fprintf(hash, "%s %v %d %d %d %d %9v %9v\n", name, m.Type, m.KeySize, m.ValueSize,
			m.MaxEntries, m.Flags, m.Key, m.Value)
	}
	return fmt.Sprintf("%x", hash.Sum(nil)[:8])
}

// load loads the programs with the maps that are pinned, or pins new ones. The memory of flows and
// the counters of reasons belong to no version: their maps are the replacements.
func load(p *pins, spec *ebpf.CollectionSpec, replacements map[string]*ebpf.Map, log *slog.Logger) (*bpfObjects, string, error) {
	version := abi(spec)
	_, err := os.Stat(p.maps(version))
	fresh := errors.Is(err, os.ErrNotExist)
	if err := os.MkdirAll(p.maps(version), 0o700); err != nil {
		return nil, "", fmt.Errorf("make map directory: %w", err)
	}
	for name, m := range spec.Maps {
		if !strings.HasPrefix(name, ".") && replacements[name] == nil && name != flowsName && name != freshName {
			m.Pinning = ebpf.PinByName
		}
	}
	options := ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: p.maps(version)}, MapReplacements: replacements}
	objects, err := loadJudging(spec, options, log)
	if err != nil && fresh {
		// The version before goes on, and nothing else would remove these maps.
		err = errors.Join(err, os.RemoveAll(p.maps(version)))
	}
	if errors.Is(err, unix.EPERM) {
		return nil, "", fmt.Errorf("load programs (needs root, or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON): %w", err)
	}
	if err != nil {
		return nil, "", fmt.Errorf("load programs (needs Linux 6.1): %w", err)
	}
	return objects, version, nil
}

// loadJudging loads programs that judge by the kernel's sockets whether a connection is here. If
// the kernel does not describe its sockets (no BTF), or does not let programs read them (lockdown),
// the programs do without: every packet stays.
func loadJudging(spec *ebpf.CollectionSpec, options ebpf.CollectionOptions, log *slog.Logger) (*bpfObjects, error) {
	objects := new(bpfObjects)
	refused := spec.Copy().LoadAndAssign(objects, &options)
	if refused == nil {
		return objects, nil
	}
	if err := keepAll(spec, &options); err != nil {
		return nil, errors.Join(refused, err)
	}
	if err := spec.LoadAndAssign(objects, &options); err != nil {
		return nil, refused
	}
	log.Warn("this kernel's sockets cannot be read: no second chance, every packet stays", "error", refused)
	return objects, nil
}

// keepAll makes the programs read no sockets. The fields that they would read then only need some
// offset: that in the programs' own types.
func keepAll(spec *ebpf.CollectionSpec, options *ebpf.CollectionOptions) error {
	options.Programs.KernelTypes = spec.Types
	if err := spec.Variables["reads_sockets"].Set(uint8(0)); err != nil {
		return fmt.Errorf("set reads_sockets: %w", err)
	}
	return nil
}
