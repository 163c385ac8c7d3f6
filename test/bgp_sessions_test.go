package test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"weir.io/weir/internal/model"
)

// path is what FRR knows of a path to a prefix.
type path struct {
	LocalPref *int `json:"locPrf"`
	Community struct{ String string }
	Stale     bool // it is kept from a session that was lost
}

// paths returns what FRR knows of a prefix; nil if there is no path.
func (l *announcing) paths(family, prefix string) []path {
	l.t.Helper()
	out, err := l.frr.Query("show bgp " + family + " unicast " + prefix + " json")
	if err != nil {
		l.t.Fatal(err)
	}
	var known struct{ Paths []path }
	if err := json.Unmarshal([]byte(out), &known); err != nil {
		l.t.Fatalf("read what FRR says of %s: %v\n%s", prefix, err, out)
	}
	return known.Paths
}

// waitFresh waits until the router has heard of a prefix again from every director whose session
// was lost. Until then it keeps the old route, and would forget it at once if the session were lost
// again (RFC 4724, 4.2). A director reports a route as announced as soon as it has written it to
// its socket.
func (l *announcing) waitFresh(prefix string) {
	l.t.Helper()
	waitFor(l.t, "the router to hear of "+prefix+" again", func() bool {
		paths := l.paths("ipv4", prefix)
		return len(paths) > 0 && !slices.ContainsFunc(paths, func(p path) bool { return p.Stale })
	})
}

// A director announces VIPs that have enough backends, and withdraws those that do not. A change
// that withdraws one VIP leaves the routes of others alone.
func TestRoutesFollowBackends(t *testing.T) {
	t.Parallel()
	w, other := way{mode: "l2dsr"}, way{mode: "ipip"}
	l := newAnnouncing(t, 2, 2, frrText)
	stays := other.service("tcp", "80", everyBackend(2))
	// Long enough for drained to look while a route is marked, and then until the director
	// detaches.
	bgp := "bgp:\n  graceful-shutdown: 4s\n" + strings.TrimPrefix(bgpText(directorHost), "bgp:\n")
	calls := filepath.Join(l.director.Dir(), "calls")
	bgp += fmt.Sprintf("hooks:\n- {name: cloud, exec: [/bin/sh, -c, \"cat >>%s\"]}\n", calls)
	text := func(least int, states ...string) string {
		var backends []backend
		for i, state := range states {
			backends = append(backends, backend{number: i + 1, state: state})
		}
		service := strings.Replace(w.service("udp", "53", backends), "  mode:", fmt.Sprintf("  min-healthy: %d\n  mode:", least), 1)
		return configText("eth0", "", service, stays) + bgp
	}
	prefix := w.vip().String() + "/32"
	d := launchDaemon(t, l.director, "run", text(1, "active", "active"), "--grace-period", "10s")
	l.serve(stays)
	d.ready()
	// The kernel gets one route after the other.
	for _, of := range []way{w, other} {
		waitRouted(t, l.router, of.vip().String()+"/32", "via 10.2.0.11")
	}
	changes := watchRoutes(t, l.router)
	for _, step := range []struct {
		least  int
		states []string
		there  bool
	}{
		{1, []string{"active", "down"}, true},
		{1, []string{"down", "down"}, false},
		{1, []string{"down", "draining"}, true},
		{2, []string{"down", "active"}, false},
		{2, []string{"draining", "active"}, true},
		{3, []string{"active", "active"}, false},
	} {
		d.edit(text(step.least, step.states...))
		waitRouted(t, l.router, prefix, map[bool]string{true: "via 10.2.0.11", false: "nowhere"}[step.there])
	}
	// Checks that no backend passes: all backends are used, and the VIP is announced only if
	// min-healthy is 0.
	for _, least := range []int{1, 0} {
		health := "  health: {kind: tcp, port: 81, to: address, interval: 50ms, timeout: 300ms, fall: 2}\n  mode:"
		d.edit(strings.Replace(text(least, "active", "active"), "  mode:", health, 1))
		waitRouted(t, l.router, prefix, map[bool]string{true: "via 10.2.0.11", false: "nowhere"}[least == 0])
	}
	d.waitFor("use both backends, which are unhealthy", func() bool {
		services, err := d.services()
		return err == nil && active(services[0]) == 2 && services[0].Health.Panic
	})
	if n := changes(other.vip().String() + "/32"); n > 0 {
		t.Errorf("the route of a service that did not change changed %d times", n)
	}
	d.edit(configText("eth0", "", stays) + bgp)
	d.waitFor("announce one VIP", func() bool { return len(d.bgp().Routes) == 1 })
	l.direct(1, bgpText(directorHost+1), stays)
	waitCalled(t, calls, model.HookStart, model.HookChange, other.vip())
	drained(t, l, d, other)
	// The director started again after it had drained.
	waitCalled(t, calls, model.HookDrain, model.HookStart, other.vip())
}

// waitCalled waits until a hook has been called for one event, and last for another, with
// those VIPs.
func waitCalled(t *testing.T, file string, once, last model.HookEvent, up ...netip.Addr) {
	t.Helper()
	waitFor(t, fmt.Sprintf("a hook to be called for %s with %v", last, up), func() bool {
		text, err := os.ReadFile(file)
		if err != nil {
			return false
		}
		var call model.HookCall
		seen := false
		for line := range strings.Lines(string(text)) {
			call = model.HookCall{}
			if err := json.Unmarshal([]byte(line), &call); err != nil {
				return false // half a line
			}
			seen = seen || call.Event == once
		}
		return seen && call.Event == last && slices.Equal(call.Up, up)
	})
}

// drained shows how a draining director makes routers turn away while it still forwards: first it
// marks its routes, so that a router with another way takes that; then it withdraws them; then it
// detaches.
func drained(t *testing.T, l *announcing, d *daemon, w way) {
	prefix := w.vip().String() + "/32"
	waitRouted(t, l.router, prefix, "via 10.2.0.11 10.2.0.12")
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "a path to be marked", func() bool {
		return slices.ContainsFunc(l.paths("ipv4", prefix), func(p path) bool {
			return strings.Contains(p.Community.String, "graceful-shutdown") && p.LocalPref != nil && *p.LocalPref == 0
		})
	})
	waitRouted(t, l.router, prefix, "via 10.2.0.12")
	if !d.bgp().Draining {
		t.Error("a director that drains does not say so")
	}
	waitFor(t, "the route to be withdrawn", func() bool { return len(l.paths("ipv4", prefix)) == 1 })
	if status := d.bgp(); status.Neighbors[0].State != model.SessionEstablished || status.Routes[0].Neighbors != 0 {
		t.Errorf("with its route withdrawn, the director says %+v", status)
	}
	l.answers("with one director that drains", w)
	<-d.ended
	l.waitSession("have no session with the drained director", lanAddress(directorHost, false), false)
	// Its pins are gone, so no router may keep a route to it.
	d.start()
	waitRouted(t, l.router, prefix, "via 10.2.0.11 10.2.0.12")
}

// frrSigned is frrText with passwords for two of the directors.
var frrSigned = strings.Replace(frrText, " bgp listen range 10.2.0.0/24", ` neighbor 10.2.0.11 peer-group directors
 neighbor 10.2.0.11 password right
 neighbor 10.2.0.11 passive
 neighbor 10.2.0.12 peer-group directors
 neighbor 10.2.0.12 password right
 neighbor 10.2.0.12 passive
 bgp listen range 10.2.0.0/24`, 1)

// Sessions over IPv6 carry both families: IPv4 with an IPv6 next hop (RFC 8950).
func TestSessions(t *testing.T) {
	t.Parallel()
	four, six := way{mode: "l2dsr"}, way{mode: "l2dsr", inner6: true, outer6: true}
	l := newAnnouncing(t, 1, 3, frrSigned)
	services := four.service("tcp", "80", everyBackend(1)) + six.service("tcp", "80", everyBackend(1))
	neighbor := fmt.Sprintf("{address: \"%s\", asn: %d, hold-time: 3s, families: [ipv6, ipv4]}", lanAddress(routerHost, true), routerAS)
	l.serve(services)
	directors := l.directFrom(0, services, bgpText(directorHost, neighbor), bgpText(directorHost+1, neighbor))
	waitFor(t, "FRR to know both ways of both families", func() bool {
		return len(l.paths("ipv6", six.vip().String()+"/128")) == 2 && len(l.paths("ipv4", four.vip().String()+"/32")) == 2
	})
	// zebra uses the link-local address of such a next hop if it knows it.
	for _, prefix := range []string{four.vip().String() + "/32", six.vip().String() + "/128"} {
		waitFor(t, prefix+" to have two next hops", func() bool { return strings.Count(routed(t, l.router, prefix), ":") > 2 })
	}
	l.answers("over IPv6 sessions", four)
	l.answers("over IPv6 sessions", six)
	fail(t, l, directors, services, four.vip().String()+"/32")
}

// fail shows that a password signs the session. A wrong password, or a wrong AS, is reported once
// in the log, beside the problem there, and in weir bgp, and changes nothing for other neighbors.
func fail(t *testing.T, l *announcing, directors []*daemon, services, prefix string) {
	text := func(i int, password string, asn int) string {
		text := fmt.Sprintf("address: %s, asn: %d, hold-time: 3s", lanAddress(routerHost, false), asn)
		if password != "" {
			text += ", password-file: " + write(t, l.hosts[i], "password", password+"\n")
		}
		return bgpText(directorHost+i, "{"+text+"}")
	}
	all := configText("eth0", "", services)
	wrong, other := directors[1], l.direct(2, text(2, "", 64999), services)
	directors[0].edit(all + text(0, "right", routerAS))
	wrong.edit(all + text(1, "wrong", routerAS))
	waitRouted(t, l.router, prefix, "via 10.2.0.11")
	for _, one := range []struct {
		d    *daemon
		says string
	}{{wrong, "another password"}, {other, "it is of AS 65000, and the configuration says 64999"}} {
		one.d.waitFor("say "+one.says, func() bool {
			n := one.d.bgp().Neighbors[0]
			var said int
			for line := range strings.Lines(one.d.logged()) {
				if strings.Contains(line, one.says) && !strings.Contains(line, "msg=problem ") {
					said++
				}
			}
			return strings.Contains(n.Problem, one.says) && said == 1
		})
	}
	l.answers("with neighbors that do not agree", way{mode: "l2dsr"})
	// Both get the right configuration, and need no restart for it.
	wrong.edit(all + text(1, "right", routerAS))
	other.edit(all + text(2, "", routerAS))
	waitRouted(t, l.router, prefix, "via 10.2.0.11 10.2.0.12 10.2.0.13")
	// A neighbor that is removed from the file is told so, and keeps no route.
	other.edit(all)
	waitRouted(t, l.router, prefix, "via 10.2.0.11 10.2.0.12")
}

// A neighbor with passive: true opens the session itself, signed, and from one hop away at most.
func TestPassiveNeighbor(t *testing.T) {
	t.Parallel()
	w := way{mode: "l2dsr"}
	l := newAnnouncing(t, 1, 1, `
router bgp 65000
 bgp router-id 10.2.0.1
 no bgp ebgp-requires-policy
 neighbor 10.2.0.11 remote-as 65001
 neighbor 10.2.0.11 password secret
 neighbor 10.2.0.11 timers connect 1
 neighbor 10.2.0.11 ttl-security hops 1
 neighbor fd00:2::11 remote-as 65001
 neighbor fd00:2::11 password other
 neighbor fd00:2::11 timers connect 1
 address-family ipv6 unicast
  neighbor fd00:2::11 activate
`)
	six := way{mode: "l2dsr", inner6: true, outer6: true}
	passwords := []string{write(t, l.director, "password", "secret\n"), write(t, l.director, "password6", "other\n")}
	listen := fmt.Sprintf("bgp:\n  listen: [%s, \"%s\"]\n", lanAddress(directorHost, false), lanAddress(directorHost, true))
	text := func(hops int) string {
		return configText("eth0", "", w.service("tcp", "80", everyBackend(1)), six.service("tcp", "80", everyBackend(1))) +
			listen + strings.TrimPrefix(bgpText(directorHost,
			fmt.Sprintf("{address: %s, asn: 65000, hold-time: 3s, passive: true, ttl-security: %d, password-file: %s}", lanAddress(routerHost, false), hops, passwords[0]),
			fmt.Sprintf("{address: \"%s\", asn: 65000, hold-time: 3s, passive: true, password-file: %s}", lanAddress(routerHost, true), passwords[1])), "bgp:\n")
	}
	d := startDaemon(t, l.director, "run", text(1))
	known := func(when string) {
		t.Helper()
		waitRouted(t, l.router, w.vip().String()+"/32", "via 10.2.0.11")
		waitFor(t, "FRR to know the IPv6 VIP "+when, func() bool { return len(l.paths("ipv6", six.vip().String()+"/128")) == 1 })
	}
	known("at first")
	d.end(syscall.SIGKILL)
	d.start()
	d.waitFor("have both sessions again", func() bool {
		status, err := d.tryBGP()
		return err == nil && status.Neighbors[0].Announced == 1 && status.Neighbors[1].Announced == 1
	})
	known("after a restart")
	d.edit(text(2))
	d.waitFor("begin a session anew", func() bool { return d.bgp().Neighbors[0].Losses > 0 })
	known("after a change")
}
