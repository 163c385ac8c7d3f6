package nexthop

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// hostMACs are the MAC addresses of a host, as the resolver knows them.
type hostMACs struct {
	wanted  bool             // something asks for them
	known   map[uint64]uint8 // as keys of own_macs; nil: to be read
	changes int              // how often they were to be read again
}

// forget makes the next question go to the kernel.
func (m *hostMACs) forget() {
	m.known = nil
	m.changes++
}

// HostMACs returns the MAC addresses of all interfaces of this network namespace, as keys of own_macs,
// and those that the director's interfaces take frames for besides, such as a macvlan's in a
// container. It asks the kernel only after a change. The caller must not change the map.
func (r *Resolver) HostMACs() (map[uint64]uint8, error) {
	r.mu.Lock()
	r.own.wanted = true
	known, changes, named := r.own.known, r.own.changes, maps.Clone(r.named)
	r.mu.Unlock()
	if known != nil {
		return known, nil
	}
	own, err := r.readHostMACs(named)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.own.changes == changes { // otherwise there is news to come
		r.own.known = own
	}
	return own, nil
}

// forgetHostMACs makes HostMACs ask again.
func (r *Resolver) forgetHostMACs() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.own.forget()
}

// IgnoreHostMACs ends what HostMACs has begun.
func (r *Resolver) IgnoreHostMACs() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.own.wanted {
		r.own.wanted = false
		r.own.forget()
	}
}

// ownMACsDiffer reports whether the host has other MAC addresses than those that are known. The
// kernel does not report those of interfaces in other network namespaces.
func (r *Resolver) ownMACsDiffer() bool {
	r.mu.Lock()
	wanted, known, changes, named := r.own.wanted, r.own.known, r.own.changes, maps.Clone(r.named)
	r.mu.Unlock()
	if !wanted {
		return false
	}
	own, err := r.readHostMACs(named)
	if err != nil || known != nil && maps.Equal(own, known) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.own.changes == changes {
		r.own.forget()
	}
	return true
}

// strictSocket is a socket for questions about one interface: only strict ones are answered for that
// one alone (NETLINK_GET_STRICT_CHK).
func strictSocket() (*nl.SocketHandle, error) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE) // to no group
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	if err := unix.SetsockoptInt(socket.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil {
		socket.Close()
		return nil, fmt.Errorf("ask netlink for strict answers: %w", err)
	}
	return &nl.SocketHandle{Socket: socket}, nil
}

// takenBy returns the forwarding database of an interface: of one that is no bridge, the addresses that
// its filter lets in.
func (r *Resolver) takenBy(index int) (entries []*netlink.Neigh, err error) {
	question := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, unix.NLM_F_DUMP)
	question.AddData(&netlink.Ndmsg{Family: unix.AF_BRIDGE})
	question.AddData(nl.NewRtAttr(netlink.NDA_IFINDEX, nl.Uint32Attr(uint32(index))))
	question.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: r.strict}
	messages, err := question.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		entry, err := netlink.NeighDeserialize(m)
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry)
	}
	return entries, nil
}

// readHostMACs asks the kernel. It does not need the lock.
func (r *Resolver) readHostMACs(named map[string]int) (map[uint64]uint8, error) {
	own := map[uint64]uint8{}
	add := func(address []byte) {
		const group = 1 // of the first byte: a multicast address
		if len(address) == len(model.MAC{}) && address[0]&group == 0 && model.MAC(address) != (model.MAC{}) {
			own[MACWord(model.MAC(address))] = 1
		}
	}
	links, err := whole(r.netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	for _, link := range links {
		add(link.Attrs().HardwareAddr)
	}
	for name, index := range named {
		taken, err := whole(func() ([]*netlink.Neigh, error) { return r.takenBy(index) })
		if err != nil {
			return nil, fmt.Errorf("list MAC addresses of %s: %w", name, err)
		}
		for _, entry := range taken {
			if entry.LinkIndex == index && entry.Flags&netlink.NTF_SELF != 0 {
				add(entry.HardwareAddr)
			}
		}
	}
	return own, nil
}

// readings is how often a list is read that changes meanwhile.
const readings = 5

// whole reads a list again if it has changed while it was read.
func whole[T any](list func() ([]T, error)) (all []T, err error) {
	for range readings {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

// MACWord is a MAC address as a key of peer_macs and own_macs.
func MACWord(mac model.MAC) uint64 {
	var word [8]byte
	copy(word[:], mac[:])
	return binary.LittleEndian.Uint64(word[:])
}
