package agent

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// links are the links of the agent's programs, by the names of their pins: "xdp-2". The pins keep
// them when the process ends. The process holds them, too: removing the pins, or unmounting the BPF
// file system, does not detach a program while an agent runs.
type links struct {
	dir  string
	open map[string]link.Link
}

func newLinks(dir string) *links { return &links{dir: dir, open: make(map[string]link.Link)} }

func linkName(hook string, index int) string { return hook + "-" + strconv.Itoa(index) }

func (l *links) path(name string) string { return filepath.Join(l.dir, name) }

// close lets go of the links; their pins keep them.
func (l *links) close() error {
	var errs []error
	for _, held := range l.open {
		errs = append(errs, held.Close())
	}
	clear(l.open)
	return errors.Join(errs...)
}

// find returns the link of that name, which is held or pinned; nil: there is none.
func (l *links) find(name string) (link.Link, error) {
	if held := l.open[name]; held != nil {
		return held, nil
	}
	pinned, err := link.LoadPinnedLink(l.path(name), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open pinned link %s: %w", l.path(name), err)
	}
	l.open[name] = pinned
	return pinned, nil
}

// adopt gives the program to a link of the interface, and a pin to a link that has lost its own. A
// link without its interface was detached, or its interface is gone.
func (l *links) adopt(hook string, index int, program *ebpf.Program) (bool, error) {
	name := linkName(hook, index)
	found, err := l.find(name)
	if found == nil || err != nil {
		return false, err
	}
	info, err := found.Info()
	if err != nil {
		return false, fmt.Errorf("look at link %s: %w", l.path(name), err)
	}
	if linkIndex(info) != index {
		return false, l.forget(name)
	}
	// This runs for all interfaces whenever a pod comes or goes.
	if id, known := programID(program); !known || id != info.Program {
		if err := found.Update(program); err != nil {
			return false, fmt.Errorf("switch program of link %s: %w", l.path(name), err)
		}
	}
	return true, pinAgain(found, l.path(name))
}

// forget lets go of a link that is attached to nothing.
func (l *links) forget(name string) error {
	found := l.open[name]
	delete(l.open, name)
	return errors.Join(found.Unpin(), found.Close())
}

// pin pins a new link and holds it.
func (l *links) pin(made link.Link, hook string, index int) error {
	name := linkName(hook, index)
	if err := made.Pin(l.path(name)); err != nil {
		return errors.Join(fmt.Errorf("pin link: %w", err), made.Close())
	}
	l.open[name] = made
	return nil
}

// unpin detaches a link at once: without its pin it would go too, but only after a grace period.
func (l *links) unpin(hook string, index int) error { return l.remove(linkName(hook, index)) }

func (l *links) remove(name string) error {
	found, err := l.find(name)
	if found == nil || err != nil {
		return err
	}
	return errors.Join(found.Detach(), l.forget(name))
}

// has reports whether links of the interface are held or pinned.
func (l *links) has(index int) bool {
	for _, hook := range hooks {
		if _, err := os.Lstat(l.path(linkName(hook, index))); err == nil || l.open[linkName(hook, index)] != nil {
			return true
		}
	}
	return false
}

// holds says what is wrong with a link that should hold a program at an interface; empty: nothing
// is wrong.
func (l *links) holds(hook string, index int, program *ebpf.Program) (string, error) {
	name := linkName(hook, index)
	found, err := l.find(name)
	if err != nil {
		return "", err
	}
	if found == nil {
		return "has no program", nil
	}
	info, err := found.Info()
	if err != nil {
		return "", fmt.Errorf("look at link %s: %w", l.path(name), err)
	}
	if linkIndex(info) != index {
		return "has no program: the link was detached", nil
	}
	if id, known := programID(program); known && id != info.Program {
		return "has " + describeProgram(info.Program), nil
	}
	if _, err := os.Lstat(l.dir); err != nil {
		return "", nil // all pins are gone: lookAtPins reports that
	}
	if _, err := os.Lstat(l.path(name)); errors.Is(err, os.ErrNotExist) {
		return "has lost its pin " + l.path(name), nil
	}
	return "", nil
}

// detachOthers detaches from all interfaces that are not among the uplinks.
func (l *links) detachOthers(uplinks []uplink) error {
	pins, err := os.ReadDir(l.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("list pinned links: %w", err)
	}
	keep := make(map[string]bool, len(uplinks))
	for _, u := range uplinks {
		keep[strconv.Itoa(u.index)] = true
	}
	errs := []error{removeFilters(keep)}
	names := slices.Collect(maps.Keys(l.open))
	for _, p := range pins {
		names = append(names, p.Name())
	}
	for _, name := range names {
		if _, index, _ := strings.Cut(name, "-"); !keep[index] {
			errs = append(errs, l.remove(name))
		}
	}
	return errors.Join(errs...)
}

func programID(program *ebpf.Program) (ebpf.ProgramID, bool) {
	info, err := program.Info()
	if err != nil {
		return 0, false
	}
	return info.ID()
}

// describeProgram names a program that is not the agent's.
func describeProgram(id ebpf.ProgramID) string {
	text := fmt.Sprintf("another program (%d)", id)
	program, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return text
	}
	defer program.Close()
	if info, err := program.Info(); err == nil && info.Name != "" {
		text = fmt.Sprintf("another program, %s (%d)", info.Name, id)
	}
	return text
}

func linkIndex(info *link.Info) int {
	if xdp := info.XDP(); xdp != nil {
		return int(xdp.Ifindex)
	}
	if tcx := info.TCX(); tcx != nil {
		return int(tcx.Ifindex)
	}
	return 0
}
