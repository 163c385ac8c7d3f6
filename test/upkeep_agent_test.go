package test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// agentLab is the smallest lab with an agent, whose host the tests damage:
//
//	peer ---- host, agent, VIPs on lo
type agentLab struct {
	t          *testing.T
	peer, host *netlab.Host
	agent      *daemon
}

const (
	keptVIP  = "192.0.2.10"
	keptVIP6 = "2001:db8::10"
)

func keptConfig(interfaces string) string {
	services := ""
	for _, s := range []struct{ name, vip, backend string }{{"web", keptVIP, "10.2.0.21"}, {"web6", keptVIP6, "fd00:2::21"}} {
		services += fmt.Sprintf("- {name: %s, vip: \"%s\", protocol: tcp, port: 80, mode: gue, backends: [{name: b1, address: \"%s\"}]}\n", s.name, s.vip, s.backend)
	}
	return "agent: {interfaces: [" + interfaces + "]}\ndirectors: [10.2.0.1, \"fd00:2::1\"]\nservices:\n" + services
}

func newAgentLab(t *testing.T) *agentLab {
	t.Helper()
	lab := netlab.ForTest(t)
	l := &agentLab{t: t, peer: lab.Host("peer"), host: lab.Host("host")}
	lab.Link(l.peer, l.host, netlab.LinkOptions{XDP: true, A: []string{"10.2.0.1/24", "fd00:2::1/64"}, B: []string{"10.2.0.21/24", "fd00:2::21/64"}})
	return l
}

func (d *daemon) events() []api.Event {
	d.t.Helper()
	return mustAskWeir[[]api.Event](d, "events", "--last", "1000")
}

// repairs counts the events of repairs of a part that name a thing.
func (d *daemon) repairs(part, what string) (count int) {
	d.t.Helper()
	for _, e := range d.events() {
		if e.Kind == api.EventUpkeep && e.Part == part && e.State == string(model.UpkeepRepaired) && strings.Contains(e.Text, what) {
			count++
		}
	}
	return count
}

// raised counts the events of begun problems whose text has these words.
func (d *daemon) raised(words string) (count int) {
	d.t.Helper()
	for _, e := range d.events() {
		if e.Kind == api.EventProblem && e.State == api.ProblemRaised && strings.Contains(e.Text, words) {
			count++
		}
	}
	return count
}

// keptRow is a part of an agent's host, how to damage it, and whether it is intact.
type keptRow struct {
	part, what string
	hand       func(l *agentLab)
	holds      func(l *agentLab) bool
}

func (l *agentLab) sysctl(key, value string) { on(l.t, l.host, "sysctl", "-qw", key+"="+value) }

func (l *agentLab) lo() string { return on(l.t, l.host, "ip", "addr", "show", "dev", "lo") }

// onEnds does something with the first tunnel end that the agent's program knows, if any.
func (l *agentLab) onEnds(do func(ends *ebpf.Map, key []byte) error) {
	l.t.Helper()
	files, err := filepath.Glob(filepath.Join(l.agent.bpffs, "weir", "agent", "maps*", "tunnel_ends"))
	if err != nil || len(files) != 1 {
		return // the map is being pinned again
	}
	ends, err := ebpf.LoadPinnedMap(files[0], nil)
	if err != nil {
		l.t.Fatal(err)
	}
	defer ends.Close()
	key := make([]byte, ends.KeySize())
	if err := ends.NextKey(nil, &key); errors.Is(err, ebpf.ErrKeyNotExist) {
		return
	} else if err != nil {
		l.t.Fatal(err)
	}
	if err := do(ends, key); err != nil {
		l.t.Fatal(err)
	}
}

// links lists the pins of links.
func (l *agentLab) links() (names []string) {
	files, _ := filepath.Glob(filepath.Join(l.agent.bpffs, "weir", "agent", "links", "*"))
	return files
}

// uplinks are the interfaces that have the agent's programs.
func (l *agentLab) uplinks() []model.AgentInterface {
	l.t.Helper()
	return l.agent.agentStatus().Interfaces
}

func keptRows() []keptRow {
	sysctl := func(key, value, want string) keptRow {
		return keptRow{"sysctls", key, func(l *agentLab) { l.sysctl(key, value) },
			func(l *agentLab) bool { return strings.TrimSpace(on(l.t, l.host, "sysctl", "-n", key)) == want }}
	}
	return []keptRow{
		{"vips", keptVIP, func(l *agentLab) { on(l.t, l.host, "ip", "addr", "del", keptVIP+"/32", "dev", "lo") },
			func(l *agentLab) bool { return strings.Contains(l.lo(), keptVIP+"/32") }},
		{"vips", keptVIP6, func(l *agentLab) { on(l.t, l.host, "ip", "addr", "del", keptVIP6+"/128", "dev", "lo") },
			func(l *agentLab) bool { return strings.Contains(l.lo(), keptVIP6+"/128") }},
		{"vips", "lo is down", func(l *agentLab) { on(l.t, l.host, "ip", "link", "set", "lo", "down") },
			func(l *agentLab) bool {
				return strings.Contains(l.lo(), "LOOPBACK,UP") && strings.Contains(l.lo(), keptVIP6+"/128")
			}},
		sysctl("net.ipv4.conf.all.arp_ignore", "0", "1"), sysctl("net.ipv4.conf.all.arp_announce", "0", "2"),
		sysctl("net.ipv4.conf.eth0.rp_filter", "1", "2"),
		{"pins", "weir/agent", func(l *agentLab) {
			// All at once: otherwise the agent may repair it during the removal.
			root, aside := filepath.Join(l.agent.bpffs, "weir"), filepath.Join(l.agent.bpffs, "aside")
			if err := errors.Join(os.Rename(root, aside), os.RemoveAll(aside)); err != nil {
				l.t.Fatal(err)
			}
		}, func(l *agentLab) bool { return len(l.links()) == 3 }},
		{"tables", "map tunnel_ends", func(l *agentLab) { l.onEnds(func(ends *ebpf.Map, key []byte) error { return ends.Delete(key) }) },
			func(l *agentLab) (there bool) {
				l.onEnds(func(*ebpf.Map, []byte) error { there = true; return nil })
				return there
			}},
		{"programs", "xdp of eth0", func(l *agentLab) {
			for _, pin := range l.links() {
				if err := os.Remove(pin); err != nil {
					l.t.Fatal(err)
				}
			}
		}, func(l *agentLab) bool { return len(l.links()) == 3 }},
		{"socket", "agent.sock", func(l *agentLab) {
			if err := os.Remove(l.agent.socket); err != nil {
				l.t.Fatal(err)
			}
		}, func(l *agentLab) bool { return l.agent.listens() }},
		{"state", "running-agent", func(l *agentLab) {
			// All at once, too.
			state, aside := filepath.Join(l.host.Dir(), "state"), filepath.Join(l.host.Dir(), "aside")
			if err := errors.Join(os.Rename(state, aside), os.RemoveAll(aside)); err != nil {
				l.t.Fatal(err)
			}
		}, func(l *agentLab) bool {
			_, err := os.Stat(filepath.Join(l.host.Dir(), "state", "running-agent"))
			return err == nil
		}},
	}
}

// followedParts are the parts of an agent's host that it does not repair: it follows their changes.
// TestAgentWaitsForInterfaces and TestAgentFollowsItsAddresses change them, and cmd/weir's
// TestStrangerHasTheNameOfTheLock the lock.
var followedParts = []string{"configuration", "interfaces", "lock"}

// Each part that docs/operate/upkeep.md lists for agents has a hand here, and no other.
func TestEveryPartOfAnAgentHasAHand(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/operate/upkeep.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "## Parts of an agent's host")
	table, _, found := strings.Cut(table, "\n## ")
	if !found {
		t.Fatal("docs/operate/upkeep.md has no such table")
	}
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z]+)` \\|").FindAllStringSubmatch(table, -1) {
		documented = append(documented, row[1])
	}
	tried := slices.Clone(followedParts)
	for _, r := range keptRows() {
		tried = append(tried, r.part)
	}
	slices.Sort(documented)
	slices.Sort(tried)
	if tried = slices.Compact(tried); !slices.Equal(documented, tried) {
		t.Errorf("documented are %v, tried %v", documented, tried)
	}
}

// A removed address takes its services away, and brings them back with it: just after the start,
// and again.
func TestAgentFollowsItsAddresses(t *testing.T) {
	t.Parallel()
	l := newAgentLab(t)
	l.agent = startDaemon(t, l.host, "agent", keptConfig("eth0"))
	for range 2 {
		on(t, l.host, "ip", "addr", "del", "10.2.0.21/24", "dev", "eth0")
		l.agent.waitFor("hold no VIP without the backend's address", func() bool { return !strings.Contains(l.lo(), keptVIP+"/32") })
		on(t, l.host, "ip", "addr", "add", "10.2.0.21/24", "dev", "eth0")
		l.agent.waitFor("hold the VIP again", func() bool { return strings.Contains(l.lo(), keptVIP+"/32") })
	}
}

// Damage to any part of an agent's host is repaired and told: just after the start, and again at
// once. The agent finds damage that happens while it is stopped when it continues, and while it is
// dead when it starts.
func TestAgentKeepsItsHost(t *testing.T) {
	for _, r := range keptRows() {
		t.Run(r.part+" "+r.what, func(t *testing.T) {
			t.Parallel()
			l := newAgentLab(t)
			l.agent = startDaemon(t, l.host, "agent", keptConfig("eth0"))
			before := 0
			repaired := func(when string) {
				t.Helper()
				before++
				l.agent.waitFor("repair what was changed "+when, func() bool { return r.holds(l) })
				l.agent.waitFor("tell what was changed "+when, func() bool { return l.agent.repairs(r.part, r.what) >= before })
			}
			r.hand(l) // without waiting: the agent has just started
			repaired("just after the start")
			on(t, l.host, "ip", "address", "add", "192.0.2.99/32", "dev", "eth0") // the configuration is applied again
			r.hand(l)
			repaired("again at once, while the host's addresses change")
			l.agent.signal(syscall.SIGSTOP)
			r.hand(l)
			l.agent.signal(syscall.SIGCONT)
			repaired("while it was stopped")
			if told := l.agent.repairs(r.part, r.what); told != before {
				t.Errorf("%d hands were told %d times", before, told)
			}
			if !strings.Contains(l.agent.logged(), `msg="host repaired" part=`+r.part) {
				t.Errorf("the log does not say it:\n%s", l.agent.logged())
			}
			l.agent.end(syscall.SIGKILL)
			r.hand(l)
			l.agent.start()
			l.agent.ready()
			l.agent.waitFor("repair what was changed while it was not there", func() bool { return r.holds(l) })
		})
	}
}

// Against another owner an agent does not fight: after three repairs it leaves the VIP, says so
// once, shows it, and repairs it again with another configuration.
func TestAgentDoesNotFight(t *testing.T) {
	t.Parallel()
	l := newAgentLab(t)
	l.agent = startDaemon(t, l.host, "agent", keptConfig("eth0"))
	vip := keptRows()[0]
	l.agent.waitFor("be in a fight", func() bool {
		if l.agent.raised("vips: "+keptVIP+" on lo") > 0 {
			return true
		}
		if vip.holds(l) {
			vip.hand(l)
		}
		return false
	})
	if told := l.agent.repairs("vips", keptVIP+" "); told != 3 {
		t.Errorf("it was repaired %d times, want 3", told)
	}
	if vip.holds(l) {
		t.Error("it fights on")
	}
	for command, want := range map[string]string{"status": "somebody changes it back", "events": "somebody changes it back"} {
		if out, _ := tryOn(t, l.host, weir, command, "--socket", l.agent.socket); !strings.Contains(out, want) {
			t.Errorf("weir %s does not show it:\n%s", command, out)
		}
	}
	if out := on(t, l.host, "curl", "-s", "--unix-socket", l.agent.socket, "http://weir/metrics"); !strings.Contains(out, `weir_agent_problems{kind="host",severity="error"} 1`) {
		t.Errorf("the metrics do not show it:\n%s", out)
	}
	if out, err := tryOn(t, l.host, weir, "doctor", "--role", "agent", "-c", l.agent.config, "--bpffs", l.agent.bpffs, "--agent-socket", l.agent.socket); err == nil || !strings.Contains(out, "FAIL  agent host") {
		t.Errorf("doctor does not find it: %v\n%s", err, out)
	}
	l.agent.edit(keptConfig("eth0") + "# changed\n")
	l.agent.hangUp()
	l.agent.waitFor("take it up again", func() bool { return vip.holds(l) })
}

// An agent starts with the interfaces that exist, says which is missing, and uses it when it comes.
// It also starts without any.
func TestAgentWaitsForInterfaces(t *testing.T) {
	t.Parallel()
	l := newAgentLab(t)
	l.agent = startDaemon(t, l.host, "agent", keptConfig("eth0, eth1"))
	l.agent.waitFor("say that eth1 is not there", func() bool { return l.agent.raised("interfaces: eth1 is not there") == 1 })
	if got := l.uplinks(); len(got) != 1 || got[0].Name != "eth0" {
		t.Errorf("it has programs at %+v, want eth0", got)
	}
	taken := func() bool { return len(l.uplinks()) == 2 }
	on(t, l.host, "ip", "link", "add", "eth1", "up", "type", "veth", "peer", "name", "far1")
	l.agent.waitFor("take eth1", taken)
	on(t, l.host, "ip", "link", "del", "eth1")
	l.agent.waitFor("go on without eth1", func() bool { return !taken() })
	l.agent.end(syscall.SIGKILL)
	l.agent.start()
	l.agent.ready()
	on(t, l.host, "ip", "link", "add", "eth1", "up", "type", "veth", "peer", "name", "far1")
	l.agent.waitFor("take eth1 after it has started without it", taken)

	l.agent.end(syscall.SIGTERM)
	l.agent.edit(keptConfig("late0"))
	on(t, l.host, weir, "detach", "--bpffs", l.agent.bpffs)
	l.agent.start()
	l.agent.waitFor("start without any interface", l.agent.listens)
	on(t, l.host, "ip", "link", "add", "late0", "up", "type", "veth", "peer", "name", "far0")
	l.agent.waitFor("take its only interface", func() bool { return len(l.uplinks()) == 1 })
}

// An agent that starts with a wrong or missing file continues with the version that ran, and says
// so until the file is right.
func TestAgentGoesOnWithTheFileThatRan(t *testing.T) {
	t.Parallel()
	l := newAgentLab(t)
	l.agent = startDaemon(t, l.host, "agent", keptConfig("eth0"))
	for _, wrong := range []string{"services: [{name: web", "agent: {interfaces: [eth0]}\nspeed: 3\n", ""} {
		l.agent.end(syscall.SIGKILL)
		l.agent.edit(wrong)
		if wrong == "" {
			if err := os.Remove(l.agent.config); err != nil {
				t.Fatal(err)
			}
		}
		on(t, l.host, "ip", "addr", "del", keptVIP+"/32", "dev", "lo")
		l.agent.start()
		l.agent.waitFor("hold its VIPs by the file that ran", func() bool { return strings.Contains(l.lo(), keptVIP+"/32") && l.agent.listens() })
		if out, _ := tryOn(t, l.host, weir, "status", "--socket", l.agent.socket); !strings.Contains(out, "file: ") {
			t.Errorf("with %q for a file, weir status does not say that it is refused:\n%s", wrong, out)
		}
	}
	l.agent.edit(keptConfig("eth0") + "# right\n")
	l.agent.hangUp()
	l.agent.waitFor("run what is right", func() bool { _, err := tryOn(t, l.host, weir, "status", "--socket", l.agent.socket); return err == nil })
}

// A file that asks a host for something without effect is a problem: another host's file, and one
// without directors, as a director's file may be.
func TestAgentSaysWhatIsInVain(t *testing.T) {
	t.Parallel()
	l := newAgentLab(t)
	right := keptConfig("eth0")
	l.agent = startDaemon(t, l.host, "agent", right)
	for words, text := range map[string]string{
		"no address of this host is a backend's":        strings.NewReplacer("10.2.0.21", "10.2.0.99", "fd00:2::21", "fd00:2::99").Replace(right),
		"no address of the family of [10.2.0.21 fd00:2": strings.Replace(right, "directors: [10.2.0.1, \"fd00:2::1\"]\n", "", 1),
		"no address of the family of [fd00:2::21]":      strings.Replace(right, ", \"fd00:2::1\"]", "]", 1),
	} {
		l.agent.edit(text)
		l.agent.waitFor("list that "+words, func() bool {
			out, _ := tryOn(t, l.host, weir, "status", "--socket", l.agent.socket)
			return strings.Contains(out, words)
		})
		l.agent.edit(right)
		l.agent.waitFor("list nothing any more", func() bool {
			out, err := tryOn(t, l.host, weir, "status", "--socket", l.agent.socket)
			return err == nil && !strings.Contains(out, words)
		})
	}
}
