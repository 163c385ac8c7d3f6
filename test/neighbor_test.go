package test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/etcdlab"
	"weir.io/weir/lab/netlab"
)

// neighborWays are the services of these tests: four VIPs, in gue.
var neighborWays = []way{{mode: "gue"}, {mode: "gue", inner6: true, outer6: true}, {mode: "gue", inner6: true}, {mode: "gue", outer6: true}}

// Without a router, directors answer for the VIPs themselves: each VIP belongs to one director, and
// the VIPs are spread. Whatever happens to a director, the hosts on the link find the other one,
// and their kernels learn its address without asking. No connection breaks, and two directors never
// answer for one VIP.
//
//	client --- switch --- director, director2
//	                  --- backend1, backend2
//	                  --- store (etcd)
func TestVIPsWithoutRouter(t *testing.T) {
	t.Parallel()
	l := newNeighborLab(t)
	l.open()
	l.spread("at the start")

	// A process that dies and comes back keeps its VIPs: its lease and its datapath live on.
	before := l.changes()
	l.directors[0].end(syscall.SIGKILL)
	l.goOn("without the first director's process")
	l.directors[0].start()
	l.spread("with its next process")
	if after := l.changes(); after != before {
		t.Errorf("a process that came back has moved VIPs: %v", l.asker)
	}

	// A director that ends gives its VIPs up at once, and gets its share when it is back.
	l.directors[0].end(syscall.SIGTERM)
	l.all(1, "after the first director has ended")
	l.directors[0].start()
	l.spread("with the first director back")

	// A director that drains gives its VIPs up and still forwards.
	if err := l.directors[1].cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	l.all(0, "while the second director drains")
	if status := l.status(1); !status.Draining {
		t.Errorf("a director that drains says %+v", status)
	}
	l.directors[1].end(syscall.SIGTERM)
	l.directors[1].start()
	l.spread("with the second director back")

	// A lost host's VIPs move when its lease ends.
	l.shortLease()
	l.spread("with a short lease")
	l.directors[0].end(syscall.SIGKILL)
	on(t, l.hosts[0], "ip", "link", "set", "eth0", "down")
	l.all(1, "without the first director's host")
	on(t, l.hosts[0], "ip", "link", "set", "eth0", "up")
	l.directors[0].start()
	l.spread("with the first host back")

	// A director that cannot reach etcd falls silent before the other one answers.
	before = l.changes()
	on(t, l.hosts[0], "ip", "route", "add", "blackhole", lanAddress(51, false).String())
	l.all(1, "with the first director apart")
	if moved := l.changes() - before; moved != len(neighborWays)/2 {
		t.Errorf("%d times it was another one who said that a VIP is his, want each of %d VIPs once: %v", moved, len(neighborWays)/2, l.asker)
	}
	l.directors[0].waitFor("say that it has no lease", func() bool { return l.status(0).Lease == model.LeaseNone })
	on(t, l.hosts[0], "ip", "route", "del", "blackhole", lanAddress(51, false).String())
	l.spread("with the first director among the others again")
	for i := range l.directors {
		if n := l.status(i).Interfaces[0].Conflicts; n > 0 {
			t.Errorf("director %d has seen another host claim a VIP of its %d times", i+1, n)
		}
	}
}

// neighborLab has two directors on a link with a client, which has no router to the VIPs.
type neighborLab struct {
	flowsUnderTest
	hosts     []*netlab.Host
	ports     []*netlab.Port
	directors []*daemon
	asker     *asker
	text      string
}

func newNeighborLab(t *testing.T) *neighborLab {
	t.Helper()
	base := newLab(t, size{backends: 2, routed: true})
	l := &neighborLab{flowsUnderTest: flowsUnderTest{lab: base}}
	base.client = l.Host("neighbor")
	port := l.attachClient(base.client, 61)
	second, link := l.secondDirector()
	_, store := l.startStore(etcdlab.Options{Members: 1})
	var services []string
	for _, w := range neighborWays {
		services = append(services, w.service("tcp", fmt.Sprint(memoryPort), everyBackend(2)))
	}
	group := fmt.Sprintf("[%s, %s]", lanAddress(directorHost, false), lanAddress(otherDirector, false))
	both := fmt.Sprintf("directors: [%s, %s, \"%s\", \"%s\"]\n", lanAddress(directorHost, false), lanAddress(otherDirector, false), lanAddress(directorHost, true), lanAddress(otherDirector, true))
	for _, b := range l.backends {
		startDaemon(t, b, "agent", "agent:\n  interfaces: [eth0]\n"+both+"services:\n"+strings.Join(services, ""))
	}
	l.serveMemory(neighborWays...)
	l.hosts = []*netlab.Host{l.director, second}
	for _, host := range l.hosts { // as on a host whose network is configured again
		host.Sysctl("net.ipv6.conf.eth0.keep_addr_on_down", "1")
	}
	l.ports = []*netlab.Port{portOf(t, l.director), link.A}
	l.text = both + "director:\n  interfaces: [eth0]\n  group: " + group + "\n  neighbor:\n    lease: 1m\n    settle: 100ms\n    interfaces:\n" +
		"    - {name: eth0, prefixes: [192.0.2.0/24, \"2001:db8::/64\"]}\n" + store + "services: []\n"
	for i, host := range l.hosts {
		flags := [][]string{nil, {"--grace-period", "1h"}}[i]
		l.directors = append(l.directors, startDaemon(t, host, "run", l.text, flags...))
	}
	l.directors[0].apply(services...)
	l.asker = newAsker(t, port, lanAddress(61, false), lanAddress(61, true), neighborVIPs())
	return l
}

func neighborVIPs() (list []netip.Addr) {
	for _, w := range neighborWays {
		list = append(list, w.vip())
	}
	return list
}

// attachClient connects a host that looks for the VIPs on the link itself.
func (l *lab) attachClient(h *netlab.Host, number int) *netlab.Port {
	l.t.Helper()
	link := l.Link(h, l.lan, netlab.LinkOptions{XDP: true, A: lanPrefixes(number)})
	on(l.t, h, "ip", "route", "add", "192.0.2.0/24", "dev", "eth0", "src", lanAddress(number, false).String())
	on(l.t, h, "ip", "-6", "route", "add", "2001:db8::/64", "dev", "eth0", "src", lanAddress(number, true).String())
	return link.A
}

// portOf returns a host's first port as the link knows it.
func portOf(t *testing.T, h *netlab.Host) *netlab.Port {
	t.Helper()
	var links []struct{ Address string }
	if err := json.Unmarshal([]byte(on(t, h, "ip", "-j", "link", "show", "dev", "eth0")), &links); err != nil {
		t.Fatal(err)
	}
	return &netlab.Port{Host: h, Name: "eth0", MAC: mustMAC(t, links[0].Address)}
}

func (l *neighborLab) open() {
	l.t.Helper()
	l.spread("before the first connection")
	for _, w := range neighborWays {
		for range 5 {
			l.dial(w, "tcp")
		}
	}
}

func (l *neighborLab) status(i int) model.NeighborStatus {
	l.t.Helper()
	return l.directors[i].directorStatus().Neighbor
}

func neighborStatus(d *daemon) (model.NeighborStatus, error) {
	status, err := askWeir[api.Status](d, "status", "--alive")
	return status.Neighbor, err
}

// answersFor counts the VIPs that a director says it answers for.
func answersFor(status model.NeighborStatus) (n int) {
	for _, v := range status.VIPs {
		if v.State == model.NeighborAnswers {
			n++
		}
	}
	return n
}

// spread waits until each director answers for half of the VIPs, and the client knows it.
func (l *neighborLab) spread(when string) {
	l.t.Helper()
	l.settle(when, []int{len(neighborWays) / 2, len(neighborWays) / 2})
}

// all waits until one director answers for all VIPs, and the client knows it.
func (l *neighborLab) all(director int, when string) {
	l.t.Helper()
	want := make([]int, 2)
	want[director] = len(neighborWays)
	l.settle(when, want)
}

func (l *neighborLab) settle(when string, want []int) {
	l.t.Helper()
	defer func() {
		if l.t.Failed() {
			l.t.Logf("it was said: %v", l.asker)
			for _, d := range l.directors {
				l.t.Logf("weir run on %s logged:\n%s", d.host.Name, d.logged())
			}
		}
	}()
	waitFor(l.t, fmt.Sprintf("the directors to answer for %v VIPs, %s", want, when), func() bool {
		counts := map[string]int{}
		for _, vip := range neighborVIPs() {
			mac, _ := l.asker.owner(vip)
			if len(l.flows) > 0 && neighborOf(l.t, l.client, vip) != mac {
				return false
			}
			counts[mac]++
		}
		for i := range want {
			if counts[l.ports[i].MAC.String()] != want[i] {
				return false
			}
			status, err := neighborStatus(l.directors[i])
			if want[i] > 0 && (err != nil || answersFor(status) != want[i]) {
				return false
			}
		}
		return true
	})
	l.goOn(when)
}

// neighborOf returns the MAC address that a host's kernel has for an address on its link.
func neighborOf(t *testing.T, h *netlab.Host, address netip.Addr) string {
	t.Helper()
	var entries []struct{ LLAddr string }
	if err := json.Unmarshal([]byte(on(t, h, "ip", "-j", "neigh", "show", "to", address.String(), "dev", "eth0")), &entries); err != nil {
		t.Fatal(err)
	}
	if len(entries) == 0 {
		return ""
	}
	return entries[0].LLAddr
}

// changes is how often the host that claims a VIP has changed.
func (l *neighborLab) changes() (n int) {
	for _, vip := range neighborVIPs() {
		_, changes := l.asker.owner(vip)
		n += changes
	}
	return n
}

// shortLease gives both directors the shortest possible lease.
func (l *neighborLab) shortLease() {
	l.t.Helper()
	for i, d := range l.directors {
		d.edit(strings.Replace(l.text, "lease: 1m", "lease: 2s", 1))
		d.waitFor("apply the shorter lease", func() bool {
			status, err := neighborStatus(l.directors[i])
			return err == nil && strings.Contains(d.logged(), "configuration applied") && status.Lease == model.LeaseHeld && answersFor(status) > 0
		})
	}
}

func mustMAC(t *testing.T, text string) net.HardwareAddr {
	t.Helper()
	mac, err := net.ParseMAC(text)
	if err != nil {
		t.Fatal(err)
	}
	return mac
}
