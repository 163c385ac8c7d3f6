// Package contents compares the contents of maps in the kernel with what they must be. Programs
// look packets up in these maps, and only weir writes to them: if an entry is gone or differs,
// another program has changed it.
package contents

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/upkeep"
)

// inSecond is how many entries are compared in a second: about a hundredth of a CPU. If there are
// more, all are compared less often.
const inSecond = 4096

// Map is a map with what it must have.
type Map struct {
	Name    string
	Kernel  []*ebpf.Map // one, or one for each family of addresses
	Entries int
	Put     func() error // writes what must be there
	Prune   func() error // removes what must not be there
	look    func() (amiss, more int, err error)
	mend    func() error
}

// What is the name of the map's differences.
func (m Map) What() string { return "map " + m.Name }

// Mend makes the contents of the named map what they must be.
func Mend(maps []Map, name string) error {
	for _, m := range maps {
		if m.Name == name {
			return m.mend()
		}
	}
	return fmt.Errorf("there is no map %s any more", name)
}

// PutAll writes what must be in maps, in their order.
func PutAll(maps []Map) error {
	var errs []error
	for _, m := range maps {
		errs = append(errs, m.Put())
	}
	return errors.Join(errs...)
}

// PruneAll removes what must not be in maps, in the opposite order.
func PruneAll(maps []Map) error {
	var errs []error
	for _, m := range slices.Backward(maps) {
		errs = append(errs, m.Prune())
	}
	return errors.Join(errs...)
}

// Comparison is when maps are compared again. The zero value compares them at once.
type Comparison struct{ next time.Time }

// Look compares maps, if it is time to, and returns those that differ, to be repaired by their names.
func (c *Comparison) Look(maps func() []Map, repair func(name string) error) (found []upkeep.Difference, err error) {
	if time.Now().Before(c.next) {
		return nil, nil
	}
	entries := 0
	for _, m := range maps() {
		entries += m.Entries
		amiss, more, err := m.look()
		if err != nil {
			return nil, err
		}
		if amiss+more > 0 {
			found = append(found, upkeep.Difference{What: m.What(), Found: describe(amiss, more), Repair: func() error { return repair(m.Name) }})
		}
	}
	c.next = time.Time{}
	if pause := time.Duration(entries/inSecond) * time.Second; len(found) == 0 {
		c.next = time.Now().Add(pause)
	}
	return found, nil
}

func describe(amiss, more int) string {
	var parts []string
	if amiss > 0 {
		parts = append(parts, fmt.Sprintf("%d entries are gone or are others", amiss))
	}
	if more > 0 {
		parts = append(parts, fmt.Sprintf("%d entries are there that nobody has made", more))
	}
	return strings.Join(parts, ", ")
}

func newMap(name string, kernel []*ebpf.Map, entries int, look func() (amiss, more int, err error), put, prune func() error) Map {
	mend := func() error { return errors.Join(put(), prune()) }
	return Map{name, kernel, entries, put, prune, look, mend}
}

// Both joins the maps of both address families into one, with one name.
func Both(four, six Map) Map {
	look := func() (amiss, more int, err error) {
		amiss4, more4, err4 := four.look()
		amiss6, more6, err6 := six.look()
		return amiss4 + amiss6, more4 + more6, errors.Join(err4, err6)
	}
	return newMap(four.Name, append(four.Kernel, six.Kernel...), four.Entries+six.Entries, look,
		func() error { return errors.Join(four.Put(), six.Put()) },
		func() error { return errors.Join(four.Prune(), six.Prune()) })
}

// Within is a map that may have more entries than these, as an array has.
func Within[K, V comparable](name string, m *ebpf.Map, want map[K]V) Map {
	look := func() (amiss, more int, err error) {
		for key, value := range want {
			var have V
			switch err := m.Lookup(key, &have); {
			case errors.Is(err, ebpf.ErrKeyNotExist):
				amiss++
			case err != nil:
				return 0, 0, fmt.Errorf("read map %s: %w", m, err)
			case have != value:
				amiss++
			}
		}
		return amiss, 0, nil
	}
	return newMap(name, []*ebpf.Map{m}, len(want), look, func() error { return Put(m, want) }, func() error { return nil })
}

// Whole is a map that must have these entries and no others.
func Whole[K, V comparable](name string, m *ebpf.Map, want map[K]V) Map {
	look := func() (amiss, more int, err error) {
		have, err := Read[K, V](m)
		if err != nil {
			return 0, 0, err
		}
		for key, value := range want {
			if is, there := have[key]; !there || is != value {
				amiss++
			}
		}
		for key := range have {
			if _, wanted := want[key]; !wanted {
				more++
			}
		}
		return amiss, more, nil
	}
	return newMap(name, []*ebpf.Map{m}, len(want), look, func() error { return Put(m, want) }, func() error { return Prune(m, want) })
}

// Put writes entries.
func Put[K comparable, V any](m *ebpf.Map, want map[K]V) error {
	for key, value := range want {
		if err := m.Put(key, value); err != nil {
			return fmt.Errorf("write map %s of %d elements: %w", m, m.MaxEntries(), err)
		}
	}
	return nil
}

// Prune removes all entries except those that are wanted.
func Prune[K comparable, V any](m *ebpf.Map, want map[K]V) error {
	have, err := Read[K, V](m)
	if err != nil {
		return err
	}
	for key := range have {
		if _, ok := want[key]; ok {
			continue
		}
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove from map %s: %w", m, err)
		}
	}
	return nil
}

// Read reads all entries.
func Read[K comparable, V any](m *ebpf.Map) (map[K]V, error) {
	have := make(map[K]V)
	var key K
	var value V
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		have[key] = value
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("read map %s: %w", m, err)
	}
	return have, nil
}
