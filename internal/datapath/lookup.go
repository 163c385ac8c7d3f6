package datapath

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

// lookups is everything that the kernel looks packets up in, by key. It is made of the desired
// services each time; write and remove take the kernel from one to the next.
type lookups struct {
	services map[endpoint]uint32 // VIP and port -> service
	ranges   map[prefix]uint32   // VIP and ports -> service; backend and ports -> backend
	replies  map[endpoint]uint32 // backend and port -> backend
	// of services that ask to be redirected: service and a backend's address -> backend
	asked map[abi.AskBackend]uint32
	// keys in replies that are of several backends
	shared map[endpoint]bool
}

// vipOnly is SERVICE_VIP_ONLY.
const vipOnly = ^uint32(0)

func newLookups(services int) lookups {
	return lookups{make(map[endpoint]uint32, 2*services), map[prefix]uint32{}, map[endpoint]uint32{}, map[abi.AskBackend]uint32{}, map[endpoint]bool{}}
}

// lookupsOf has the keys of all services. Nested ranges may have prefixes in common: the narrowest
// range has them, because it comes last.
func lookupsOf(services []*service) lookups {
	l := newLookups(len(services))
	var ranges []*service
	for _, s := range services {
		if s.key.port.Single() {
			l.add(s)
		} else {
			ranges = append(ranges, s)
		}
	}
	slices.SortStableFunc(ranges, func(a, b *service) int { return b.key.width() - a.key.width() })
	for _, s := range ranges {
		l.add(s)
	}
	return l
}

func (l *lookups) clone() lookups {
	return lookups{maps.Clone(l.services), maps.Clone(l.ranges), maps.Clone(l.replies), maps.Clone(l.asked), maps.Clone(l.shared)}
}

// add adds the keys of the service and of its backends' replies.
func (l *lookups) add(s *service) {
	l.services[s.key.vipEndpoint()] = vipOnly
	if s.key.port.Single() {
		l.services[s.endpoint()] = s.index
	} else {
		for _, p := range s.key.prefixes() {
			l.ranges[p] = s.index
		}
	}
	for _, b := range s.order {
		l.addReplies(s, b)
	}
}

// repliesOf has the keys of the replies of one service's backends, and nothing else. Most services
// have none.
func repliesOf(s *service) (l lookups) {
	if slices.ContainsFunc(s.order, func(b *backend) bool { return b.desired.Mode == model.NAT }) {
		l = newLookups(0)
		for _, b := range s.order {
			l.addReplies(s, b)
		}
	}
	return l
}

// addReplies adds the keys of a NAT backend's replies. Full NAT finds the client by the port that
// it gave, so the key says only that it has to look: several of its services may have the backend.
// Without snat, a backend belongs to one service.
func (l *lookups) addReplies(s *service, b *backend) {
	if b.desired.Mode != model.NAT {
		return
	}
	e := endpoint{replySegment(s, b), b.desired.Address, uint8(s.key.protocol), b.desired.Port}
	if b.desired.Asks {
		l.addAsked(s, b, e)
	}
	if e.port == 0 && !s.key.port.Single() {
		for _, p := range portBlocks(e, s.key.port, 1) {
			addReply(l.ranges, p, b)
		}
		return
	}
	if e.port == 0 {
		e.port = s.key.port.First
	}
	if _, known := l.replies[e]; known {
		l.shared[e] = true
	}
	addReply(l.replies, e, b)
}

// addAsked lets a backend answer, from any port, for the others that are asked.
func (l *lookups) addAsked(s *service, b *backend, e endpoint) {
	key := abi.AskBackend{Service: s.index, Address: abi.AddressBytes(b.desired.Address)}
	if _, known := l.asked[key]; !known {
		l.asked[key] = b.index
	}
	e.port = 0
	for _, p := range portBlocks(e, model.PortRange{}, 1) {
		addReply(l.ranges, p, b)
	}
}

func addReply[K comparable](replies map[K]uint32, key K, b *backend) {
	if _, known := replies[key]; !known || !b.desired.SNAT {
		replies[key] = b.index
	}
}

// replySegment is the segment in which a backend's own packets arrive: that of the tag with which
// packets leave for it, by configuration or by its route.
func replySegment(s *service, b *backend) uint32 {
	switch {
	case b.desired.Segment.IsOverlay():
		return b.desired.Segment.Key()
	case b.vlan != 0:
		return model.Segment{Kind: model.SegmentVLAN, ID: uint32(b.vlan)}.Key()
	case b.desired.Left:
		return 0
	}
	return s.key.segment
}

// flags are the settings that these lookups need.
func (l *lookups) flags() uint32 {
	var flags uint32
	if len(l.ranges) > 0 {
		flags |= uint32(abi.SettingsFlagSETTINGS_RANGES)
	}
	if l.haveReplies() {
		flags |= uint32(abi.SettingsFlagSETTINGS_REPLIES)
	}
	if len(l.asked) > 0 {
		flags |= uint32(abi.SettingsFlagSETTINGS_ASKS)
	}
	return flags
}

// haveReplies reports whether some backend is NAT.
func (l *lookups) haveReplies() bool {
	if len(l.replies) > 0 {
		return true
	}
	for p := range l.ranges {
		if p.reply != 0 {
			return true
		}
	}
	return false
}

// finds says whether the kernel has all keys already: no service comes or goes, and no service has
// other replies.
func (d *Datapath) finds(c *change) bool {
	if !c.whole || c.came || len(d.services) > len(c.all) || !d.old.empty() {
		return false
	}
	return !slices.ContainsFunc(c.changed, func(s *service) bool {
		now, before := repliesOf(s), c.replied[s]
		return !maps.Equal(now.replies, before.replies) || !maps.Equal(now.ranges, before.ranges) || !maps.Equal(now.asked, before.asked)
	})
}

// write puts in the keys that are new or different, and notes them in have, which matches the
// kernel even after an error.
func (l *lookups) write(k *kernel, have lookups, h hands) error {
	return errors.Join(
		writeEndpoints("services", k.Services4, k.Services6, l.services, have.services, h),
		writePrefixes(k, l.ranges, have.ranges, h),
		writeEndpoints("replies", k.Replies4, k.Replies6, l.replies, have.replies, h),
		writeAsked(k, l.asked, have.asked, h))
}

// remove takes the keys that are no longer wanted out of the kernel and of have.
func (l *lookups) remove(k *kernel, have lookups) error {
	var errs []error
	for e := range have.services {
		if _, wanted := l.services[e]; !wanted {
			errs = append(errs, forget(have.services, e, deleteEndpoint(k.Services4, k.Services6, e)))
		}
	}
	for p := range have.ranges {
		if _, wanted := l.ranges[p]; !wanted {
			errs = append(errs, forget(have.ranges, p, deletePrefix(k, p)))
		}
	}
	for e := range have.replies {
		if _, wanted := l.replies[e]; !wanted {
			errs = append(errs, forget(have.replies, e, deleteEndpoint(k.Replies4, k.Replies6, e)))
		}
	}
	for a := range have.asked {
		if _, wanted := l.asked[a]; !wanted {
			errs = append(errs, forget(have.asked, a, ignoreMissing("remove who may answer", k.AskBackends.Delete(a))))
		}
	}
	return errors.Join(errs...)
}

// forget notes that a key is gone, unless taking it out was an error.
func forget[K comparable](have map[K]uint32, key K, err error) error {
	if err == nil {
		delete(have, key)
	}
	return err
}

func writeEndpoints(name string, map4, map6 *ebpf.Map, want, have map[endpoint]uint32, h hands) error {
	for e, index := range want {
		old, known := have[e]
		if known && old == index {
			continue
		}
		var err error
		if e.address.Is4() {
			err = exchange(map4, name, e.v4(), index, old, known, h)
		} else {
			err = exchange(map6, name, e.v6(), index, old, known, h)
		}
		if err != nil {
			return fmt.Errorf("write %s port %d to map %s: %w", e.address, e.port, name, err)
		}
		have[e] = index
	}
	return nil
}

func writePrefixes(k *kernel, want, have map[prefix]uint32, h hands) error {
	for p, index := range want {
		old, known := have[p]
		if known && old == index {
			continue
		}
		var err error
		if p.address.Is4() {
			err = exchange(k.Ranges4, "ranges", p.v4(), index, old, known, h)
		} else {
			err = exchange(k.Ranges6, "ranges", p.v6(), index, old, known, h)
		}
		if err != nil {
			return fmt.Errorf("write port range of %s: %w", p.address, err)
		}
		have[p] = index
	}
	return nil
}

func writeAsked(k *kernel, want, have map[abi.AskBackend]uint32, h hands) error {
	for a, index := range want {
		old, known := have[a]
		if known && old == index {
			continue
		}
		if err := exchange(k.AskBackends, "ask_backends", a, index, old, known, h); err != nil {
			return fmt.Errorf("write who may answer, of service %d: %w", a.Service, err)
		}
		have[a] = index
	}
	return nil
}

func deleteEndpoint(map4, map6 *ebpf.Map, e endpoint) error {
	var err error
	if e.address.Is4() {
		err = map4.Delete(e.v4())
	} else {
		err = map6.Delete(e.v6())
	}
	return ignoreMissing("remove lookup of "+e.address.String(), err)
}

func deletePrefix(k *kernel, p prefix) error {
	var err error
	if p.address.Is4() {
		err = k.Ranges4.Delete(p.v4())
	} else {
		err = k.Ranges6.Delete(p.v6())
	}
	return ignoreMissing("remove port range of "+p.address.String(), err)
}

func ignoreMissing(step string, err error) error {
	if err == nil || errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return fmt.Errorf("%s: %w", step, err)
}

// lookupChange is what a table changes of the keys by which the kernel finds services and replies.
// Most tables change few of many keys: then only that part is written.
type lookupChange struct {
	all         lookups // that are wanted; for a part, those that the kernel has
	part        bool
	added, gone lookups // of a part
}

// lookupsFor returns how the keys change.
func (d *Datapath) lookupsFor(c *change) lookupChange {
	if d.finds(c) {
		return lookupChange{all: d.have, part: true}
	}
	if added, gone, is := d.lookupPart(c); is {
		return lookupChange{all: d.have, part: true, added: added, gone: gone}
	}
	return lookupChange{all: lookupsOf(c.all)}
}

// lookupPart returns which keys come and go, if the changed services alone decide that: no service
// has gone, and none of their keys is another service's, or a range of ports.
func (d *Datapath) lookupPart(c *change) (added, gone lookups, is bool) {
	if !c.whole || len(d.services) > len(c.all) || !d.old.empty() {
		return added, gone, false
	}
	added, gone = newLookups(0), newLookups(0)
	for _, s := range c.changed {
		now, before := newLookups(0), c.replied[s]
		now.add(s)
		if len(now.ranges)+len(now.asked)+len(before.ranges)+len(before.asked) > 0 || len(now.shared) > 0 {
			return added, gone, false
		}
		for e, index := range now.services {
			has, known := d.have.services[e]
			if known && has != index {
				return added, gone, false
			}
			if !known {
				added.services[e] = index
			}
		}
		for e, index := range now.replies {
			has, known := d.have.replies[e]
			_, twice := added.replies[e]
			if old, had := before.replies[e]; had && old == index && has == index {
				continue
			}
			if known || twice {
				return added, gone, false
			}
			added.replies[e] = index
		}
		for e, index := range before.replies {
			if _, stays := now.replies[e]; stays {
				continue
			}
			if d.have.shared[e] || d.have.replies[e] != index {
				return added, gone, false
			}
			gone.replies[e] = index
		}
	}
	// If no replies remain, programs have to be taken off interfaces.
	return added, gone, len(gone.replies) == 0 || len(gone.replies) < len(d.have.replies)+len(added.replies)
}

// flags are the settings that the wanted keys need.
func (l *lookupChange) flags() uint32 { return l.all.flags() | l.added.flags() }

// write puts in the keys that are new or different.
func (l *lookupChange) write(k *kernel, have lookups, h hands) error {
	if l.part {
		return l.added.write(k, have, h)
	}
	return l.all.write(k, have, h)
}

// remove takes out the keys that are no longer wanted, and updates the record of the kernel's.
func (l *lookupChange) remove(d *Datapath) error {
	if !l.part {
		d.fronts.remove(d.have.services, l.all.services)
		if err := l.all.remove(d.kernel, d.have); err != nil {
			return err
		}
		d.have = l.all
		return nil
	}
	var errs []error
	for e := range l.gone.replies {
		errs = append(errs, forget(d.have.replies, e, deleteEndpoint(d.kernel.Replies4, d.kernel.Replies6, e)))
	}
	return errors.Join(errs...)
}
