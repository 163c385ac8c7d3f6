package nic

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"weir.io/weir/internal/device"
)

// gem is a NIC that does what rules say: Cadence's GEM, with its two queues and four rules.
func gem(t *testing.T) *card {
	t.Helper()
	c := cardOf(t, "cadence_gem", "macb", "q%d_rx_packets")
	if err := device.SwitchRulesOn(c.name); err != nil {
		t.Fatal(err)
	}
	c.Cleanup(func() {
		table, err := device.RulesOf(c.name)
		for _, location := range table.Locations {
			err = errors.Join(err, device.DeleteRule(c.name, location))
		}
		if err != nil {
			t.Error(err)
		}
	})
	return c
}

func (c *card) insert(r device.Rule) {
	c.Helper()
	at, err := device.InsertRule(c.name, r, false)
	if err != nil || at != r.Location {
		c.Fatalf("rule %+v is at %d (%v)", r, at, err)
	}
	if got, single, err := device.RuleAt(c.name, at); err != nil || !single || got != r {
		c.Errorf("rule %+v is read as %+v, of a single flow: %v (%v)", r, got, single, err)
	}
}

func (c *card) delete(location uint32) {
	c.Helper()
	if err := device.DeleteRule(c.name, location); err != nil {
		c.Fatal(err)
	}
	if r, single, err := device.RuleAt(c.name, location); single || !errors.Is(err, device.ErrNoRule) {
		c.Errorf("rule %d has gone, and is read as %+v (%v)", location, r, err)
	}
}

// wantTable compares the flow table with what it has to be.
func (c *card) wantTable(locations ...uint32) {
	c.Helper()
	table, err := device.RulesOf(c.name)
	if err != nil {
		c.Fatal(err)
	}
	slices.Sort(table.Locations)
	if table.Size != 4 || table.Chooses || !slices.Equal(table.Locations, locations) {
		c.Errorf("the flow table is %+v, want 4 rules, of which there are %d, and the driver chooses no location", table, locations)
	}
}

// wantError is of an error that says all of what.
func wantError(t *testing.T, err error, is error, what ...string) {
	t.Helper()
	if err == nil || is != nil && !errors.Is(err, is) {
		t.Errorf("the error is %v, want %v", err, is)
		return
	}
	t.Log(err)
	for _, word := range what {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error %q does not say %q", err, word)
		}
	}
}

// Frames of flows with rules come by the queue of their rules, all others by queue 0.
func TestGEMLeadsFramesByRules(t *testing.T) {
	c := gem(t)
	if queues, err := device.ReceiveQueues(c.name); err != nil || queues != 2 {
		t.Errorf("there are %d receive queues (%v), want 2", queues, err)
	}
	if err := device.CanSteer(c.name); err != nil {
		t.Error(err)
	}
	c.wantTable()
	web, names := tcp("192.0.2.1:1111", "203.0.113.10:80"), udp("192.0.2.1:2222", "203.0.113.10:53")
	c.comesBy(0, 5, web)
	c.comesBy(0, 5, names)

	c.insert(device.Rule{Flow: web, Queue: 1, Location: 3})
	c.insert(device.Rule{Flow: names, Queue: 1, Location: 0})
	c.wantTable(0, 3)
	c.comesBy(1, 20, web)
	c.comesBy(1, 11, names)
	for _, other := range []device.RuleFlow{
		tcp("192.0.2.1:1112", "203.0.113.10:80"), tcp("192.0.2.1:1111", "203.0.113.10:81"),
		tcp("192.0.2.2:1111", "203.0.113.10:80"), tcp("192.0.2.1:1111", "203.0.113.11:80"),
		tcp("203.0.113.10:80", "192.0.2.1:1111"), tcp("[2001:db8::1]:1111", "[2001:db8::10]:80"),
		udp("192.0.2.1:2222", "203.0.113.10:80"),
	} {
		c.comesBy(0, 1, other)
	}

	c.delete(3)
	c.wantTable(0)
	c.comesBy(0, 20, web)
	c.comesBy(1, 11, names)
	// To the other queue: a rule may also lead to the one of all frames.
	c.insert(device.Rule{Flow: web, Queue: 0, Location: 1})
	c.comesBy(0, 3, web)
	c.delete(0)
	c.delete(1)
	c.wantTable()
	c.comesBy(0, 11, names)
}

// What the NIC has not is refused, with what it has.
func TestGEMRefusesWhatItHasNot(t *testing.T) {
	c := gem(t)
	web := tcp("192.0.2.1:1111", "203.0.113.10:80")
	insert := func(r device.Rule) error { _, err := device.InsertRule(c.name, r, false); return err }
	rule := "TCP from 192.0.2.1:1111 to 203.0.113.10:80"
	wantError(t, insert(device.Rule{Flow: web, Queue: 1, Location: 4}), nil, c.name+" (macb): ", "rule 4 for "+rule, "there is room for 4 rules")
	wantError(t, insert(device.Rule{Flow: web, Queue: 2, Location: 3}), nil, c.name+" (macb): ", "rule 3 for "+rule+" to queue 2", "there are 2 receive queues")
	_, err := device.InsertRule(c.name, device.Rule{Flow: web, Queue: 1}, true) // the driver does not choose locations
	wantError(t, err, nil, c.name+" (macb): ", "rule for "+rule)
	for location := range uint32(4) {
		c.insert(device.Rule{Flow: web, Queue: 1, Location: location})
	}
	c.wantTable(0, 1, 2, 3)
	wantError(t, insert(device.Rule{Flow: web, Queue: 1, Location: 2}), nil, c.name+" (macb): ", "rule 2 for "+rule, "busy")
	wantError(t, device.DeleteRule(c.name, 4), nil, c.name+" (macb): ", "delete rule 4")
	c.delete(2)
	wantError(t, device.DeleteRule(c.name, 2), nil, c.name+" (macb): ", "delete rule 2")
	c.comesBy(1, 3, web)
}

// While the flow table is off, the driver would take rules, and lists those that there are; the NIC does not
// do what they say.
func TestGEMSwitchedOff(t *testing.T) {
	c := gem(t)
	web := tcp("192.0.2.1:1111", "203.0.113.10:80")
	c.insert(device.Rule{Flow: web, Queue: 1, Location: 2})
	c.comesBy(1, 3, web)
	c.switchOff()
	c.comesBy(0, 3, web)
	if r, single, err := device.RuleAt(c.name, 2); !single || err != nil || r.Flow != web {
		t.Errorf("rule 2 is read as %+v (%v)", r, err)
	}
	_, tableErr := device.RulesOf(c.name)
	_, insertErr := device.InsertRule(c.name, device.Rule{Flow: web, Queue: 1, Location: 1}, false)
	for _, err := range []error{tableErr, insertErr, device.CanSteer(c.name)} {
		wantError(t, err, device.ErrRulesOff, c.name+" (macb): ", "ethtool -K "+c.name+" ntuple on")
	}
	for range 2 { // the second time it is on
		if err := device.SwitchRulesOn(c.name); err != nil {
			t.Fatal(err)
		}
	}
	// The driver tells the NIC of old rules with the next new one.
	c.wantTable(2)
	c.comesBy(0, 3, web)
	c.insert(device.Rule{Flow: udp("192.0.2.1:2222", "203.0.113.10:53"), Queue: 1, Location: 0})
	c.comesBy(1, 3, web)
}

// What this NIC, or its driver, lacks, and does not say. If one of these has changed, so have the facts in
// docs/start/requirements.md.
func TestGEMDoesNotDo(t *testing.T) {
	c := gem(t)
	web := tcp("192.0.2.1:1111", "203.0.113.10:80")

	// Its rules do not tell TCP from UDP.
	c.insert(device.Rule{Flow: web, Queue: 1, Location: 0})
	c.comesBy(1, 4, udp("192.0.2.1:1111", "203.0.113.10:80"))

	// The driver takes a rule for IPv6, lists it, and its frames come by queue 0.
	web6 := tcp("[2001:db8::1]:1111", "[2001:db8::10]:80")
	c.insert(device.Rule{Flow: web6, Queue: 1, Location: 1})
	c.comesBy(0, 4, web6)
	c.comesBy(1, 4, web)

	// A program of generic XDP, which is all that this driver has, sees queue 0.
	seen := c.queuesOfXDP(func() { c.comesBy(1, 6, web) })
	if want := []uint64{6, 0}; !slices.Equal(seen, want) {
		t.Errorf("a program of generic XDP has seen %d frames by each queue, want %d", seen, want)
	}
	t.Logf("a program of generic XDP has seen %d frames by each queue", seen)

	// It has no RSS: frames without a rule come by queue 0, and there is nothing to keep off a queue.
	_, err := device.Indirection(c.name)
	wantError(t, err, device.ErrNoRSS, c.name, "read the size of the indirection table")
	wantError(t, device.KeepRSSOff(c.name, []uint32{1}), device.ErrNoRSS, c.name)
}

// queuesOfXDP counts frames by rx_queue_index, in a program of generic XDP.
func (c *card) queuesOfXDP(during func()) []uint64 {
	c.Helper()
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 2})
	if err != nil {
		c.Fatal(err)
	}
	defer counts.Close()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, Instructions: asm.Instructions{
		asm.LoadMem(asm.R1, asm.R1, 16, asm.Word), // rx_queue_index of struct xdp_md
		asm.StoreMem(asm.RFP, -4, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, counts.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "pass"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, 2).WithSymbol("pass"), // XDP_PASS
		asm.Return(),
	}})
	if err != nil {
		c.Fatal(err)
	}
	defer program.Close()
	attached, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: c.index, Flags: link.XDPGenericMode})
	if err != nil {
		c.Fatal(err)
	}
	defer attached.Close()
	during()
	read := func() []uint64 {
		seen := make([]uint64, 2)
		for queue := range seen {
			if err := counts.Lookup(uint32(queue), &seen[queue]); err != nil {
				c.Fatal(err)
			}
		}
		return seen
	}
	c.eventually("the program has seen the frames", func() bool { seen := read(); return seen[0]+seen[1] >= 6 })
	return read()
}
