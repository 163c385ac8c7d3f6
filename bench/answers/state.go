package answers

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.io/weir/bench/inside"
)

// state is what a director's program remembers and counts: all of its maps.
type state struct {
	pin  string
	maps inside.Maps
}

// counted returns the packets of a reason, by its number.
func (s *state) counted(reason int) (uint64, error) {
	var perCPU []struct{ Packets, Bytes uint64 }
	if err := s.maps["reasons"].Lookup(uint32(reason), &perCPU); err != nil {
		return 0, fmt.Errorf("read counter of reason %d: %w", reason, err)
	}
	var sum uint64
	for _, c := range perCPU {
		sum += c.Packets
	}
	return sum, nil
}

// dump is the contents of the maps, and of full NAT's table, by their names.
func (s *state) dump() (map[string][]byte, error) {
	all := map[string][]byte{}
	for name, m := range s.maps {
		text, err := dumpMap(m)
		if err != nil {
			return nil, fmt.Errorf("read map %s: %w", name, err)
		}
		all[name] = text
	}
	tables, err := filepath.Glob(filepath.Join(s.pin, "state", "snat_table-*"))
	if err != nil {
		return nil, err
	}
	for _, file := range tables {
		m, err := ebpf.LoadPinnedMap(file, nil)
		if err != nil {
			return nil, fmt.Errorf("open full NAT's table: %w", err)
		}
		text, err := dumpMap(m)
		if err = errors.Join(err, m.Close()); err != nil {
			return nil, fmt.Errorf("read full NAT's table: %w", err)
		}
		all[filepath.Base(file)] = text
	}
	return all, nil
}

func dumpMap(m *ebpf.Map) ([]byte, error) {
	if m.Type() == ebpf.RingBuf { // its second page says how far it is written
		page := unix.Getpagesize()
		position, err := unix.Mmap(m.FD(), int64(page), page, unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return nil, err
		}
		return slices.Clone(position[:8]), unix.Munmap(position)
	}
	if m.Flags()&unix.BPF_F_MMAPABLE != 0 {
		memory, err := unix.Mmap(m.FD(), 0, int(m.MaxEntries())*int(m.ValueSize()), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return nil, err
		}
		return slices.Clone(memory), unix.Munmap(memory)
	}
	var all []string
	for key, err := m.NextKeyBytes(nil); key != nil || err != nil; key, err = m.NextKeyBytes(key) {
		if err != nil {
			return nil, err
		}
		value := reflect.New(reflect.ArrayOf(int(m.ValueSize()), reflect.TypeFor[byte]()))
		if strings.HasPrefix(m.Type().String(), "PerCPU") {
			value = reflect.New(reflect.SliceOf(value.Elem().Type()))
		}
		if err := m.Lookup(key, value.Interface()); errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		all = append(all, fmt.Sprintf("%x %x", key, value.Elem().Interface()))
	}
	slices.Sort(all)
	return []byte(strings.Join(all, "\n")), nil
}

// differ names the maps in which two dumps differ.
func differ(a, b map[string][]byte) (names []string) {
	for name := range a {
		if !bytes.Equal(a[name], b[name]) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
