package datapath

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
)

// heldTable is a table of the program that there is only while it is needed: the one map in a map of
// maps. It is pinned itself, because opening it by its number in the outer map would take
// CAP_SYS_ADMIN.
type heldTable struct {
	what  string // it is, in errors
	outer *ebpf.Map
	pin   string
	held  *ebpf.Map // while there is a table; nil: there is none, or it was not looked for yet
}

// keep gives the table of the earlier program to a program whose other maps were made anew.
func (h *heldTable) keep() error {
	table, err := ebpf.LoadPinnedMap(h.pin, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", h.what, err)
	}
	defer table.Close()
	if err := h.outer.Put(uint32(0), table); err != nil {
		return fmt.Errorf("keep %s: %w", h.what, err)
	}
	return nil
}

// put switches the table in, and its pin after it. Where another director has taken the pins (owned
// is false), the table is only held open. After an error before the switch the earlier table stays in
// use.
func (h *heldTable) put(table *ebpf.Map, owned bool) error {
	held, err := table.Clone()
	if err != nil {
		return fmt.Errorf("hold %s: %w", h.what, err)
	}
	fresh := h.pin + beside
	if owned {
		if err := h.pinBeside(table, fresh); err != nil {
			return errors.Join(err, held.Close())
		}
	}
	if err := h.outer.Put(uint32(0), table); err != nil {
		err = fmt.Errorf("switch %s: %w", h.what, err)
		if owned {
			err = errors.Join(err, os.Remove(fresh))
		}
		return errors.Join(err, held.Close())
	}
	h.letGo()
	h.held = held
	if owned {
		if err := os.Rename(fresh, h.pin); err != nil {
			return fmt.Errorf("pin %s: %w", h.what, err)
		}
	}
	return nil
}

func (h *heldTable) pinBeside(table *ebpf.Map, fresh string) error {
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove pin of an earlier %s: %w", h.what, err)
	}
	if err := table.Pin(fresh); err != nil {
		return fmt.Errorf("pin %s: %w", h.what, err)
	}
	return nil
}

// has says whether it is this table that is held.
func (h *heldTable) has(table *ebpf.Map) bool {
	info, err := table.Info()
	if err != nil || h.held == nil {
		return false
	}
	id, _ := info.ID()
	return isMap(h.held, id)
}

// used opens the table that is in use; nil: there is none. What is pinned may be another table:
// another director may have taken the pins, or a process was killed between switching and pinning.
func (h *heldTable) used() (*ebpf.Map, error) {
	used, there, err := h.number()
	if err != nil || !there {
		return nil, err
	}
	if h.held != nil && isMap(h.held, used) {
		return h.held.Clone()
	}
	return h.pinned(used)
}

// number is the number of the table that is in use.
func (h *heldTable) number() (id ebpf.MapID, there bool, err error) {
	if err := h.outer.Lookup(uint32(0), &id); err != nil {
		return 0, false, ignoreMissing("find "+h.what, err)
	}
	return id, true, nil
}

// pinned opens the table with this number, if it is the one that is pinned.
func (h *heldTable) pinned(id ebpf.MapID) (*ebpf.Map, error) {
	table, err := ebpf.LoadPinnedMap(h.pin, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", h.what, err)
	}
	if !isMap(table, id) {
		return nil, table.Close()
	}
	return table, nil
}

// hold keeps the table open while there is one: no other program can open it, and without its pin
// all its connections would be gone.
func (h *heldTable) hold() error {
	used, there, err := h.number()
	if err != nil {
		return err
	}
	if !there {
		h.letGo()
		return nil
	}
	table, err := h.pinned(used)
	if err != nil || table == nil {
		return err
	}
	h.letGo()
	h.held = table
	return nil
}

// drop frees the table and, if the pins are this director's, its pin.
func (h *heldTable) drop(owned bool) error {
	// Write only if there is a table: a write to a map of maps waits for a grace period.
	if _, there, err := h.number(); err != nil || !there {
		return err
	}
	err := ignoreMissing("free "+h.what, h.outer.Delete(uint32(0)))
	if owned {
		if gone := os.Remove(h.pin); !errors.Is(gone, os.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	h.letGo()
	return err
}

func (h *heldTable) letGo() {
	if h.held != nil {
		h.held.Close()
		h.held = nil
	}
}

// isMap reports whether a map has that number.
func isMap(m *ebpf.Map, number ebpf.MapID) bool {
	info, err := m.Info()
	if err != nil {
		return false
	}
	id, _ := info.ID()
	return id == number
}
