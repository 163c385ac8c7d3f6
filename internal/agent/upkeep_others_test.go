package agent

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"weir.io/weir/internal/model"
)

// If somebody removes the pins and starts a second agent in another network namespace, the first
// agent leaves the second one's pins alone, and says so: else the second agent would take the first
// one's links for its own.
func TestTwoAgentsDoNotFight(t *testing.T) {
	k := newKept(t, false, testConfig())
	must(t, os.RemoveAll(k.a.pins.root))
	var second *Agent
	do(t, k.client, "start a second agent", func() (err error) {
		if second, err = Open(Deps{Pin: k.host.BPFFS(), UDPFlows: testFlows, Log: slog.New(slog.DiscardHandler)}); err != nil {
			return err
		}
		return second.Set(testConfig())
	})
	t.Cleanup(func() { _ = second.Close() })
	if wrong := k.attached(t, hookXDP, "host_xdp"); wrong == "" {
		t.Fatal("the second agent has XDP, too: then this test shows nothing")
	}
	for range 3 {
		for _, told := range k.look(t) {
			if strings.Contains(told, string(model.UpkeepRepaired)) {
				t.Errorf("in the second one's directory it tells %q", told)
			}
		}
		k.now = k.now.Add(time.Second)
	}
	if problems := k.problems(); len(problems) == 0 || !strings.Contains(problems[0].Error, ErrRunning.Error()) {
		t.Errorf("status shows %+v", problems)
	}
	if wrong := k.attached(t, hookXDP, "host_xdp"); wrong == "" {
		t.Error("the first one's link is pinned in the second one's directory")
	}
}

// A second agent of a network namespace does not start, also where it has pins of its own, and is told
// which process is there. What an agent has left elsewhere can be removed meanwhile, and the VIPs stay
// with the agent that runs.
func TestOneAgentOfANamespace(t *testing.T) {
	k := newKept(t, false, testConfig())
	elsewhere := Deps{Pin: k.client.BPFFS(), UDPFlows: testFlows, Log: slog.New(slog.DiscardHandler)}
	do(t, k.client, "leave pins elsewhere", func() error {
		a, err := Open(elsewhere)
		if err != nil {
			return err
		}
		return a.Close()
	})
	do(t, k.host, "start a second agent", func() error {
		second, err := Open(elsewhere)
		if err == nil {
			defer second.Close()
			return second.Set(model.Config{})
		}
		if !errors.Is(err, ErrRunning) || !strings.Contains(err.Error(), fmt.Sprintf("process %d ", os.Getpid())) {
			t.Errorf("it does not start: %v", err)
		}
		return Detach(elsewhere.Pin)
	})
	if _, err := os.Stat(filepath.Join(elsewhere.Pin, "agent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what an agent has left elsewhere is not removed: %v", err)
	}
	if wrong := k.holdsAddress(t, vip4.String()); wrong != "" {
		t.Error(wrong)
	}
}

// A program of somebody else's before the agent's is said, and left where it is; one behind it is not
// said. Where it lets packets go on, the agent does its work.
func TestProgramBeforeTheAgents(t *testing.T) {
	if !hasTCX() {
		t.Skip("this kernel is older than 6.6 and has no tcx")
	}
	k := newKept(t, false, testConfig())
	if told := k.look(t); len(told) > 0 {
		t.Fatalf("without any other program it tells %q", told)
	}
	attach := func(anchor link.Anchor) link.Link {
		t.Helper()
		other, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "somebody", Type: ebpf.SchedCLS, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}})
		must(t, err)
		t.Cleanup(func() { _ = other.Close() })
		var l link.Link
		do(t, k.host, "attach another program", func() (err error) {
			l, err = link.AttachTCX(link.TCXOptions{Interface: k.link.B.Index, Program: other, Attach: ebpf.AttachTCXIngress, Anchor: anchor})
			return err
		})
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	attach(link.Tail())
	if told := k.look(t); len(told) > 0 {
		t.Errorf("of a program behind its own it tells %q", told)
	}
	before := attach(link.Head())
	if told := k.look(t); !slices.Equal(told, []string{"programs waiting: " + hookIngress + " of eth0"}) {
		t.Errorf("of a program before its own it tells %q", told)
	}
	if problems := k.problems(); len(problems) != 1 || !strings.Contains(problems[0].Found, "somebody") {
		t.Errorf("status shows %+v", problems)
	}
	must(t, before.Close())
	if told := k.look(t); !slices.Equal(told, []string{"programs holds: " + hookIngress + " of eth0"}) {
		t.Errorf("when the other program is gone it tells %q", told)
	}
}

// keptMaps are all maps that an agent writes by its file, and that nothing else writes.
var keptMaps = []string{"pods_here", "pod_names", "pod_ends", "namespaces", "services", "peers", "sources", "endpoints", "ranges", "tunnel_ends",
	"redirect_ports", "redirect_services", "redirect_prefixes", "redirect_names", "redirect_here", "redirect_vips", "guard_sources", "guards"}

// TestContentsAreKept takes an entry out of each map, or makes it another one: the next look puts it
// back, and names the map.
func TestContentsAreKept(t *testing.T) {
	c := testConfig()
	c.Services = append(c.Services, redirectConfig().Services...)
	for i := range c.Services {
		if s := &c.Services[i]; s.Name == "four" {
			s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
		}
	}
	k := newKept(t, false, c)
	var names []string
	for _, m := range k.a.compared() {
		names = append(names, m.Name)
		k.now = k.now.Add(time.Hour)
		if m.Name == "redirect_ports" { // there is no bridge here
			must(t, m.Kernel[0].Put(uint32(77), uint32(78)))
		} else {
			spoil(t, m.Kernel[0])
		}
		if told, want := k.look(t), []string{"tables repaired: map " + m.Name}; !slices.Equal(told, want) {
			t.Errorf("it tells %q, want %q", told, want)
		}
		if told := k.look(t); told != nil {
			t.Errorf("map %s: after it was repaired it tells %q", m.Name, told)
		}
	}
	if !slices.Equal(names, keptMaps) {
		t.Errorf("the maps that are compared are %q, want %q", names, keptMaps)
	}
}

// A backend that somebody else adds to a service's, or one of before that somebody makes one of
// now, is none.
func TestPeersOfNobodyAreRemoved(t *testing.T) {
	c := testConfig()
	k := newKept(t, false, c)
	c.Services[0].Backends = c.Services[0].Backends[:1]
	do(t, k.host, "set", func() error { return k.a.Set(c) })
	index := k.a.tables.indexes[k.a.plan.services[0].identity()]
	former := bpfHostPeer{Service: index, Address: address(peer4)}
	if _, is := k.a.former[former]; !is {
		t.Fatalf("%+v is not a former backend of %v: then this test shows nothing", former, k.a.former)
	}
	strange := bpfHostPeer{Service: index, Address: address(third4)}
	must(t, k.a.objects.Peers.Put(strange, currentPeer))
	must(t, k.a.objects.Peers.Put(former, currentPeer))
	if told, want := k.look(t), []string{"tables repaired: map peers"}; !slices.Equal(told, want) {
		t.Errorf("it tells %q, want %q", told, want)
	}
	var flags uint32
	if err := k.a.objects.Peers.Lookup(strange, &flags); err == nil {
		t.Error("somebody else's backend is still there")
	}
	if must(t, k.a.objects.Peers.Lookup(former, &flags)); flags != formerPeer {
		t.Errorf("the former backend has flags %d", flags)
	}
}

// spoil removes the first entry of a map; of an array it makes others of all.
func spoil(t *testing.T, m *ebpf.Map) {
	t.Helper()
	var key, value []byte
	entries := m.Iterate()
	for n := 0; entries.Next(&key, &value); n++ {
		if m.Type() != ebpf.Array {
			must(t, m.Delete(key))
			return
		}
		must(t, m.Put(key, bytes.Repeat([]byte{0xff}, len(value))))
	}
	if must(t, entries.Err()); m.Type() != ebpf.Array {
		t.Fatalf("map %s is empty", m)
	}
}
