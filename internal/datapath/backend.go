package datapath

import (
	"encoding/binary"
	"math"
	"net/netip"
	"slices"
	"sync/atomic"
	"unsafe"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/nexthop"
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
	slots   int              // that it owns
	vlan    uint16           // tag of its next hop
	answers int              // the interface by which its answers may come, as in nexthop.Hop
	link    int              // the interface that its route leads into
	via     nexthop.Neighbor // whose MAC address its packets have; zero: not known yet, or none
	mac     model.MAC        // that via has had last
}

// backendEntries is the memory of the backends map: one store changes an entry, without a system
// call.
type backendEntries struct{ bpfload.Memory[abi.Backend] }

// words is a backend's entry as stored: the first three words change in place.
type words = [8]uint64

const changing = 3

// create writes a whole entry that no ring refers to yet.
func (e *backendEntries) create(index uint32, entry abi.Backend) {
	entry.Epoch = e.nextEpoch(index)
	e.write(index, entry)
}

// restore writes a whole entry of the backend that already has the index.
func (e *backendEntries) restore(index uint32, entry abi.Backend) {
	entry.Epoch = max(1, e.Entries[index].Epoch)
	e.write(index, entry)
}

// nextEpoch is the epoch of the next backend with the index; never 0: see used.
func (e *backendEntries) nextEpoch(index uint32) uint8 {
	return e.Entries[index].Epoch%math.MaxUint8 + 1
}

func (e *backendEntries) write(index uint32, entry abi.Backend) {
	state := entry.State
	entry.State = uint8(abi.BackendStateBACKEND_FREE)
	stored, fresh := (*words)(unsafe.Pointer(&e.Entries[index])), (*words)(unsafe.Pointer(&entry))
	for i, word := range fresh {
		atomic.StoreUint64(&stored[i], word)
	}
	// The state last: a flow that remembers the index must not see half an entry.
	entry.State = state
	e.update(index, entry)
}

// epochs takes over the epochs of another version's entries.
func (e *backendEntries) epochs(records []backendRecord) {
	for i := range min(len(records), len(e.Entries)) {
		e.Entries[i].Epoch = records[i].epoch
	}
}

// update changes what may change under traffic, one whole word at a time.
func (e *backendEntries) update(index uint32, entry abi.Backend) {
	entry.Epoch = e.Entries[index].Epoch
	stored, fresh := (*words)(unsafe.Pointer(&e.Entries[index])), (*words)(unsafe.Pointer(&entry))
	for i := range changing {
		if stored[i] != fresh[i] {
			atomic.StoreUint64(&stored[i], fresh[i])
		}
	}
}

// redirects says whether connections are redirected to the backend.
func (e *backendEntries) redirects(index uint32) bool {
	return int(index) < len(e.Entries) && e.alive(index) && e.Entries[index].Flags&uint8(abi.BackendFlagBACKEND_REDIRECT) != 0
}

// The two are the same: this does not compile when they differ.
const _ = -(uint32(abi.ProbePriorityREDIRECT_PROBE_PRIORITY) ^ model.RedirectProbePriority)

// alive says whether packets are sent to the backend.
func (e *backendEntries) alive(index uint32) bool { return aliveIn(e.Entries[index].State) }

func aliveIn(state uint8) bool {
	return state == uint8(abi.BackendStateBACKEND_ACTIVE) || state == uint8(abi.BackendStateBACKEND_DRAINING)
}

// used says whether the index has stood for another backend before.
func (e *backendEntries) used(index uint32) bool { return e.Entries[index].Epoch != 0 }

// holds says whether the entry is this backend's, in everything that does not change.
func (e *backendEntries) holds(index uint32, entry abi.Backend) bool {
	stored, fresh := (*words)(unsafe.Pointer(&e.Entries[index])), (*words)(unsafe.Pointer(&entry))
	return slices.Equal(stored[changing:], fresh[changing:])
}

// disown makes everything that remembers a backend let go of it, while packets on their way to it
// still find it alive.
func (e *backendEntries) disown(index uint32) {
	entry := e.Entries[index]
	entry.Epoch = e.nextEpoch(index)
	stored, fresh := (*words)(unsafe.Pointer(&e.Entries[index])), (*words)(unsafe.Pointer(&entry))
	atomic.StoreUint64(&stored[changing-1], fresh[changing-1]) // ifindex to epoch
}

// free forgets a backend. Its epoch stays, so that what remembers it can tell it from the next one.
func (e *backendEntries) free(index uint32) {
	entry := e.Entries[index]
	entry.State = uint8(abi.BackendStateBACKEND_FREE)
	e.update(index, entry)
}

// entryOf is a backend's entry as it should be now.
func entryOf(s *model.TableService, service uint32, b model.TableBackend, hop nexthop.Hop) abi.Backend {
	entry := abi.Backend{
		Mac:       hop.MAC,
		Vlan:      abi.BigEndian16(hop.VLAN),
		SourceMac: hop.Source,
		Mtu:       uint16(max(0, min(0xffff, hop.MTU-b.MaxOverhead()))),
		Ifindex:   uint32(hop.Ifindex),
		State:     uint8(b.State),
		Mode:      uint8(b.Mode),
		Address:   abi.AddressBytes(b.TunnelEnd()),
		Vip:       abi.AddressBytes(s.VIP),
		Port:      abi.BigEndian16(b.Port),
		Service:   service,
	}
	if s.Port.Single() {
		entry.VipPort = abi.BigEndian16(s.Port.First)
	}
	if b.TunnelEnd().Is6() {
		entry.Flags |= uint8(abi.BackendFlagBACKEND_IPV6)
	}
	if b.Host.IsValid() {
		entry.Flags |= uint8(abi.BackendFlagBACKEND_POD)
		entry.Vip = podName(s, &b)
	}
	if b.Redirect {
		entry.Flags |= uint8(abi.BackendFlagBACKEND_REDIRECT)
	}
	if b.SNAT {
		entry.Flags |= uint8(abi.BackendFlagBACKEND_SNAT)
	}
	if b.Asks {
		entry.Flags |= uint8(abi.BackendFlagBACKEND_ASKS)
	}
	if s.Segment.Kind == model.SegmentVLAN && b.VLAN == 0 && !b.Left && !leaves(&hop, s.Segment) {
		stayInSegment(&entry, s.Segment)
	}
	switch {
	case hop.Local:
		entry.Flags |= uint8(abi.BackendFlagBACKEND_LOCAL)
	case hop.MAC.IsZero():
		entry.State = uint8(abi.BackendStateBACKEND_DOWN)
	}
	return entry
}

// podName is the name by which the agent of a pod's host knows the pod, in the form of an entry.
func podName(s *model.TableService, b *model.TableBackend) (name abi.Address) {
	at := model.Backend{Address: b.Address, Port: b.Port}
	binary.BigEndian.PutUint32(name.Bytes[:], model.PodName(at.PodIn(&model.Service{Port: s.Port})))
	return name
}

// leaves says whether the route to a backend leads out of its service's VLAN: the neighbor that was
// found is in another network, and a frame to it with the segment's tag would reach no host. No
// route leads out by an interface with both tags of a segment that has two.
func leaves(h *nexthop.Hop, segment model.Segment) bool {
	return h.Routed && segment.ID <= 0xfff && uint32(h.VLAN) != segment.ID
}

// stayInSegment makes packets leave with the tags that they came with: l2dsr does not change the
// tags, nat writes one tag again and does not change two. Tunnels leave the segment.
func stayInSegment(entry *abi.Backend, segment model.Segment) {
	switch model.Mode(entry.Mode) {
	case model.L2DSR:
		entry.Flags |= uint8(abi.BackendFlagBACKEND_KEEP_TAGS)
	case model.NAT:
		if segment.ID > 0xfff {
			entry.Flags |= uint8(abi.BackendFlagBACKEND_TWO_TAGS)
			return
		}
		entry.Vlan = abi.BigEndian16(uint16(segment.ID & 0xfff))
	}
}
