package steering

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/datapath"
	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
)

// steady is a world of one card, whose 20 flows have rules.
func steady(t *testing.T) *world {
	w := newWorld(t, 1)
	for port := range 20 {
		w.rates[flowOf(1, 1000+port)] = 50_000
	}
	w.wantSteps(5)
	if len(w.cards[0].rules) != 20 {
		t.Fatalf("%d flows have rules", len(w.cards[0].rules))
	}
	return w
}

// Without steering the program knows of no queue, so that the next process takes no rule for its own; and flows
// that ended meanwhile get none when there is steering again.
func TestSteeringEnds(t *testing.T) {
	t.Parallel()
	w := steady(t)
	before := w.wanted
	w.wanted = Wanted{}
	w.wantSteps(10)
	if len(w.queues)+len(w.told)+len(w.cards[0].rules) > 0 {
		t.Errorf("the program knows queues %v and flows %v, and the NIC has rules %v", w.queues, w.told, w.cards[0].rules)
	}
	theirs := device.Rule{Flow: ruleOf(flowOf(7, 7)), Queue: 9, Location: 3}
	w.cards[0].rules[3] = theirs
	w.restart()
	w.wantSteps(3)
	if w.cards[0].rules[3] != theirs {
		t.Error("another user's rule is gone")
	}
	delete(w.cards[0].rules, 3)
	clear(w.rates)
	w.now = w.now.Add(time.Hour)
	w.wanted = before
	w.wantSteps(3)
	if len(w.cards[0].rules) > 0 {
		t.Errorf("flows that ended an hour ago have rules %v", w.cards[0].rules)
	}
}

// With fewer queues, or more, rules to those that stay are left, and the interface is told of once.
func TestOtherQueues(t *testing.T) {
	t.Parallel()
	for name, queues := range map[string][]uint32{"fewer": {8, 9}, "more": {8, 9, 10, 11, 12}} {
		w := steady(t)
		stay := 0
		for _, r := range w.cards[0].rules {
			if name == "more" || r.Queue < 10 {
				stay++
			}
		}
		w.wanted.Links = w.links(queues)
		w.wantSteps(1)
		if n := len(w.cards[0].rules); n < stay {
			t.Errorf("%s queues: %d rules are left, and %d may stay", name, n, stay)
		}
		if n := len(w.Status().Interfaces); n != 1 {
			t.Errorf("%s queues: the status has %d interfaces", name, n)
		}
		w.wantSteps(5)
		if is := w.Status().Interfaces[0]; is.Rules != 20 || is.Lost > 0 || is.Inserted < 20 {
			t.Errorf("%s queues: the interface is %+v", name, is)
		}
		w.wantKept(queues)
	}
}

// offCard is a NIC whose flow table is off, and deadCard one whose rules cannot be read.
type (
	offCard  struct{ *card }
	deadCard struct{ *card }
	formCard struct{ *card } // it lists rules in another form
)

func (c offCard) Able([]uint32) (device.RuleTable, error) {
	return device.RuleTable{}, fmt.Errorf("eth0: %w", device.ErrRulesOff)
}

func (c deadCard) Rule(uint32) (device.Rule, bool, error) { return device.Rule{}, false, errNIC }

func (c formCard) Rule(at uint32) (device.Rule, bool, error) {
	r, _, err := c.card.Rule(at)
	return r, false, err
}

// A link leaves also if its flow table is off.
func TestLeavesThoughOff(t *testing.T) {
	t.Parallel()
	w := steady(t)
	w.wanted.Links = nil
	w.nic = func(c *card) NIC { return offCard{c} }
	w.wantSteps(3)
	if n := len(w.Status().Interfaces); n > 0 {
		t.Errorf("%d interfaces are left", n)
	}
	w.wantKept(nil)
	if err := Clear(map[int][]uint32{1: queues}, w.deps.LinkOf); err != nil {
		t.Error(err)
	}
}

// A look that fails adds no rule, and says so in few words.
func TestLookFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.wanted.Flows, w.cards[0].size = 2000, 4000
	for port := range 2000 {
		w.rates[flowOf(1, 1000+port)] = 50_000
	}
	w.wantSteps(8)
	rules := len(w.cards[0].rules)
	w.wanted.Links[0].NIC = deadCard{w.cards[0]}
	for range 12 {
		if p := strings.Join(w.steps(1), ""); len(p) > 200 {
			t.Fatalf("the problem has %d bytes", len(p))
		}
	}
	if n := len(w.cards[0].rules); n != rules {
		t.Errorf("%d rules have become %d", rules, n)
	}
}

// What a NIC does not list as it was inserted, it does not get twice.
func TestOtherForm(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.wanted.Links[0].NIC = formCard{w.cards[0]}
	for port := range 5 {
		w.rates[flowOf(1, 1000+port)] = 50_000
	}
	p := w.steps(30)
	if len(w.cards[0].rules) > 0 || len(p) != 1 || !strings.Contains(p[0], "in another form than it was inserted in") {
		t.Errorf("the NIC has rules %v, and the problems are %q", w.cards[0].rules, p)
	}
	// It may be another driver's version by now.
	w.wanted.Links[0].NIC = w.cards[0]
	w.now = w.now.Add(otherFormFor)
	w.wantSteps(10)
	if len(w.cards[0].rules) != 5 {
		t.Errorf("after a while it has rules %v", w.cards[0].rules)
	}
}

// A driver may list rules of one kind in another form, and others right: i40e does so with those for IPv6. The
// NIC keeps none of the former, also not those whose flow loses its rule before it was listed, and steers the rest.
func TestOtherFormOfAKind(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	c := &kindCard{card: w.cards[0]}
	w.wanted.Links[0].NIC = c
	for port := range 5 {
		w.rates[flowOf(1, 1000+port)] = 50_000
		odd := flowOf(2, 2000+port)
		odd.Service.Protocol = model.UDP
		w.rates[odd] = 50_000
	}
	w.steps(3)
	if len(c.rules) != 10 {
		t.Fatalf("the NIC has rules %v", c.rules)
	}
	w.wanted.Flows = 2 // most rules go before they are listed
	w.steps(1)
	if len(c.rules) != 2 {
		t.Errorf("of 10 rules %v are left, want 2", c.rules)
	}
	w.wanted.Flows = 40
	w.steps(40)
	is := w.Status().Interfaces[0]
	if !is.Works || !strings.Contains(is.Problem, "in another form than it was inserted in") || is.Others > 0 {
		t.Errorf("the interface is %+v", is)
	}
	w.wantRules(c.card, 5)
	w.wanted.Links = nil
	w.steps(3)
	w.wantRules(c.card, 0)
}

func (w *world) wantRules(c *card, n int) {
	w.Helper()
	for _, r := range c.rules {
		if r.Flow.Protocol != uint8(model.TCP) {
			w.Errorf("the NIC has rule %+v, which it lists in another form", r)
		}
	}
	if len(c.rules) != n {
		w.Errorf("the NIC has %d rules, want %d: %v", len(c.rules), n, c.rules)
	}
}

// kindCard lists rules for UDP in another form.
type kindCard struct{ *card }

func (c *kindCard) Rule(at uint32) (device.Rule, bool, error) {
	r, single, err := c.card.Rule(at)
	return r, single && r.Flow.Protocol == uint8(model.TCP), err
}

// Another user who takes rules out, or puts others there, while they are looked at does not make the NIC one
// that lists rules in another form.
func TestRulesChangeWhileTheyAreRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	c := &takenCard{card: w.cards[0]}
	w.wanted.Links[0].NIC = c
	for port := range 5 {
		w.rates[flowOf(1, 1000+port)] = 50_000
	}
	w.steps(2)
	for try := range 40 {
		c.take = true
		w.steps(1)
		if is := w.Status().Interfaces[0]; !is.Works {
			t.Fatalf("after %d rules were taken out the interface is %+v", try, is)
		}
	}
	c.take = false
	w.wantSteps(15)
	if len(w.steered(0)) != 5 {
		t.Errorf("flows %v are steered", w.steered(0))
	}
}

// takenCard is a NIC of which another user takes out rules between a look at the list and one at the rule; of
// every second one the user has put another there.
type takenCard struct {
	*card
	take  bool
	taken int
}

func (c *takenCard) Rule(at uint32) (device.Rule, bool, error) {
	if _, has := c.rules[at]; has && c.take {
		c.take = false
		delete(c.rules, at)
		if c.taken++; c.taken%2 == 0 {
			c.odd[at] = true
			defer delete(c.odd, at)
		}
	}
	return c.card.Rule(at)
}

// A NIC that others have filled keeps no other one from steering.
func TestFullOfOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.cards[1].size = 4
	for at := range uint32(4) {
		w.cards[1].odd[at] = true
	}
	for port := range 20 {
		w.rates[flowOf(1, 1000+port)] = 50_000
	}
	p := w.steps(10)
	if len(p) != 1 || p[0] != "eth1 steers no flows: all 4 rules that fit are other users'" || len(w.steered(0)) != 20 {
		t.Errorf("%d flows are steered, and the problems are %q", len(w.steered(0)), p)
	}
}

// A rule that is listed, and not followed, shows by the queues that its packets come by.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	w := steady(t)
	w.wantSteps(10)
	if n := w.Status().Elsewhere; n > 0 {
		t.Errorf("packets of %d flows come by other queues", n)
	}
	w.elsewhere = func(f datapath.SteeredFlow) bool { return f.Client.Port() < 1003 }
	w.wantSteps(10)
	if n := w.Status().Elsewhere; n != 3 {
		t.Errorf("packets of %d flows come by other queues, want 3", n)
	}
}

// An interface that is renamed while its rules go is found by its index, and one that is gone has none.
func TestLeavesRenamed(t *testing.T) {
	t.Parallel()
	w := steady(t)
	w.wanted.Links = nil
	w.cards[0].fails = func() bool { return true }
	w.steps(2)
	w.prefix = "net"
	w.cards[0].fails = func() bool { return false }
	w.wantSteps(3)
	if len(w.cards[0].rules) > 0 || len(w.Status().Interfaces) > 0 {
		t.Errorf("rules %v and interfaces %v are left", w.cards[0].rules, w.Status().Interfaces)
	}
}
