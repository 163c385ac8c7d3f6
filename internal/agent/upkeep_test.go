package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/upkeep"
)

// kept is an agent whose host others put their hands on. Time passes as the test says.
type kept struct {
	*street
	a      *Agent
	now    time.Time
	events []upkeep.Event
}

func newKept(t *testing.T, noTCX bool, config model.Config) *kept {
	t.Helper()
	k := &kept{street: newStreet(t, true), now: time.Unix(1e9, 0)}
	do(t, k.host, "start agent", func() (err error) {
		k.a, err = Open(Deps{Pin: k.host.BPFFS(), UDPFlows: testFlows, Log: slog.New(slog.DiscardHandler), OnEvent: func(e upkeep.Event) { k.events = append(k.events, e) },
			noTCX: noTCX, now: func() time.Time { return k.now }})
		if err != nil {
			return err
		}
		return k.a.Set(config)
	})
	t.Cleanup(func() { k.detach(t, k.a) })
	return k
}

// look has the agent look after its host, and returns what it tells.
func (k *kept) look(t *testing.T) []string {
	t.Helper()
	k.events = nil
	do(t, k.host, "look", func() error { k.a.reconciler.Look(); return nil })
	var told []string
	for _, e := range k.events {
		told = append(told, e.Part+" "+string(e.State)+": "+e.What)
	}
	return told
}

func (k *kept) ip(t *testing.T, args ...string) { k.run(t, "ip", args...) }

func (k *kept) run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := k.host.Command(context.Background(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

// write writes a sysctl of IPv4 interfaces.
func (k *kept) write(t *testing.T, conf, key, value string) {
	t.Helper()
	do(t, k.host, "write sysctl", func() error { return os.WriteFile(sysctlPath(conf, key), []byte(value), 0o644) })
}

func (k *kept) has(t *testing.T, conf, key string, least int) string {
	t.Helper()
	value := 0
	do(t, k.host, "read sysctl", func() (err error) {
		value, err = read(conf, key)
		return err
	})
	if value < least {
		return fmt.Sprintf("%s of %s is %d, want %d", key, conf, value, least)
	}
	return ""
}

// holdsAddress says whether lo has an address, and is up.
func (k *kept) holdsAddress(t *testing.T, address string) string {
	t.Helper()
	if !slices.ContainsFunc(loopbackAddresses(t, k.host), func(a netlink.Addr) bool { return a.IP.String() == address }) {
		return address + " is not on lo"
	}
	return ""
}

// pin is where a link is pinned.
func (k *kept) pin(hook string) string {
	return filepath.Join(k.host.BPFFS(), "agent", "links", linkName(hook, k.link.B.Index))
}

// attached says whether the pinned link holds a program of that name at the host's interface.
func (k *kept) attached(t *testing.T, hook, program string) (wrong string) {
	t.Helper()
	do(t, k.host, "look at "+hook, func() error {
		l, err := link.LoadPinnedLink(k.pin(hook), nil)
		if err != nil {
			wrong = err.Error()
			return nil
		}
		defer l.Close()
		info, err := l.Info()
		if err != nil {
			return err
		}
		p, err := ebpf.NewProgramFromID(info.Program)
		if err != nil {
			return err
		}
		defer p.Close()
		if i, err := p.Info(); err != nil || i.Name != program || linkIndex(info) != k.link.B.Index {
			wrong = fmt.Sprintf("%s of interface %d has program %v, want %s of %d", hook, linkIndex(info), i, program, k.link.B.Index)
		}
		return nil
	})
	return wrong
}

func (k *kept) withPinned(t *testing.T, hook string, f func(link.Link) error) {
	t.Helper()
	do(t, k.host, "take the link of "+hook, func() error {
		l, err := link.LoadPinnedLink(k.pin(hook), nil)
		if err != nil {
			return err
		}
		defer l.Close()
		return f(l)
	})
}

// replace puts another program in a hook's link.
func (k *kept) replace(t *testing.T, hook string) {
	t.Helper()
	other, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "somebody", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	k.withPinned(t, hook, func(l link.Link) error { return l.Update(other) })
}

func (k *kept) filters(t *testing.T) (names []string) {
	t.Helper()
	do(t, k.host, "list filters", func() error {
		for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
			list, err := netlink.FilterList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: k.link.B.Index}}, parent)
			if err != nil {
				return err
			}
			for _, f := range list {
				names = append(names, f.(*netlink.BpfFilter).Name)
			}
		}
		return nil
	})
	return names
}

// spoil changes what maps have: one entry of each is gone, is a different one, or
// belongs to nothing.
func (k *kept) spoil(t *testing.T) {
	t.Helper()
	m := &k.a.objects.bpfMaps
	for index := range k.a.tables.services {
		must(t, m.Services.Put(index, bpfHostService{Mss: 1}))
		break
	}
	for key := range k.a.tables.endpoints {
		must(t, m.Endpoints.Delete(key))
		break
	}
	must(t, m.TunnelEnds.Put(address(netip.MustParseAddr("203.0.113.250")), uint32(7)))
}

// spoiled says which maps have not what they must have.
func (k *kept) spoiled(t *testing.T) (wrong string) {
	t.Helper()
	m := &k.a.objects.bpfMaps
	for index, want := range k.a.tables.services {
		var have bpfHostService
		if must(t, m.Services.Lookup(index, &have)); have != want {
			wrong += "a service is another one\n"
		}
	}
	for key := range k.a.tables.endpoints {
		if m.Endpoints.Lookup(key, new(uint32)) != nil {
			wrong += "an endpoint is gone\n"
		}
	}
	if m.TunnelEnds.Lookup(address(netip.MustParseAddr("203.0.113.250")), new(uint32)) == nil {
		wrong += "somebody else's address is an end of tunnels\n"
	}
	return wrong
}

// handRow is a hand on one of the parts of the host, as docs/operate/upkeep.md lists them.
type handRow struct {
	name  string
	hand  func(t *testing.T, k *kept)
	told  []string                           // of the look that follows; IF stands for the interface
	wrong func(t *testing.T, k *kept) string // what does not hold, read by other means; empty: all does
	by    string                             // begins the name of the process that did it
}

func rows() []handRow {
	arrive := func(conf, key, value string, least int) handRow {
		return handRow{name: key + " of " + conf, hand: func(t *testing.T, k *kept) { k.write(t, conf, key, value) },
			told:  []string{"sysctls repaired: net.ipv4.conf." + conf + "." + key},
			wrong: func(t *testing.T, k *kept) string { return k.has(t, conf, key, least) }}
	}
	detach := func(hook, program string) handRow {
		return handRow{name: "link of " + hook + " detached",
			hand:  func(t *testing.T, k *kept) { k.withPinned(t, hook, link.Link.Detach) },
			told:  []string{"programs repaired: " + hook + " of eth0"},
			wrong: func(t *testing.T, k *kept) string { return k.attached(t, hook, program) }}
	}
	return []handRow{
		{name: "IPv4 VIP removed", hand: func(t *testing.T, k *kept) { k.ip(t, "addr", "del", vip4.String()+"/32", "dev", "lo") },
			told: []string{"vips repaired: " + vip4.String() + " on lo"}, by: "process ",
			wrong: func(t *testing.T, k *kept) string { return k.holdsAddress(t, vip4.String()) }},
		{name: "IPv6 VIP removed", hand: func(t *testing.T, k *kept) { k.ip(t, "addr", "del", vip6.String()+"/128", "dev", "lo") },
			told:  []string{"vips repaired: " + vip6.String() + " on lo"},
			wrong: func(t *testing.T, k *kept) string { return k.holdsAddress(t, vip6.String()) }},
		{name: "all of lo flushed", hand: func(t *testing.T, k *kept) { k.ip(t, "-4", "addr", "flush", "dev", "lo", "scope", "host") },
			told: []string{"vips repaired: " + vip4.String() + " on lo", "vips repaired: " + rangeVIP4.String() + " on lo"},
			wrong: func(t *testing.T, k *kept) string {
				return k.holdsAddress(t, vip4.String()) + k.holdsAddress(t, rangeVIP4.String())
			}},
		{name: "lo set down", hand: func(t *testing.T, k *kept) { k.ip(t, "link", "set", "lo", "down") },
			told:  []string{"vips repaired: lo", "vips repaired: " + vip6.String() + " on lo", "vips repaired: " + rangeVIP6.String() + " on lo"},
			wrong: func(t *testing.T, k *kept) string { return k.holdsAddress(t, vip6.String()) }},
		{name: "VIP of no service", hand: func(t *testing.T, k *kept) {
			do(t, k.host, "add", func() error {
				req := vipRequest(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, loopbackIndex, notVIP4)
				req.AddData(nl.NewRtAttr(ifaProto, []byte{weirProtocol}))
				_, err := req.Execute(unix.NETLINK_ROUTE, 0)
				return err
			})
		}, told: []string{"vips repaired: " + notVIP4.String() + " on lo"},
			wrong: func(t *testing.T, k *kept) string {
				if k.holdsAddress(t, notVIP4.String()) == "" {
					return "it is still there"
				}
				return ""
			}},
		arrive("all", arpIgnore, "0", 1), arrive("all", arpAnnounce, "0", 2),
		arrive("eth0", arpIgnore, "0", 1), arrive("eth0", arpAnnounce, "1", 2), arrive("eth0", rpFilter, "1", 2),
		detach(hookXDP, "host_xdp"), detach(hookIngress, "host_after_xdp"), detach(hookEgress, "host_egress"),
		{name: "another program in the link", hand: func(t *testing.T, k *kept) { k.replace(t, hookEgress) },
			told:  []string{"programs repaired: " + hookEgress + " of eth0"},
			wrong: func(t *testing.T, k *kept) string { return k.attached(t, hookEgress, "host_egress") }},
		{name: "link's pin removed", hand: func(t *testing.T, k *kept) { must(t, os.Remove(k.pin(hookXDP))) },
			told:  []string{"programs repaired: " + hookXDP + " of eth0"},
			wrong: func(t *testing.T, k *kept) string { return k.attached(t, hookXDP, "host_xdp") }},
		{name: "map's pin removed", hand: func(t *testing.T, k *kept) { must(t, os.Remove(filepath.Join(k.a.pins.maps(k.a.version), "services"))) },
			told: []string{"pins repaired: MAPS/services"},
			wrong: func(t *testing.T, k *kept) string {
				return unpinned(k, filepath.Join(k.a.pins.maps(k.a.version), "services"))
			}},
		{name: "entries removed", hand: func(t *testing.T, k *kept) { k.spoil(t) },
			told:  []string{"tables repaired: map services", "tables repaired: map endpoints", "tables repaired: map tunnel_ends"},
			wrong: func(t *testing.T, k *kept) string { return k.spoiled(t) }},
		{name: "all pins removed", hand: func(t *testing.T, k *kept) { must(t, os.RemoveAll(k.a.pins.root)) },
			told: []string{"pins repaired: ROOT"},
			wrong: func(t *testing.T, k *kept) string {
				return unpinned(k, filepath.Join(k.a.pins.maps(k.a.version), "services"), k.a.memory.flows.sustained.path, k.a.memory.flows.begun.path, k.a.memory.reasonCounts.path, filepath.Join(k.a.memory.pods.dir, podMaps[1])) +
					k.attached(t, hookXDP, "host_xdp") + k.attached(t, hookIngress, "host_after_xdp") + k.attached(t, hookEgress, "host_egress")
			}},
	}
}

func clsactRows() []handRow {
	held := func(t *testing.T, k *kept) string {
		if got := k.filters(t); len(got) != 2 || !isNamed(got[0], hookIngress) || !isNamed(got[1], hookEgress) {
			return fmt.Sprintf("filters are %v", got)
		}
		return ""
	}
	return []handRow{
		{name: "filter removed", hand: func(t *testing.T, k *kept) { k.run(t, "tc", "filter", "del", "dev", "eth0", "egress") },
			told: []string{"programs repaired: egress of eth0"}, wrong: held, by: "process "},
		{name: "clsact removed", hand: func(t *testing.T, k *kept) { k.run(t, "tc", "qdisc", "del", "dev", "eth0", "clsact") },
			told: []string{"programs repaired: ingress of eth0", "programs repaired: egress of eth0"}, wrong: held, by: "process "},
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func unpinned(k *kept, paths ...string) (wrong string) {
	for _, path := range paths {
		m, err := ebpf.LoadPinnedMap(path, nil)
		if err != nil {
			wrong += path + ": " + err.Error() + "\n"
			continue
		}
		_ = m.Close()
	}
	return wrong
}

// TestHands puts a hand on each part of an agent's host: just after the start, twice in a row,
// and until the agent leaves it to the other owner. Another configuration takes it up again.
func TestHands(t *testing.T) {
	for _, way := range []struct {
		name  string
		noTCX bool
		rows  []handRow
	}{{"links", false, rows()}, {"clsact", true, clsactRows()}} {
		t.Run(way.name, func(t *testing.T) {
			k := newKept(t, way.noTCX, testConfig())
			for i, r := range way.rows {
				t.Run(r.name, func(t *testing.T) {
					k.now = k.now.Add(time.Hour)
					if i > 0 { // the first hand is just after the start: nobody has looked yet
						if told := k.look(t); told != nil {
							t.Fatalf("before the hand it tells %v", told)
						}
					}
					k.try(t, r)
				})
			}
		})
	}
}

func (k *kept) try(t *testing.T, r handRow) {
	t.Helper()
	want := make([]string, len(r.told))
	for i, told := range r.told {
		want[i] = strings.NewReplacer("MAPS", k.a.pins.maps(k.a.version), "ROOT", k.a.pins.root).Replace(told)
	}
	for n := range upkeep.Most { // in a row
		r.hand(t, k)
		if wrong := r.wrong(t, k); wrong == "" {
			t.Fatal("the hand does no harm: then this test shows nothing")
		}
		if r.by != "" {
			k.awaitNotice(t)
		}
		if told := k.look(t); !slices.Equal(told, want) {
			t.Errorf("hand %d: it tells\n%s\nwant\n%s", n+1, strings.Join(told, "\n"), strings.Join(want, "\n"))
		}
		if by := k.events; r.by != "" && len(by) > 0 && !strings.HasPrefix(by[0].By, r.by) {
			t.Errorf("hand %d: who did it is %q, want %s...", n+1, by[0].By, r.by)
		}
		if wrong := r.wrong(t, k); wrong != "" {
			t.Errorf("after hand %d: %s", n+1, wrong)
		}
		k.now = k.now.Add(time.Second)
	}
	r.hand(t, k)
	for i := range want {
		want[i] = strings.Replace(want[i], "repaired", "contested", 1)
	}
	if told := k.look(t); !slices.Equal(told, want) {
		t.Errorf("the fourth hand within a minute: it tells\n%s\nwant\n%s", strings.Join(told, "\n"), strings.Join(want, "\n"))
	}
	if wrong := r.wrong(t, k); wrong == "" {
		t.Error("it fights")
	}
	if len(k.problems()) == 0 {
		t.Error("status does not show it")
	}
	// Another configuration, or the same once more, takes it up again.
	do(t, k.host, "set", func() error { return k.a.Set(testConfig()) })
	k.look(t)
	if wrong := r.wrong(t, k); wrong != "" {
		t.Error("after another configuration:", wrong)
	}
	if problems := k.problems(); len(problems) > 0 {
		t.Errorf("after another configuration status shows %+v", problems)
	}
	k.overwritten(t, r)
}

// overwritten applies the configuration again just after a hand: that repairs it, and is told as any
// repair is.
func (k *kept) overwritten(t *testing.T, r handRow) {
	t.Helper()
	for _, again := range []struct {
		why   string
		apply func()
	}{
		{"because the host has another address", func() { k.ip(t, "addr", "add", "10.99.0.1/32", "dev", "lo") }},
		{"because the host has lost an address", func() { k.ip(t, "addr", "del", "10.99.0.1/32", "dev", "lo") }},
		{"because it is given again", func() { do(t, k.host, "set", func() error { return k.a.Set(testConfig()) }) }},
	} {
		k.now = k.now.Add(time.Hour)
		r.hand(t, k)
		again.apply()
		told := append(k.look(t), k.look(t)...) // what comes before the configuration is told by the second
		for _, part := range r.told {
			want := strings.NewReplacer("MAPS", k.a.pins.maps(k.a.version), "ROOT", k.a.pins.root).Replace(part)
			if n := slices.Index(told, want); n < 0 || slices.Index(told[n+1:], want) >= 0 {
				t.Errorf("applied again %s, it tells\n%s\nwant once\n%s", again.why, strings.Join(told, "\n"), want)
			}
		}
		if wrong := r.wrong(t, k); wrong != "" {
			t.Errorf("applied again %s: %s", again.why, wrong)
		}
	}
}

// TestHandsOnWhatIsNoLongerWanted puts a hand on each part just before a configuration without services:
// what that no longer wants was not repaired, and is not said to be.
func TestHandsOnWhatIsNoLongerWanted(t *testing.T) {
	k := newKept(t, false, testConfig())
	nothing := testConfig()
	nothing.Services = nil
	for _, r := range rows() {
		t.Run(r.name, func(t *testing.T) {
			k.now = k.now.Add(time.Hour)
			if told := k.look(t); told != nil {
				t.Fatalf("before the hand it tells %v", told)
			}
			r.hand(t, k)
			do(t, k.host, "set", func() error { return k.a.Set(nothing) })
			told := append(k.look(t), k.look(t)...)
			for _, part := range r.told {
				goes := slices.ContainsFunc([]string{vip4.String(), vip6.String(), rangeVIP4.String(), rangeVIP6.String(), arpIgnore, arpAnnounce, "map services", "map endpoints"},
					func(thing string) bool { return strings.Contains(part, thing) })
				want := strings.NewReplacer("MAPS", k.a.pins.maps(k.a.version), "ROOT", k.a.pins.root).Replace(part)
				if is := slices.Contains(told, want); is == goes {
					t.Errorf("it tells %q: %v, want %v, of\n%s", want, is, !goes, strings.Join(told, "\n"))
				}
			}
			do(t, k.host, "set", func() error { return k.a.Set(testConfig()) })
			k.look(t)
			if wrong := r.wrong(t, k); wrong != "" {
				t.Error("when it is wanted again:", wrong)
			}
		})
	}
}

// TestNamespaceIsWaitedFor: a network namespace that is named and not there is said, until it is there.
func TestNamespaceIsWaitedFor(t *testing.T) {
	config := testConfig()
	path := filepath.Join(t.TempDir(), "late")
	config.Agent.Namespaces = []string{path}
	k := newKept(t, false, config)
	what := "network namespace " + path
	if told, want := k.look(t), []string{"interfaces waiting: " + what}; !slices.Equal(told, want) {
		t.Errorf("without it, it tells %v, want %v", told, want)
	}
	if problems := k.problems(); len(problems) != 1 || problems[0].What != what || !strings.Contains(problems[0].Found, path) {
		t.Errorf("without it, status shows %+v", problems)
	}
	must(t, os.Symlink("/run/netns/"+k.host.Namespace(), path))
	if told, want := k.look(t), []string{"interfaces holds: " + what}; !slices.Equal(told, want) {
		t.Errorf("when it is there, it tells %v, want %v", told, want)
	}
}

// awaitNotice waits until the kernel has told which process has changed anything.
func (k *kept) awaitNotice(t *testing.T) {
	t.Helper()
	anybody := func(upkeep.Change) bool { return true }
	waitFor(t, "the kernel to tell who has changed anything", func() bool { return k.a.notices.By(anybody) != "" })
}

func (k *kept) problems() (list []model.UpkeepProblem) {
	for _, u := range k.a.reconciler.Status() {
		list = append(list, u.Problems...)
	}
	return list
}

// A host that has no notices to give is kept by the regular looks, and the agent says so until it
// hears them.
func TestAgentWithoutNotices(t *testing.T) {
	s := newStreet(t, true)
	refused := errors.New("watch files: too many open files")
	var gives atomic.Bool
	var a *Agent
	do(t, s.host, "start agent", func() (err error) {
		a, err = Open(Deps{Pin: s.host.BPFFS(), UDPFlows: testFlows, Log: slog.New(slog.DiscardHandler), listen: func() (*upkeep.Notices, error) {
			if !gives.Load() {
				return nil, refused
			}
			return listenToHost()
		}})
		if err != nil {
			return err
		}
		return a.Set(testConfig())
	})
	defer s.detach(t, a)
	do(t, s.host, "look", func() error { a.reconciler.Look(); return nil })
	for _, part := range a.Upkeep() {
		if len(part.Problems) > 0 {
			t.Errorf("without notices, part %s is %+v", part.Part, part.Problems)
		}
	}
	if err := a.NotNoticed(); !errors.Is(err, refused) {
		t.Errorf("the kernel gives no notices, and the agent says %v", err)
	}
	gives.Store(true)
	waitFor(t, "the agent to hear notices", func() bool { a.notices.C(); return a.NotNoticed() == nil })
}
