package datapath

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"weir.io/weir/internal/model"
)

// lookupLife is a datapath without a kernel, of which services come, go and change their backends.
type lookupLife struct {
	d      *Datapath
	order  []*service
	random *rand.Rand
	next   uint32
}

func (l *lookupLife) index() uint32 {
	l.next++
	return l.next
}

// backends returns some of few servers: services have some in common now and then.
func (l *lookupLife) backends(shared bool) (list []*backend) {
	for _, i := range l.random.Perm(8)[:1+l.random.IntN(4)] {
		third := byte(l.next >> 4)
		if shared {
			third = 0
		}
		b := model.TableBackend{Address: netip.AddrFrom4([4]byte{10, 0, third, byte(i + 1)}), Port: 8080, Mode: model.NAT, SNAT: true}
		if l.random.IntN(6) == 0 {
			b.Mode = model.GUE
		}
		list = append(list, &backend{index: l.index(), desired: b})
	}
	return list
}

// step changes something, and returns what the next table changes.
func (l *lookupLife) step() change {
	c := change{whole: true, replied: map[*service]lookups{}}
	note := func(s *service) {
		if r := repliesOf(s); r.haveReplies() {
			c.replied[s] = r
		}
		c.changed = append(c.changed, s)
	}
	shared := l.random.IntN(5) == 0
	switch what := l.random.IntN(10); {
	case what < 3 || len(l.order) == 0:
		port := model.PortRange{First: 80, Last: 80}
		if l.random.IntN(12) == 0 {
			port.Last = 90
		}
		s := &service{index: l.index(), key: serviceKey{vip: netip.AddrFrom4([4]byte{192, 0, byte(l.next >> 8), byte(l.next)}), protocol: model.TCP, port: port}}
		l.d.services[s.key] = s
		s.order = l.backends(shared)
		l.order, c.changed, c.came = append(l.order, s), append(c.changed, s), true
	case what < 4:
		i := l.random.IntN(len(l.order))
		l.order = slices.Delete(l.order, i, i+1) // it is in services until it is retired
	default:
		s := l.order[l.random.IntN(len(l.order))]
		note(s)
		if l.random.IntN(2) == 0 {
			s.order = s.order[:max(1, len(s.order)-1)]
		} else {
			s.order = append(slices.Clone(s.order), l.backends(shared)...)
		}
	}
	c.all = l.order
	return c
}

// retire does what a Set does in the end with services that are gone.
func (l *lookupLife) retire() {
	maps.DeleteFunc(l.d.services, func(_ serviceKey, s *service) bool { return !slices.Contains(l.order, s) })
}

// A partial write has the same result as a full one, whatever changes, and writes no more
// keys. Nearly all writes are partial if services share no backends.
func TestLookupsOfWhatChanges(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		l := &lookupLife{d: &Datapath{services: map[serviceKey]*service{}}, random: rand.New(rand.NewPCG(seed, 1))}
		l.d.old.lookups, l.d.have = newLookups(0), newLookups(0)
		parts, steps := 0, 300
		for step := range steps {
			c := l.step()
			want := lookupsOf(c.all)
			next := l.d.lookupsFor(&c)
			if !next.part {
				l.d.have = next.all
			} else {
				parts++
				if n := len(next.added.replies) + len(next.gone.replies); n > 16 {
					t.Fatalf("seed %d, step %d: %d keys of replies are written for a change of one service", seed, step, n)
				}
				maps.Copy(l.d.have.services, next.added.services)
				maps.Copy(l.d.have.replies, next.added.replies)
				for e := range next.gone.replies {
					delete(l.d.have.replies, e)
				}
			}
			keys := func(l lookups) string {
				list := []string{}
				for e := range l.replies { // whose of several it is does not matter to full NAT
					list = append(list, fmt.Sprint(e))
				}
				slices.Sort(list)
				return fmt.Sprint(list)
			}
			if !maps.Equal(l.d.have.services, want.services) || keys(l.d.have) != keys(want) || !maps.Equal(l.d.have.ranges, want.ranges) {
				t.Fatalf("seed %d, step %d: the kernel finds %d keys of services and %d of replies, want %d and %d, or others", seed, step,
					len(l.d.have.services), len(l.d.have.replies), len(want.services), len(want.replies))
			}
			owned := map[uint32]bool{}
			for _, s := range c.all {
				for _, b := range s.order {
					owned[b.index] = true
				}
			}
			for e, index := range l.d.have.replies {
				if !owned[index] {
					t.Fatalf("seed %d, step %d: replies of %v are of a backend that is gone", seed, step, e)
				}
			}
			l.retire()
		}
		if parts == 0 || parts == steps {
			t.Errorf("seed %d: %d of %d changes were written as a part", seed, parts, steps)
		}
	}
}
