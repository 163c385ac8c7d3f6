package datapath

import (
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/nexthop"
	"weir.io/weir/internal/model"
)

// groupOf is the group as one of its directors sees it.
func groupOf(addresses []netip.Addr, own int, gone map[int]bool) (g group, number map[uint32]int) {
	number = map[uint32]int{0: own}
	for i, a := range addresses {
		if i == own {
			g.own = append(g.own, a)
			continue
		}
		g.peers = append(g.peers, peer{address: a, there: !gone[i]})
		number[uint32(len(g.peers))] = i
	}
	return g, number
}

// All directors that see the same ones agree on every slot's owner; the slots are shared
// evenly; and the slots of a director that leaves go to the second directors of the slots.
func TestGroupDivides(t *testing.T) {
	addresses := []netip.Addr{
		netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("10.0.0.4"), netip.MustParseAddr("2001:db8::2"),
	}
	owners := func(own int, gone map[int]bool) (list [groupSlots]int) {
		g, number := groupOf(addresses, own, gone)
		for slot, entry := range g.divide() {
			list[slot] = number[entry.Owner]
			if list[slot] == own && number[entry.Second] == own && len(gone) < 3 {
				t.Errorf("slot %d of director %d has nobody to wait with", slot, own)
			}
		}
		return list
	}
	all := owners(0, nil)
	share := map[int]int{}
	for _, owner := range all {
		share[owner]++
	}
	for i := range addresses {
		if share[i] < 40 || share[i] > 90 {
			t.Errorf("director %d has %d of %d slots", i, share[i], groupSlots)
		}
		if owners(i, nil) != all {
			t.Errorf("directors 0 and %d do not agree", i)
		}
	}
	without := owners(0, map[int]bool{2: true})
	for slot := range all {
		if all[slot] != 2 && without[slot] != all[slot] {
			t.Errorf("slot %d moves from %d to %d, though director 2 is gone", slot, all[slot], without[slot])
		}
		if without[slot] == 2 {
			t.Errorf("slot %d is of a director that is gone", slot)
		}
	}
	if alone := owners(1, map[int]bool{0: true, 2: true, 3: true}); alone != [groupSlots]int(slices.Repeat([]int{1}, groupSlots)) {
		t.Error("a director that is alone leaves slots to others")
	}
}

// A director that answers is there; one that leaves three questions without an answer is not.
func TestProberHearsAnswers(t *testing.T) {
	changes := 0
	p := &prober{log: slog.New(slog.DiscardHandler), changed: func() { changes++ }, secret: 42, others: map[netip.Addr]*probed{}, round: 5}
	a := netip.MustParseAddr("10.0.0.3")
	p.others[a] = &probed{since: 5}
	there := func() bool { answers, _ := p.answers(); return answers[a] }
	if _, decided := p.answers(); decided {
		t.Error("decided before there was time to answer")
	}
	from := netip.AddrPortFrom(a, probePort)
	for name, answer := range map[string]func() bool{
		"of a stranger":       func() bool { return p.take(netip.MustParseAddrPort("10.0.0.4:6080"), question(42, 5)) },
		"from another port":   func() bool { return p.take(netip.AddrPortFrom(a, 9), question(42, 5)) },
		"of another question": func() bool { return p.take(from, question(42, 2)) },
		"of a later question": func() bool { return p.take(from, question(42, 6)) },
		"without its secret":  func() bool { return p.take(from, question(41, 5)) },
		"cut short":           func() bool { return p.take(from, question(42, 5)[:8]) },
		"of another kind":     func() bool { return p.take(from, append([]byte{1}, question(42, 5)[1:]...)) },
	} {
		if answer() || there() {
			t.Errorf("an answer %s counts", name)
		}
	}
	if !p.take(from, question(42, 5)) || !there() {
		t.Error("an answer does not count")
	}
	if p.take(from, question(42, 5)) {
		t.Error("the second answer is news")
	}
	p.sockets = nil
	for range probesMissed {
		p.missed()
		if !there() {
			t.Fatal("gone after too few questions")
		}
		p.round++
	}
	if !p.missed() || there() {
		t.Error("there, though three questions have no answer")
	}
}

// Set writes how frames get to the other directors, and which fragments are theirs,
// when it is known which directors answer. Here none does: the director keeps all.
func TestSetWritesGroup(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	own, beside, far := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.11"), netip.MustParseAddr("192.0.2.9")
	addNeighbor(t, beside)
	d := openTest(t, model.Limits{})
	table := tableOf(1, 2, 0)
	table.Group = []netip.Addr{far, beside, own}
	must(t, d.Set(table))
	on := func() bool {
		return settingsOf(t, d).Flags&uint32(abi.SettingsFlagSETTINGS_GROUP) != 0
	}
	for deadline := time.Now().Add(20 * time.Second); !on(); time.Sleep(5 * time.Millisecond) { // between two looks
		if time.Now().After(deadline) {
			t.Fatal("waited in vain for the group")
		}
	}
	var p abi.Peer
	must(t, d.kernel.Peers.Lookup(uint32(1), &p))
	if p.Mac != neighborMAC(beside) || p.Mtu != 1500 || p.Ifindex == 0 {
		t.Errorf("director 1 is %+v, want the neighbor's MAC", p)
	}
	must(t, d.kernel.Peers.Lookup(uint32(2), &p))
	if p != (abi.Peer{}) {
		t.Errorf("director 2, which is on no link of this host, is %+v", p)
	}
	var number uint32
	must(t, d.kernel.PeerMacs.Lookup(nexthop.MACWord(neighborMAC(beside)), &number))
	if number != 1 {
		t.Errorf("the neighbor's MAC is of director %d", number)
	}
	slots := func() (owned map[uint32]int) {
		owned = map[uint32]int{}
		for slot := range uint32(groupSlots) {
			var entry abi.GroupSlot
			must(t, d.kernel.GroupSlots.Lookup(slot, &entry))
			owned[entry.Owner]++
		}
		return owned
	}
	if owned := slots(); owned[0] != groupSlots {
		t.Errorf("slots are owned %v, though nobody answers", owned)
	}
	d.prober.mu.Lock()
	for _, a := range []netip.Addr{beside, far} {
		d.prober.others[a].there, d.prober.others[a].answered = true, d.prober.round
	}
	d.prober.mu.Unlock()
	d.groupChanged()
	if !d.meets[beside] || d.meets[far] {
		t.Errorf("said to answer are %v, want %s, and not %s, whose MAC address nobody knows", d.meets, beside, far)
	}
	if owned := slots(); owned[1] < 80 || owned[0] < 80 || len(owned) != 2 {
		t.Errorf("slots are owned %v, want halves", owned)
	}
	table.Group = nil
	must(t, d.Set(table))
	if on() {
		t.Error("there is a group still")
	}
	table.Group = []netip.Addr{beside, far}
	must(t, d.Set(table))
	if on() {
		t.Error("there is a group that this host is not of")
	}
}
