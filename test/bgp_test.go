package test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/routerlab"
)

// The ASes of the tests' routers and directors.
const (
	routerAS   = 65000
	directorAS = 65001
)

// frrText is bgpd's configuration of a router: directors in the servers' network open sessions with
// it, over IPv4 and over IPv6, and it spreads flows over them.
const frrText = `
hostname router
router bgp 65000
 bgp router-id 10.2.0.1
 no bgp ebgp-requires-policy
 bgp bestpath as-path multipath-relax
 neighbor directors peer-group
 neighbor directors remote-as 65001
 neighbor directors advertisement-interval 0
 neighbor directors timers 1 3
 neighbor directors6 peer-group
 neighbor directors6 remote-as 65001
 neighbor directors6 advertisement-interval 0
 neighbor directors6 timers 1 3
 neighbor directors6 capability extended-nexthop
 bgp listen range 10.2.0.0/24 peer-group directors
 bgp listen range fd00:2::/64 peer-group directors6
 address-family ipv4 unicast
  maximum-paths 16
  neighbor directors activate
  neighbor directors6 activate
 exit-address-family
 address-family ipv6 unicast
  maximum-paths 16
  neighbor directors6 activate
 exit-address-family
`

// bgpText is the bgp part of a configuration: sessions over IPv4.
func bgpText(director int, neighbors ...string) string {
	if len(neighbors) == 0 {
		neighbors = []string{fmt.Sprintf("{address: %s, asn: %d, hold-time: 3s}", lanAddress(routerHost, false), routerAS)}
	}
	return fmt.Sprintf("bgp:\n  asn: %d\n  router-id: %s\n  neighbors:\n  - %s\n", directorAS, lanAddress(director, false), strings.Join(neighbors, "\n  - "))
}

// routed is a host's route to a prefix as the tests write it: "via 10.2.0.11 10.2.0.12".
func routed(t *testing.T, h *netlab.Host, prefix string) string {
	t.Helper()
	hops, err := routerlab.NextHops(h, netip.MustParsePrefix(prefix))
	if err != nil {
		t.Fatal(err)
	}
	text := "nowhere"
	if len(hops) > 0 {
		text = "via"
	}
	for _, hop := range hops {
		text += " " + hop.String()
	}
	return text
}

// waitRouted waits until a host has that route to a prefix.
func waitRouted(t *testing.T, h *netlab.Host, prefix, there string) {
	t.Helper()
	last := ""
	defer func() {
		if t.Failed() {
			t.Logf("%s goes %s", prefix, last)
		}
	}()
	waitFor(t, fmt.Sprintf("%s to send %s %s", h.Name, prefix, there), func() bool {
		last = routed(t, h, prefix)
		return last == there
	})
}

// bgp asks a director what it announces.
func (d *daemon) bgp() model.BGPStatus {
	d.t.Helper()
	return mustAskWeir[model.BGPStatus](d, "bgp")
}

// tryBGP is bgp for a director that may not answer yet.
func (d *daemon) tryBGP() (model.BGPStatus, error) { return askWeir[model.BGPStatus](d, "bgp") }

// announcing is a lab in which directors tell FRR on the router which VIPs they forward:
//
//	client --- router (FRR) --- switch --- director, director2, ...
//	                                   --- backend1, ...
type announcing struct {
	*lab
	frr   *routerlab.FRR
	hosts []*netlab.Host // of the directors
}

func newAnnouncing(t *testing.T, backends, directors int, frr string) *announcing {
	t.Helper()
	l := &announcing{lab: newLab(t, size{backends: backends, routed: true})}
	l.hosts = []*netlab.Host{l.director}
	for i := 1; i < directors; i++ {
		h := l.Router(fmt.Sprintf("director%d", i+1))
		l.attach(h, directorHost+i)
		l.hosts = append(l.hosts, h)
	}
	if frr != "" {
		l.frr = startFRR(t, l.router, routerlab.FRRConfig{BGP: frr})
	}
	return l
}

// serve starts agents and web servers on the backends.
func (l *announcing) serve(services ...string) {
	var agents []*daemon
	for _, b := range l.backends {
		agents = append(agents, launchDaemon(l.t, b, "agent", configText("", "eth0", services...)))
		startNginx(l.t, b)
	}
	for _, a := range agents {
		a.ready()
	}
}

// direct starts the director on a host of the lab, counted from 0.
func (l *announcing) direct(i int, bgp, service string, args ...string) *daemon {
	l.t.Helper()
	return startDaemon(l.t, l.hosts[i], "run", configText("eth0", "", service)+bgp, args...)
}

// directFrom starts directors on the hosts from the i-th on, all at once.
func (l *announcing) directFrom(i int, service string, bgp ...string) []*daemon {
	l.t.Helper()
	var directors []*daemon
	for j, text := range bgp {
		directors = append(directors, launchDaemon(l.t, l.hosts[i+j], "run", configText("eth0", "", service)+text))
	}
	for _, d := range directors {
		d.ready()
	}
	return directors
}

// A VIP is routed to its directors: with one director, with three, and with three for one service
// and two for another, the router's kernel has the routes that the papers show (figure 12, table
// 4.6), and traffic goes to all of them.
func TestRoutesOfDirectors(t *testing.T) {
	t.Parallel()
	web, other := way{mode: "l2dsr"}, way{mode: "ipip"}
	l := newAnnouncing(t, 1, 5, frrText)
	one, two := web.service("tcp", "80", everyBackend(1)), other.service("tcp", "80", everyBackend(1))
	l.serve(one, two)
	first, second := web.vip().String()+"/32", other.vip().String()+"/32"

	d := l.direct(0, bgpText(directorHost), one)
	waitRouted(t, l.router, first, "via 10.2.0.11")
	status := d.bgp()
	n := status.Neighbors[0]
	if n.State != model.SessionEstablished || n.Announced != 1 || !n.GracefulRestart || n.Problem != "" || n.RouterID != lanAddress(routerHost, false) ||
		!slices.Equal(n.Families, []model.BGPFamily{model.BGPIPv4}) || len(status.Routes) != 1 || status.Routes[0].Neighbors != 1 {
		t.Errorf("weir bgp says %+v", status)
	}

	directors := append(l.directFrom(1, one, bgpText(directorHost+1), bgpText(directorHost+2)), d)
	waitRouted(t, l.router, first, "via 10.2.0.11 10.2.0.12 10.2.0.13")
	pair := l.directFrom(3, two, bgpText(directorHost+3, neighbor("60s")), bgpText(directorHost+4, neighbor(leaverRestarts.String()+", keep-when-silent: true")))
	waitRouted(t, l.router, second, "via 10.2.0.14 10.2.0.15")
	if got := routed(t, l.router, first); got != "via 10.2.0.11 10.2.0.12 10.2.0.13" {
		t.Errorf("with two directors for another service, the first one's packets go %s", got)
	}
	waitFor(t, "packets to come to all three directors", func() bool {
		l.answers("from three directors", web)
		return !slices.ContainsFunc(directors, func(d *daemon) bool {
			services, err := d.services()
			return err != nil || services[0].Packets == 0
		})
	})
	outlive(t, l, pair[0], pair[1], other)
}

// leaverRestarts is the restart-time of a director that leaves.
const leaverRestarts = 4 * time.Second

// neighbor is the router in the directors' files, with another restart-time.
func neighbor(restart string) string {
	return fmt.Sprintf("{address: %s, asn: %d, hold-time: 3s, restart-time: %s}", lanAddress(routerHost, false), routerAS, restart)
}

// answers asks the VIP several times.
func (l *announcing) answers(when string, w way) {
	l.t.Helper()
	for range 10 {
		if got := curl(l.t, l.client, w.url("name")); !strings.HasPrefix(got, "backend") {
			l.t.Errorf("%s the VIP answers %q", when, got)
		}
	}
}

// outlive shows that the process is not the datapath: while a director's process is dead, the
// router keeps its routes for restart-time, and traffic goes on. The same holds for a frozen
// process if that is configured. Then the routes are withdrawn; a director that comes back before
// loses nothing. The directors' neighbors are those of TestRoutesOfDirectors.
func outlive(t *testing.T, l *announcing, stays, leaves *daemon, w way) {
	host, one, both := w.vip().String()+"/32", "via 10.2.0.14", "via 10.2.0.14 10.2.0.15"
	stayer, leaver := lanAddress(directorHost+3, false), lanAddress(directorHost+4, false)
	changes := watchRoutes(t, l.router)
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		stays.end(signal)
		l.waitSession("lose the session", stayer, false)
		l.answers("without the process", w)
		stays.start()
		l.waitSession("have a session again", stayer, true)
		stays.ready()
		l.waitFresh(host)
		l.answers("with the process back", w)
	}
	if n := changes(host); n > 0 {
		t.Errorf("while a process was gone and came back, the router's route changed %d times", n)
	}

	// A look later than the restart-time, as on a busy machine, shows nothing.
	lost := time.Now()
	leaves.end(syscall.SIGKILL)
	l.waitSession("lose the session", leaver, false)
	if got := routed(t, l.router, host); got != both && time.Since(lost) < leaverRestarts {
		t.Errorf("as soon as a process is gone, packets go %s", got)
	}
	l.answers("without the second process", w)
	waitRouted(t, l.router, host, one)
	leaves.start()
	waitRouted(t, l.router, host, both)
	leaves.ready()

	lost = time.Now()
	sendSignal(t, leaves.cmd.Process.Pid, syscall.SIGSTOP)
	l.waitSession("lose the session", leaver, false)
	if got := routed(t, l.router, host); got != both && time.Since(lost) < leaverRestarts {
		t.Errorf("as soon as a process is found frozen, packets go %s", got)
	}
	l.answers("with a frozen process", w)
	waitRouted(t, l.router, host, one)
	sendSignal(t, leaves.cmd.Process.Pid, syscall.SIGCONT)
	waitRouted(t, l.router, host, both)
	if changes(host) == 0 {
		t.Error("the route was withdrawn, and no change of it was seen")
	}

	// Without keep-when-silent, a director that is silent for the hold time is lost, whatever
	// restart-time says: its process is frozen, or its link is down.
	for name, step := range map[string]struct{ lose, find func() }{
		"process": {func() { sendSignal(t, stays.cmd.Process.Pid, syscall.SIGSTOP) }, func() { sendSignal(t, stays.cmd.Process.Pid, syscall.SIGCONT) }},
		"link":    {func() { on(t, stays.host, "ip", "link", "set", "eth0", "down") }, func() { on(t, stays.host, "ip", "link", "set", "eth0", "up") }},
	} {
		step.lose()
		waitRouted(t, l.router, host, "via 10.2.0.15")
		l.answers("without the first director's "+name, w)
		step.find()
		waitRouted(t, l.router, host, both)
	}
}

// waitSession waits until the router has a session with a director, or has none.
func (l *announcing) waitSession(what string, director netip.Addr, want bool) {
	l.t.Helper()
	waitFor(l.t, "the router to "+what, func() bool {
		out, err := l.frr.Query("show bgp ipv4 unicast summary json")
		if err != nil {
			l.t.Fatal(err)
		}
		var summary struct {
			Peers map[string]struct{ State string }
		}
		if err := json.Unmarshal([]byte(out), &summary); err != nil {
			l.t.Fatal(err)
		}
		return (summary.Peers[director.String()].State == "Established") == want
	})
}

// watchRoutes notes the changes of a host's routes. The function that it returns says how
// often the route to a prefix has changed.
func watchRoutes(t *testing.T, h *netlab.Host) (changes func(prefix string) int) {
	t.Helper()
	watch, err := routerlab.WatchRoutes(h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(watch.Close)
	asked := byte(0)
	return func(prefix string) int {
		asked++ // another route each time: the previous one is seen already
		marker := netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, 100, asked}), 32).String()
		h.Route(marker, lanAddress(backendHost, false).String())
		waitFor(t, "all changes of routes to be seen", func() bool { return watch.Changes(netip.MustParsePrefix(marker)) > 0 })
		return watch.Changes(netip.MustParsePrefix(prefix))
	}
}
