package datapath

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"time"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
)

// nameTold describes what the program has told of flows of full NAT, and leaves out what other
// directors cannot use. A flow to a backend on this host keeps its client's address.
func (d *Datapath) nameTold(list []abi.ToldSnat) (named []model.NATFlow, err error) {
	if len(list) == 0 {
		return nil, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now, err := flows.Clock()
	if err != nil || d.closed() {
		return nil, err
	}
	d.nameIndexes()
	layout, _, err := d.kernel.snatHeader()
	if err != nil {
		return nil, err
	}
	for i := range list {
		at := natAddress{layout.Source(list[i].Number), d.table.SNAT.Announce, true}
		if list[i].Number&sharedNumber != 0 {
			at = d.sharedAddress(&list[i])
		}
		if flow, useful := d.nameShared(&list[i].Flow, at, now); useful {
			named = append(named, flow)
		}
	}
	return named, nil
}

// sharedAddress is the address of a flow of another director that the program has told of; none: its
// place is another flow's by now.
func (d *Datapath) sharedAddress(told *abi.ToldSnat) natAddress {
	place := told.Number &^ sharedNumber
	if int(place) >= len(d.shared.memory.Entries) {
		return natAddress{}
	}
	e := &d.shared.memory.Entries[place]
	if !sameClient(&e.Flow, &told.Flow) || e.Flow.Hash != told.Flow.Hash {
		return natAddress{}
	}
	return natAddress{ownOf(e), e.Announced != 0, false}
}

// nameShared names a flow of full NAT for other directors; false: they need not know it.
func (d *Datapath) nameShared(e *abi.SnatFlow, at natAddress, now uint32) (model.NATFlow, bool) {
	if !at.own.IsValid() || !flows.LiveNAT(d.entries.Entries, e, now) || d.entries.Entries[e.Backend].Flags&uint8(abi.BackendFlagBACKEND_LOCAL) != 0 {
		return model.NATFlow{}, false
	}
	if at.here && d.overlay.snatInside(e.Backend, at.own.Addr().Is6()).IsValid() {
		return model.NATFlow{}, false // no other director has this one's address in the tenant's network
	}
	flow, useful := d.nameNAT(e, at, now)
	return flow, useful && flows.NATStateOf(&flow) != abi.SnatStateSNAT_FREE
}

// ownOf is the address and port that a shared flow has at its director.
func ownOf(e *abi.SnatShared) netip.AddrPort {
	return netip.AddrPortFrom(abi.AddressOf(e.Source, e.Ipv6 != 0), abi.BigEndian16(e.SourcePort))
}

// SharedNATFlows hands out the flows of full NAT that other directors should know, this director's and
// those that others have told of, some at a time, for as long as take returns true.
func (d *Datapath) SharedNATFlows(take func(some []model.NATFlow) bool) error {
	return d.handOutNAT(d.nameShared, take)
}

// RememberNAT takes over flows of full NAT that another director has told of.
func (d *Datapath) RememberNAT(list []model.NATFlow) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed() {
		return nil
	}
	err := d.rememberNAT(waitFrom(time.Now(), list), func(w waiting[model.NATFlow]) {
		d.imports.outcomes[abi.ToldOutcomeTOLD_WAITS]++
		d.imports.nat = append(d.imports.nat, w)
	})
	d.dropWaiting()
	// What has no room here is no fault of the director that tells, which goes on.
	if now := time.Now(); err != nil && now.Sub(d.shared.failed) > time.Minute {
		d.shared.failed = now
		d.log.Error("flows of full NAT that other directors tell of have no room: they end with their director", "error", err)
	}
	return nil
}

func (d *Datapath) rememberNAT(list waitingList[model.NATFlow], wait func(waiting[model.NATFlow])) error {
	if len(list) == 0 {
		return nil
	}
	now, err := flows.Clock()
	if err != nil {
		return err
	}
	table, err := d.kernel.mapNAT()
	if err != nil {
		return err
	}
	for i := range list {
		flow, outcome := d.sharedOf(&list[i], now)
		if outcome == abi.ToldOutcomeTOLD_NEW {
			var failed error
			outcome, failed = d.takeShared(table, flow, list[i].flow.ByOwner, now)
			err = errors.Join(err, failed)
		}
		if outcome == abi.ToldOutcomeTOLD_WAITS {
			wait(list[i])
		} else {
			d.imports.outcomes[outcome]++
		}
	}
	if table != nil {
		err = errors.Join(err, table.Close())
	}
	return err
}

// sharedOf translates a flow into this director's indexes. The outcome is TOLD_NEW if it is worth
// keeping.
func (d *Datapath) sharedOf(told *waiting[model.NATFlow], now uint32) (e abi.SnatShared, outcome abi.ToldOutcome) {
	flow := &told.flow
	key := keyOfID(flow.Service)
	s := d.services[key]
	if s == nil {
		return e, abi.ToldOutcomeTOLD_WAITS
	}
	b := s.backends[backendKey{flow.Backend.Addr(), flow.Backend.Port(), true}]
	if b == nil {
		return e, abi.ToldOutcomeTOLD_WAITS
	}
	state := flows.NATStateOf(flow)
	if state == abi.SnatStateSNAT_FREE || flow.Source.Addr().Is4() != key.vip.Is4() || flow.Own.Addr().Is4() != key.vip.Is4() {
		return e, abi.ToldOutcomeTOLD_UNKNOWN
	}
	if entry := &d.entries.Entries[b.index]; entry.Flags&uint8(abi.BackendFlagBACKEND_LOCAL) != 0 || entry.Mode != uint8(abi.ModeMODE_NAT) {
		return e, abi.ToldOutcomeTOLD_UNUSED
	}
	age := flow.Age + uint32(time.Since(told.since)>>30)
	e.Flow = abi.SnatFlow{
		Seen: now - age, State: uint8(state), Epoch: d.entries.Entries[b.index].Epoch, Backend: b.index,
		Client: abi.AddressBytes(flow.Source.Addr()), ClientPort: abi.BigEndian16(flow.Source.Port()),
		Vip: abi.AddressBytes(key.vip), VipPort: abi.BigEndian16(flow.Port), Segment: flow.Service.Segment.Key(),
	}
	setNumbers(&e.Flow, flow, now)
	if flow.ClientClosed {
		e.Flow.Fins |= uint8(abi.SnatFinSNAT_FIN_CLIENT)
	}
	if flow.BackendClosed {
		e.Flow.Fins |= uint8(abi.SnatFinSNAT_FIN_BACKEND)
	}
	e.Source, e.SourcePort = abi.AddressBytes(flow.Own.Addr()), abi.BigEndian16(flow.Own.Port())
	e.Protocol, e.Ipv6, e.Announced = uint8(key.protocol), truth(key.vip.Is6()), truth(flow.Announced)
	return e, abi.ToldOutcomeTOLD_NEW
}

// setNumbers writes what numbersOf reads. Of a UDP flow that is fresh the field says when it began:
// now, as far as this director knows.
func setNumbers(e *abi.SnatFlow, flow *model.NATFlow, now uint32) {
	n := flow.Numbers
	switch abi.SnatState(e.State) {
	case abi.SnatStateSNAT_TRIED, abi.SnatStateSNAT_TWO_WAY:
		e.Proof = uint8(now)
		if flow.Service.Protocol == model.SCTP {
			e.Asked.Sequence = uint32(model.SCTP) // snat_has_protocol
		}
		return
	case abi.SnatStateSNAT_ANSWERED:
		e.Proof = uint8(abi.SnatProofSNAT_KNOWS_CLIENT | abi.SnatProofSNAT_KNOWS_BACKEND | abi.SnatProofSNAT_ANSWER)
		e.Asked.Sequence, *answerOf(&e.Asked) = n.Client-1, n.Backend
		return
	}
	if n.Known {
		e.Proof = uint8(abi.SnatProofSNAT_KNOWS_ALL)
		e.Asked.Sequence = n.Client>>16 | n.Backend&^0xffff
	}
	if e.Asked.State = uint8(abi.AskedStateASKED_PLAIN); flow.Taken != 0 {
		e.Asked.State, e.Asked.Port = uint8(abi.AskedStateASKED_TAKEN), abi.BigEndian16(flow.Taken)
	}
}

// takeShared keeps a flow: in the director's own table if it has one of its addresses.
func (d *Datapath) takeShared(table *flows.NATTable, flow abi.SnatShared, byOwner bool, now uint32) (abi.ToldOutcome, error) {
	client := clientOfShared(&flow)
	if table != nil {
		switch number := table.PlaceOf(ownOf(&flow), model.Protocol(flow.Protocol)); {
		case number != 0:
			return d.takeOwn(table, number, flow.Flow, client, now)
		case !isFresh(&flow.Flow):
			d.endOlder(table, &flow.Flow, client)
		}
	}
	return d.takeOther(table, flow, client, byOwner, now)
}

// isFresh says whether a flow may be of a flood.
func isFresh(e *abi.SnatFlow) bool { return flows.NATMeaningOf(e).Class == model.FreshFlow }

// ends is how far a flow has come to its end.
func ends(state uint8) int {
	switch abi.SnatState(state) {
	case abi.SnatStateSNAT_CLOSING:
		return 1
	case abi.SnatStateSNAT_CLOSED, abi.SnatStateSNAT_RESET:
		return 2
	}
	return 0
}

// renew brings a flow up to date that is known. The outcome is TOLD_NEW if the told flow is to be
// written over what was read: it is not known there, or only as a fresh one, or its own director says
// that the port is this flow's now.
func (d *Datapath) renew(at *abi.SnatFlow, told *abi.SnatFlow, byOwner bool, now uint32) (was abi.SnatFlow, outcome abi.ToldOutcome) {
	for {
		have := flows.AtOneMoment(at)
		later := int32(told.Seen - have.Seen)
		same := sameClient(&have, told)
		switch {
		case have.State == uint8(abi.SnatStateSNAT_CLAIMED):
			return have, abi.ToldOutcomeTOLD_OLDER // a packet has just begun a flow there
		case have.State == uint8(abi.SnatStateSNAT_FREE), !flows.LiveNAT(d.entries.Entries, &have, now):
			return have, abi.ToldOutcomeTOLD_NEW
		case isFresh(told):
			if ends(have.State) == 2 && later >= 0 && !same || isFresh(&have) && later > 0 && !same {
				return have, abi.ToldOutcomeTOLD_NEW
			}
			return have, abi.ToldOutcomeTOLD_OLDER
		case isFresh(&have) && same, !same && (byOwner || later > 0):
			return have, abi.ToldOutcomeTOLD_NEW
		case !same:
			return have, abi.ToldOutcomeTOLD_OLDER
		}
		next := have
		next.Fins |= told.Fins
		// A flow does not come back from its end, but for one whose RST was not real.
		if further := ends(told.State) - ends(have.State); further > 0 && later >= 0 || have.State == uint8(abi.SnatStateSNAT_RESET) && later > 0 {
			next.State = told.State
		}
		if next.State == uint8(abi.SnatStateSNAT_CLOSING) && next.Fins == uint8(abi.SnatFinSNAT_FIN_CLIENT|abi.SnatFinSNAT_FIN_BACKEND) {
			next.State = uint8(abi.SnatStateSNAT_CLOSED)
		}
		if later > 0 {
			next.Seen = told.Seen
		}
		if next == have {
			return have, abi.ToldOutcomeTOLD_OLDER
		}
		if atomic.CompareAndSwapUint64(flows.NATWord(at), *flows.NATWord(&have), *flows.NATWord(&next)) {
			return next, abi.ToldOutcomeTOLD_AGAIN
		}
	}
}

// sameClient says whether two entries are of the same flow as its client sees it, and to the same
// backend.
func sameClient(a, b *abi.SnatFlow) bool {
	return a.Client == b.Client && a.ClientPort == b.ClientPort && a.Vip == b.Vip && a.VipPort == b.VipPort &&
		a.Segment == b.Segment && a.Backend == b.Backend && a.Epoch == b.Epoch
}

// takeOwn keeps a flow of one of this director's addresses, which another director has gone on with.
// Another flow that has the address and port here keeps them, unless it may be of a flood.
func (d *Datapath) takeOwn(table *flows.NATTable, number uint32, flow abi.SnatFlow, client model.Flow, now uint32) (abi.ToldOutcome, error) {
	at := &table.Flows[int(number)-flows.BucketPorts]
	was, outcome := d.renew(at, &flow, false, now)
	lives := was.State > uint8(abi.SnatStateSNAT_CLAIMED) && flows.LiveNAT(d.entries.Entries, &was, now)
	if lives && !sameClient(&was, &flow) && !isFresh(&flow) && !isFresh(&was) {
		d.clash(number, was, client)
		return abi.ToldOutcomeTOLD_OLDER, nil
	}
	if outcome != abi.ToldOutcomeTOLD_NEW {
		return outcome, nil
	}
	if lives && (isFresh(&flow) || !isFresh(&was)) {
		return abi.ToldOutcomeTOLD_OLDER, nil
	}
	inside := inBuckets(table, client, number)
	hash := d.clientHash(client)
	if flow.Hash = uint32(hash); inside {
		flow.Hash = uint32(client.Hash(table.Salt, model.AffinityFlow))
	}
	if !replace(at, was, flow, now) {
		return abi.ToldOutcomeTOLD_OLDER, nil // a packet has just begun another flow there
	}
	if inside {
		return abi.ToldOutcomeTOLD_NEW, nil
	}
	if d.shared.clients == nil {
		if err := d.indexShared(); err != nil {
			return abi.ToldOutcomeTOLD_REFUSED, err
		}
	}
	if err := d.indexClient(table, number, client); err != nil {
		return abi.ToldOutcomeTOLD_REFUSED, err
	}
	d.shared.own[hash] = number
	return abi.ToldOutcomeTOLD_NEW, nil
}

// clash tells the others again which flow has a port of this director's: after a split, another
// director may go on with another one.
func (d *Datapath) clash(number uint32, have abi.SnatFlow, other model.Flow) {
	s := &d.shared
	if len(s.again) < newsAtOnce {
		s.again = append(s.again, abi.ToldSnat{Number: number, Flow: have})
	}
	if now := time.Now(); now.Sub(s.clashed) > time.Minute {
		s.clashed = now
		d.log.Warn("another director goes on with a flow of full NAT whose port this one has given to another flow: that one ends", "client", netip.AddrPortFrom(other.Source, other.SourcePort))
	}
}

// tellAgain are the flows that clash has noted.
func (d *Datapath) tellAgain() (list []abi.ToldSnat) {
	d.mu.Lock()
	defer d.mu.Unlock()
	list, d.shared.again = d.shared.again, nil
	return list
}

// takeOther keeps a flow of another director's address. Of two flows with the same address and port
// the one is kept of which the address's own director tells, else the one that was seen last.
func (d *Datapath) takeOther(own *flows.NATTable, flow abi.SnatShared, client model.Flow, byOwner bool, now uint32) (abi.ToldOutcome, error) {
	s := &d.shared
	end := endOf(&flow)
	flow.Flow.Hash = uint32(d.clientHash(client))
	if place, known := s.places[end]; known {
		e := &s.memory.Entries[place]
		if byOwner {
			s.announce(e, flow.Announced)
		}
		was, outcome := d.renew(&e.Flow, &flow.Flow, byOwner, now)
		if outcome != abi.ToldOutcomeTOLD_NEW {
			return outcome, nil
		}
		if sameClient(&was, &flow.Flow) {
			if !replace(&e.Flow, was, flow.Flow, now) {
				return abi.ToldOutcomeTOLD_OLDER, nil // a packet has changed it: this director knows better
			}
			return abi.ToldOutcomeTOLD_NEW, d.indexClient(own, s.number(place), client)
		}
		if err := d.freeShared(end, place); err != nil {
			return abi.ToldOutcomeTOLD_REFUSED, err
		}
	}
	if isFresh(&flow.Flow) && s.fresh >= int(d.options.Limits.Flows)/sharedFresh {
		return abi.ToldOutcomeTOLD_REFUSED, nil
	}
	place, found, err := d.sharedRoom()
	if err != nil || !found {
		return abi.ToldOutcomeTOLD_REFUSED, err
	}
	e := &s.memory.Entries[place]
	word := *flows.NATWord(&flow.Flow)
	*flows.NATWord(&flow.Flow) = 0
	*e = flow
	atomic.StoreUint64(flows.NATWord(&e.Flow), word)
	s.occupy(e, place)
	if isFresh(&e.Flow) {
		s.fresh++
	}
	if err := errors.Join(s.ends.Put(end, s.number(place)), d.indexClient(own, s.number(place), client)); err != nil {
		return abi.ToldOutcomeTOLD_REFUSED, errors.Join(err, d.freeShared(end, place))
	}
	return abi.ToldOutcomeTOLD_NEW, nil
}

// endOlder frees a flow of this director's own whose client has begun another one at another
// director since: its packets must find that one.
func (d *Datapath) endOlder(table *flows.NATTable, told *abi.SnatFlow, client model.Flow) {
	var places []int
	for _, first := range table.Choices(client) {
		for i := range flows.BucketPorts {
			places = append(places, int(first)-flows.BucketPorts+i)
		}
	}
	if number, has := d.shared.own[d.clientHash(client)]; has {
		places = append(places, int(number)-flows.BucketPorts)
	}
	for _, i := range places {
		have, there := table.Read(i)
		same := have.Client == told.Client && have.ClientPort == told.ClientPort && have.Vip == told.Vip && have.VipPort == told.VipPort && have.Segment == told.Segment
		gives := isFresh(&have) || ends(have.State) > 0 || int32(told.Seen-have.Seen) > 0
		if there && same && gives {
			atomic.CompareAndSwapUint64(flows.NATWord(&table.Flows[i]), *flows.NATWord(&have), 0)
		}
	}
}
