package agent

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"syscall"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/upkeep"
)

// fewPins is up to how many lost pins are reported one by one.
const fewPins = 3

// lookAtPins compares what is pinned. Without their pins, maps and programs live on while the
// process has them: nothing is lost if they are pinned again before it ends.
func (a *Agent) lookAtPins() ([]upkeep.Difference, error) {
	if err := a.watch(a.pins.root, a.pins.links(), a.pins.state(), a.pins.maps(a.version)); err != nil {
		return nil, err
	}
	if !a.pins.inPlace() {
		return []upkeep.Difference{{What: a.pins.root, Found: "was removed", Repair: a.pinAllAgain}}, nil
	}
	var found []upkeep.Difference
	pinned := a.pinned()
	for _, path := range slices.Sorted(maps.Keys(pinned)) {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			found = append(found, upkeep.Difference{What: path, Found: "was removed", Repair: func() error { return pinAgain(pinned[path], path) }})
		}
	}
	if len(found) > fewPins {
		return []upkeep.Difference{{What: a.pins.root, Found: fmt.Sprintf("has lost the pins of %d maps", len(found)), Repair: a.pinAllAgain}}, nil
	}
	return found, nil
}

func (a *Agent) pinAllAgain() error {
	if !a.pins.inPlace() {
		if err := a.pins.again(); err != nil {
			return err
		}
	}
	var errs []error
	for path, m := range a.pinned() {
		errs = append(errs, pinAgain(m, path))
	}
	if err := os.MkdirAll(a.pins.links(), 0o700); err != nil {
		errs = append(errs, fmt.Errorf("make pin directory: %w", err))
	}
	for name := range a.links.open {
		errs = append(errs, a.links.pinAgain(name))
	}
	return errors.Join(errs...)
}

// pinAgain pins a map whose pin was removed.
func pinAgain(m *ebpf.Map, path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make map directory: %w", err)
	}
	// The library believes that the pin is there.
	if err := errors.Join(m.Unpin(), m.Pin(path)); err != nil {
		return fmt.Errorf("pin map again: %w", err)
	}
	return nil
}

// pinned returns the maps that are to be pinned, by the paths of their pins.
func (a *Agent) pinned() map[string]*ebpf.Map {
	pinned := make(map[string]*ebpf.Map)
	for name, m := range mapsOf(&a.objects.bpfMaps) {
		if m.IsPinned() && !isShared(name) {
			pinned[filepath.Join(a.pins.maps(a.version), name)] = m
		}
	}
	for _, f := range a.flows.all() {
		if f.Map != nil {
			pinned[f.path()] = f.Map
		}
	}
	pinned[a.reasonCounts.path] = a.reasonCounts.Map
	for i, m := range a.pods.all() {
		pinned[filepath.Join(a.pods.dir, podMaps[i])] = m
	}
	if a.redirector == nil {
		return pinned
	}
	for name, m := range mapsOf(&a.redirector.redirectMaps) {
		if !isProgramsOwn(name) {
			pinned[filepath.Join(a.redirector.dir, name)] = m
		}
	}
	return pinned
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

// inPlace reports whether the directory is the one that is locked.
func (p *pins) inPlace() bool {
	there, err := os.Stat(p.root)
	if err != nil {
		return false
	}
	locked, err := p.lock.Stat()
	if err != nil {
		return false
	}
	a, b := there.Sys().(*syscall.Stat_t), locked.Sys().(*syscall.Stat_t)
	return a.Dev == b.Dev && a.Ino == b.Ino
}

// again makes and locks the directory again.
func (p *pins) again() error {
	dir := p.root
	var fs unix.Statfs_t
	err := unix.Statfs(dir, &fs)
	for errors.Is(err, unix.ENOENT) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		err = unix.Statfs(dir, &fs)
	}
	if err != nil {
		return fmt.Errorf("look at pin directory %s: %w", p.root, err)
	}
	if fs.Type != unix.BPF_FS_MAGIC {
		return fmt.Errorf("pin directory %s: %w", p.root, ErrNoBPFFS)
	}
	if err := os.MkdirAll(p.links(), 0o700); err != nil {
		return fmt.Errorf("make pin directory: %w", err)
	}
	lock, err := lockDirectory(p.root)
	if err != nil {
		return err
	}
	_ = p.lock.Close() // its directory is gone
	p.lock = lock
	return nil
}
