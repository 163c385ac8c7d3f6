package datapath

import (
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"unsafe"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

// ringImage is a ring as the kernel holds it: header, slots, lists, turns, and what else there is.
type ringImage []byte

// ringBytes is the memory of limits.ring-memory that a ring takes, with the one before: all but its owners. A service with
// tiers has a place for the next ring, too.
func ringBytes(s *model.TableService) uint64 {
	if len(s.Tiers) > 1 {
		return 2 * uint64(mostLines(s, firstOwners)) * abi.LineSize
	}
	return uint64(firstOwners(s)) * abi.LineSize
}

// mostLines is the largest of the lines that count counts for each tier's ring of a service.
func mostLines(s *model.TableService, count func(*model.TableService) int) (most int) {
	if len(s.Tiers) < 2 {
		return count(s)
	}
	of := *s
	for tier := range s.Tiers {
		of.Use(uint8(tier))
		most = max(most, count(&of))
	}
	return most
}

// runLines is how many lines a service's ring takes, whichever tier gets new connections.
func runLines(s *model.TableService) int {
	return mostLines(s, func(of *model.TableService) int { return firstOwners(of) + ownerLines(of) })
}

// bytesInUse is the same of the ring that packets use.
func (d *Datapath) bytesInUse(s *service) uint64 {
	if s.ring.lines == 0 {
		return 0
	}
	lines := s.ring.lines
	if _, header := ringSlots(d.rings.bytes(s.ring)); header.Flags&uint8(abi.RingFlagRING_OWNERS) != 0 && header.Owners < lines {
		lines = header.Owners // they are the last ones
	}
	if s.reserve.lines > 0 && s.desired != nil {
		return ringBytes(s.desired)
	}
	return uint64(lines) * abi.LineSize
}

// firstList is the line at which a ring's lists begin.
func firstList(r *model.Ring) int {
	return abi.HeaderLines + (len(r.Slots)+abi.SlotsPerLine-1)/abi.SlotsPerLine
}

// firstTurn is the line at which a ring's turns begin.
func firstTurn(r *model.Ring) int { return firstList(r) + len(r.Lists) }

func ringLines(r *model.Ring) int {
	return firstTurn(r) + (len(r.Turns)+abi.TurnsPerLine-1)/abi.TurnsPerLine
}

// ownerLines is how many lines of owners a ring has. There are none where packets read their slot anyway,
// because they name its backup (gue) or always ask flow memory, or where the ring asks for more than
// its slots (choose_rarely).
func ownerLines(s *model.TableService) int {
	reads := func(b model.TableBackend) bool { return b.Mode == model.GUE || b.SNAT }
	if alwaysAsks(s) || s.Policy != model.Maglev || s.Affinity != model.AffinityFlow || len(s.QUIC) > 0 || s.KernelSources || s.Quota ||
		len(s.SourceRanges) > 0 || slices.ContainsFunc(s.Backends, reads) {
		return 0
	}
	return (len(s.Ring.Slots) + abi.OwnersPerLine - 1) / abi.OwnersPerLine
}

// firstBefore is the line at which the ring before begins.
func firstBefore(s *model.TableService) int { return ringLines(&s.Ring) + quicLines(s) }

// firstOwners is the line at which the owners of slots begin.
func firstOwners(s *model.TableService) int {
	lines := firstBefore(s)
	if s.Before != nil {
		lines += ringLines(&s.Before.Ring)
	}
	return lines
}

// remembers says whether flows of a service are remembered for backends of a mode. Over GUE a
// packet carries its row, and the backends' agents know which backend has its flow. For TCP that
// must be enough. For UDP it is enough if the row names every backend for as long as it has flows.
func remembers(s *model.TableService, mode model.Mode) bool {
	return mode != model.GUE || s.Protocol.Datagrams() && !s.Reported
}

// buildRing writes a ring. index gives the kernel's index of the backend at a
// position of the service.
func buildRing(buffer []byte, s *model.TableService, service uint32, index []uint32) (ringImage, error) {
	size := runLines(s) * abi.LineSize
	if cap(buffer) < size {
		buffer = make([]byte, size)
	}
	image := buffer[:size]
	clear(image)

	header := newHeader(image, s, service, s.Affinity, &s.Ring)
	header.Lines = uint32(size / abi.LineSize)
	for _, b := range s.Backends {
		if b.Mode == model.NAT && b.SNAT {
			header.Flags |= uint8(abi.RingFlagRING_SNAT)
			continue
		}
		if remembers(s, b.Mode) {
			header.Flags |= uint8(abi.RingFlagRING_MEMORY)
		} else if s.AmongAll() {
			header.Flags |= uint8(abi.RingFlagRING_REDIRECTED)
		}
	}
	if err := writeRows(image, s, &s.Ring, index); err != nil {
		return nil, err
	}
	if len(s.QUIC) > 0 {
		header.Flags |= uint8(abi.RingFlagRING_QUIC)
		header.Quic = uint32(ringLines(&s.Ring))
		header.QuicBuckets = writeQUIC(image[int(header.Quic)*abi.LineSize:], s, index)
	}
	if ownerLines(s) > 0 {
		header.Flags |= uint8(abi.RingFlagRING_OWNERS)
		header.Owners = uint32(firstOwners(s))
	}
	if s.Before != nil {
		header.Before = uint32(firstBefore(s))
		before := image[int(header.Before)*abi.LineSize:]
		newHeader(before, s, service, s.Before.Affinity, &s.Before.Ring)
		if err := writeRows(before, s, &s.Before.Ring, index); err != nil {
			return nil, err
		}
	}
	if alwaysAsks(s) {
		flagAllSettling(image)
	}
	return image, nil
}

// alwaysAsks says whether all slots of a service ask flow memory for as long as the service stays
// the same: there is a ring before, or any slot's flow may be any backend's.
func alwaysAsks(s *model.TableService) bool { return s.Before != nil || s.AmongAll() }

func newHeader(image []byte, s *model.TableService, service uint32, affinity model.Affinity, r *model.Ring) *abi.RingHeader {
	header := (*abi.RingHeader)(unsafe.Pointer(&image[0]))
	header.Size = uint32(len(r.Slots))
	header.Service = service
	header.Lines = uint32(ringLines(r))
	header.Salt = s.Salt
	header.Older = r.Older
	header.Policy = uint8(s.Policy)
	header.Affinity, header.Prefix4, header.Prefix6 = affinity.Kind(), affinity.Prefix().V4, affinity.Prefix().V6
	if Steerable(s) == "" {
		header.Steering = 1
	}
	if Expensive(s) {
		header.FanOut = 1
	}
	return header
}

// writeRows writes slots, lists and turns.
func writeRows(image []byte, s *model.TableService, r *model.Ring, index []uint32) error {
	firstList := firstList(r)
	if len(r.Slots) > 0 {
		slots := unsafe.Slice((*abi.Slot)(unsafe.Pointer(&image[abi.HeaderLines*abi.LineSize])), len(r.Slots))
		for i, slot := range r.Slots {
			if slot.Owner == model.NoBackend {
				continue // index 0 is no backend
			}
			if int(slot.Owner) >= len(index) {
				return fmt.Errorf("service %s: slot %d is owned by backend %d of %d", s.Name, i, slot.Owner, len(index))
			}
			slots[i].Owner = index[slot.Owner]
			switch {
			case slot.Next == model.NoBackend:
			case slot.Next&model.ListFlag != 0:
				slots[i].Next = abi.SlotList | (uint32(firstList) + slot.Next&^model.ListFlag)
			default:
				slots[i].Next = index[slot.Next]
			}
		}
	}
	for i, list := range r.Lists {
		line := (*abi.Candidates)(unsafe.Pointer(&image[(firstList+i)*abi.LineSize]))
		if len(list.Next) > len(line.Index) {
			return fmt.Errorf("service %s: a row has %d candidates after its owner, at most %d fit", s.Name, len(list.Next), len(line.Index))
		}
		if len(list.Oldest) != len(list.Next)+1 {
			return fmt.Errorf("service %s: a row of %d candidates has %d by age", s.Name, len(list.Next)+1, len(list.Oldest))
		}
		line.Count = uint32(len(list.Next))
		for j, position := range list.Next {
			line.Index[j] = index[position]
		}
		copy(line.Oldest[:], list.Oldest)
		copy(line.Beyond[:], list.Oldest)
		if list.Beyond != nil {
			copy(line.Beyond[:], list.Beyond)
		}
		if list.Fixed {
			line.Fixed = 1
		}
	}
	writeTurns(image, r, index)
	return nil
}

// writeTurns writes the turns of a ring, if it has any.
func writeTurns(image []byte, r *model.Ring, index []uint32) {
	if len(r.Turns) == 0 {
		return
	}
	header := (*abi.RingHeader)(unsafe.Pointer(&image[0]))
	header.Turns, header.TurnCount = uint32(firstTurn(r)), uint32(len(r.Turns))
	turns := unsafe.Slice((*uint32)(unsafe.Pointer(&image[firstTurn(r)*abi.LineSize])), len(r.Turns))
	for i, position := range r.Turns {
		turns[i] = index[position]
	}
}

// toldOwners are the owners of the slots apart from these, two to a word; nil: the ring has none.
func toldOwners(image []byte) []uint32 {
	_, header := ringSlots(image)
	after := abi.HeaderLines + (uint64(header.Size)+uint64(abi.SlotsPerLine)-1)/uint64(abi.SlotsPerLine)
	if header.Flags&uint8(abi.RingFlagRING_OWNERS) == 0 || uint64(header.Owners) < after ||
		uint64(header.Owners)*abi.LineSize+2*uint64(header.Size) > uint64(len(image)) {
		return nil
	}
	return unsafe.Slice((*uint32)(unsafe.Pointer(&image[int(header.Owners)*abi.LineSize])), (header.Size+1)/2)
}

// tellOwner writes the owner of a slot for packets that do not read the slot, or that they have to read
// it. Packets may use the ring, and nothing else writes it meanwhile.
func tellOwner(owners []uint32, slots []abi.Slot, i int) {
	if owners == nil {
		return
	}
	told := slots[i].Owner
	if slots[i].Next&(abi.SlotList|abi.SlotSettling) != 0 || told > math.MaxUint16 {
		told = 0
	}
	shift := i % 2 * 16 // of a little-endian machine, as the programs are
	atomic.StoreUint32(&owners[i/2], owners[i/2]&^(math.MaxUint16<<shift)|told<<shift)
}

// writeOwners writes the owners of all slots.
func writeOwners(image []byte) {
	slots, _ := ringSlots(image)
	owners := toldOwners(image)
	for i := range slots {
		tellOwner(owners, slots, i)
	}
}
