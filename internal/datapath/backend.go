package datapath

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// backendKey is what a backend's index stands for as long as it is used. It identifies the
// backend, and not its state or the way to it: what is remembered of its flows stays true
// in another mode. Only full NAT knows flows by itself.
type backendKey struct {
	address netip.Addr
	port    uint16
	snat    bool
}

// backend is one backend of one service and its place in the kernel.
type backend struct {
	index   uint32
	desired model.TableBackend
	slots   int       // that it owns
	vlan    uint16    // tag of its next hop
	answers int       // the interface by which its answers may come, as in nextHop
	link    int       // the interface that its route leads into
	via     neighbor  // whose MAC address its packets have; zero: not known yet, or none
	mac     model.MAC // that via has had last
}

// backendEntries is the memory of the backends map: one store changes an entry, without a system
// call.
type backendEntries struct {
	memory  []byte
	entries []directorBackend
}

// words is a backend's entry as stored: the first three words change in place.
type words = [8]uint64

const changing = 3

func mapBackends(m *ebpf.Map, count uint32) (backendEntries, error) {
	size := int(count) * int(unsafe.Sizeof(directorBackend{}))
	memory, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return backendEntries{}, fmt.Errorf("map backends into memory: %w", err)
	}
	return backendEntries{memory, unsafe.Slice((*directorBackend)(unsafe.Pointer(&memory[0])), count)}, nil
}

func (e *backendEntries) close() error {
	if e.memory == nil {
		return nil
	}
	err := unix.Munmap(e.memory)
	e.memory, e.entries = nil, nil
	if err != nil {
		return fmt.Errorf("unmap backends: %w", err)
	}
	return nil
}

// create writes a whole entry that no ring refers to yet.
func (e *backendEntries) create(index uint32, entry directorBackend) {
	entry.Epoch = e.nextEpoch(index)
	e.write(index, entry)
}

// restore writes a whole entry of the backend that already has the index.
func (e *backendEntries) restore(index uint32, entry directorBackend) {
	entry.Epoch = max(1, e.entries[index].Epoch)
	e.write(index, entry)
}

// nextEpoch is the epoch of the next backend with the index; never 0: see used.
func (e *backendEntries) nextEpoch(index uint32) uint8 {
	return e.entries[index].Epoch%math.MaxUint8 + 1
}

func (e *backendEntries) write(index uint32, entry directorBackend) {
	state := entry.State
	entry.State = uint8(directorBackendStateBACKEND_FREE)
	stored, fresh := (*words)(unsafe.Pointer(&e.entries[index])), (*words)(unsafe.Pointer(&entry))
	for i, word := range fresh {
		atomic.StoreUint64(&stored[i], word)
	}
	// The state last: a flow that remembers the index must not see half an entry.
	entry.State = state
	e.update(index, entry)
}

// epochs takes over the epochs of another version's entries.
func (e *backendEntries) epochs(records []backendRecord) {
	for i := range min(len(records), len(e.entries)) {
		e.entries[i].Epoch = records[i].epoch
	}
}

// update changes what may change under traffic, one whole word at a time.
func (e *backendEntries) update(index uint32, entry directorBackend) {
	entry.Epoch = e.entries[index].Epoch
	stored, fresh := (*words)(unsafe.Pointer(&e.entries[index])), (*words)(unsafe.Pointer(&entry))
	for i := range changing {
		if stored[i] != fresh[i] {
			atomic.StoreUint64(&stored[i], fresh[i])
		}
	}
}

// redirects says whether connections are redirected to the backend.
func (e *backendEntries) redirects(index uint32) bool {
	return int(index) < len(e.entries) && e.alive(index) && e.entries[index].Flags&uint8(directorBackendFlagBACKEND_REDIRECT) != 0
}

// The two are the same: this does not compile when they differ.
const _ = -(uint32(directorProbePriorityREDIRECT_PROBE_PRIORITY) ^ model.RedirectProbePriority)

// alive says whether packets are sent to the backend.
func (e *backendEntries) alive(index uint32) bool { return aliveIn(e.entries[index].State) }

func aliveIn(state uint8) bool {
	return state == uint8(directorBackendStateBACKEND_ACTIVE) || state == uint8(directorBackendStateBACKEND_DRAINING)
}

// used says whether the index has stood for another backend before.
func (e *backendEntries) used(index uint32) bool { return e.entries[index].Epoch != 0 }

// holds says whether the entry is this backend's, in everything that does not change.
func (e *backendEntries) holds(index uint32, entry directorBackend) bool {
	stored, fresh := (*words)(unsafe.Pointer(&e.entries[index])), (*words)(unsafe.Pointer(&entry))
	return slices.Equal(stored[changing:], fresh[changing:])
}

// disown makes everything that remembers a backend let go of it, while packets on their way to it
// still find it alive.
func (e *backendEntries) disown(index uint32) {
	entry := e.entries[index]
	entry.Epoch = e.nextEpoch(index)
	stored, fresh := (*words)(unsafe.Pointer(&e.entries[index])), (*words)(unsafe.Pointer(&entry))
	atomic.StoreUint64(&stored[changing-1], fresh[changing-1]) // ifindex to epoch
}

// free forgets a backend. Its epoch stays, so that what remembers it can tell it from the next one.
func (e *backendEntries) free(index uint32) {
	entry := e.entries[index]
	entry.State = uint8(directorBackendStateBACKEND_FREE)
	e.update(index, entry)
}

// entryOf is a backend's entry as it should be now.
func entryOf(s *model.TableService, service uint32, b model.TableBackend, hop nextHop) directorBackend {
	entry := directorBackend{
		Mac:       hop.mac,
		Vlan:      bigEndian16(hop.vlan),
		SourceMac: hop.source,
		Mtu:       uint16(max(0, min(0xffff, hop.mtu-b.MaxOverhead()))),
		Ifindex:   uint32(hop.ifindex),
		State:     uint8(b.State),
		Mode:      uint8(b.Mode),
		Address:   addressBytes(b.TunnelEnd()),
		Vip:       addressBytes(s.VIP),
		Port:      bigEndian16(b.Port),
		Service:   service,
	}
	if s.Port.Single() {
		entry.VipPort = bigEndian16(s.Port.First)
	}
	if b.TunnelEnd().Is6() {
		entry.Flags |= uint8(directorBackendFlagBACKEND_IPV6)
	}
	if b.Host.IsValid() {
		entry.Flags |= uint8(directorBackendFlagBACKEND_POD)
		entry.Vip = podName(s, &b)
	}
	if b.Redirect {
		entry.Flags |= uint8(directorBackendFlagBACKEND_REDIRECT)
	}
	if b.SNAT {
		entry.Flags |= uint8(directorBackendFlagBACKEND_SNAT)
	}
	if b.Asks {
		entry.Flags |= uint8(directorBackendFlagBACKEND_ASKS)
	}
	if s.Segment.Kind == model.SegmentVLAN && b.VLAN == 0 && !hop.leaves(s.Segment) {
		stayInSegment(&entry, s.Segment)
	}
	switch {
	case hop.local:
		entry.Flags |= uint8(directorBackendFlagBACKEND_LOCAL)
	case hop.mac.IsZero():
		entry.State = uint8(directorBackendStateBACKEND_DOWN)
	}
	return entry
}

// podName is the name by which the agent of a pod's host knows the pod, in the form of an entry.
func podName(s *model.TableService, b *model.TableBackend) (name directorAddress) {
	at := model.Backend{Address: b.Address, Port: b.Port}
	binary.BigEndian.PutUint32(name.Bytes[:], model.PodName(at.PodIn(&model.Service{Port: s.Port})))
	return name
}

// leaves says whether the route to a backend leads out of its service's VLAN: the neighbor that was
// found is in another network, and a frame to it with the segment's tag would reach no host. No
// route leads out by an interface with both tags of a segment that has two.
func (h *nextHop) leaves(segment model.Segment) bool {
	return h.routed && segment.ID <= 0xfff && uint32(h.vlan) != segment.ID
}

// stayInSegment makes packets leave with the tags that they came with: l2dsr does not change the
// tags, nat writes its one tag again. Tunnels leave the segment.
func stayInSegment(entry *directorBackend, segment model.Segment) {
	switch model.Mode(entry.Mode) {
	case model.L2DSR:
		entry.Flags |= uint8(directorBackendFlagBACKEND_KEEP_TAGS)
	case model.NAT:
		entry.Vlan = bigEndian16(uint16(segment.ID & 0xfff))
	}
}

// addressBytes is struct address.
func addressBytes(a netip.Addr) (out directorAddress) {
	copy(out.Bytes[:], a.AsSlice())
	return out
}
