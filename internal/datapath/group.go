package datapath

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/contents"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/nexthop"
	"weir.io/weir/internal/model"
)

// waitRate is how many later fragments may wait for their first one, per second and CPU. Each takes
// at most six frames between directors: packets that any host can send must not fill their link.
const waitRate = 10000

// peer is another director of the group and the way to it.
type peer struct {
	address netip.Addr
	hop     nexthop.Hop
	there   bool // it answers, and how frames get to it is known
}

// group are the directors among which fragments are divided, as this one sees them.
type group struct {
	own     []netip.Addr // those of the configured addresses that are this host's
	peers   []peer       // the others, in their order; the first is number 1
	divided bool         // the maps divide fragments among the directors that are there
}

// hostMaps is what this process has written of this host and of the group; nil: nothing yet.
type hostMaps struct {
	own      map[uint64]uint8
	peers    []abi.Peer
	peerMACs map[uint64]uint32
	slots    []abi.GroupSlot
	egress   map[uint32]uint32 // interfaces that were open for forwarding at the last change
}

// readGroup looks up the configured directors: which one this is, and how frames get to the others.
func (d *Datapath) readGroup() group {
	var g group
	addresses := slices.Clone(d.table.Group)
	slices.SortFunc(addresses, netip.Addr.Compare)
	for _, a := range slices.Compact(addresses) {
		// As for an l2dsr backend: on a shared link, or not at all.
		hop := d.hops.Resolve(model.TableBackend{Address: a, Mode: model.L2DSR}, d.own)
		if hop.Local {
			g.own = append(g.own, a)
			continue
		}
		g.peers = append(g.peers, peer{address: a, hop: hop})
	}
	return g
}

// followGroup brings the group's maps up to date, and returns the flag of the settings that goes
// with them. What an earlier process has written stays until it is known which directors answer.
func (d *Datapath) followGroup() (flag uint32, err error) {
	d.group = d.readGroup()
	on := uint32(abi.SettingsFlagSETTINGS_GROUP)
	if len(d.group.own) == 0 || len(d.group.peers) == 0 {
		if len(d.group.own) == 0 && len(d.group.peers) > 0 && !d.outside {
			d.log.Warn("director.group has no address of this host: fragments stay where they arrive", "group", d.table.Group)
		}
		d.outside, d.meets = len(d.group.own) == 0, nil
		return 0, d.prober.ask(nil) // which opens nothing
	}
	d.outside = false
	others := make([]netip.Addr, len(d.group.peers))
	for i, p := range d.group.peers {
		others[i] = p.address
	}
	if err := d.writePeers(); err != nil {
		return 0, err
	}
	if err := d.prober.ask(others); err != nil {
		d.log.Error("find out who is there of the group", "error", err) // services do not wait for it
		return d.written.Flags & on, nil
	}
	answers, decided := d.prober.answers()
	if !decided {
		return d.written.Flags & on, nil
	}
	for i := range d.group.peers {
		p := &d.group.peers[i]
		p.there = answers[p.address] && !p.hop.MAC.IsZero()
	}
	if err := d.writeSlots(); err != nil {
		return 0, err
	}
	d.group.divided = true
	return on, nil
}

// sayGroup logs which directors have begun or ceased to take part, once they have: an answer alone
// is not enough, because the kernel may find out only after it how frames get there.
func (d *Datapath) sayGroup() {
	if !d.group.divided {
		return
	}
	meets := map[netip.Addr]bool{}
	for _, p := range d.group.peers {
		switch {
		case p.there && !d.meets[p.address]:
			d.log.Info("director of the group answers", "director", p.address)
		case !p.there && d.meets[p.address]:
			d.log.Warn("director of the group does not answer: the others take its fragments", "director", p.address)
		}
		meets[p.address] = p.there
	}
	d.meets = meets
}

// awaitGroup gives the other directors a moment to answer, before the program of this
// process takes the place of another version's: fragments go on as they did.
func (d *Datapath) awaitGroup() {
	if len(d.attached) > 0 || d.kernel.adopted || len(d.group.own) == 0 {
		return
	}
	for deadline := time.Now().Add(probeEvery / 4); time.Now().Before(deadline); time.Sleep(time.Millisecond) { // between two looks at the answers
		if _, decided := d.prober.answers(); decided {
			return
		}
	}
}

// writePeers says how frames get to the other directors, and by which MAC addresses frames from
// them are known.
func (d *Datapath) writePeers() error {
	macs := map[uint64]uint32{}
	entries := make([]abi.Peer, d.kernel.Peers.MaxEntries()) // the first entry is no director's
	for i, p := range d.group.peers {
		if p.hop.MAC.IsZero() {
			continue
		}
		macs[nexthop.MACWord(p.hop.MAC)] = uint32(i + 1)
		entries[i+1] = abi.Peer{Mac: p.hop.MAC, SourceMac: p.hop.Source,
			Mtu: uint16(max(0, min(0xffff, p.hop.MTU))), Ifindex: uint32(p.hop.Ifindex)}
	}
	if slices.Equal(entries, d.wrote.peers) {
		return nil
	}
	byHand, err := contents.ReplaceArray(d.kernel.Peers, entries, d.wrote.peers)
	if d.countHands("peers", byHand); err != nil {
		return fmt.Errorf("directors of the group: %w", err)
	}
	byHand, err = contents.Replace(d.kernel.PeerMacs, macs, d.wrote.peerMACs)
	if d.countHands("peer_macs", byHand); err != nil {
		return fmt.Errorf("addresses of the group's directors: %w", err)
	}
	d.wrote.peers, d.wrote.peerMACs = entries, macs
	return nil
}

func (d *Datapath) writeSlots() error {
	slots := d.group.divide()
	if slices.Equal(slots, d.wrote.slots) {
		return nil
	}
	byHand, err := contents.ReplaceArray(d.kernel.GroupSlots, slots, d.wrote.slots)
	if d.countHands("group_slots", byHand); err != nil {
		return fmt.Errorf("slots of the group: %w", err)
	}
	d.wrote.slots = slots
	return nil
}

// groupSlots is GROUP_SLOTS.
const groupSlots = 256

// divide gives each slot to the director that ranks highest in it, of those that are there: all
// directors that see the same ones agree, and when one goes or comes only its own slots change
// (rendezvous hashing; Thaler and Ravishankar 1998).
func (g *group) divide() []abi.GroupSlot {
	slots := make([]abi.GroupSlot, groupSlots)
	for slot := range slots {
		var first, second uint32 // numbers; 0 is this director
		best := uint64(0)        // of this director
		for _, a := range g.own {
			best = max(best, rank(a, slot))
		}
		next := uint64(0) // of the best other one
		for i, p := range g.peers {
			if r := rank(p.address, slot); p.there && r > next {
				next, second = r, uint32(i+1)
			}
		}
		if next > best {
			first, second = second, 0
		}
		slots[slot] = abi.GroupSlot{Owner: first, Second: second}
	}
	return slots
}

// rank is a director's rank in a slot: never 0, and the same on every director.
func rank(a netip.Addr, slot int) uint64 {
	bytes := a.As16()
	hash := uint64(slot) + 1
	for _, word := range []uint64{binary.BigEndian.Uint64(bytes[:8]), binary.BigEndian.Uint64(bytes[8:])} {
		// The finisher of SplitMix64 (Steele, Lea and Flood 2014).
		hash = (hash ^ word) + 0x9e3779b97f4a7c15
		hash = (hash ^ hash>>30) * 0xbf58476d1ce4e5b9
		hash = (hash ^ hash>>27) * 0x94d049bb133111eb
		hash ^= hash >> 31
	}
	return max(1, hash)
}

// groupChanged runs when a director of the group has begun or ceased to answer.
func (d *Datapath) groupChanged() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed() || !d.begun {
		return
	}
	d.beginChange(d.whole)
	flag, err := d.followGroup()
	if err == nil {
		settings := d.written
		settings.Flags = settings.Flags&^uint32(abi.SettingsFlagSETTINGS_GROUP) | flag
		err = d.writeSettings(settings)
	}
	if err != nil {
		d.log.Error("follow the group's directors", "error", err)
		return
	}
	d.sayGroup()
}
