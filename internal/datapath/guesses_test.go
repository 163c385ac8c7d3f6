package datapath

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// wantGuess says whether a packet shows that there are connections of older owners.
func (s scenario) wantGuess(t testing.TB, d *testDirector, port uint16, flags uint8, want bool, why string) {
	t.Helper()
	before := d.now()
	s.goes(t, d, port, flags)
	var last uint64
	if err := d.Maps["guesses"].Lookup(s.index, &last); err != nil {
		t.Fatal(err)
	}
	if got := last != 0; got != want || got && last < uint64(before) {
		t.Errorf("%s %v: the time of a guess is %d, want one: %v: %s", s.name, s.vip, last, want, why)
	}
	d.put(t, "guesses", s.index, uint64(0))
}

// The second packet of a connection that nobody knew, and that is an older owner's, is noted.
func testFlowGuessed(t *testing.T) {
	for _, is4 := range []bool{true, false} {
		w, s := flowWorld(model.TCP, is4)
		d := loadTestDirector(t, w)
		s.wantGuess(t, d, clientPort, synFlag, false, "the connection begins")
		s.wantGuess(t, d, clientPort, ackFlag, false, "its beginning was seen")
		s.wantGuess(t, d, clientPort+1, ackFlag, false, "anybody can send one packet")
		s.wantGuess(t, d, clientPort+1, ackFlag, true, "it goes on with the oldest owner")
		s.wantGuess(t, d, clientPort+1, ackFlag, false, "it is known")
		s.wantGuess(t, d, clientPort+2, ackFlag, false, "anybody can send one packet")
		s.wantGuess(t, d, clientPort+2, synFlag, false, "a SYN shows nothing")
		s.wantGuess(t, d, clientPort+2, rstFlag, false, "nobody has the connection")
		s.wantGuess(t, d, clientPort+3, finFlag, false, "a connection that ends")
		s.wantGuess(t, d, clientPort+3, ackFlag, false, "a connection that ends")
		s.wantGuess(t, d, clientPort+4, ackFlag, false, "anybody can send one packet")
		onCPU(t, 1, func() { s.wantGuess(t, d, clientPort+4, ackFlag, true, "it goes on on another CPU") })

		const down, suspect = abi.BackendStateBACKEND_DOWN, abi.BackendStateBACKEND_SUSPECT
		s.setBackend(t, d, 2, down)
		s.wantGuess(t, d, clientPort+5, ackFlag, false, "anybody can send one packet")
		s.wantGuess(t, d, clientPort+5, ackFlag, true, "the next owner's")
		s.setBackend(t, d, 1, down)
		s.wantGuess(t, d, clientPort+6, ackFlag, false, "anybody can send one packet")
		s.wantGuess(t, d, clientPort+6, ackFlag, false, "it is the owner's")
		s.setBackend(t, d, 0, suspect)
		s.wantGuess(t, d, clientPort+7, ackFlag, false, "anybody can send one packet")
		s.wantGuess(t, d, clientPort+7, ackFlag, false, "it is an owner's who may be there")
		s.setBackend(t, d, 0, down)
		s.setBackend(t, d, 1, abi.BackendStateBACKEND_ACTIVE)
		s.wantGuess(t, d, clientPort+8, ackFlag, false, "anybody can send one packet")
		s.wantGuess(t, d, clientPort+8, ackFlag, false, "it is his who stands in for the owner")

		s.settling = true
		s.wantGuess(t, d, clientPort+9, ackFlag, false, "anybody can send one packet")
		s.setRing(t, d, model.Ring{Slots: []model.Slot{{Owner: 2, Next: 0}}})
		s.wantGuess(t, d, clientPort+9, ackFlag, false, "the slot names nobody who is older")
	}
	testGuessedBefore(t)
	w, s := flowWorld(model.UDP, true)
	d := loadTestDirector(t, w)
	s.wantGuess(t, d, clientPort, 0, false, "a datagram may be a flow's first")
	s.wantGuess(t, d, clientPort, 0, false, "the flow may have just begun")
}

// In a service whose affinity has changed the older owner is in the ring before.
func testGuessedBefore(t *testing.T) {
	w, s := flowWorld(model.TCP, true)
	d := loadTestDirector(t, w)
	s.before = &model.RingBefore{Affinity: model.AffinitySourceIP, Ring: model.Ring{Slots: []model.Slot{{Owner: 1, Next: 2}}}}
	s.setRing(t, d, model.Ring{Slots: []model.Slot{{Owner: 0, Next: 2}}})
	s.wantGuess(t, d, clientPort, ackFlag, false, "anybody can send one packet")
	s.wantGuess(t, d, clientPort, ackFlag, true, "it goes on with the owner in the ring before")
	s.before.Ring.Slots[0].Owner = 0
	s.setRing(t, d, s.ring)
	s.wantGuess(t, d, clientPort+1, ackFlag, false, "anybody can send one packet")
	s.wantGuess(t, d, clientPort+1, ackFlag, false, "the same owner")
}

// testResetsAreCounted: flows that are reset while they are fresh are shared as a number, and add
// up with what the other director has seen.
func testResetsAreCounted(t *testing.T, one, other *Datapath) {
	id := model.ServiceID{VIP: netip.MustParseAddr("198.51.0.0"), Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}}
	count := func(d *Datapath) (own, all int) {
		for _, r := range d.FreshResets() {
			if r.Service == id {
				own = int(r.Flows)
			}
		}
		status, err := d.Status()
		must(t, err)
		for _, s := range status.Services {
			if s.VIP == id.VIP && s.Port == id.Port && s.Protocol == id.Protocol {
				all += s.Reset
			}
		}
		return own, all
	}
	_, before := count(other)
	for port := range uint16(3) {
		one.sendsFrom(t, 31000+port, packet.SYN)
		one.sendsFrom(t, 31000+port, packet.RST)
	}
	one.resets.read = time.Time{} // as if the table had been read a while ago
	own, _ := count(one)
	isTrue(t, own == 3, "fresh flows that were reset are counted")
	director := netip.MustParseAddr("192.0.2.1")
	other.HearResets(director, one.FreshResets())
	_, heard := count(other)
	isTrue(t, heard == before+3, "the other director's are added")
	status, err := other.Status()
	must(t, err)
	isTrue(t, slices.ContainsFunc(status.Services, func(s model.ServiceStatus) bool {
		return slices.Equal(s.ResetsShared, []model.ResetsTold{{Director: director, Flows: 3}})
	}), "it is said which director has shared them")
	other.HearResets(director, nil)
	_, ended := count(other)
	isTrue(t, ended == before, "one that says nothing any more has seen nothing")
}

// testGuessesAreTold: what one director sees of older owners' connections the other one is
// shared, and nothing else. Neither has seen any before.
func testGuessesAreShared(t *testing.T, one, other *Datapath, news func() []model.RememberedFlow) {
	id := model.ServiceID{VIP: netip.MustParseAddr("198.51.0.0"), Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}}
	nobody := id
	nobody.Port.First--
	isTrue(t, one.LastGuess(nobody).Equal(one.opened), "of a service that is not known nobody knows more than when it began to look")
	for i, d := range []*Datapath{one, other} {
		table := shareTable([]string{"wire0", "wire1"}[i], 3, 0, i > 0)
		for j := range table.Services {
			table.Services[j].Ring = listedRing(0, 1, 2)
		}
		must(t, d.Set(table))
		isTrue(t, d.LastGuess(id).Equal(d.opened), "a director has seen nothing since it began to look")
	}
	before := len(news())
	one.goesOn(t, 30000, packet.SYN)
	eventually(t, "a connection that begins is shared, and once it has lasted", func() bool { return len(news()) == before+2 })
	must(t, other.Remember(news()[before:]))
	isTrue(t, one.LastGuess(id).Equal(one.opened) && other.LastGuess(id).Equal(other.opened), "it shows nothing")
	one.goesOn(t, 30001, packet.ACK)
	isTrue(t, one.LastGuess(id).After(one.opened), "the oldest owner's has gone on")
	eventually(t, "it is shared as evidence, and once it has lasted", func() bool { return len(news()) == before+4 })
	flow := news()[before+2]
	isTrue(t, flow.Class == model.FreshFlow && news()[before+3].Class == model.SustainedFlow, "the evidence is of a fresh flow")
	old := flow
	old.Source, old.Age = netip.AddrPortFrom(client4, 30002), 30
	must(t, other.Remember([]model.RememberedFlow{old}))
	isTrue(t, other.LastGuess(id).Equal(other.opened), "one that has sent nothing for long shows nothing")
	must(t, other.Remember([]model.RememberedFlow{flow}))
	last := other.LastGuess(id)
	isTrue(t, last.After(other.opened), "the other director knows of it")
	must(t, other.Remember([]model.RememberedFlow{old}))
	isTrue(t, !other.LastGuess(id).Before(last), "what is older takes nothing back")
	for _, policy := range []model.Policy{model.Maglev, model.RoundRobin} {
		table := shareTable("wire1", 3, 0, true)
		for j := range table.Services {
			table.Services[j].Ring, table.Services[j].Policy = listedRing(0, 1, 2), policy
		}
		must(t, other.Set(table))
		s := other.services[keyOf(&table.Services[0])]
		slots, _ := ringSlots(other.rings.bytes(s.ring))
		isTrue(t, other.isOfOlder(s, slots[0], s.order[2].index) == (policy == model.Maglev), "an older owner's is who is in the row, but where any backend may be chosen")
	}
	testResetsAreCounted(t, one, other)
	must(t, other.Close())
	isTrue(t, other.LastGuess(id).Equal(other.opened), "a datapath that is closed knows nothing")
}
