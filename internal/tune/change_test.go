package tune

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/device"
)

// apply applies, and returns the changes by what they change.
func (m *machine) apply(o Options, names ...string) map[string]Change {
	m.t.Helper()
	changes, err := m.host().Apply(names, o, m.store())
	if err != nil {
		m.t.Fatal(err)
	}
	return m.byWhat(changes)
}

func (m *machine) undo() map[string]Change {
	m.t.Helper()
	changes, before, err := m.host().Undo(m.store())
	if err != nil || before {
		m.t.Fatal(err, before)
	}
	return m.byWhat(changes)
}

func (m *machine) byWhat(changes []Change) map[string]Change {
	m.t.Helper()
	by := map[string]Change{}
	for _, c := range changes {
		if _, twice := by[c.What]; twice {
			m.t.Errorf("%s is told of twice", c.What)
		}
		by[c.What] = c
	}
	return by
}

func (m *machine) recorded() (r Record) {
	m.t.Helper()
	if err := json.Unmarshal([]byte(m.read(RecordName)), &r); err != nil {
		m.t.Fatal(err)
	}
	return r
}

// results counts what became of changes.
func results(changes map[string]Change) map[Result]int {
	n := map[Result]int{}
	for _, c := range changes {
		n[c.Result]++
	}
	return n
}

// A server gets all that the survey wants, and then nothing is amiss; and the way back leaves nothing.
func TestApplyAndUndo(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.addCard("eth0", 1, 4)
	before := m.state()
	parts, err := m.host().Survey([]string{"eth0"}, Options{Threaded: true})
	if err != nil {
		t.Fatal(err)
	}
	if first := Plan(parts)[0]; first != (Change{What: "queues eth0", Now: "combined 4", Then: "combined 16", Command: "ethtool -L eth0 combined 16"}) {
		t.Errorf("the plan begins with %+v", first)
	}
	if diff := cmp.Diff(before, m.state()); diff != "" || len(c.sets) > 0 {
		t.Errorf("a survey changes the host: %s %v", diff, c.sets)
	}
	if got := results(m.apply(Options{Threaded: true}, "eth0")); len(got) != 1 || got[Set] < 30 {
		t.Errorf("results %v", got)
	}
	if c.now.Combined != 16 || c.ring != c.long || c.fields[device.HashedUDP6] != device.HashAddresses|device.HashPorts ||
		!isEven(c.table, upTo(16)) || m.read("sys/class/net/eth0/threaded") != "1" || m.read("sys/devices/system/cpu/cpufreq/policy9/scaling_governor") != "performance" {
		t.Errorf("the host is %v", m.state())
	}
	cpus := c.affinities()
	if first := slices.Clone(cpus[:4]); !cmp.Equal(first, []string{"4", "5", "6", "7"}) {
		t.Errorf("the first queues are on CPUs %v, want those of the NIC's node", first)
	}
	if second := slices.Clone(cpus[4:8]); !cmp.Equal(second, []string{"0-15", "1", "2", "3"}) { // the first of them comes to 0 already
		t.Errorf("the next queues are on CPUs %v, want the other cores", second)
	}
	slices.Sort(cpus)
	if len(slices.Compact(cpus)) != 16 {
		t.Errorf("16 queues are on CPUs %v", c.affinities())
	}
	for check, p := range m.survey(Options{Threaded: true}, "eth0") {
		if p.Amiss || len(AmissIn([]Part{p})) > 0 {
			t.Errorf("afterwards %s is amiss: %s", check, p.Text)
		}
	}
	if again := m.apply(Options{Threaded: true}, "eth0"); len(again) > 0 {
		t.Errorf("another time it changes %v", again)
	}
	undone := m.undo()
	if got := results(undone); got[Restored] != len(undone) {
		t.Errorf("undo: %v", undone)
	}
	if diff := cmp.Diff(before, m.state()); diff != "" {
		t.Errorf("undo leaves (-before +after):\n%s", diff)
	}
	if _, err := os.Stat(m.store().Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the record is there after undo: %v", err)
	}
	if again := m.undo(); len(again) > 0 {
		t.Errorf("another undo restores %v", again)
	}
}

// What there was is on the disk before anything is changed, and without it nothing is.
func TestRecordComesFirst(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.addCard("eth0", 1, 4)
	before := m.state()
	store := m.store()
	broken := errors.New("no space left on device")
	store.Write = func([]byte) error { return broken }
	if changes, err := m.host().Apply([]string{"eth0"}, Options{}, store); !errors.Is(err, broken) || len(changes) > 0 {
		t.Errorf("without a record it changes %v (%v)", changes, err)
	}
	if diff := cmp.Diff(before, m.state()); diff != "" || len(c.sets) > 0 {
		t.Errorf("without a record it has changed the host: %s %v", diff, c.sets)
	}
	written := 0
	store.Write = func(text []byte) error {
		var r Record
		if err := json.Unmarshal(text, &r); err != nil {
			t.Error(err)
		}
		if written++; written == 1 {
			if diff := cmp.Diff(before, m.state()); diff != "" || len(c.sets) > 0 {
				t.Errorf("the host is changed before the record is written: %s %v", diff, c.sets)
			}
			was := map[string]string{}
			for _, s := range r.Settings {
				was[s.Name] = s.Was
			}
			for name, value := range map[string]string{"queues eth0": "combined 4", "rings eth0": "rx 512 tx 512", "hash eth0 udp4": "sd", "governor cpu3": "schedutil"} {
				if was[name] != value {
					t.Errorf("the record has %q of %s, want %q", was[name], name, value)
				}
			}
		}
		return os.WriteFile(store.Path, text, 0o600)
	}
	if _, err := m.host().Apply([]string{"eth0"}, Options{}, store); err != nil || written == 0 {
		t.Error(err, written)
	}
}

// The members of a bond begin anew one after the other: the next one is told when the last one's link is up, and
// not at all if that does not come.
func TestLinksComeBackFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		m.patience, m.steady = 30*time.Second, 2*time.Second
		a, b := m.addCard("eth0", 1, 4), m.addCard("eth1", 1, 4)
		a.down, b.down = 20, 40
		a.late, b.late = 10, 15
		before := m.state()
		if got := results(m.apply(Options{}, "eth0", "eth1")); got[Refused] > 0 || a.now.Combined != 16 || b.now.Combined != 16 {
			t.Errorf("results %v", got)
		}
		if got := results(m.undo()); got[Refused] > 0 {
			t.Errorf("undo: %v", got)
		}
		if diff := cmp.Diff(before, m.state()); diff != "" {
			t.Errorf("undo leaves (-before +after):\n%s", diff)
		}

		a.down, a.late, b.sets = -1, 3, nil
		changes, err := m.host().Apply([]string{"eth0", "eth1"}, Options{}, m.store())
		const why = "eth0 has no link, or is not used by its bond, 30s after its driver began anew: nothing else is changed"
		if err == nil || err.Error() != why || len(changes) != 1 || changes[0].String() != "queues eth0: combined 4 -> combined 16: set: "+why || len(b.sets) > 0 {
			t.Errorf("it says %v, changes %v, and of eth1 %v", err, changes, b.sets)
		}
		a.left = 0 // somebody mends it
		changes, _, err = m.host().Undo(m.store())
		if err == nil || err.Error() != why || results(m.byWhat(changes))[Restored] != 1 || a.now.Combined != 4 || len(b.sets) > 0 {
			t.Errorf("undo says %v, changes %v, and of eth1 %v", err, changes, b.sets)
		}
		a.left, a.down = 0, 0
		m.undo()
		if diff := cmp.Diff(before, m.state()); diff != "" {
			t.Errorf("undo leaves (-before +after):\n%s", diff)
		}
	})
}

// A member of a bond is up when the bond uses it.
func TestMemberOfABond(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.addCard("eth0", 1, 4)
	s := survey{host: m.host()}
	if err := s.open([]string{"eth0"}); err != nil {
		t.Fatal(err)
	}
	for _, state := range []struct {
		mii, lacp string
		passes    bool
	}{{"", "", true}, {"up", "N/A", true}, {"going back", "N/A", false}, {"down", "63", false}, {"up", "63", true}, {"up", "15", false}, {"up", "31", false}} {
		if state.mii != "" {
			m.write("sys/class/net/eth0/bonding_slave/mii_status", state.mii)
			m.write("sys/class/net/eth0/bonding_slave/ad_actor_oper_port_state", state.lacp)
		}
		if got := s.nics[0].passes(); got != state.passes {
			t.Errorf("with %+v packets pass: %v", state, got)
		}
	}
	if c.left = -1; s.nics[0].passes() {
		t.Error("packets pass without a carrier")
	}
}

// The first value is kept however often tune is applied, and whatever was set meanwhile.
func TestFirstValueIsKept(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.addCard("eth0", 1, 16)
	m.apply(Options{}, "eth0")
	c.ring = device.Rings{Receive: 1024, Send: 1024}
	m.apply(Options{}, "eth0")
	if c.ring != c.long {
		t.Errorf("another time the rings are left %v", c.ring)
	}
	m.undo()
	if want := (device.Rings{Receive: 512, Send: 512}); c.ring != want {
		t.Errorf("undo leaves rings %v, want the first ones, %v", c.ring, want)
	}
}

func TestUndoKeepsLaterChanges(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.addCard("eth0", 1, 16)
	m.apply(Options{}, "eth0")
	c.ring = device.Rings{Receive: 2048, Send: 4096}
	m.write("sys/devices/system/cpu/cpufreq/policy2/scaling_governor", "powersave")
	m.write("sys/devices/system/cpu/cpufreq/policy3/scaling_governor", "schedutil") // as it was
	undone := m.undo()
	for what, want := range map[string]Result{"rings eth0": Kept, "governor cpu2": Kept, "governor cpu3": Restored, "hash eth0 udp4": Restored} {
		if undone[what].Result != want {
			t.Errorf("%s is %+v, want %s", what, undone[what], want)
		}
	}
	if got := undone["rings eth0"]; got.String() != "rings eth0: kept: it is rx 2048 tx 4096, which somebody has set since; weir tune had set rx 4096 tx 4096, and before that it was rx 512 tx 512" {
		t.Errorf("it says %s", got.String())
	}
	if c.ring.Receive != 2048 || m.read("sys/devices/system/cpu/cpufreq/policy2/scaling_governor") != "powersave" {
		t.Error("undo has changed what somebody has set since")
	}
	if again := m.undo(); len(again) > 0 {
		t.Errorf("the record still has %v", again)
	}
}

// What is refused is named, and what is accepted and does not happen as well; the rest goes on.
func TestRefusals(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.addCard("eth0", 1, 16)
	c.refuses["rings"] = unix.EBUSY
	c.ignores[fmt.Sprint("hash ", device.HashedUDP4)] = true
	changes := m.apply(Options{}, "eth0")
	for what, want := range map[string]string{
		"rings eth0":     "rings eth0: rx 512 tx 512 -> rx 4096 tx 4096: refused: " + unix.EBUSY.Error(),
		"hash eth0 udp4": "hash eth0 udp4: sd (addresses) -> sdfn (addresses and ports): refused: it was accepted, and is sd (addresses)",
		"hash eth0 udp6": "hash eth0 udp6: sd (addresses) -> sdfn (addresses and ports): set",
	} {
		if got := changes[what]; got.String() != want {
			t.Errorf("it says\n  %s\nwant\n  %s", got.String(), want)
		}
	}
	if got := results(changes); got[Refused] != 2 || got[Set] < 10 {
		t.Errorf("results %v", got)
	}
	for _, s := range m.recorded().Settings {
		if s.Name == "rings eth0" || s.Name == "hash eth0 udp4" {
			t.Errorf("what was refused is recorded: %+v", s)
		}
	}
	// What cannot be restored stays in the record.
	c.refuses[fmt.Sprint("hash ", device.HashedUDP6)] = unix.EIO
	undone := m.undo()
	if got := results(undone); got[Refused] != 1 || undone["hash eth0 udp6"].Result != Refused {
		t.Errorf("undo: %v", undone)
	}
	if r := m.recorded(); len(r.Settings) != 1 || r.Settings[0].Name != "hash eth0 udp6" {
		t.Errorf("the record has %+v", r)
	}
	clear(c.refuses)
	if undone = m.undo(); undone["hash eth0 udp6"].Result != Restored {
		t.Errorf("undo: %v", undone)
	}
}

// A NIC does not give up queues that RSS uses (net/ethtool/channels.c): they go when RSS no longer does, and
// come back before it uses them again.
func TestFewerQueues(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.addCard("eth0", 1, 16)
	m.write("sys/devices/system/cpu/isolated", "8-15")
	if err := c.SetIndirection(inTurn(128, []uint32{0, 1, 15})); err != nil {
		t.Fatal(err)
	}
	before := m.state()
	changes := m.apply(Options{}, "eth0")
	if got := results(changes); got[Refused] > 0 || c.now.Combined != 8 || !isEven(c.table, upTo(8)) {
		t.Errorf("%d queues, RSS %v: %v", c.now.Combined, c.table, changes)
	}
	undone := m.undo()
	if got := results(undone); got[Refused] > 0 {
		t.Errorf("undo: %v", undone)
	}
	after := m.state()
	// Queues that come anew have new interrupts.
	delete(before, "interrupts eth0")
	delete(after, "interrupts eth0")
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("undo leaves (-before +after):\n%s", diff)
	}
}

// virtio_net binds interrupts anew whenever the number of queues changes: undo restores them after it, and does
// not take it for somebody else; whether tune has had to set them or not, and however often it is applied.
func TestDriverThatBindsInterrupts(t *testing.T) {
	t.Parallel()
	for name, binds := range map[string]func(int) string{
		"badly": func(int) string { return "8-9" }, "well": func(queue int) string { return fmt.Sprint(queue) },
	} {
		m := newMachine(t)
		c := m.addCard("eth0", 1, 4)
		c.binds = binds
		for q, irq := range c.irqs {
			m.write(fmt.Sprintf("proc/irq/%d/smp_affinity_list", irq), fmt.Sprint(4+q)) // as tune would
		}
		before := m.state()
		for range 2 {
			if got := results(m.apply(Options{}, "eth0")); got[Refused] > 0 {
				t.Errorf("%s: results %v", name, got)
			}
			c.ring = device.Rings{Receive: 512, Send: 512}
		}
		for what, change := range m.undo() {
			if change.Result != Restored {
				t.Errorf("%s: undo of %s: %s", name, what, change.String())
			}
		}
		if diff := cmp.Diff(before, m.state()); diff != "" {
			t.Errorf("%s: undo leaves (-before +after):\n%s", name, diff)
		}
	}
}

// What somebody else has set since is theirs, even if tune finds nothing amiss with it and is applied again.
func TestAnothersChangeIsNotTakenOver(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.addCard("eth0", 1, 4)
	c.most.Combined = 4
	m.apply(Options{}, "eth0")
	theirs := fmt.Sprintf("proc/irq/%d/smp_affinity_list", c.irqs[0])
	m.write(theirs, "12") // the sibling of 4
	c.ring = device.Rings{Receive: 512, Send: 512}
	m.apply(Options{}, "eth0")
	if got := m.undo()[fmt.Sprint("interrupts eth0 ", c.irqs[0])]; got.Result != Kept || m.read(theirs) != "12" {
		t.Errorf("undo: %s; it is on CPU %s", got.String(), m.read(theirs))
	}
}

// An interface that was made anew has first values of its own.
func TestInterfaceMadeAnew(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.addCard("eth0", 1, 16)
	m.apply(Options{}, "eth0")
	c.index, c.ring = 77, device.Rings{Receive: 1024, Send: 1024}
	m.write("sys/class/net/eth0/ifindex", "77")
	m.apply(Options{}, "eth0")
	m.undo()
	if want := (device.Rings{Receive: 1024, Send: 1024}); c.ring != want {
		t.Errorf("undo leaves rings %v, want %v", c.ring, want)
	}
}

// RSS is looked at when the number of queues has changed, and a table of all queues in turn is the kernel's own:
// it follows later changes of the number.
func TestTableFollowsQueues(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.addCard("eth0", 1, 4)
	if err := c.SetIndirection(inTurn(128, []uint32{0, 0, 1})); err != nil {
		t.Fatal(err)
	}
	c.sets = nil
	m.apply(Options{}, "eth0")
	if c.configured || slices.Contains(c.sets, "rss") || !isEven(c.table, upTo(16)) {
		t.Errorf("configured %v, after %v: %v", c.configured, c.sets, c.table)
	}
}

// Interfaces that are not there are named and kept out, and so is one that has the name of another by now.
func TestInterfacesThatAreGone(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.addCard("eth0", 1, 16)
	c := m.addCard("eth1", 1, 16)
	changes, err := m.host().Apply([]string{"eth0", "eth7", "eth1"}, Options{}, m.store())
	if err == nil || err.Error() != "there is no interface eth7" || len(changes) == 0 {
		t.Errorf("it says %v and changes %v", err, changes)
	}
	delete(m.cards, "eth0")
	c.index = 77
	m.write("sys/class/net/eth1/ifindex", "77")
	undone := m.undo()
	for what, want := range map[string]Result{"rings eth0": Gone, "rings eth1": Gone, "hash eth1 udp6": Gone, "governor cpu0": Restored} {
		if undone[what].Result != want {
			t.Errorf("%s is %+v, want %s", what, undone[what], want)
		}
	}
	if c.ring != c.long {
		t.Error("undo has changed an interface that has another one's name")
	}
}

// Nothing of what was set before a boot holds after it: interrupts have other numbers.
func TestRecordOfAnotherBoot(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.addCard("eth0", 1, 16)
	m.apply(Options{}, "eth0")
	m.write("proc/sys/kernel/random/boot_id", "second")
	if changes, before, err := m.host().Undo(m.store()); err != nil || !before || len(changes) > 0 || c.ring != c.long {
		t.Errorf("undo after a boot: %v, %v, %v", changes, before, err)
	}
	if _, err := os.Stat(m.store().Path); !errors.Is(err, os.ErrNotExist) {
		t.Error("the record of another boot stays")
	}
	for text, want := range map[string]string{"{": "is no record of weir tune", `{"format": 9}`: "a record of another version of weir, of format 9"} {
		m.write(RecordName, text)
		_, err := m.host().Apply([]string{"eth0"}, Options{}, m.store())
		_, _, undo := m.host().Undo(m.store())
		for _, err := range []error{err, undo} {
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), filepath.Join(m.root, RecordName)) {
				t.Errorf("with a record %q it says %v, want %s", text, err, want)
			}
		}
		if m.read(RecordName) != text {
			t.Error("a record that cannot be read is overwritten")
		}
	}
}

// What was set in another network namespace is undone there: here it is not known.
func TestUndoElsewhere(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.addCard("eth0", 1, 4)
	before := m.state()
	m.apply(Options{}, "eth0")
	m.namespace = 2
	if got := m.undo(); got["queues eth0"].Result != Refused || got["queues eth0"].Why != "it is in another network namespace: undo it there" || got["governor cpu0"].Result != Restored {
		t.Errorf("undo from another namespace: %v", got)
	}
	m.namespace = 1
	// What somebody has set since is theirs still, where tune had found nothing amiss with it.
	theirs := "sys/class/net/eth0/threaded"
	m.write(theirs, "1")
	got := m.undo()
	if results(got)[Refused] > 0 || got["threaded eth0"].Result != Kept || m.read(theirs) != "1" {
		t.Errorf("undo: %v; threaded is %s", got, m.read(theirs))
	}
	m.write(theirs, "0")
	if diff := cmp.Diff(before, m.state()); diff != "" {
		t.Errorf("undo leaves (-before +after):\n%s", diff)
	}
}

// Killed while a driver begins anew, tune has not noted what that sets then.
func TestUndoAfterAKill(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.addCard("eth0", 1, 4)
	c.binds = func(queue int) string { return fmt.Sprint(queue) }
	for q, irq := range c.irqs {
		m.write(fmt.Sprintf("proc/irq/%d/smp_affinity_list", irq), fmt.Sprint(4+q))
	}
	before := m.state()
	func() {
		defer func() { _ = recover() }()
		c.killed = true
		m.apply(Options{}, "eth0")
	}()
	c.killed = false
	m.undo()
	if diff := cmp.Diff(before, m.state()); diff != "" {
		t.Errorf("undo leaves (-before +after):\n%s", diff)
	}
}

// Told to end, tune ends after the value that it sets, with a record that is whole.
func TestToldToEnd(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.addCard("eth0", 1, 4)
	before := m.state()
	host, done := m.host(), make(chan struct{})
	host.Done = done
	store := m.store()
	write := store.Write
	store.Write = func(text []byte) error {
		select {
		case <-done:
		default:
			close(done)
		}
		return write(text)
	}
	changes, err := host.Apply([]string{"eth0"}, Options{}, store)
	if !errors.Is(err, ErrTold) || len(changes) != 1 || changes[0].Result != Set {
		t.Errorf("told to end it says %v, and changes %v", err, changes)
	}
	m.undo()
	if diff := cmp.Diff(before, m.state()); diff != "" {
		t.Errorf("undo leaves (-before +after):\n%s", diff)
	}
}

// A record that somebody has written does no harm.
func TestNumbersOfARecord(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"4294967295", "0 65536", "-1", "", "x"} {
		if table, err := parseTable(text); err == nil {
			t.Errorf("%q is read as a table: %v", text, table)
		}
		if showTable(text) != text || tableCommand("eth0", text) != "" {
			t.Errorf("%q is shown as %q, and set by %q", text, showTable(text), tableCommand("eth0", text))
		}
	}
}
