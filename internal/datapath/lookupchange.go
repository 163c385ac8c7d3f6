package datapath

import "errors"

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
func (l *lookupChange) write(k *kernel, have lookups) error {
	if l.part {
		return l.added.write(k, have)
	}
	return l.all.write(k, have)
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
