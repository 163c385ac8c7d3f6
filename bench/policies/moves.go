package policies

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/history"
	"weir.io/weir/internal/maglev"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/record"
)

var movesNotes = []string{
	"computed by the code that directors run (the log, the ring, the rows), in rings of the default size; which backends are chosen differs from round to round",
	"moved: the share of new connections that go to another backend than the same connection would have before. Open connections of backends that are still there stay: [consistency](../internals/consistency.md)",
	"least: what must move, whoever places connections, so that shares follow weights. modulo: hash modulo the number of backends, without a ring; where backends are replaced each takes the number of one that went",
	"shared: the share of slots whose connections may be of several backends after the change, until the generation before it has left the log. That is what a director has to remember flows of in modes without agents",
	"halve 10 %: a tenth of the backends get half of their weight",
	"with 100,000 backends in one service only the ring is computed, not the backups that rows are made of: these take minutes, and seconds with 10,000. A site as large as that should have several services",
}

var (
	movedSlots  = record.Quantity{Name: "moved", Unit: "1", Better: record.Lower}
	sharedSlots = record.Quantity{Name: "shared", Unit: "1", Better: record.Lower}
)

// mostPlanned is up to how many backends of one service are planned with the directors' code.
const mostPlanned = 10000

func askMoves(a *asking) error {
	for _, n := range []int{10, 100, 1000, 10000, 100000} {
		if a.settings.Smoke && n > 100 {
			break
		}
		planner := engine.NewPlanner()
		for round := range a.settings.Rounds {
			if n >= mostPlanned && round > 0 {
				break // with so many backends any tenth is like another
			}
			for _, c := range changes {
				if err := a.context.Err(); err != nil {
					return err
				}
				random := rand.New(rand.NewPCG(a.settings.Seed+uint64(round), 0))
				if err := a.move(c, n, random, planner); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (a *asking) move(c change, n int, random *rand.Rand, planner *engine.Planner) error {
	at := record.Conditions{"change": c.name, "backends": strconv.Itoa(n)}
	var least float64
	if n <= mostPlanned {
		o, must, err := c.after(n, random, planner)
		if err != nil {
			return err
		}
		least = must
		a.into.Add("maglev", at, movedSlots, o.moved)
		a.into.Add("maglev", at, sharedSlots, o.lists)
	} else {
		var moved float64
		moved, least = c.ringAlone(n, random)
		a.into.Add("maglev", at, movedSlots, moved)
	}
	a.into.Add("least", at, movedSlots, least)
	if now, known := (map[string]int{"add 1": n + 1, "remove 1": n - 1, "add 10 %": n + n/10}[c.name]); known {
		a.into.Add("modulo", at, movedSlots, 1-float64(min(n, now))/lcm(n, now))
	} else if c.name == "replace 10 %" {
		a.into.Add("modulo", at, movedSlots, float64(n/10)/float64(n))
	}
	return nil
}

// ringAlone returns the share of a ring's slots that a change moves.
func (c change) ringAlone(n int, random *rand.Rand) (moved, must float64) {
	before := backendsFrom(0, n)
	after := c.apply(before, random)
	size := maglev.DefaultSize(n)
	was, is := owners(size, before), owners(size, after)
	count := 0
	for i := range was {
		if was[i] != is[i] {
			count++
		}
	}
	return float64(count) / float64(size), least(before, after)
}

func owners(size uint32, backends []model.Backend) []string {
	var members []maglev.Member
	for _, b := range backends {
		if b.State != model.Draining {
			members = append(members, maglev.Member{Key: b.Endpoint().String(), Weight: b.Weight})
		}
	}
	names := make([]string, size)
	for i, owner := range maglev.Ring(size, members) {
		names[i] = members[owner].Key
	}
	return names
}

// lcm is the least common multiple: in that many consecutive hashes, two moduli agree on as many
// hashes as the smaller modulus.
func lcm(a, b int) float64 {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return float64(a/x) * float64(b)
}

// change is what happens to the backends of a service.
type change struct {
	name  string
	apply func(backends []model.Backend, random *rand.Rand) []model.Backend
}

// newBackends are addresses that no service had before.
const newBackends = 1 << 23

var changes = []change{
	{"add 1", func(b []model.Backend, _ *rand.Rand) []model.Backend { return added(b, 1) }},
	{"remove 1", func(b []model.Backend, random *rand.Rand) []model.Backend { return removed(b, 1, random) }},
	{"add 10 %", func(b []model.Backend, _ *rand.Rand) []model.Backend { return added(b, len(b)/10) }},
	{"replace 10 %", func(b []model.Backend, random *rand.Rand) []model.Backend {
		return added(removed(b, len(b)/10, random), len(b)/10)
	}},
	{"drain 10 %", func(b []model.Backend, random *rand.Rand) []model.Backend {
		return some(b, random, func(b *model.Backend) { b.State = model.Draining })
	}},
	{"halve 10 %", func(b []model.Backend, random *rand.Rand) []model.Backend {
		return some(b, random, func(b *model.Backend) { b.Weight /= 2 })
	}},
}

func backendsFrom(first, n int) []model.Backend {
	all := make([]model.Backend, n)
	for i := range all {
		all[i] = model.NewBackend()
		at := uint32(10<<24 + first + i)
		all[i].Address = netip.AddrFrom4([4]byte{byte(at >> 24), byte(at >> 16), byte(at >> 8), byte(at)})
		all[i].Name, all[i].Weight = all[i].Address.String(), 100
	}
	return all
}

func added(b []model.Backend, n int) []model.Backend {
	return slices.Concat(b, backendsFrom(newBackends, n))
}

func removed(b []model.Backend, n int, random *rand.Rand) []model.Backend {
	rest := slices.Clone(b)
	for range n {
		i := random.IntN(len(rest))
		rest = slices.Delete(rest, i, i+1)
	}
	return rest
}

// some changes a tenth of the backends.
func some(b []model.Backend, random *rand.Rand, do func(*model.Backend)) []model.Backend {
	all := slices.Clone(b)
	for _, i := range random.Perm(len(all))[:len(all)/10] {
		do(&all[i])
	}
	return all
}

// least is the share of connections that must go elsewhere than before, whatever places them, so
// that all backends have shares by their weights.
func least(before, after []model.Backend) float64 {
	shares := func(all []model.Backend) map[netip.Addr]float64 {
		sum, weights := 0.0, map[netip.Addr]float64{}
		for _, b := range all {
			if b.State != model.Draining {
				weights[b.Address] = float64(b.Weight)
				sum += float64(b.Weight)
			}
		}
		for address := range weights {
			weights[address] /= sum
		}
		return weights
	}
	now, stay := shares(after), 0.0
	was := shares(before)
	for _, b := range before { // in order, so that the sum is always the same
		stay += min(was[b.Address], now[b.Address])
	}
	return max(0, 1-stay)
}

// outcome is what a change does to a service's slots.
type outcome struct {
	moved float64 // share of the slots whose new connections go elsewhere
	lists float64 // share of the slots that may have connections of several backends
	held  float64 // share of the slots that stay as they were for lack of room in the row
	bytes uint64  // that the ring takes in the director's program
}

// after works out what a change does, with the code that directors run.
func (c change) after(n int, random *rand.Rand, planner *engine.Planner) (outcome, float64, error) {
	before := model.Service{Name: "site", VIP: netip.AddrFrom4([4]byte{192, 0, 2, 1}), Protocol: model.TCP,
		Port: model.PortRange{First: 443, Last: 443}, Mode: model.IPIP, Backends: backendsFrom(0, n)}
	now := before
	now.Backends = c.apply(before.Backends, random)
	at := time.Unix(0, 0)
	log := history.Advance(model.Log{}, &before, at)
	was, _ := plan(planner, before, log)
	is, report := plan(planner, now, history.Advance(log, &now, at.Add(time.Second)))
	slots := len(is.Ring.Slots)
	if slots != len(was.Ring.Slots) || report.Generations != 2 {
		return outcome{}, 0, fmt.Errorf("%s of %d backends: %d slots became %d, in %d generations", c.name, n, len(was.Ring.Slots), slots, report.Generations)
	}
	moved := 0
	for i, slot := range is.Ring.Slots {
		if is.Backends[slot.Owner].Address != was.Backends[was.Ring.Slots[i].Owner].Address {
			moved++
		}
	}
	share := func(of int) float64 { return float64(of) / float64(slots) }
	return outcome{share(moved), share(report.Shared), share(report.Held), ringBytes(&is.Ring)}, least(before.Backends, now.Backends), nil
}

func plan(planner *engine.Planner, s model.Service, log model.Log) (model.TableService, engine.ServiceReport) {
	table, report := planner.Plan(model.Config{Services: []model.Service{s}}, engine.Logs{s.ID(): log}, nil)
	return table.Services[0], report.Services[0]
}

// ringBytes is what a ring takes in the program: lines of 64 bytes, one for the header,
// one for eight slots, one for each list. docs/start/requirements.md has the sizes.
func ringBytes(r *model.Ring) uint64 { return 64 * uint64(1+(len(r.Slots)+7)/8+len(r.Lists)) }

var routesNotes = []string{
	"computed, not simulated: routers in front of a group hash flows over its directors (ECMP), and one director of the group leaves, whichever it is",
	"elsewhere: the share of flows whose packets come to another director than before, those of the one that left among them. In `gue` any director does with a packet what any other does, so nothing comes of it; in the other modes the flows of shared slots have to be known there, which is what directors tell each other",
	"modulo: hash modulo the number of next hops. hash-threshold: each next hop has an equal range of hashes ([RFC 2992](https://www.rfc-editor.org/rfc/rfc2992)), as in Linux. resilient: the flows of the others stay, as with next-hop groups of type resilient: the least that there can be",
}

var elsewhere = record.Quantity{Name: "elsewhere", Unit: "1", Better: record.Lower}

func askRoutes(a *asking) error {
	for _, n := range []int{2, 4, 8, 16, 64, 256, 1000} {
		at := record.Conditions{"directors": strconv.Itoa(n)}
		a.into.Add("modulo", at, elsewhere, 1-float64(n-1)/lcm(n, n-1))
		a.into.Add("hash-threshold", at, elsewhere, thresholdMoves(n))
		a.into.Add("resilient", at, elsewhere, 1/float64(n))
	}
	return nil
}

// thresholdMoves is the share that moves when a director leaves, the mean over all directors: the
// ranges of those before it grow to the right, and of those behind it to the left.
func thresholdMoves(n int) float64 {
	before, after := 1/float64(n), 1/float64(n-1)
	sum := 0.0
	for gone := range n {
		stay := 0.0
		for i := range n {
			if i == gone {
				continue
			}
			j := i
			if i > gone {
				j--
			}
			from := max(float64(i)*before, float64(j)*after)
			to := min(float64(i+1)*before, float64(j+1)*after)
			stay += max(0, to-from)
		}
		sum += 1 - stay
	}
	return sum / float64(n)
}

var stateNotes = []string{
	"a site of 100 services with 1,000 backends each behind one group of 100 directors; memory: of each of them, with 64 CPUs. Rings and what is shared are computed by the code that directors run, after the change",
	"rings and backends: what every mode needs, and `gue` for TCP needs nothing else, whatever changes. A backend takes 64 bytes and 16 for each CPU",
	"flow memory: 32 bytes of IPv4 and 64 of IPv6 (here: 32) for each open connection of a shared slot, of the whole group, since directors tell each other. It is needed until the older generation has left and the connections have ended, by `l2dsr`, `ipip` and `nat`; with nothing changed it is empty",
	"table: what the table alone takes of a balancer that remembers every connection, in entries as large as weir's; its backends come on top. shared: of the whole group in each director; own: each director its own, with as many connections as the others, and a lost director's are lost",
	"`limits.flows` is at most 268,435,456, 8.6 GB: what is beyond is placed and not remembered",
}

var memoryNeeded = record.Quantity{Name: "memory", Unit: "B", Better: record.Lower}

const (
	siteServices  = 100
	siteBackends  = 1000
	siteDirectors = 100
	siteCPUs      = 64
	flowBytes     = 32
)

func askState(a *asking) error {
	backends := siteBackends
	if a.settings.Smoke {
		backends = 100
	}
	planner := engine.NewPlanner()
	outcomes := map[string]outcome{}
	for _, c := range changes {
		if c.name != "replace 10 %" && c.name != "remove 1" {
			continue
		}
		o, _, err := c.after(backends, rand.New(rand.NewPCG(a.settings.Seed, 0)), planner)
		if err != nil {
			return err
		}
		outcomes[c.name] = o
	}
	for connections := 1e6; connections <= 1e9; connections *= 10 {
		at := record.Conditions{"connections": strconv.FormatFloat(connections, 'f', 0, 64)}
		add := func(subject string, bytes float64) { a.into.Add(subject, at, memoryNeeded, bytes) }
		fixed := func(o outcome) float64 {
			return siteServices*float64(o.bytes) + float64(siteServices*backends)*(64+16*siteCPUs)
		}
		add("gue, 10 % replaced", fixed(outcomes["replace 10 %"]))
		for _, name := range []string{"remove 1", "replace 10 %"} {
			o := outcomes[name]
			add("ipip, "+map[string]string{"remove 1": "1 of 1,000 removed", "replace 10 %": "10 % replaced"}[name],
				fixed(o)+flowBytes*o.lists*connections)
		}
		add("table, own", flowBytes*connections/siteDirectors)
		add("table, shared", flowBytes*connections)
	}
	return nil
}
