package test

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"weir.io/weir/internal/etcdlab"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/netlab"
)

// Without agents, connections outlive the director that has seen them begin, and the
// generations in which they did: the directors of a group tell each other what they
// remember. Where they are told not to, connections break.
//
//	client --- router --- switch --- director, director2
//	                             --- backend1, backend2, backend3
//	                             --- store (etcd)
func TestFlowsOutliveDirectors(t *testing.T) {
	t.Run("told", func(t *testing.T) {
		l := newTellingLab(t, "")
		l.backendsChange()
		told := l.status(0).Flows.Remembered
		l.directors[1].waitFor("know what the other one knows", func() bool { return l.status(1).Flows.Remembered >= told })
		l.lose(0)
		l.goOn("with another director")
		// The same the other way round, by a director that has begun anew: it was told
		// everything before it said that it runs.
		l.revive(0)
		l.apply(0, backend{number: 1}, backend{number: 2, weight: 300}, backend{number: 3})
		l.goOn("with other weights")
		l.lose(1)
		l.goOn("with the first director, which knows of flows what it was told")
	})
	t.Run("not told", func(t *testing.T) {
		l := newTellingLab(t, "  flow-port: 0\n")
		l.backendsChange()
		l.lose(0)
		broken := 0
		for _, flow := range l.flows {
			if backend, err := flow.ask(); err != nil || backend != flow.backend {
				broken++
			}
		}
		t.Logf("%d of %d flows are broken", broken, len(l.flows))
		if broken == 0 {
			t.Error("no flow is broken: this test shows nothing")
		}
	})
}

// tellingLab has two directors of one group, of which the router uses the first.
type tellingLab struct {
	flowsUnderTest
	way       way
	hosts     []*netlab.Host
	directors []*daemon
	lost      [2]bool
}

func newTellingLab(t *testing.T, keys string) *tellingLab {
	t.Helper()
	base := newLab(t, size{backends: 3})
	l := &tellingLab{flowsUnderTest: flowsUnderTest{lab: base}, way: way{mode: "ipip"}}
	second, store := l.Router("director2"), l.Host("store")
	l.Link(second, l.lan, netlab.LinkOptions{XDP: true, A: lanPrefixes(otherDirector)})
	second.Route("default", lanAddress(routerHost, false).String())
	l.Link(store, l.lan, netlab.LinkOptions{A: lanPrefixes(51)})
	etcd := etcdlab.New(t, etcdlab.Options{Members: 1, Address: lanAddress(51, false).String(), On: store.Do})
	group := fmt.Sprintf("[%s, %s]", lanAddress(directorHost, false), lanAddress(otherDirector, false))
	for _, b := range l.backends {
		text := configText("", "eth0", l.services(everyBackend(3)...)...)
		startDaemon(t, b, "agent", strings.Replace(text, "directors: [", fmt.Sprintf("directors: [%s, ", lanAddress(otherDirector, false)), 1))
	}
	l.serveMemory(l.way)
	l.hosts = []*netlab.Host{l.director, second}
	for i, host := range l.hosts {
		text := fmt.Sprintf("notice: 200ms\ndirector:\n  interfaces: [eth0]\n  tunnel-source: [%s]\n  group: %s\n%s  store:\n    etcd: {endpoints: [\"%s\"]}\nservices: []\n",
			lanAddress(l.number(i), false), group, keys, strings.Join(etcd.Endpoints, `", "`))
		l.directors = append(l.directors, startDaemon(t, host, "run", text))
	}
	if keys == "" {
		for i, d := range l.directors {
			d.waitFor("tell and hear", func() bool {
				peers := l.status(i).Peers
				return len(peers) == 1 && !peers[0].Tells.IsZero() && !peers[0].Listens.IsZero()
			})
		}
	}
	return l
}

func (l *tellingLab) number(i int) int { return []int{directorHost, otherDirector}[i] }

func (l *tellingLab) services(backends ...backend) (list []string) {
	for _, protocol := range []string{"tcp", "udp"} {
		text := l.way.service(protocol, fmt.Sprint(memoryPort), backends)
		list = append(list, strings.Replace(text, "  backends:\n", "  drain: 1s\n  ring-size: 251\n  backends:\n", 1))
	}
	return list
}

// apply gives the group these backends, and waits until all directors that run forward to
// them.
func (l *tellingLab) apply(by int, backends ...backend) {
	l.t.Helper()
	file := write(l.t, l.hosts[by], "set.yaml", "services:\n"+strings.Join(l.services(backends...), ""))
	on(l.t, l.hosts[by], weir, "apply", "-f", file, "--socket", l.directors[by].socket)
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

// backendsChange opens flows and makes all of them such that only what is remembered of
// them says whose they are.
func (l *tellingLab) backendsChange() {
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
		l.apply(0, backends...)
		l.directors[0].waitFor("have a generation more", func() bool { return !l.directors[0].generations(1) })
		l.goOn(fmt.Sprintf("while backend%d drains", draining+1))
		l.goOn("and once more") // what has said something twice is no guess
		for _, d := range l.directors {
			d.waitFor("have one generation", func() bool { return d.generations(1) })
		}
		l.goOn("without the generation before")
	}
}

// lose ends a director as a host is lost, and sends everything to the other one.
func (l *tellingLab) lose(i int) {
	l.t.Helper()
	l.directors[i].end(syscall.SIGKILL)
	on(l.t, l.hosts[i], "ip", "link", "set", "eth0", "down")
	l.lost[i] = true
	l.router.Route("192.0.2.0/24", lanAddress(l.number(1-i), false).String())
}

// revive starts a director that was lost, as a host does that has forgotten everything
// but what is on its disk.
func (l *tellingLab) revive(i int) {
	l.t.Helper()
	host := l.hosts[i]
	on(l.t, host, weir, "detach", "--bpffs", host.BPFFS())
	on(l.t, host, "ip", "link", "set", "eth0", "up")
	host.Route("default", lanAddress(routerHost, false).String())
	l.directors[i].start()
	l.directors[i].waitFor("answer", func() bool {
		_, err := l.directors[i].services()
		return err == nil
	})
	l.lost[i] = false
	told := l.status(1 - i).Flows.Remembered
	if got := l.status(i).Flows.Remembered; got < told {
		l.t.Errorf("a director that runs remembers %d flows, and the other one %d", got, told)
	}
}

type tellingStatus struct {
	Flows model.FlowStatus
	Peers []model.PeerStatus
}

func (l *tellingLab) status(i int) (status tellingStatus) {
	l.t.Helper()
	out := on(l.t, l.hosts[i], weir, "status", "-o", "json", "--socket", l.directors[i].socket)
	if err := json.Unmarshal([]byte(out), &status); err != nil {
		l.t.Fatal(err)
	}
	return status
}
