package policies

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
)

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
