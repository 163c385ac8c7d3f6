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
		own := layout.Source(list[i].Number)
		if place := list[i].Number &^ sharedNumber; place != list[i].Number {
			own = netip.AddrPort{}
			if int(place) < len(d.shared.memory.Entries) {
				own = ownOf(&d.shared.memory.Entries[place])
			}
		}
		if flow, useful := d.nameShared(&list[i].Flow, own, now); useful {
			named = append(named, flow)
		}
	}
	return named, nil
}

// nameShared names a flow of full NAT for other directors; false: they need not know it.
func (d *Datapath) nameShared(e *abi.SnatFlow, own netip.AddrPort, now uint32) (model.NATFlow, bool) {
	if !own.IsValid() || !flows.LiveNAT(d.entries.Entries, e, now) || d.entries.Entries[e.Backend].Flags&uint8(abi.BackendFlagBACKEND_LOCAL) != 0 {
		return model.NATFlow{}, false
	}
	flow, useful := d.nameNAT(e, own, now)
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
	return err
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
			outcome, failed = d.takeShared(table, flow, now)
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
	e.Source, e.SourcePort = abi.AddressBytes(flow.Own.Addr()), abi.BigEndian16(flow.Own.Port())
	e.Protocol, e.Ipv6 = uint8(key.protocol), truth(key.vip.Is6())
	return e, abi.ToldOutcomeTOLD_NEW
}

// setNumbers writes what numbersOf reads. Of a UDP flow that is fresh the field says when it began:
// now, as far as this director knows.
func setNumbers(e *abi.SnatFlow, flow *model.NATFlow, now uint32) {
	n := flow.Numbers
	switch abi.SnatState(e.State) {
	case abi.SnatStateSNAT_TRIED, abi.SnatStateSNAT_TWO_WAY:
		e.Proof = uint8(now)
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
func (d *Datapath) takeShared(table *flows.NATTable, flow abi.SnatShared, now uint32) (abi.ToldOutcome, error) {
	client := clientOfShared(&flow)
	if table != nil {
		own := ownOf(&flow)
		reply := model.Flow{Source: client.Source, Destination: own.Addr(), Protocol: flow.Protocol, DestinationPort: own.Port()}
		switch number := table.ReplyTo(reply); {
		case number != 0:
			return d.takeOwn(table, number, flow.Flow, client, now)
		case !isFresh(&flow.Flow):
			d.endOlder(table, &flow.Flow, client)
		}
	}
	return d.takeOther(flow, client, now)
}

// isFresh says whether a flow may be of a flood.
func isFresh(e *abi.SnatFlow) bool { return flows.NATMeaningOf(e).Class == model.FreshFlow }

// renew brings a flow up to date that is known; the outcome is TOLD_NEW if it is not: its place is
// free, or another flow's.
func (d *Datapath) renew(at *abi.SnatFlow, told *abi.SnatFlow, now uint32) abi.ToldOutcome {
	for {
		have := flows.AtOneMoment(at)
		if have.State <= uint8(abi.SnatStateSNAT_CLAIMED) || !flows.LiveNAT(d.entries.Entries, &have, now) {
			return abi.ToldOutcomeTOLD_NEW
		}
		over := flows.NATMeaningOf(&have).State != model.FlowOpen
		switch {
		case isFresh(&have) || over && isFresh(told) && int32(told.Seen-have.Seen) >= 0:
			return abi.ToldOutcomeTOLD_NEW
		case !sameClient(&have, told) && int32(told.Seen-have.Seen) > 0 && !isFresh(told):
			return abi.ToldOutcomeTOLD_NEW
		case !sameClient(&have, told) || isFresh(told):
			return abi.ToldOutcomeTOLD_OLDER
		}
		if int32(told.Seen-have.Seen) <= 0 {
			return abi.ToldOutcomeTOLD_OLDER
		}
		next := have
		next.Seen, next.State = told.Seen, told.State
		if atomic.CompareAndSwapUint64(flows.NATWord(at), *flows.NATWord(&have), *flows.NATWord(&next)) {
			return abi.ToldOutcomeTOLD_AGAIN
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
	before := flows.AtOneMoment(at)
	if outcome := d.renew(at, &flow, now); outcome != abi.ToldOutcomeTOLD_NEW {
		return outcome, nil
	}
	keeps := isFresh(&flow) || !isFresh(&before)
	if keeps && before.State > uint8(abi.SnatStateSNAT_CLAIMED) && flows.LiveNAT(d.entries.Entries, &before, now) {
		return abi.ToldOutcomeTOLD_OLDER, nil
	}
	claimed := before
	claimed.State = uint8(abi.SnatStateSNAT_CLAIMED)
	if !atomic.CompareAndSwapUint64(flows.NATWord(at), *flows.NATWord(&before), *flows.NATWord(&claimed)) {
		return abi.ToldOutcomeTOLD_OLDER, nil // a packet has just begun another flow there
	}
	inside := inBuckets(table, client, number)
	hash := client.Hash(table.Salt, model.AffinityFlow)
	if !inside {
		hash = d.clientHash(client)
	}
	flow.Hash = uint32(hash)
	word := *flows.NATWord(&flow)
	*flows.NATWord(&flow) = *flows.NATWord(&claimed)
	*at = flow
	atomic.StoreUint64(flows.NATWord(at), word)
	if inside {
		return abi.ToldOutcomeTOLD_NEW, nil
	}
	if d.shared.clients == nil {
		if err := d.growShared(); err != nil {
			return abi.ToldOutcomeTOLD_REFUSED, err
		}
	}
	d.shared.own[hash] = number
	return abi.ToldOutcomeTOLD_NEW, d.shared.clients.Put(hash, number)
}

// takeOther keeps a flow of another director's address. Of two flows with the same address and port
// the one that was seen last is the one that the address's director has begun.
func (d *Datapath) takeOther(flow abi.SnatShared, client model.Flow, now uint32) (abi.ToldOutcome, error) {
	s := &d.shared
	end := endOf(&flow)
	if place, known := s.places[end]; known {
		e := &s.memory.Entries[place]
		if outcome := d.renew(&e.Flow, &flow.Flow, now); outcome != abi.ToldOutcomeTOLD_NEW {
			return outcome, nil
		}
		if sameClient(&e.Flow, &flow.Flow) {
			flow.Flow.Hash = e.Flow.Hash
			writeShared(e, flow)
			return abi.ToldOutcomeTOLD_NEW, nil
		}
		if err := d.freeShared(end, place); err != nil {
			return abi.ToldOutcomeTOLD_REFUSED, err
		}
	}
	if isFresh(&flow.Flow) {
		if s.fresh >= int(d.options.Limits.Flows)/sharedFresh {
			return abi.ToldOutcomeTOLD_REFUSED, nil
		}
		s.fresh++
	}
	place, found, err := d.sharedRoom()
	if err != nil || !found {
		return abi.ToldOutcomeTOLD_REFUSED, err
	}
	flow.Flow.Hash = uint32(d.clientHash(client))
	writeShared(&s.memory.Entries[place], flow)
	s.occupy(end, place)
	return abi.ToldOutcomeTOLD_NEW, errors.Join(s.ends.Put(end, s.number(place)), d.indexClient(place))
}

// endOlder frees a flow of this director's own whose client has begun another one at another
// director since: its packets must find that one.
func (d *Datapath) endOlder(table *flows.NATTable, told *abi.SnatFlow, client model.Flow) {
	for _, first := range table.Choices(client) {
		for i := range uint32(flows.BucketPorts) {
			at := &table.Flows[int(first+i)-flows.BucketPorts]
			have := flows.AtOneMoment(at)
			same := have.Client == told.Client && have.ClientPort == told.ClientPort && have.Vip == told.Vip && have.VipPort == told.VipPort && have.Segment == told.Segment
			if have.State > uint8(abi.SnatStateSNAT_CLAIMED) && same && int32(told.Seen-have.Seen) > 0 {
				atomic.CompareAndSwapUint64(flows.NATWord(at), *flows.NATWord(&have), 0)
			}
		}
	}
}
