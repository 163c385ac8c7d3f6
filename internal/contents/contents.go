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
	"golang.org/x/sys/unix"

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
	look    func() (differing, error)
	wants   func(key any) (value any, is bool)
	mend    func() error
}

// differing are entries that differ in the kernel from what must be there.
type differing struct {
	amiss, more int     // that are gone or are others, and that nobody has made
	first       []entry // of them
}

type entry struct{ key, want any } // want is nil if the entry must not be there

// mostEntries bounds differing.first.
const mostEntries = 1024

func (d *differing) note(key, want any) {
	if want == nil {
		d.more++
	} else {
		d.amiss++
	}
	if len(d.first) < mostEntries {
		d.first = append(d.first, entry{key, want})
	}
}

// isWantedIn reports whether what must be in a map in place of the entries that differ is, for some of
// them, what must be in another one.
func (d *differing) isWantedIn(m Map) bool {
	for _, e := range d.first {
		if want, is := m.wants(e.key); is == (e.want != nil) && want == e.want {
			return true
		}
	}
	return len(d.first) < d.amiss+d.more
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
		d, err := m.look()
		if err != nil {
			return nil, err
		}
		if d.amiss+d.more > 0 {
			found = append(found, upkeep.Difference{What: m.What(), Found: describe(d.amiss, d.more), Repair: func() error { return repair(m.Name) },
				Wanted: func() bool {
					return slices.ContainsFunc(maps(), func(now Map) bool { return now.Name == m.Name && d.isWantedIn(now) })
				}})
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

func newMap(name string, kernel []*ebpf.Map, entries int, look func() (differing, error), wants func(any) (any, bool), put, prune func() error) Map {
	mend := func() error { return errors.Join(put(), prune()) }
	return Map{name, kernel, entries, put, prune, look, wants, mend}
}

// Both joins the maps of both address families into one, with one name.
func Both(four, six Map) Map {
	look := func() (differing, error) {
		d4, err4 := four.look()
		d6, err6 := six.look()
		return differing{d4.amiss + d6.amiss, d4.more + d6.more, append(d4.first, d6.first...)}, errors.Join(err4, err6)
	}
	wants := func(key any) (any, bool) {
		if value, is := four.wants(key); is {
			return value, is
		}
		return six.wants(key)
	}
	return newMap(four.Name, append(four.Kernel, six.Kernel...), four.Entries+six.Entries, look, wants,
		func() error { return errors.Join(four.Put(), six.Put()) },
		func() error { return errors.Join(four.Prune(), six.Prune()) })
}

// Within is a map that may have more entries than these, as an array has.
func Within[K, V comparable](name string, m *ebpf.Map, want map[K]V) Map {
	look := func() (d differing, err error) {
		for key, value := range want {
			var have V
			switch err := m.Lookup(key, &have); {
			case err != nil && !errors.Is(err, ebpf.ErrKeyNotExist):
				return d, fmt.Errorf("read map %s: %w", m, err)
			case err != nil || have != value:
				d.note(key, value)
			}
		}
		return d, nil
	}
	return newMap(name, []*ebpf.Map{m}, len(want), look, wantsOf(want), func() error { return Put(m, want) }, func() error { return nil })
}

// Whole is a map that must have these entries and no others.
func Whole[K, V comparable](name string, m *ebpf.Map, want map[K]V) Map {
	look := func() (d differing, err error) {
		have, err := Read[K, V](m)
		if err != nil {
			return d, err
		}
		for key, value := range want {
			if is, there := have[key]; !there || is != value {
				d.note(key, value)
			}
		}
		for key := range have {
			if _, wanted := want[key]; !wanted {
				d.note(key, nil)
			}
		}
		return d, nil
	}
	return newMap(name, []*ebpf.Map{m}, len(want), look, wantsOf(want), func() error { return Put(m, want) }, func() error { return Prune(m, want) })
}

func wantsOf[K, V comparable](want map[K]V) func(any) (any, bool) {
	return func(key any) (any, bool) {
		if k, is := key.(K); is {
			if value, is := want[k]; is {
				return value, true
			}
		}
		return nil, false
	}
}

// Exchange writes an entry in place of the former one, if one is known, and reports whether another
// program had changed that, or had made an entry where none had to be. Before Linux 6.13 the latter is
// not seen in tries.
func Exchange[K any, V comparable](m *ebpf.Map, key K, want, former V, known bool) (byHand bool, err error) {
	if !known {
		if err := m.Update(key, want, ebpf.UpdateNoExist); !errors.Is(err, ebpf.ErrKeyExist) {
			return false, err
		}
		return true, m.Put(key, want)
	}
	var is V
	switch err := m.Lookup(key, &is); {
	case errors.Is(err, ebpf.ErrKeyNotExist):
		byHand = true
	case err == nil:
		byHand = is != former
	}
	return byHand, m.Put(key, want)
}

// Replace makes a map's contents what they must be, of which the former ones are known; nil: they are
// not. It returns how many of the entries that it has written another program had changed. What comes is there before
// what goes is gone, unless the map has no room for both.
func Replace[K, V comparable](m *ebpf.Map, want, former map[K]V) (byHand int, err error) {
	prune := func() error { return removeBut(m, want, former) }
	if former == nil {
		prune = func() error { return Prune(m, want) }
	}
	pruned := false
	for key, value := range want {
		was, known := former[key]
		if known && was == value {
			continue
		}
		is, err := exchangeIn(m, key, value, was, known, former == nil)
		if isFull(err) && !pruned {
			if err := prune(); err != nil {
				return byHand, err
			}
			pruned = true
			is, err = exchangeIn(m, key, value, was, known, former == nil)
		}
		if err != nil {
			return byHand, fmt.Errorf("write map %s of %d elements: %w", m, m.MaxEntries(), err)
		}
		if is {
			byHand++
		}
	}
	if pruned {
		return byHand, nil
	}
	return byHand, prune()
}

// exchangeIn is Exchange where the former contents are known, else it only writes.
func exchangeIn[K any, V comparable](m *ebpf.Map, key K, want, former V, known, blind bool) (byHand bool, err error) {
	if blind {
		return false, m.Put(key, want)
	}
	return Exchange(m, key, want, former, known)
}

// isFull says whether a write has failed because a hash table (E2BIG) or a trie (ENOSPC) has no room.
func isFull(err error) bool { return errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) }

// removeBut removes those of the former entries that are not wanted.
func removeBut[K comparable, V any](m *ebpf.Map, want, former map[K]V) error {
	for key := range former {
		if _, stays := want[key]; stays {
			continue
		}
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove from map %s: %w", m, err)
		}
	}
	return nil
}

// ReplaceArray is Replace for all elements of an array.
func ReplaceArray[V comparable](m *ebpf.Map, want, former []V) (byHand int, err error) {
	for i, value := range want {
		if len(former) == len(want) && former[i] == value {
			continue
		}
		is, err := false, error(nil)
		if len(former) == len(want) {
			is, err = Exchange(m, uint32(i), value, former[i], true)
		} else {
			err = m.Put(uint32(i), value)
		}
		if err != nil {
			return byHand, fmt.Errorf("write map %s: %w", m, err)
		}
		if is {
			byHand++
		}
	}
	return byHand, nil
}

// Elements are an array's elements by their indexes.
func Elements[V comparable](array []V) map[uint32]V {
	elements := make(map[uint32]V, len(array))
	for i, value := range array {
		elements[uint32(i)] = value
	}
	return elements
}

// Exchanged is the difference that entries of the named map had which another program had changed, and
// which their owner has exchanged since.
func Exchanged(name string, entries int) upkeep.Difference {
	return upkeep.Difference{What: Map{Name: name}.What(), Found: describe(entries, 0), Repair: func() error { return nil }}
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
