package test

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/routerlab"
)

// If all directors may connect to a route reflector that passes on all paths (add-path), the router
// needs no configuration for directors: iBGP, in either family.
//
//	client --- router (FRR) --- switch --- reflector (GoBGP)
//	                                   --- director, director2
//	                                   --- backend1
func TestRouteReflector(t *testing.T) {
	for _, w := range []way{{mode: "l2dsr"}, {mode: "l2dsr", inner6: true, outer6: true}} {
		t.Run(w.String(), func(t *testing.T) {
			t.Parallel()
			reflect(t, w)
		})
	}
}

func reflect(t *testing.T, w way) {
	family, bits, network := "ipv4", "/32", "10.2.0.0/24"
	if w.inner6 {
		family, bits, network = "ipv6", "/128", "fd00:2::/64"
	}
	fill := strings.NewReplacer("FAMILY", family, "REFLECTOR", lanAddress(51, w.inner6).String(),
		"ROUTER", lanAddress(routerHost, w.inner6).String(), "NETWORK", network)
	l := newAnnouncing(t, 1, 2, fill.Replace(`
router bgp 65001
 bgp router-id 10.2.0.1
 no bgp default ipv4-unicast
 neighbor REFLECTOR remote-as 65001
 neighbor REFLECTOR timers connect 1
 address-family FAMILY unicast
  neighbor REFLECTOR activate
  maximum-paths ibgp 16
 exit-address-family
`))
	host := l.Host("reflector")
	l.attach(host, 51)
	reflector, err := routerlab.StartGoBGP(host, fill.Replace(`
[global.config]
as = 65001
router-id = "10.2.0.51"
[[peer-groups]]
[peer-groups.config]
peer-group-name = "directors"
peer-as = 65001
[peer-groups.route-reflector.config]
route-reflector-client = true
route-reflector-cluster-id = "10.2.0.51"
[peer-groups.timers.config]
hold-time = 3
[[peer-groups.afi-safis]]
[peer-groups.afi-safis.config]
afi-safi-name = "FAMILY-unicast"
[[dynamic-neighbors]]
[dynamic-neighbors.config]
prefix = "NETWORK"
peer-group = "directors"
[[neighbors]]
[neighbors.config]
neighbor-address = "ROUTER"
peer-as = 65001
[neighbors.route-reflector.config]
route-reflector-client = true
route-reflector-cluster-id = "10.2.0.51"
[neighbors.add-paths.config]
send-max = 16
[[neighbors.afi-safis]]
[neighbors.afi-safis.config]
afi-safi-name = "FAMILY-unicast"
[neighbors.afi-safis.add-paths.config]
send-max = 16
`))
	if err != nil {
		t.Fatal(err)
	}
	service, prefix := w.service("tcp", "80", everyBackend(1)), w.vip().String()+bits
	l.serve(service)
	first, other := lanAddress(directorHost, w.inner6).String(), lanAddress(directorHost+1, w.inner6).String()
	neighbor := fill.Replace(`{address: "REFLECTOR", source: "SOURCE", asn: 65001, hold-time: 3s, families: [FAMILY], attributes: {local-pref: 333}}`)
	l.direct(0, bgpText(directorHost, strings.ReplaceAll(neighbor, "SOURCE", first)), service)
	waitRouted(t, l.router, prefix, "via "+first)
	second := l.direct(1, bgpText(directorHost+1, strings.ReplaceAll(neighbor, "SOURCE", other)), service, "--grace-period", "1s")
	waitRouted(t, l.router, prefix, "via "+first+" "+other)
	if out, err := reflector.Query("global", "rib", "-a", family); err != nil || !strings.Contains(out, prefix) || !strings.Contains(out, "LocalPref: 333") {
		t.Errorf("the reflector has not the route with the local preference of the configuration (%v):\n%s", err, out)
	}
	l.answers("through the reflector's routes", w)
	second.end(syscall.SIGTERM)
	waitRouted(t, l.router, prefix, "via "+first)
}

// BIRD as the router: its dynamic neighbors, its ECMP, its graceful restart, its BFD.
func TestBIRD(t *testing.T) {
	t.Parallel()
	w := way{mode: "l2dsr"}
	l := newAnnouncing(t, 1, 2, "")
	router := startBIRD(t, l.router, `
log stderr all;
router id 10.2.0.1;
protocol device { scan time 1; }
protocol kernel { merge paths on; ipv4 { import none; export all; }; }
protocol bfd { interface "*" { interval 300 ms; multiplier 5; }; }
protocol bgp directors {
	local 10.2.0.1 as 65000;
	neighbor range 10.2.0.0/24 as 65001;
	hold time 3;
	graceful restart on;
	bfd on;
	ipv4 { import all; export none; };
}
`)
	service, prefix := w.service("tcp", "80", everyBackend(1)), w.vip().String()+"/32"
	l.serve(service)
	both := "via 10.2.0.11 10.2.0.12"
	neighbor := fmt.Sprintf("{address: 10.2.0.1, asn: %d, hold-time: 3s, %s}", routerAS, patientBFD)
	directors := l.directFrom(0, service, bgpText(directorHost, neighbor), bgpText(directorHost+1, neighbor))
	d, second := directors[0], directors[1]
	waitRouted(t, l.router, prefix, both)
	for _, director := range directors {
		director.waitFor("have BFD", func() bool { return director.bgp().Neighbors[0].BFD == "up" })
	}
	changes := watchRoutes(t, l.router)
	d.end(syscall.SIGKILL)
	if got := curl(t, l.client, w.url("name")); !strings.HasPrefix(got, "backend") {
		t.Errorf("without the process the VIP answers %q", got)
	}
	d.start()
	d.ready()
	d.waitFor("tell its route", func() bool {
		status, err := d.tryBGP()
		return err == nil && status.Neighbors[0].Announced == 1
	})
	if n := changes(prefix); n > 0 || routed(t, l.router, prefix) != both {
		t.Errorf("while a process was gone and came back, the router's route changed %d times, and goes %s", n, routed(t, l.router, prefix))
	}
	if status := d.bgp().Neighbors[0]; !status.GracefulRestart || status.Problem != "" {
		t.Errorf("weir bgp says %+v", status)
	}
	d.edit(configText("eth0", "", w.service("tcp", "80", []backend{{number: 1, state: "down"}})) + bgpText(directorHost, neighbor))
	waitRouted(t, l.router, prefix, "via 10.2.0.12")
	// Only BFD can say now that the program is gone.
	second.end(syscall.SIGKILL)
	// If both happen at the same moment, BIRD may miss the second.
	waitFor(t, "the router to keep the route for a restart", func() bool {
		out, err := router.Query("show protocols all")
		return err == nil && strings.Contains(out, "graceful restart active")
	})
	takeProgramOff(t, second)
	waitRouted(t, l.router, prefix, "nowhere")
}

// exaUpdate is the part of an UPDATE in ExaBGP's output that the tests read.
type exaUpdate struct {
	Type     string
	Neighbor struct {
		Message struct {
			Update struct {
				Attribute struct {
					Origin      string
					ASPath      []uint32    `json:"as-path"`
					MED         *uint32     `json:"med"`
					Communities [][2]uint32 `json:"community"`
					Large       [][3]uint32 `json:"large-community"`
				}
				Announce map[string]map[string][]struct{ NLRI string }
				Withdraw map[string][]struct{ NLRI string }
			}
			EOR map[string]string
		}
	}
}

// ExaBGP decodes what the director sends: attributes of the neighbor and of prefixes, and both
// families, IPv6 with a configured next hop.
func TestAttributes(t *testing.T) {
	t.Parallel()
	four, six := way{mode: "ipip"}, way{mode: "ipip", inner6: true}
	l := newAnnouncing(t, 1, 1, "")
	exa := startExaBGP(t, l.router, "10.2.0.1", `
neighbor 10.2.0.11 {
	router-id 10.2.0.1;
	local-address 10.2.0.1;
	local-as 65000;
	peer-as 65001;
	hold-time 30;
	passive;
	family { ipv4 unicast; ipv6 unicast; }
	api { processes [ log ]; receive { parsed; update; } }
}
`)
	services := four.service("tcp", "80", everyBackend(1)) + six.service("tcp", "80", everyBackend(1))
	d := l.direct(0, bgpText(directorHost, fmt.Sprintf(`{address: 10.2.0.1, asn: 65000, families: [ipv4, ipv6], next-hop: ["%s"],
    attributes: {med: 7, prepend: 2, communities: ["65001:5", no-export, "4200000000:1:2"]}}`, lanAddress(directorHost, true)))+
		"  prefixes:\n  - {prefix: \"2001:db8::/64\", announce: prefix, attributes: {med: 9, communities: [\"65001:6\"]}}\n", services)
	find := func() (found map[string]exaUpdate) {
		text, err := exa.Updates()
		if err != nil {
			t.Fatal(err)
		}
		found = map[string]exaUpdate{}
		for line := range strings.Lines(string(text)) {
			var u exaUpdate
			if json.Unmarshal([]byte(line), &u) != nil {
				continue // half a line
			}
			for family, hops := range u.Neighbor.Message.Update.Announce {
				for hop, routes := range hops {
					for _, r := range routes {
						found[family+" "+r.NLRI+" via "+hop] = u
					}
				}
			}
		}
		return found
	}
	first := "ipv4 unicast " + four.vip().String() + "/32 via 10.2.0.11"
	second := "ipv6 unicast 2001:db8::/64 via fd00:2::11"
	var got map[string]exaUpdate
	d.waitFor("tell ExaBGP both routes", func() bool {
		got = find()
		_, one := got[first]
		_, other := got[second]
		return one && other
	})
	describe := func(u exaUpdate) string {
		a := u.Neighbor.Message.Update.Attribute
		return fmt.Sprint(a.Origin, a.ASPath, *a.MED, a.Communities, a.Large)
	}
	if is, want := describe(got[first]), "igp[65001 65001 65001] 7 [[65001 5] [65535 65281]] [[4200000000 1 2]]"; is != want {
		t.Errorf("ExaBGP reads %s, want %s", is, want)
	}
	if is, want := describe(got[second]), "igp[65001 65001 65001] 9 [[65001 5] [65001 6] [65535 65281]] [[4200000000 1 2]]"; is != want {
		t.Errorf("ExaBGP reads %s, want %s", is, want)
	}
	if problem := d.bgp().Neighbors[0].Problem; !strings.Contains(problem, "graceful restart") {
		t.Errorf("ExaBGP knows no graceful restart here, and weir bgp says %q", problem)
	}
	if families := d.bgp().Neighbors[0].Families; len(families) != 2 || families[0] != model.BGPIPv4 {
		t.Errorf("weir bgp says that families are %v", families)
	}
	multihop(t, l, d, services, four)
}

// multihop shows that a neighbor behind another router needs more than the TTL of 1 that eBGP
// sends with.
//
//	client (ExaBGP) --- router --- switch --- director
func multihop(t *testing.T, l *announcing, d *daemon, services string, w way) {
	exa := startExaBGP(t, l.client, "10.0.0.2", `
neighbor 10.2.0.11 {
	router-id 10.0.0.2;
	local-address 10.0.0.2;
	local-as 65000;
	peer-as 65001;
	passive;
	api { processes [ log ]; receive { parsed; update; } }
}
`)
	text := func(more string) string {
		return configText("eth0", "", services) + bgpText(directorHost, "{address: 10.0.0.2, asn: 65000"+more+"}")
	}
	d.edit(text(""))
	d.waitFor("say that there is no answer", func() bool { return strings.Contains(d.bgp().Neighbors[0].Problem, "connect:") })
	d.edit(text(", ttl: 2, source: " + lanAddress(directorHost, false).String()))
	d.waitFor("tell ExaBGP its VIP", func() bool {
		text, err := exa.Updates()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(text), w.vip().String()+"/32")
	})
}
