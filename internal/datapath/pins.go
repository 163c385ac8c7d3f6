package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/nslock"
)

// What outlives the process is pinned in one directory. Every version knows these
// names, whatever is in the maps (docs/operate/upgrade.md):
//
//	xdp-IFACE, undo-IFACE, reply-IFACE
//	                        the links that hold the programs on their interfaces
//	programs-ABI/NAME       the programs that are attached, and build-HASH, one of them by
//	                        what it was built from; capture: see capture.go
//	maps-ABI/NAME           all maps of theirs; ABI is abiHash
//	state/NAME-FORMAT       the maps that a program of another ABI may take over
//	steering/queues         which receive queues of NICs are kept for flows with rules: it stays until they are
//	                        given back
//	agent/                  the agent's part (internal/agent)
//
// Directories appear as a whole, by being renamed: what ends in "-new" is of a
// process that was interrupted.
const (
	mapsPrefix     = "maps-"
	programsPrefix = "programs-"
	stateName      = "state"
	beside         = "-new"
	linkPrefix     = "xdp-"
	snatPin        = "snat_table"
	sharedPin      = "shared_table"
)

// captureName is the name of the program that captures.
const captureName = "capture"

func (p *pins) capturePin() string { return filepath.Join(p.programsDir(), captureName) }

// pins is that directory, as this version sees it.
type pins struct {
	pin      string       // Options.Pin
	abi      string       // of this version with these limits
	lock     *os.File     // of pin
	sole     *nslock.Lock // of the network namespace; one that was not taken is tried again
	state    map[string]string
	former   map[string]string // pins of counters in the format before: see carry.go
	tables   map[string]string // pins of tables that there are only while they are needed
	programs []string          // that a process loads together
	build    string            // names what the programs are built from; "": no later process may take them over

	attached map[ebpf.ProgramID]bool // when this process began

	same      bool     // the programs are those that were attached
	adopted   bool     // the maps of this ABI are those of the programs that are attached
	published bool     // what this process has loaded is pinned
	inUse     bool     // and attached, too
	made      []string // pins of state that were not there before
	tidied    bool     // nothing of other versions is left
}

// openPins makes the directory, locks it, and works out the names.
func openPins(o Options, spec *ebpf.CollectionSpec) (*pins, error) {
	p := &pins{pin: o.Pin, state: map[string]string{}, former: map[string]string{}, tables: map[string]string{}, programs: o.programNames(), build: buildName(o, spec)}
	var err error
	if p.abi, err = abiHash(spec); err != nil {
		return nil, err
	}
	for name := range stateMaps {
		format, err := stateHash(spec, name)
		if err != nil {
			return nil, err
		}
		p.state[name] = p.statePin(name + "-" + format)
	}
	for name := range formerSizes {
		format, err := formerFormat(spec, name)
		if err != nil {
			return nil, err
		}
		p.former[name] = p.statePin(name + "-" + format)
	}
	for name := range heldFormats {
		format, err := heldHash(spec, name)
		if err != nil {
			return nil, err
		}
		p.tables[name] = p.statePin(name + "-" + format)
	}
	if err := os.MkdirAll(p.statePin(""), 0o700); err != nil {
		return nil, fmt.Errorf("make pin directory: %w", err)
	}
	if p.lock, err = lockPins(o.Pin); err != nil {
		return nil, named(o.Pin, err)
	}
	if p.sole, err = lockNamespace(o.Pin); errors.Is(err, ErrRunning) {
		return nil, errors.Join(err, p.lock.Close())
	}
	return p, nil // without the lock of the namespace a director works: Parts tells of it
}

// unlock lets another director begin, which takes the lock of the directory first.
func (p *pins) unlock() error { return errors.Join(p.sole.Close(), p.lock.Close()) }

func (p *pins) statePin(name string) string { return filepath.Join(p.pin, stateName, name) }

func (p *pins) mapsDir() string     { return filepath.Join(p.pin, mapsPrefix+p.abi) }
func (p *pins) programsDir() string { return filepath.Join(p.pin, programsPrefix+p.abi) }

// reusable opens the maps to go on with: all of them, if a program of this ABI is attached;
// otherwise those that are shared with an attached program of another ABI. Maps of this ABI that no
// program uses were left by a version that came and went, and have not been kept up to date since.
func (p *pins) reusable(spec *ebpf.CollectionSpec) (map[string]*ebpf.Map, error) {
	paths := map[string]string{}
	attached, err := p.attachedPrograms()
	if err != nil {
		return nil, err
	}
	p.attached = attached
	if p.runs(attached) && p.hasIndexRecords() {
		p.adopted = true
		for name := range spec.Maps {
			if name == bpfload.Constants {
				continue
			}
			path := filepath.Join(p.mapsDir(), pinName(name))
			if _, err := os.Stat(path); err != nil {
				p.adopted = false
			}
			paths[name] = path
		}
	}
	if !p.adopted {
		paths = p.state
	}
	opened := map[string]*ebpf.Map{}
	for name, path := range paths {
		m, err := ebpf.LoadPinnedMap(path, nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			for _, m := range opened {
				m.Close()
			}
			return nil, fmt.Errorf("open pinned map %s: %w", path, err)
		}
		opened[name] = m
	}
	return opened, nil
}

// attachedPrograms are the programs on interfaces, by their links.
func (p *pins) attachedPrograms() (map[ebpf.ProgramID]bool, error) {
	links, err := filepath.Glob(filepath.Join(p.pin, linkPrefix+"*"))
	if err != nil {
		return nil, err
	}
	attached := map[ebpf.ProgramID]bool{}
	for _, path := range links {
		l, err := link.LoadPinnedLink(path, nil)
		if err != nil {
			return nil, fmt.Errorf("open pinned link: %w", err)
		}
		if info, err := l.Info(); err == nil {
			attached[info.Program] = true
		}
		l.Close()
	}
	return attached, p.countCaptures(attached)
}

// countCaptures counts a director as attached if a capture of its own has its place: the capture
// has the same maps. A process that is killed during a capture leaves that.
func (p *pins) countCaptures(attached map[ebpf.ProgramID]bool) error {
	captures, err := filepath.Glob(filepath.Join(p.pin, programsPrefix+"*", captureName))
	if err != nil {
		return err
	}
	for _, path := range captures {
		if id, err := pinnedProgramID(path); err != nil || !attached[id] {
			continue
		}
		if id, err := pinnedProgramID(filepath.Join(filepath.Dir(path), directorProgDirector)); err == nil {
			attached[id] = true
		}
	}
	return nil
}

// runs says whether a program of this ABI is attached. If its process ended right after attaching
// it, its pins are still beside those of the program before.
func (p *pins) runs(attached map[ebpf.ProgramID]bool) bool {
	for _, dir := range []string{p.programsDir(), p.programsDir() + beside} {
		if id, err := pinnedProgramID(filepath.Join(dir, directorProgDirector)); err == nil && attached[id] {
			return true
		}
	}
	return false
}

func pinnedProgramID(path string) (ebpf.ProgramID, error) {
	program, err := ebpf.LoadPinnedProgram(path, nil)
	if err != nil {
		return 0, err
	}
	defer program.Close()
	return idOf(program)
}

func idOf(program *ebpf.Program) (ebpf.ProgramID, error) {
	info, err := program.Info()
	if err != nil {
		return 0, fmt.Errorf("look at program: %w", err)
	}
	id, _ := info.ID()
	return id, nil
}

// openProgram opens the program with that number.
func (p *pins) openProgram(id ebpf.ProgramID) (*ebpf.Program, error) {
	paths, err := filepath.Glob(filepath.Join(p.pin, programsPrefix+"*", "*"))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		program, err := ebpf.LoadPinnedProgram(path, nil)
		if err != nil {
			continue
		}
		if its, err := idOf(program); err == nil && its == id {
			return program, nil
		}
		program.Close()
	}
	// A version that did not pin its programs: this takes CAP_SYS_ADMIN.
	return ebpf.NewProgramFromID(id)
}

// publish pins what was loaded and filled. Only after that may a link get the program.
func (k *kernel) publish() error {
	if k.published {
		return nil
	}
	if err := k.pinAll(); err != nil {
		return errors.Join(err, k.unpinAll())
	}
	k.published = true
	return nil
}

func (k *kernel) pinAll() error {
	if err := k.publishState(); err != nil {
		return err
	}
	if !k.adopted {
		if err := k.pinMaps(); err != nil {
			return err
		}
		if err := replaceDirectory(k.mapsDir()); err != nil {
			return err
		}
	}
	return k.pinPrograms()
}

// pinMaps pins all maps beside where they are to be.
func (k *kernel) pinMaps() error {
	return makeDirectory(k.mapsDir()+beside, func(dir string) error {
		var errs []error
		for name, m := range k.all {
			errs = append(errs, pinClone(m, filepath.Join(dir, pinName(name))))
		}
		return errors.Join(errs...)
	})
}

// pinPrograms does the same with the programs.
func (k *kernel) pinPrograms() error {
	return makeDirectory(k.programsDir()+beside, func(dir string) error {
		var errs []error
		for _, name := range k.pins.programs {
			errs = append(errs, pinClone(k.collection.Programs[name], filepath.Join(dir, name)))
		}
		return errors.Join(append(errs, k.pinBuild(dir))...)
	})
}

// publishState pins the maps that other versions may take over.
func (k *kernel) publishState() error {
	for name, path := range k.state {
		if k.kept[name] && !k.adopted {
			continue // the map was opened there
		}
		if _, err := os.Stat(path); err == nil {
			continue
		}
		if err := pinClone(k.all[name], path); err != nil {
			return err
		}
		k.made = append(k.made, path)
	}
	return k.records.publish()
}

func isLinkPin(name string) bool {
	return strings.HasPrefix(name, linkPrefix) || slices.ContainsFunc(tcHooks, func(h tcHook) bool { return strings.HasPrefix(name, h.pinPrefix) })
}

// tidy removes what versions before this one have left: no attached program uses it any more. Links
// of a kind that this version does not know are a newer version's. They go, too, because their
// programs would go on with maps that are not kept up to date.
func (k *kernel) tidy() error {
	if k.tidied {
		return nil
	}
	if err := k.carryOver(); err != nil {
		return err
	}
	var own []string
	for _, path := range k.tables {
		own = append(own, filepath.Base(path), filepath.Base(path)+beside)
	}
	for _, path := range k.state {
		own = append(own, filepath.Base(path))
	}
	for _, path := range k.formerTable.statePins() {
		own = append(own, filepath.Base(path))
	}
	own = append(own, recordNames()...)
	errs := []error{
		removeIn(k.pin, func(name string, directory bool) bool {
			if !directory {
				return !isLinkPin(name)
			}
			return strings.HasPrefix(name, mapsPrefix) && name != filepath.Base(k.mapsDir()) ||
				strings.HasPrefix(name, programsPrefix) && name != filepath.Base(k.programsDir())+beside
		}),
		removeIn(k.statePin(""), func(name string, _ bool) bool { return !slices.Contains(own, name) }),
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove what an earlier version has pinned: %w", err)
	}
	if err := replaceDirectory(k.programsDir()); err != nil {
		return err
	}
	k.tidied = true
	return nil
}

// withdraw removes what was pinned for programs that were never attached.
func (k *kernel) withdraw() error {
	if !k.published || k.inUse {
		return nil
	}
	return k.unpinAll()
}

func (k *kernel) unpinAll() error {
	errs := []error{os.RemoveAll(k.programsDir() + beside)}
	if !k.adopted {
		errs = append(errs, os.RemoveAll(k.mapsDir()+beside), os.RemoveAll(k.mapsDir()))
	}
	for _, path := range k.made {
		errs = append(errs, os.Remove(path))
	}
	k.made = nil
	return errors.Join(errs...)
}

// makeDirectory makes a directory that has only what fill pins there.
func makeDirectory(dir string, fill func(dir string) error) error {
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove pins of an interrupted start: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make pin directory: %w", err)
	}
	return fill(dir)
}

// replaceDirectory puts the directory that was made beside it in its place.
func replaceDirectory(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove pins: %w", err)
	}
	if err := os.Rename(dir+beside, dir); err != nil {
		return fmt.Errorf("rename pins: %w", err)
	}
	return nil
}

func removeIn(dir string, unwanted func(name string, directory bool) bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if unwanted(e.Name(), e.IsDir()) {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// pinned is a map or a program.
type pinned[T any] interface {
	Clone() (T, error)
	Pin(path string) error
	Close() error
}

// pinClone pins something that may be pinned elsewhere, too: pinning the object itself again would
// move that pin.
func pinClone[T pinned[T]](object T, path string) error {
	clone, err := object.Clone()
	if err != nil {
		return fmt.Errorf("pin %s: %w", path, err)
	}
	defer clone.Close()
	if err := clone.Pin(path); err != nil {
		return fmt.Errorf("pin %s: %w", path, err)
	}
	return nil
}
