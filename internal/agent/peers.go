package agent

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/cilium/ebpf"
)

// peerGrace is how long packets may still go on to a backend that a service no longer has:
// directors that have not read the change yet name it in rows. No packets are accepted from it any
// more.
const peerGrace = 10 * time.Minute

// Flags of a peer: it is a backend of the service, or it was one.
const (
	currentPeer = uint32(bpfHostPeerFlagHOST_PEER_SENDS)
	formerPeer  = uint32(0)
)

// formerPeers are the backends that services no longer have, and when they left.
type formerPeers map[bpfHostPeer]time.Duration

// retire makes peers former that are not wanted, and removes those that have been former for long
// enough, or whose service is no longer here: its index may become another service's.
func (f formerPeers) retire(m *ebpf.Map, want map[bpfHostPeer]uint32, services map[uint32]bpfHostService, now time.Duration) error {
	have, err := readAll[bpfHostPeer](m)
	if err != nil {
		return err
	}
	for peer := range f {
		_, there := have[peer]
		if _, wanted := want[peer]; wanted || !there {
			delete(f, peer)
		}
	}
	for peer, flags := range have {
		if _, wanted := want[peer]; wanted {
			continue
		}
		left, known := f[peer]
		if !known {
			left = now
			f[peer] = now
		}
		_, served := services[peer.Service]
		switch {
		case !served || now-left >= peerGrace:
			delete(f, peer)
			if err := m.Delete(peer); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return fmt.Errorf("remove a former backend: %w", err)
			}
		case flags != formerPeer:
			if err := m.Put(peer, formerPeer); err != nil {
				return fmt.Errorf("mark a former backend: %w", err)
			}
		}
	}
	return nil
}

// with returns these peers and the former ones: what the map must have.
func (f formerPeers) with(peers map[bpfHostPeer]uint32) map[bpfHostPeer]uint32 {
	all := maps.Clone(peers)
	for peer := range f {
		if _, is := all[peer]; !is {
			all[peer] = formerPeer
		}
	}
	return all
}

// agePeers forgets former backends in time. The agent's lock is held.
func (a *Agent) agePeers() error {
	if len(a.former) == 0 {
		return nil
	}
	return a.former.retire(a.objects.Peers, a.tables.peers, a.tables.services, now())
}
