package test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/etcdlab"
	"weir.io/weir/lab/netlab"
)

// Without agents, connections outlive the director that saw them begin, and the generations in
// which they began: the directors of a group share what they remember. Connections of
// which no director has seen a packet survive too, as long as others like them turn up at any
// director. If sharing is off, connections break. Both parts run in parallel, each in a lab of its
// own.
//
//	client --- router --- switch --- director, director2
//	                             --- backend1, backend2, backend3
//	                             --- store (etcd)
func TestFlowsOutliveDirectors(t *testing.T) {
	t.Run("shared", func(t *testing.T) {
		t.Parallel()
		l := newSharingLab(t, "")
		if broken, of := l.idle(true); broken > 0 {
			t.Errorf("%d of %d idle connections are broken", broken, of)
		}
		l.backendsChange()
		// A flow that has not gone on for 2 s gives way to others (PROOF_LASTS in bpf/lib/proof.h).
		began := time.Now()
		l.directors[0].waitFor("see flows that go on for a while", func() bool {
			l.goOn("until they are known")
			return time.Since(began) > 5*time.Second
		})
		shared := l.kept(0)
		if shared == 0 {
			t.Fatal("no flow is sustained: this test shows nothing")
		}
		l.directors[1].waitFor("know what the other one knows", func() bool { return l.kept(1) >= shared })
		l.start()
		l.lose(0)
		l.goOn("with another director")
		// The same the other way round, with a restarted director: it got everything before it
		// said that it runs.
		l.revive(0)
		l.apply(0, backend{number: 1}, backend{number: 2, weight: 300}, backend{number: 3})
		l.goOn("with other weights")
		l.lose(1)
		l.goOn("with the first director, which knows of flows what was shared")
	})
	t.Run("not shared", func(t *testing.T) {
		t.Parallel()
		l := newSharingLab(t, "  flow-port: 0\n")
		broken, of := l.idle(false)
		t.Logf("%d of %d idle connections are broken", broken, of)
		if broken == 0 {
			t.Error("no idle connection is broken: this test shows nothing")
		}
		l.backendsChange()
		l.lose(0)
		broken = l.broken()
		t.Logf("%d of %d flows are broken", broken, len(l.flows))
		if broken == 0 {
			t.Error("no flow is broken: this test shows nothing")
		}
	})
}

// tellingLab has two directors of one group; the router uses the first one.
type sharingLab struct {
	flowsUnderTest
	way       way
	keys      string // of the TCP service
	drain     time.Duration
	hosts     []*netlab.Host
	directors []*daemon
	lost      [2]bool
}

// tellingDrain is the drain of the services: all flows have to send something within it, also on a
// busy machine.
const sharingRetention = 2 * time.Second

// newSharingLab makes a lab whose directors have more keys in their files.
func newSharingLab(t *testing.T, keys string) *sharingLab {
	t.Helper()
	l := newSharingLabOf(t, way{mode: "ipip"}, func(int) (string, string) { return keys, "" })
	if keys == "" {
		l.meetAgain()
	}
	return l
}

// newSharingLabOf makes one for a mode. Each director's file has keys of its own, in director and
// beside it.
func newSharingLabOf(t *testing.T, w way, keys func(i int) (inside, beside string)) *sharingLab {
	t.Helper()
	base := newLab(t, size{backends: 3})
	l := &sharingLab{flowsUnderTest: flowsUnderTest{lab: base}, way: w, drain: sharingRetention}
	second, _ := l.secondDirector()
	_, store := l.startStore(etcdlab.Options{Members: 1})
	group := fmt.Sprintf("[%s, %s]", lanAddress(directorHost, false), lanAddress(otherDirector, false))
	for _, b := range l.backends {
		text := configText("", "eth0", l.services(everyBackend(3)...)...)
		startDaemon(t, b, "agent", strings.Replace(text, "directors: [", fmt.Sprintf("directors: [%s, ", lanAddress(otherDirector, false)), 1))
	}
	l.serveMemory(l.way)
	l.hosts = []*netlab.Host{l.director, second}
	for i, host := range l.hosts {
		inside, beside := keys(i)
		text := fmt.Sprintf("notice: 200ms\n%sdirector:\n  interfaces: [eth0]\n  tunnel-source: [%s]\n  group: %s\n%s%sservices: []\n",
			beside, lanAddress(l.number(i), false), group, inside, store)
		l.directors = append(l.directors, startDaemon(t, host, "run", text))
	}
	return l
}

func (l *sharingLab) number(i int) int { return []int{directorHost, otherDirector}[i] }

func (l *sharingLab) services(backends ...backend) (list []string) {
	for _, protocol := range []string{"tcp", "udp"} {
		text := l.way.service(protocol, fmt.Sprint(memoryPort), backends)
		keys := fmt.Sprintf("  drain: %v\n  ring-size: 251\n  backends:\n", l.drain)
		if protocol == "tcp" {
			keys = l.keys + keys
		}
		list = append(list, strings.Replace(text, "  backends:\n", keys, 1))
	}
	return list
}

// apply gives the group these backends, and waits until all running directors forward to them.
func (l *sharingLab) apply(by int, backends ...backend) {
	l.t.Helper()
	l.give(by, backends...)
	l.forwarded(backends...)
}

// give gives the group these backends, and returns when that director forwards to them.
func (l *sharingLab) give(by int, backends ...backend) {
	l.t.Helper()
	l.directors[by].apply(l.services(backends...)...)
}

// forwarded waits until all running directors forward to these backends.
func (l *sharingLab) forwarded(backends ...backend) {
	l.t.Helper()
	for i, d := range l.directors {
		if l.lost[i] {
			continue
		}
		d.waitFor("forward the set", func() bool {
			services, err := d.services()
			if err != nil || len(services) != 2 || len(services[0].Backends) != len(backends) {
				return false
			}
			for i, b := range backends {
				want := map[bool]model.BackendState{true: model.Draining, false: model.Active}[b.state == "draining"]
				if services[0].Backends[i].State != want || services[1].Backends[i].State != want {
					return false
				}
			}
			return true
		})
	}
}

// backendsChange opens flows and changes the backends until only memory knows the backend of each
// flow.
func (l *sharingLab) backendsChange() {
	l.t.Helper()
	l.apply(0, everyBackend(3)...)
	for range 40 {
		l.dial(l.way, "tcp")
		l.dial(l.way, "udp")
	}
	l.goOn("before any change")
	for draining := range 3 {
		backends := everyBackend(3)
		backends[draining].state = "draining"
		// At once: if a flow sends nothing before the previous generation has left, no director can
		// know its backend.
		l.give(0, backends...)
		l.goOn(fmt.Sprintf("while backend%d drains", draining+1))
		l.forwarded(backends...)
		l.goOn("and once more") // a flow that has sent twice is no guess
		for _, d := range l.directors {
			d.waitFor("have one generation", func() bool { return d.generations(1) })
		}
		l.goOn("without the generation before")
	}
}

// start opens connections that have had one request each when the first director is lost. They
// belong to backend3, which has their slots since the last change: a director that does not import
// them would guess the previous backend.
func (l *sharingLab) start() {
	l.t.Helper()
	l.drain = time.Minute // the previous generation must stay
	l.apply(0, backend{number: 1}, backend{number: 2}, backend{number: 3, weight: 300})
	l.directors[0].waitFor("place connections by the change", func() bool {
		services, err := l.directors[0].services()
		return err == nil && services[0].Log.Coming+services[1].Log.Coming == 0
	})
	old, before, others := l.flows, l.status(0).Flows.Fresh, l.status(1).Flows.Fresh
	l.flows = nil
	for range 40 {
		l.dial(l.way, "tcp")
	}
	l.goOn("once, at the first director")
	fresh := l.status(0).Flows.Fresh - before
	if fresh == 0 {
		l.t.Fatal("no flow is fresh: this test shows nothing")
	}
	l.directors[1].waitFor("know of connections that have begun", func() bool { return l.status(1).Flows.Fresh >= others+fresh })
	l.flows = append(old, l.flows...)
}

// idle opens connections that no director remembers, all to one backend, and gives most of their
// slots to others. With twoDrains, some of them go on, one after the other, and the rest are silent
// for two drains; otherwise all are silent until their generation has left. It returns how many of
// the silent ones are broken. The router sends all packets to the first director, and the other one
// takes generations out of the log, too.
func (l *sharingLab) idle(twoDrains bool) (broken, of int) {
	l.t.Helper()
	for number := range 3 {
		l.meet(l.hosts[0], l.way.address(number+1))
	}
	l.apply(0, backend{number: 1}, backend{number: 2, state: "draining"}, backend{number: 3, state: "draining"})
	l.directors[0].waitFor("remember nothing", func() bool { return l.status(0).Flows.Settling == 0 })
	for range 50 {
		l.dial(l.way, "tcp")
	}
	l.goOn("before any change")
	if n := l.status(0).Flows.Remembered; n > 0 {
		l.t.Fatalf("%d flows are remembered: this test shows nothing", n)
	}
	l.apply(0, everyBackend(3)...)
	moved := time.Now()
	turn := time.NewTicker(250 * time.Millisecond)
	defer turn.Stop()
	for !l.directors[1].generations(1) && (!twoDrains || time.Since(moved) < 2*sharingRetention) {
		<-turn.C
		if twoDrains {
			l.must(l.nextOf(&l.flows))
		}
	}
	broken, of = l.broken(), len(l.flows)
	for _, d := range l.directors {
		d.waitFor("have one generation", func() bool { return d.generations(1) })
	}
	l.flows = nil
	return broken, of
}

// meet makes one host know the MAC address of another, whose slots then do not settle when it
// becomes a backend.
func (l *sharingLab) meet(a *netlab.Host, b netip.Addr) {
	l.t.Helper()
	l.must(a.Do(func() error {
		c, err := net.DialTimeout("tcp", netip.AddrPortFrom(b, 1).String(), 10*time.Second)
		if err == nil {
			return c.Close()
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			return nil // refused by the other host
		}
		return err
	}))
}

// nextOf lets the first of some flows go on, and removes it from them.
func (l *sharingLab) nextOf(flows *[]*flowUnderTest) error {
	if len(*flows) == 1 {
		return errors.New("there are too few connections")
	}
	flow := (*flows)[0]
	*flows = (*flows)[1:]
	backend, err := flow.ask()
	if err == nil && backend != flow.backend {
		err = fmt.Errorf("%s is of %s, and %s has answered", flow.name, flow.backend, backend)
	}
	return err
}

// broken lets all flows go on, and counts those that do not.
func (l *sharingLab) broken() (n int) {
	for _, flow := range l.flows {
		if backend, err := flow.ask(); err != nil || backend != flow.backend {
			n++
		}
	}
	return n
}

// lose ends a director as if its host were lost, and routes all packets to the other one.
func (l *sharingLab) lose(i int) {
	l.t.Helper()
	l.directors[i].end(syscall.SIGKILL)
	on(l.t, l.hosts[i], "ip", "link", "set", "eth0", "down")
	l.lost[i] = true
	l.router.Route("192.0.2.0/24", lanAddress(l.number(1-i), false).String())
}

// revive starts a lost director, on a host that has forgotten everything except its disk. The other
// director is slow to share what it remembers: until then no packet may reach the program, which
// would have to guess.
func (l *sharingLab) revive(i int) {
	l.t.Helper()
	host, other := l.hosts[i], l.directors[1-i]
	on(l.t, host, weir, "detach", "--bpffs", host.BPFFS())
	on(l.t, host, "ip", "link", "set", "eth0", "up")
	host.Route("default", lanAddress(routerHost, false).String())
	l.must(other.cmd.Process.Signal(syscall.SIGSTOP))
	l.directors[i].start()
	l.directors[i].waitFor("dial the other director", func() bool {
		return on(l.t, host, "ss", "-Htn", "state", "established", "dst", lanAddress(l.number(1-i), false).String(), "dport", "=", ":6082") != ""
	})
	if l.attached(i) {
		l.t.Error("a director lets packets in before the other one has shared what it remembers")
	}
	l.must(other.cmd.Process.Signal(syscall.SIGCONT))
	l.router.Route("192.0.2.0/24", lanAddress(l.number(i), false).String())
	l.goOn("by a director that is about to run")
	l.router.Route("192.0.2.0/24", lanAddress(l.number(1-i), false).String())
	l.directors[i].waitFor("answer", func() bool {
		_, err := l.directors[i].services()
		return err == nil
	})
	l.lost[i] = false
	if got, shared := l.kept(i), l.kept(1-i); got < shared {
		l.t.Errorf("a director that runs remembers %d flows, and the other one %d", got, shared)
	}
}

// kept is how many flows a director remembers that are not fresh.
func (l *sharingLab) kept(i int) int {
	flows := l.status(i).Flows
	return flows.Remembered - flows.Fresh
}

// attached reports whether a director's program gets packets.
func (l *sharingLab) attached(i int) (is bool) {
	l.t.Helper()
	l.must(l.hosts[i].Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil {
			xdp := link.Attrs().Xdp
			is = xdp != nil && xdp.Attached
		}
		return err
	}))
	return is
}

func (l *sharingLab) status(i int) api.Status {
	l.t.Helper()
	return l.directors[i].directorStatus()
}
