package steering

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/datapath"
	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
)

// card is a NIC.
type card struct {
	rules   map[uint32]device.Rule // by location
	size    int
	chooses bool                        // it says where rules lie
	refuses func(device.RuleFlow) bool  // it has no such rules
	fails   func() bool                 // its next call fails
	ignores bool                        // it accepts rules that it does not have
	told    func(device.Rule) (ok bool) // whether the program knows of a rule when it is inserted
	changes int                         // of rules
	odd     map[uint32]bool             // locations of rules for more than one flow
	kept    []uint32                    // queues that packets without a rule are kept off
}

var errNIC = errors.New("the NIC is busy")

func (c *card) Able([]uint32) (device.RuleTable, error) {
	if c.fails() || c.size == 0 {
		return device.RuleTable{}, errNIC
	}
	return device.RuleTable{Size: c.size, Locations: slices.Concat(slices.Collect(maps.Keys(c.rules)), slices.Collect(maps.Keys(c.odd))), Chooses: c.chooses}, nil
}

func (c *card) Rule(location uint32) (device.Rule, bool, error) {
	if c.fails() {
		return device.Rule{}, false, errNIC
	}
	r, single := c.rules[location]
	if r.Location = location; !single && !c.odd[location] {
		return r, false, device.ErrNoRule
	}
	return r, single, nil
}

func (c *card) Insert(r device.Rule, chooses bool) (uint32, error) {
	if chooses != c.chooses {
		return 0, fmt.Errorf("chooses: %v", chooses)
	}
	if c.chooses {
		for r.Location = 0; c.rules[r.Location].Flow.Protocol != 0 || c.odd[r.Location]; r.Location++ {
		}
	}
	_, taken := c.rules[r.Location]
	switch {
	case c.fails() || c.refuses(r.Flow) || int(r.Location) >= c.size:
		return 0, errNIC
	case taken || c.odd[r.Location]:
		panic(fmt.Sprintf("the rule at %d is written over", r.Location))
	case !c.told(r):
		panic(fmt.Sprintf("the program does not know of %+v", r))
	case !c.ignores:
		c.rules[r.Location] = r
	}
	c.changes++
	return r.Location, nil
}

func (c *card) Keep(queues []uint32) error {
	if c.fails() {
		return errNIC
	}
	c.kept = queues
	return nil
}

func (c *card) GiveBack(queues []uint32) error {
	if c.fails() {
		return errNIC
	}
	if slices.Equal(c.kept, queues) { // else it keeps others by now
		c.kept = nil
	}
	return nil
}

func (c *card) Delete(location uint32) error {
	if c.fails() {
		return errNIC
	}
	r, is := c.rules[location]
	if !is && !c.odd[location] {
		return errNIC
	}
	if r.Queue < 8 {
		panic(fmt.Sprintf("another user's rule %+v is deleted", r))
	}
	delete(c.rules, location)
	c.changes++
	return nil
}

// world is a host with two NICs and the director's program.
type world struct {
	*testing.T
	*Controller
	cards  []*card
	queues map[datapath.SteeredQueue]bool
	told   map[datapath.SteeredFlow]bool
	rates  map[datapath.SteeredFlow]uint64
	left   func(datapath.SteeredFlow) bool // the program has no place for the flow
	now    time.Time
	wanted Wanted

	nic       func(*card) NIC // what links have; nil: the card
	prefix    string          // of names; empty: eth
	elsewhere func(datapath.SteeredFlow) bool
}

var queues = []uint32{8, 9, 10, 11}

func newWorld(t *testing.T, cards int) *world {
	w := &world{T: t, rates: map[datapath.SteeredFlow]uint64{}, left: func(datapath.SteeredFlow) bool { return false }, now: time.Now()}
	w.wanted = Wanted{Flows: 40, Packets: 1000}
	w.restart()
	for i := range cards {
		w.cards = append(w.cards, &card{size: 64, rules: map[uint32]device.Rule{}, odd: map[uint32]bool{}, fails: func() bool { return false }, refuses: func(device.RuleFlow) bool { return false },
			told: func(r device.Rule) bool {
				for f := range w.told {
					if ruleOf(f) == r.Flow {
						return w.queues[datapath.SteeredQueue{Interface: i + 1, Queue: r.Queue, Service: f.Service}]
					}
				}
				return false
			}})
	}
	w.wanted.Links = w.links(queues)
	return w
}

// restart has another process go on.
func (w *world) restart() {
	kept := map[int][]uint32{}
	for q := range w.queues {
		kept[q.Interface] = append(kept[q.Interface], q.Queue)
		slices.Sort(kept[q.Interface])
	}
	w.Controller = New(Deps{Datapath: w, Wanted: func() Wanted { return w.wanted }, Kept: kept, LinkOf: func(index int) (Link, bool) {
		if index > len(w.cards) {
			return Link{}, false
		}
		return w.links(nil)[index-1], true
	}})
}

func (w *world) SteeredPackets() uint64 { return 0 }

func (w *world) SteeredFlows() []datapath.SteeredFlow { return slices.Collect(maps.Keys(w.told)) }

func (w *world) links(queues []uint32) (links []Link) {
	for i, c := range w.cards {
		l := Link{Name: fmt.Sprint(cmp.Or(w.prefix, "eth"), i), Index: i + 1, NIC: c, Queues: queues}
		if w.nic != nil {
			l.NIC = w.nic(c)
		}
		links = append(links, l)
	}
	return links
}

func (w *world) Steer(queues []datapath.SteeredQueue, flows []datapath.SteeredFlow) (left []datapath.SteeredFlow, err error) {
	w.queues, w.told = map[datapath.SteeredQueue]bool{}, map[datapath.SteeredFlow]bool{}
	for _, q := range queues {
		w.queues[q] = true
	}
	for _, f := range flows {
		if w.left(f) {
			left = append(left, f)
		} else {
			w.told[f] = true
		}
	}
	return left, nil
}

func (w *world) HeavyFlows(float64) (sample []datapath.HeavyFlow, err error) {
	for f, rate := range w.rates {
		s := datapath.HeavyFlow{SteeredFlow: f, Packets: rate, Steered: w.told[f]}
		if w.told[f] && (w.elsewhere == nil || !w.elsewhere(f)) {
			s.ByRule = rate
		}
		sample = append(sample, s)
	}
	return sample, nil
}

// steps are so many steps, one a second. It returns the problems after the last one.
func (w *world) steps(n int) (problems []string) {
	for range n {
		w.now = w.now.Add(time.Second)
		w.Step(w.now)
	}
	status := w.Status()
	if status == nil {
		return nil
	}
	if status.Problem != "" {
		problems = append(problems, status.Problem)
	}
	for _, l := range status.Interfaces {
		if l.Problem != "" {
			problems = append(problems, l.Problem)
		}
	}
	return problems
}

func (w *world) wantSteps(n int) {
	w.Helper()
	if problems := w.steps(n); problems != nil {
		w.Fatal(problems)
	}
}

// steered are the flows that a NIC leads to a queue where the program knows them.
func (w *world) steered(card int) map[datapath.SteeredFlow]bool {
	found := map[datapath.SteeredFlow]bool{}
	for _, r := range w.cards[card].rules {
		for f := range w.told {
			if ruleOf(f) == r.Flow && w.queues[datapath.SteeredQueue{Interface: card + 1, Queue: r.Queue, Service: f.Service}] {
				found[f] = true
			}
		}
	}
	return found
}

func flowOf(service, port int) datapath.SteeredFlow {
	id := model.ServiceID{VIP: netip.AddrFrom4([4]byte{203, 0, 113, byte(service)}), Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}}
	client := netip.AddrFrom4([4]byte{192, 0, 2, 1})
	if service > 100 {
		id.VIP, client = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
	}
	return datapath.SteeredFlow{Service: id, Client: netip.AddrPortFrom(client, uint16(port))}
}

// The flows with the most packets are steered on each NIC, as many as there is room for; nothing changes
// while they stay so; and all rules go with them.
func TestHeaviestAreSteered(t *testing.T) {
	t.Parallel()
	for _, chooses := range []bool{false, true} {
		w := newWorld(t, 2)
		w.cards[0].chooses = chooses
		for port := range 200 {
			w.rates[flowOf(1+port%3, 1000+port)] = uint64(100 * port)
		}
		w.wantSteps(8)
		for card := range w.cards {
			steered := w.steered(card)
			for port := 160; port < 200; port++ {
				if f := flowOf(1+port%3, 1000+port); !steered[f] {
					t.Errorf("card %d does not steer flow %v, with %d packets per second", card, f, w.rates[f])
				}
			}
			if len(w.cards[card].rules) != 40 {
				t.Errorf("card %d has %d rules, want 40", card, len(w.cards[card].rules))
			}
		}
		before := w.cards[0].changes
		w.wantSteps(30)
		if w.cards[0].changes != before {
			t.Errorf("%d rules have changed, and no flow has", w.cards[0].changes-before)
		}
		clear(w.rates)
		w.wantSteps(20)
		if len(w.cards[0].rules)+len(w.cards[1].rules)+len(w.told) > 0 {
			t.Errorf("there are rules %v, and no flows", w.cards[0].rules)
		}
		w.wantKept(queues, queues)
	}
}

// A service that comes gets a queue, though others have them all.
func TestServicesShareQueues(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	for port := range 30 {
		w.rates[flowOf(1, 1000+port)] = 50_000
	}
	w.wantSteps(5)
	late := flowOf(2, 1)
	w.rates[late] = 5000
	w.wantSteps(6)
	if !w.steered(0)[late] {
		t.Error("a service that has come later has no queue")
	}
	if n := len(w.steered(0)); n != 31 {
		t.Errorf("%d flows are steered, want all 31", n)
	}
}

// What a NIC does not take, and what does not fit, is no trouble for others.
func TestRefusedRules(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.cards[0].refuses = func(f device.RuleFlow) bool { return f.Source.Addr().Is6() }
	w.left = func(f datapath.SteeredFlow) bool { return f.Client.Port() == 1003 }
	six := flowOf(101, 7)
	w.rates[six] = 1 << 20
	for port := range 20 {
		w.rates[flowOf(1, 1000+port)] = 50_000
	}
	w.steps(30)
	if n := w.Status().Interfaces[0].Refused; n != 1 {
		t.Errorf("a rule was refused %d times in half a minute, want once", n)
	}
	if p := w.steps(1); len(p) != 1 || p[0] != errNIC.Error() {
		t.Errorf("the problems are %q, want the refusal", p)
	}
	steered := w.steered(0)
	if len(steered) != 19 || steered[six] || steered[flowOf(1, 1003)] {
		t.Errorf("%d flows are steered, want 19: one has no rule, and one has no place", len(steered))
	}
	// Full of other users' rules, and without a size.
	w.cards[0].rules, w.cards[0].size = map[uint32]device.Rule{}, 4
	for at := range uint32(4) {
		w.cards[0].odd[at] = true
	}
	w.steps(3)
	if len(w.cards[0].rules) > 0 {
		t.Errorf("a full table has got rules %v", w.cards[0].rules)
	}
	w.cards[0].size = 0
	if p := w.steps(1); len(p) != 1 || p[0] != "no flow is steered: the NIC is busy" {
		t.Errorf("without a size a step says %q", p)
	}
}

// Other queues, or another interface, take the rules along.
func TestLinksChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	for port := range 20 {
		w.rates[flowOf(1, 1000+port)] = 50_000
	}
	w.wantSteps(5)
	w.wanted.Links = w.links([]uint32{12, 13})[:1]
	w.wantSteps(5)
	for _, r := range w.cards[0].rules {
		if r.Queue < 12 {
			t.Errorf("rule %+v is left", r)
		}
	}
	if len(w.cards[1].rules) > 0 || len(w.steered(0)) != 20 {
		t.Errorf("%d rules are left on another interface, and %d flows are steered", len(w.cards[1].rules), len(w.steered(0)))
	}
	w.wantKept([]uint32{12, 13}, nil)
}

// wantKept: packets without rules are kept off these queues of the NICs.
func (w *world) wantKept(kept ...[]uint32) {
	w.Helper()
	for i, want := range kept {
		if got := w.cards[i].kept; !slices.Equal(got, want) {
			w.Errorf("packets are kept off queues %v of card %d, want %v", got, i, want)
		}
	}
}

// The next process goes on with the rules that it finds, and takes back those that it is not to have.
func TestNextProcess(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Wanted) (rules int, kept []uint32){
		"as before":       func(*Wanted) (int, []uint32) { return 20, queues },
		"other queues":    func(is *Wanted) (int, []uint32) { is.Links[0].Queues = []uint32{11, 12}; return 20, []uint32{11, 12} },
		"no longer":       func(is *Wanted) (int, []uint32) { is.Flows, is.Links = 0, nil; return 0, nil },
		"not on this one": func(is *Wanted) (int, []uint32) { is.Links = nil; return 0, nil },
	} {
		w := newWorld(t, 1)
		for port := range 20 {
			w.rates[flowOf(1+port%2, 1000+port)] = 50_000
		}
		w.wantSteps(5)
		before := w.cards[0].changes
		rules, kept := change(&w.wanted)
		w.restart()
		if w.wantSteps(1); name == "as before" && len(w.cards[0].rules) != 20 {
			t.Errorf("of 20 rules the next process has left %d", len(w.cards[0].rules))
		}
		w.wantSteps(10)
		if len(w.cards[0].rules) != rules {
			t.Errorf("%s: there are %d rules, want %d", name, len(w.cards[0].rules), rules)
		}
		if name == "as before" && w.cards[0].changes != before {
			t.Errorf("the next process has changed %d rules", w.cards[0].changes-before)
		}
		w.wantKept(kept)
		if name == "no longer" && w.Status() != nil {
			t.Errorf("no flow is to be steered, and the status is %+v", w.Status())
		}
		// Flows that end meanwhile lose the rules that were adopted.
		clear(w.rates)
		if w.wantSteps(20); len(w.cards[0].rules) > 0 {
			t.Errorf("%s: rules %v are left", name, w.cards[0].rules)
		}
		for port := range 5 {
			w.rates[flowOf(1, 1000+port)] = 50_000
		}
		w.wantSteps(5)
		w.wantCleared(len(w.cards[0].rules))
	}
}

// wantCleared: a director that ends for good leaves no rules of its own, and another process finds them back.
func (w *world) wantCleared(rules int) {
	w.Helper()
	other := device.Rule{Flow: ruleOf(flowOf(9, 9)), Queue: 2}
	w.cards[0].rules[63] = other
	kept := map[int][]uint32{1: {8, 9, 10, 11, 12}, 7: queues} // one has gone
	if err := Clear(kept, w.deps.LinkOf); err != nil || len(w.cards[0].rules) != 1 || w.cards[0].rules[63] != other {
		w.Errorf("of %d rules %v are left (%v), want another user's", rules, w.cards[0].rules, err)
	}
	delete(w.cards[0].rules, 63)
	w.cards[0].fails = func() bool { return true }
	if err := Clear(kept, w.deps.LinkOf); err == nil || !strings.Contains(err.Error(), "rules of eth0 to queues [8 9 10 11 12] are left: ") {
		w.Errorf("a NIC that does not answer is told by %v", err)
	}
	w.cards[0].fails = func() bool { return false }
}

// Whatever becomes of flows and NICs: other users' rules stay, the program knows of each rule before the NIC
// does, and in the end the heaviest flows are steered.
func TestAnyHistory(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t, 1+r.IntN(2))
		failing, now := 0, map[int]uint64{}
		for _, c := range w.cards {
			c.size, c.chooses = 30+r.IntN(60), r.IntN(2) == 0
			c.rules[3], c.odd[5] = device.Rule{Flow: ruleOf(flowOf(9, 9)), Queue: 2}, true
			c.fails = func() bool { return r.IntN(100) < failing }
		}
		for range 60 {
			failing = []int{0, 0, 5, 50}[r.IntN(4)]
			for _, c := range w.cards {
				c.ignores = r.IntN(8) == 0
				if r.IntN(10) == 0 { // it was reset
					maps.DeleteFunc(c.rules, func(at uint32, _ device.Rule) bool { return at != 3 })
				}
			}
			for range r.IntN(20) {
				f := flowOf(1+r.IntN(6), 1000+r.IntN(20))
				if w.rates[f] = uint64(r.IntN(20_000)); r.IntN(4) == 0 {
					delete(w.rates, f)
				}
			}
			if r.IntN(20) == 0 {
				w.restart()
			}
			p := w.steps(1)
			for i, l := range w.Status().Interfaces {
				if l.Problem != "" && failing == 0 && now[i] == l.Refused {
					p = slices.DeleteFunc(p, func(p string) bool { return p == errNIC.Error() }) // an earlier refusal
				}
				now[i] = l.Refused
			}
			if len(p) > 0 && failing == 0 {
				t.Fatalf("seed %d: %v", seed, p)
			}
		}
		failing = 0
		for _, c := range w.cards {
			c.ignores = false
		}
		w.wantSteps(100)
		able := 0
		for _, rate := range w.rates {
			if rate >= 1000 {
				able++
			}
		}
		for i, c := range w.cards {
			steered := w.steered(i)
			// Each service needs a queue.
			if len(steered) < min(able, 20)/2 {
				t.Errorf("seed %d: card %d steers %d of %d flows", seed, i, len(steered), able)
			}
			for at, rule := range c.rules {
				if rule.Queue >= 8 && !slices.ContainsFunc(slices.Collect(maps.Keys(steered)), func(f datapath.SteeredFlow) bool { return ruleOf(f) == rule.Flow }) {
					t.Errorf("seed %d: rule %+v at %d leads nowhere", seed, rule, at)
				}
			}
			if c.rules[3].Queue != 2 {
				t.Errorf("seed %d: another user's rule is %+v", seed, c.rules[3])
			}
		}
	}
}
