package datapath

import (
	"errors"
	"fmt"
	"hash/maphash"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// lineSize is sizeof(struct ring_line).
const lineSize = 64

const (
	headerLines  = 1
	slotsPerLine = lineSize / int(unsafe.Sizeof(directorSlot{}))
	slotList     = uint32(1) << 31 // SLOT_LIST
)

// ringSeed keys the fingerprints by which an unchanged ring is recognised.
var ringSeed = maphash.MakeSeed()

// ringImage is a ring as the kernel holds it: header, slots, lists.
type ringImage []byte

// ringBytes is the memory that a ring takes in the kernel.
func ringBytes(r *model.Ring) uint64 {
	slotLines := (len(r.Slots) + slotsPerLine - 1) / slotsPerLine
	return uint64(headerLines+slotLines+len(r.Lists)) * lineSize
}

// buildRing writes a ring. index gives the kernel's index of the backend at a
// position of the service.
func buildRing(buffer []byte, s *model.TableService, service uint32, index []uint32) (ringImage, error) {
	size := int(ringBytes(&s.Ring))
	firstList := size/lineSize - len(s.Ring.Lists)
	if cap(buffer) < size {
		buffer = make([]byte, size)
	}
	image := buffer[:size]
	clear(image)

	header := (*directorRingHeader)(unsafe.Pointer(&image[0]))
	header.Size = uint32(len(s.Ring.Slots))
	header.Service = service
	header.Salt = s.Salt
	header.Policy = uint8(s.Policy)
	header.Affinity = uint8(s.Affinity)
	for _, b := range s.Backends {
		if b.Mode == model.NAT && b.SNAT {
			header.Flags |= uint8(directorRingFlagRING_SNAT)
		}
	}

	if len(s.Ring.Slots) > 0 {
		slots := unsafe.Slice((*directorSlot)(unsafe.Pointer(&image[headerLines*lineSize])), len(s.Ring.Slots))
		for i, slot := range s.Ring.Slots {
			if int(slot.Owner) >= len(index) {
				return nil, fmt.Errorf("service %s: slot %d is owned by backend %d of %d", s.Name, i, slot.Owner, len(index))
			}
			slots[i].Owner = index[slot.Owner]
			switch {
			case slot.Next == model.NoBackend:
			case slot.Next&model.ListFlag != 0:
				slots[i].Next = slotList | (uint32(firstList) + slot.Next&^model.ListFlag)
			default:
				slots[i].Next = index[slot.Next]
			}
		}
	}
	for i, list := range s.Ring.Lists {
		line := (*directorCandidates)(unsafe.Pointer(&image[(firstList+i)*lineSize]))
		if len(list) > len(line.Index) {
			return nil, fmt.Errorf("service %s: a row has %d candidates after its owner, at most %d fit", s.Name, len(list), len(line.Index))
		}
		line.Count = uint32(len(list))
		for j, position := range list {
			line.Index[j] = index[position]
		}
	}
	return image, nil
}

// fingerprint recognises an image that is in the kernel already.
func (r ringImage) fingerprint() uint64 { return maphash.Bytes(ringSeed, r) }

// load makes a map of the image. It is filled through its memory: one copy
// instead of a system call per line.
func (r ringImage) load() (*ebpf.Map, error) {
	ring, err := ebpf.NewMap(&ebpf.MapSpec{
		Type:       ebpf.Array,
		KeySize:    4,
		ValueSize:  lineSize,
		MaxEntries: uint32(len(r) / lineSize),
		Flags:      unix.BPF_F_INNER_MAP | unix.BPF_F_MMAPABLE,
	})
	if err != nil {
		return nil, fmt.Errorf("create ring: %w", err)
	}
	memory, err := unix.Mmap(ring.FD(), 0, len(r), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map ring into memory: %w", err), ring.Close())
	}
	copy(memory, r)
	if err := unix.Munmap(memory); err != nil {
		return nil, errors.Join(fmt.Errorf("unmap ring: %w", err), ring.Close())
	}
	return ring, nil
}

// ringSwitch collects new rings and switches them in with one system call: any
// write to a map in a map waits for an RCU grace period, a batch for only one.
type ringSwitch struct {
	indexes []uint32
	fds     []uint32
	rings   []*ebpf.Map
	done    []func() // run after the switch
}

func (s *ringSwitch) add(service uint32, ring *ebpf.Map, done func()) {
	s.indexes = append(s.indexes, service)
	s.fds = append(s.fds, uint32(ring.FD()))
	s.rings = append(s.rings, ring)
	s.done = append(s.done, done)
}

// commit switches the rings in and lets go of them: the outer map keeps them.
func (s *ringSwitch) commit(rings *ebpf.Map) error {
	defer s.close()
	if len(s.indexes) == 0 {
		return nil
	}
	if _, err := rings.BatchUpdate(s.indexes, s.fds, nil); err != nil {
		return fmt.Errorf("switch %d rings: %w", len(s.indexes), err)
	}
	for _, done := range s.done {
		done()
	}
	return nil
}

func (s *ringSwitch) close() {
	for _, ring := range s.rings {
		ring.Close()
	}
	s.rings = nil
}
