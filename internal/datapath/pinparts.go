package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/upkeep"
)

// pinDifferences are the pins that are gone. Their objects go on only while this process has them
// open: a director that ended now would forward nothing from then on.
func (d *Datapath) pinDifferences() (found []upkeep.Difference, err error) {
	if !d.kernel.published || !d.kernel.tidied {
		return nil, nil
	}
	if err := d.kernel.holdSNAT(); err != nil {
		return nil, err
	}
	for _, directory := range []struct {
		what   string
		pins   []string
		repair func() error
	}{
		{"maps", d.kernel.mapPins(), d.kernel.pinMapsAgain},
		{"programs", d.kernel.programPins(), d.kernel.pinProgramsAgain},
		{"state", d.kernel.statePins(), d.kernel.pinStateAgain},
	} {
		if gone := missing(directory.pins); gone > 0 {
			found = append(found, upkeep.Difference{What: directory.what, Found: fmt.Sprintf("%d of %d pins are gone", gone, len(directory.pins)),
				Repair: d.inDirectory(directory.repair)})
		}
	}
	for name, a := range d.attached {
		if pin := d.kernel.linkPin(name); missing([]string{pin}) > 0 && a.holds() {
			found = append(found, upkeep.Difference{What: filepath.Base(pin), Found: "is gone",
				Repair: d.inDirectory(func() error { return errors.Join(a.link.Unpin(), a.link.Pin(pin)) })})
		}
	}
	if len(found) == 0 && !d.kernel.locks() {
		found = append(found, upkeep.Difference{What: d.kernel.pin, Found: "is another directory than this process has locked", Repair: d.inDirectory(func() error { return nil })})
	}
	return found, nil
}

// inDirectory wraps a repair that works in the pin directory. If another director has taken the
// directory meanwhile, it is left alone: that director uses what is pinned there.
func (d *Datapath) inDirectory(repair func() error) func() error {
	return d.locked(func() error {
		if err := d.kernel.lockAgain(); err != nil {
			return err
		}
		return repair()
	})
}

func missing(pins []string) (count int) {
	for _, pin := range pins {
		if _, err := os.Lstat(pin); errors.Is(err, os.ErrNotExist) {
			count++
		}
	}
	return count
}

func pinsIn(directory string, names []string) []string {
	pins := make([]string, len(names))
	for i, name := range names {
		pins[i] = filepath.Join(directory, name)
	}
	return pins
}

func (k *kernel) mapPins() []string {
	names := make([]string, 0, len(k.all))
	for name := range k.all {
		names = append(names, pinName(name))
	}
	slices.Sort(names)
	return pinsIn(k.mapsDir(), names)
}

func (k *kernel) programPins() []string {
	names := slices.Clone(programNames)
	if k.build != "" {
		names = append(names, k.build)
	}
	return pinsIn(k.programsDir(), names)
}

func (k *kernel) statePins() []string {
	pins := pinsIn(k.statePin(""), []string{recordServices, recordBackends, recordDirector})
	for _, path := range k.state {
		pins = append(pins, path)
	}
	if k.snatTable != nil {
		pins = append(pins, k.snatPin())
	}
	return pins
}

// lockAgain makes the directory and locks it, if it is not the one that was locked: the old lock is
// of a directory that is gone, and would not keep a second director away.
func (k *kernel) lockAgain() error {
	if err := os.MkdirAll(k.pin, 0o700); err != nil {
		return fmt.Errorf("make pin directory: %w", err)
	}
	if !k.locks() {
		lock, err := lockPins(k.pin)
		if err != nil {
			return err
		}
		k.lock.Close() // its directory is gone
		k.lock = lock
	}
	if err := os.MkdirAll(k.statePin(""), 0o700); err != nil {
		return fmt.Errorf("make pin directory: %w", err)
	}
	return nil
}

// ensureOwned sees to it that the pins that are there are this director's: if the directory is gone,
// it is made and locked again. After an error another director may have taken it meanwhile, whose
// links are on its interfaces: they must not be unpinned, nor get this one's programs.
func (k *kernel) ensureOwned() error {
	if k.locks() {
		return nil
	}
	return k.lockAgain()
}

// locks reports whether the directory that is there is the one that this process has locked.
func (k *kernel) locks() bool {
	now, err := os.Stat(k.pin)
	locked, other := k.lock.Stat()
	return err == nil && other == nil && os.SameFile(locked, now)
}

func (k *kernel) pinMapsAgain() error {
	if err := k.pinMaps(); err != nil {
		return err
	}
	return replaceDirectory(k.mapsDir())
}

func (k *kernel) pinProgramsAgain() error {
	if err := k.pinPrograms(); err != nil {
		return err
	}
	return replaceDirectory(k.programsDir())
}

func (k *kernel) pinStateAgain() error {
	errs := []error{k.records.pinAgain()}
	for name, path := range k.state {
		errs = append(errs, pinIfGone(k.all[name], path))
	}
	if k.snatTable != nil {
		errs = append(errs, pinIfGone(k.snatTable, k.snatPin()))
	}
	return errors.Join(errs...)
}

func pinIfGone(m *ebpf.Map, path string) error {
	if missing([]string{path}) == 0 {
		return nil
	}
	return pinClone(m, path)
}

// holdSNAT keeps full NAT's table open while there is one: no other program can open it, and
// without its pin all its connections would be gone.
func (k *kernel) holdSNAT() error {
	var used ebpf.MapID
	err := k.SnatTables.Lookup(uint32(0), &used)
	if err != nil {
		if k.snatTable != nil {
			k.snatTable.Close()
			k.snatTable = nil
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		return fmt.Errorf("look for table of full NAT: %w", err)
	}
	pinned, err := ebpf.LoadPinnedMap(k.snatPin(), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open table of full NAT: %w", err)
	}
	if !isMap(pinned, used) {
		return pinned.Close() // another director's
	}
	if k.snatTable != nil {
		k.snatTable.Close()
	}
	k.snatTable = pinned
	return nil
}
