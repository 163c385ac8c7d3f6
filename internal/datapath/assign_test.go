package datapath

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

// TestSetOfAnyChange: a Set that leaves alone what did not change leaves the kernel as one
// would that looks at everything, whatever changes, and also after one that failed.
func TestSetOfAnyChange(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 6)
	addJumbo(t) // 10.9.0.0/16 is behind it
	jumbo, err := netlink.LinkByName("jumbo0")
	must(t, err)
	address, err := netlink.ParseAddr("10.9.0.1/16")
	must(t, err)
	must(t, netlink.AddrAdd(jumbo, address))
	d := openTest(t, model.Limits{})
	r := rand.New(rand.NewPCG(3, 4))
	c := &changes{r: r, table: tableOf(5, 3, 0), next: 5}
	must(t, d.Set(c.table))
	partly := 0
	for step := range rounds(120) {
		before := c.table
		what := c.change()
		if r.IntN(8) == 0 {
			failAfterLookups(t, d, c.table)
			what += ", which failed"
			if r.IntN(2) == 0 {
				c.table = before
				what += " and was taken back"
			}
		} else if d.whole {
			partly++
		}
		must(t, d.Set(c.table))
		if wrong := d.differsFrom(t, &c.table); len(wrong) > 0 {
			t.Fatalf("step %d, %s: %q", step, what, wrong)
		}
	}
	if partly == 0 {
		t.Error("no Set had something to leave alone: this test shows nothing")
	}
}

// changes makes one table of another.
type changes struct {
	r     *rand.Rand
	table model.Table
	next  int // the number of the next service
	used  int // addresses behind the other interface
}

func (c *changes) address() netip.Addr {
	c.used++
	return netip.AddrFrom4([4]byte{10, 9, 1, byte(c.used)})
}

// change says what it has changed. Tables are to be read only: what changes is a copy.
func (c *changes) change() string {
	services := slices.Clone(c.table.Services)
	defer func() { c.table.Services = services }()
	fresh := func() model.TableService {
		s := tableOf(c.next+1, 1+c.r.IntN(4), c.r.IntN(3)).Services[c.next]
		c.next++
		return s
	}
	if len(services) < 3 || c.r.IntN(7) == 0 {
		s := fresh()
		if c.r.IntN(2) == 0 {
			s.Port = model.PortRange{First: 1000, Last: uint16(1000 + c.r.IntN(900))}
		}
		if c.r.IntN(2) == 0 {
			s.VIP = c.table.Services[0].VIP
			s.Port = model.PortRange{First: uint16(2000 + 1000*c.next), Last: uint16(2000 + 1000*c.next)}
		}
		services = slices.Insert(services, c.r.IntN(len(services)+1), s)
		return "a new service"
	}
	i := c.r.IntN(len(services))
	s := &services[i]
	s.Backends = slices.Clone(s.Backends)
	b := &s.Backends[c.r.IntN(len(s.Backends))]
	switch c.r.IntN(11) {
	case 0:
		services = slices.Delete(services, i, i+1)
		return "a service is gone"
	case 1:
		services = slices.Insert(slices.Delete(services, i, i+1), c.r.IntN(len(services)), fresh())
		return "one for another"
	case 2:
		c.r.Shuffle(len(services), func(i, j int) { services[i], services[j] = services[j], services[i] })
		return "in another order"
	case 3:
		s.Name += "x"
		return "another name"
	case 4:
		b.State = []model.BackendState{model.Active, model.Draining, model.Down}[c.r.IntN(3)]
		return "another state"
	case 5, 6:
		mode := []model.Mode{model.L2DSR, model.NAT, model.IPIP, model.GUE}[c.r.IntN(4)]
		for j := range s.Backends {
			s.Backends[j].Mode, s.Backends[j].Port = mode, 0
			if mode == model.NAT {
				s.Backends[j].Port = 5000 + uint16(s.Salt) // no other service's
			}
		}
		return "mode " + mode.String()
	case 7:
		b.VLAN = uint16(c.r.IntN(3))
		return "another VLAN"
	case 8:
		b.Address = c.address()
		return "a backend behind another interface"
	case 9:
		more := s.Backends[0]
		more.Address = c.address()
		s.Backends = append(s.Backends, more)
		s.Ring.Slots = slices.Clone(s.Ring.Slots)
		for k := range s.Ring.Slots {
			s.Ring.Slots[k] = model.Slot{Owner: uint32(k % len(s.Backends)), Next: model.NoBackend}
		}
		return "one backend more"
	default:
		s.Ring.Slots = slices.Clone(s.Ring.Slots)
		c.r.Shuffle(len(s.Ring.Slots), func(i, j int) { s.Ring.Slots[i], s.Ring.Slots[j] = s.Ring.Slots[j], s.Ring.Slots[i] })
		return "another ring"
	}
}

// differsFrom says what the kernel has otherwise than a table says.
func (d *Datapath) differsFrom(t *testing.T, table *model.Table) (wrong []string) {
	t.Helper()
	d.mu.Lock() // what the resolver sees may be news
	defer d.mu.Unlock()
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	if len(d.services) != len(table.Services) {
		say("%d services are known, want %d", len(d.services), len(table.Services))
	}
	wire, err := netlink.LinkByName("wire0")
	must(t, err)
	egress := map[uint32]bool{uint32(wire.Attrs().Index): true}
	var all []*service
	backends := 0
	for i := range table.Services {
		want := &table.Services[i]
		s := d.services[keyOf(want)]
		if s == nil {
			say("%s is not known", want.Name)
			continue
		}
		all = append(all, s)
		if s.desired != &d.table.Services[i] || s.desired.Name != want.Name {
			say("%s is as it was in an older table", want.Name)
		}
		distinct := map[backendKey]bool{}
		index := make([]uint32, len(want.Backends))
		for j, b := range want.Backends {
			key := backendKey{b.Address, b.Port, b.SNAT}
			distinct[key], index[j] = true, s.backends[key].index
			hop := d.hops.Resolve(b, table.Interfaces)
			got, entry := d.entries.Entries[index[j]], entryOf(want, s.index, b, hop)
			entry.Epoch, entry.State = got.Epoch, got.State // of suspects, and of what is down
			if got != entry && got.State != uint8(abi.BackendStateBACKEND_SUSPECT) {
				say("%s, %s is %+v, want %+v", want.Name, b.Name, got, entry)
			}
			if alive := aliveIn(got.State); alive != (b.State.Alive() && !hop.MAC.IsZero()) {
				say("%s, %s is alive: %t, and is desired %s", want.Name, b.Name, alive, b.State)
			}
			egress[got.Ifindex] = true
		}
		backends += len(distinct)
		slots, header := ringSlots(d.rings.bytes(d.rings.of(s.index)))
		if header.Service != s.index || len(slots) != len(want.Ring.Slots) {
			say("%s has a ring of service %d with %d slots", want.Name, header.Service, len(slots))
			continue
		}
		for k := range slots {
			if slots[k].Owner != index[want.Ring.Slots[k].Owner] {
				say("%s: slot %d is %d's, want %d's", want.Name, k, slots[k].Owner, index[want.Ring.Slots[k].Owner])
				break
			}
		}
	}
	if n := entriesInUse(d); n != backends {
		say("%d entries are in use, want %d", n, backends)
	}
	kernel, lookups := newLookups(0), lookupsOf(all)
	must(t, readEndpoints(d.kernel.Services4, d.kernel.Services6, kernel.services))
	must(t, readEndpoints(d.kernel.Replies4, d.kernel.Replies6, kernel.replies))
	must(t, readPrefixes(d.kernel, kernel.ranges))
	if !maps.Equal(kernel.services, lookups.services) || !maps.Equal(kernel.replies, lookups.replies) || !maps.Equal(kernel.ranges, lookups.ranges) {
		say("lookups are %v, want %v", kernel, lookups)
	}
	for place := range d.fronts.Entries {
		if p := &d.fronts.Entries[place]; p.Service != 0 && !slices.ContainsFunc(all, func(s *service) bool {
			key, _ := frontOf(endpoint{s.key.segment, s.key.vip, uint8(s.key.protocol), s.key.port.First})
			return s.key.port.Single() && frontService(s.index, uint64(s.ring.first)) == p.Service && key.Address == p.Address && key.Key == p.Key
		}) {
			say("place %d of the front is of nobody: %+v", place, *p)
		}
	}
	delete(egress, 0)
	open, want := egressOf(t, d), slices.Sorted(maps.Keys(egress))
	if slices.Sort(open); !slices.Equal(open, want) {
		say("packets may leave by %v, want %v", open, want)
	}
	if flags := lookups.flags(); d.written.Flags&^uint32(abi.SettingsFlagSETTINGS_OWN_MACS) != flags {
		say("flags are %x, want %x", d.written.Flags, flags)
	}
	return wrong
}

// TestFrontFillsUp: a service whose place of the front rested when it came gets it with a
// later Set, though nothing of the service changes by that one.
func TestFrontFillsUp(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 2)
	d := openTest(t, model.Limits{})
	clock := time.Now()
	d.fronts.now = func() time.Time { return clock }
	table := tableOf(2, 2, 0)
	must(t, d.Set(table))
	place := func() uint64 {
		_, at := frontOf(endpoint{0, table.Services[0].VIP, uint8(model.TCP), 80})
		return d.fronts.Entries[at].Service
	}
	without := table
	without.Services = table.Services[1:]
	must(t, d.Set(without))
	must(t, d.Set(table))
	if place() != 0 {
		t.Fatal("a place is given away that packets may still look at")
	}
	must(t, d.Set(table))
	if place() != 0 {
		t.Fatal("a place is given away that packets may still look at")
	}
	clock = clock.Add(rest)
	must(t, d.Set(table))
	if place() == 0 {
		t.Error("a place that has rested is not used again")
	}
}
