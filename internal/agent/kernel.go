package agent

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
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
	lock      *os.File     // of the directory
	namespace *nslock.Lock // of the network namespace
	other     error        // says which other agent has that; nil: none
}

// openPins makes the directory and locks it, and the network namespace. Another agent that has its
// pins elsewhere is no error: see pins.other.
func openPins(pin string) (*pins, error) {
	p := &pins{root: filepath.Join(pin, "agent")}
	err := p.acquire()
	if err != nil && !errors.Is(err, ErrRunning) {
		return nil, err
	}
	p.namespace, p.other = lockNamespace()
	if err != nil { // the namespace's lock says which agent runs, if it is of this one
		return nil, errors.Join(cmp.Or(p.other, err), p.namespace.Close())
	}
	return p, nil
}

// lockNamespace keeps a second agent out of this network namespace, whose pins may be on a BPF file
// system of its own: the VIPs on lo and the programs at the interfaces are the namespace's. An agent
// works without the lock: its part of the host tells of that.
func lockNamespace() (lock *nslock.Lock, other error) {
	lock, err := nslock.Acquire("agent")
	if held := (*nslock.HeldError)(nil); errors.As(err, &held) && !held.Foreign() {
		other = fmt.Errorf("%w: %w, perhaps with a --bpffs of its own: it has the VIPs on lo and the programs at the interfaces: end that process, or let it do the work", ErrRunning, held)
	}
	return lock, other
}

// acquire makes the directory and locks it, unless that is done and it is still in place: two agents
// would undo each other's work.
func (p *pins) acquire() error {
	if p.inPlace() {
		return nil
	}
	dir := p.root
	var status unix.Statfs_t
	err := unix.Statfs(dir, &status)
	for errors.Is(err, unix.ENOENT) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		err = unix.Statfs(dir, &status)
	}
	if err != nil {
		return fmt.Errorf("look at the pin directory: %w", &os.PathError{Op: "statfs", Path: p.root, Err: err})
	}
	if status.Type != unix.BPF_FS_MAGIC {
		return fmt.Errorf("pin directory %s: %w", filepath.Dir(p.root), ErrNoBPFFS)
	}
	if err := os.MkdirAll(p.links(), 0o700); err != nil {
		return fmt.Errorf("make pin directory: %w", err)
	}
	lock, err := os.Open(p.root)
	if err != nil {
		return fmt.Errorf("open pin directory: %w", err)
	}
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrRunning
	}
	if err != nil {
		return errors.Join(fmt.Errorf("lock %s: %w", p.root, err), lock.Close())
	}
	_ = p.lock.Close() // there was none, or its directory is gone
	p.lock = lock
	return nil
}

// inPlace reports whether the directory is the one that is locked.
func (p *pins) inPlace() bool {
	there, err := os.Stat(p.root)
	if err != nil {
		return false
	}
	locked, err := p.lock.Stat()
	return err == nil && os.SameFile(there, locked)
}

// close lets another agent begin, which takes the lock of the directory first.
func (p *pins) close() error { return errors.Join(p.namespace.Close(), p.lock.Close()) }

func (p *pins) links() string { return filepath.Join(p.root, "links") }

// state is the directory of maps whose content cannot be made again.
func (p *pins) state() string { return filepath.Join(p.root, "state") }

func (p *pins) maps(abi string) string { return filepath.Join(p.root, "maps-"+abi) }

// removeOthers removes what matches a pattern, except one path.
func removeOthers(pattern, except string) error {
	paths, err := filepath.Glob(pattern)
	for _, path := range paths {
		if path != except {
			err = errors.Join(err, os.RemoveAll(path))
		}
	}
	return err
}

// pinAgain pins a map or a link whose pin was removed.
func pinAgain(pinned interface {
	Unpin() error
	Pin(path string) error
}, path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make pin directory: %w", err)
	}
	// The library believes that the pin is there.
	if err := errors.Join(pinned.Unpin(), pinned.Pin(path)); err != nil {
		return fmt.Errorf("pin again: %w", err)
	}
	return nil
}

// kernel is what the agent has in the kernel: its programs with their maps, and where they are
// attached and pinned. It outlives the process.
type kernel struct {
	pins       *pins
	links      *links
	memory     *memory
	objects    *bpfObjects
	version    string      // of the maps' ABI
	redirector *redirector // nil: nothing has been redirected here
}

// openKernel loads the programs, and adopts what an earlier process left pinned.
func openKernel(pin string, flows uint32, log *slog.Logger) (*kernel, error) {
	spec, err := loadBpf()
	if err != nil {
		return nil, fmt.Errorf("read programs: %w", err)
	}
	p, err := openPins(pin)
	if err != nil {
		return nil, err
	}
	if p.other != nil {
		return nil, errors.Join(p.other, p.close())
	}
	k, err := load(p, spec, flows, log)
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return k, nil
}

// close ends the process's part.
func (k *kernel) close() error {
	if k.redirector != nil {
		_ = k.redirector.Close()
	}
	return errors.Join(k.links.close(), k.objects.Close(), k.memory.close(), k.pins.close())
}

// retireOthers ends what other versions pinned. Links hold on to the maps of their programs, so this is
// safe once all links run the new ones.
func (k *kernel) retireOthers() error {
	return errors.Join(k.memory.retireOthers(), forgetOtherFormats(k.pins.state()), removeOthers(k.pins.maps("*"), k.pins.maps(k.version)))
}

// pinned returns the maps that are to be pinned, by the paths of their pins.
func (k *kernel) pinned() map[string]*ebpf.Map {
	pinned := make(map[string]*ebpf.Map)
	for name, m := range mapsOf(&k.objects.bpfMaps) {
		if m.IsPinned() && !isShared(name) {
			pinned[filepath.Join(k.pins.maps(k.version), name)] = m
		}
	}
	for _, m := range k.memory.maps {
		pinned[m.path] = m.Map
	}
	if k.redirector == nil {
		return pinned
	}
	for name, m := range mapsOf(&k.redirector.redirectMaps) {
		if !isProgramsOwn(name) {
			pinned[filepath.Join(k.redirector.dir, name)] = m
		}
	}
	return pinned
}

// pinAllAgain pins everything that has lost its pin.
func (k *kernel) pinAllAgain() error {
	if err := k.pins.acquire(); err != nil {
		return err
	}
	var errs []error
	for path, m := range k.pinned() {
		errs = append(errs, pinAgain(m, path))
	}
	for name, held := range k.links.open {
		errs = append(errs, pinAgain(held, k.links.path(name)))
	}
	return errors.Join(errs...)
}

// mapsOf returns the maps of a structure that bpf2go made, by their names.
func mapsOf(objects any) map[string]*ebpf.Map {
	list := make(map[string]*ebpf.Map)
	value := reflect.ValueOf(objects).Elem()
	for i := range value.NumField() {
		if m, is := value.Field(i).Interface().(*ebpf.Map); is && m != nil {
			list[value.Type().Field(i).Tag.Get("ebpf")] = m
		}
	}
	return list
}

// isShared says whether the programs of all versions share a map, so that it belongs to none of
// them.
func isShared(name string) bool {
	return name == flowsName || name == freshName || name == reasonsName || slices.Contains(podMaps, name)
}

// abi returns the hash of what programs and Go must agree about: each map's shape, and the types in
// it. It leaves out maps that belong to no version.
func abi(spec *ebpf.CollectionSpec) string { return formatOf(spec, isShared) }

// formatOf returns the hash of the shapes of maps and the types in them, except some, and of further
// types.
func formatOf(spec *ebpf.CollectionSpec, except func(name string) bool, types ...btf.Type) string {
	hash := sha256.New()
	for _, t := range types {
		fmt.Fprintf(hash, "%9v\n", t)
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Maps)) {
		if m := spec.Maps[name]; !except(name) {
			fmt.Fprintf(hash, "%s %v %d %d %d %d %9v %9v\n", name, m.Type, m.KeySize, m.ValueSize,
				m.MaxEntries, m.Flags, m.Key, m.Value)
		}
	}
	return fmt.Sprintf("%x", hash.Sum(nil)[:8])
}

// Build names the agent's programs by the objects that they are loaded from.
func Build() string {
	objects := sha256.New()
	objects.Write(_BpfBytes)
	objects.Write(_RedirectBytes)
	return fmt.Sprintf("%x", objects.Sum(nil)[:16])
}

// Formats returns the formats that are part of pins' names, by what the pins are called without
// them.
func Formats() (map[string]string, error) {
	host, err := loadBpf()
	if err != nil {
		return nil, fmt.Errorf("read programs: %w", err)
	}
	redirection, err := loadRedirect()
	if err != nil {
		return nil, fmt.Errorf("read programs of redirection: %w", err)
	}
	redirect, err := redirectFormat(redirection)
	if err != nil {
		return nil, err
	}
	return map[string]string{
		"maps":                                  abi(host),
		strings.TrimSuffix(podDirectories, "-"): podFormat(host),
		strings.TrimSuffix(redirectDirectories, "-"): redirect,
	}, nil
}

// load loads the programs with the maps that are pinned, or pins new ones.
func load(p *pins, spec *ebpf.CollectionSpec, flows uint32, log *slog.Logger) (*kernel, error) {
	memory, err := openMemory(p, spec, flows)
	if err != nil {
		return nil, err
	}
	k := &kernel{pins: p, links: newLinks(p.links()), memory: memory, version: abi(spec)}
	dir := p.maps(k.version)
	_, err = os.Stat(dir)
	fresh := errors.Is(err, os.ErrNotExist)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, errors.Join(fmt.Errorf("make map directory: %w", err), memory.giveUp())
	}
	for name, m := range spec.Maps {
		if !strings.HasPrefix(name, ".") && !isShared(name) {
			m.Pinning = ebpf.PinByName
		}
	}
	options := ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: dir}, MapReplacements: memory.replacements()}
	if k.objects, err = loadJudging(spec, options, log); err == nil {
		return k, nil
	}
	needs := "Linux 6.1"
	if errors.Is(err, unix.EPERM) {
		needs = "root, or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
	}
	err = fmt.Errorf("load programs (needs %s): %w", needs, err)
	if fresh {
		// The version before goes on, and nothing else would remove these maps.
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return nil, errors.Join(err, memory.giveUp())
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
