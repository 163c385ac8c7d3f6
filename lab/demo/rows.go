package demo

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"weir.io/weir/internal/model"
)

// The ports of the services, and their ports on nat backends.
const (
	httpPort    = 80
	echoPort    = 7
	natHTTPPort = 8080
	natEchoPort = 7007
)

// row is one line of the result: a way to forward, and the VIP that uses it.
type row struct {
	mode   model.Mode
	snat   bool
	outer6 bool // the backends' family
	vip    netip.Addr
}

// rows returns every mode in every family that it has. Tunnels carry either
// family in either.
func rows() []*row {
	var list []*row
	add := func(mode model.Mode, snat, inner6, outer6 bool) {
		n := len(list) + 1
		vip := netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", n))
		if inner6 {
			vip = netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", n))
		}
		list = append(list, &row{mode, snat, outer6, vip})
	}
	for _, mode := range []model.Mode{model.L2DSR, model.IPIP, model.GUE} {
		add(mode, false, false, false)
		add(mode, false, true, true)
		if mode != model.L2DSR {
			add(mode, false, true, false)
			add(mode, false, false, true)
		}
	}
	for _, snat := range []bool{false, true} {
		add(model.NAT, snat, false, false)
		add(model.NAT, snat, true, true)
	}
	return list
}

// modeName is the mode as the result names it.
func (r *row) modeName() string {
	if r.snat {
		return r.mode.String() + "+snat"
	}
	return r.mode.String()
}

// familyName is the VIP's family, and the tunnel's if it differs.
func (r *row) familyName() string {
	name := map[bool]string{false: "ipv4", true: "ipv6"}
	inner6 := r.vip.Is6()
	if inner6 != r.outer6 {
		return name[inner6] + " in " + name[r.outer6]
	}
	return name[inner6]
}

// direct reports whether replies bypass the directors.
func (r *row) direct() bool { return r.mode != model.NAT }

// services returns the row's two services with these members.
func (r *row) services(members []member) []model.Service {
	base := model.Service{VIP: r.vip, Mode: r.mode, SNAT: r.snat}
	http, echo := base, base
	name := r.modeName() + "-" + r.vip.String()
	http.Name, http.Protocol, http.Port = name+"-http", model.TCP, model.PortRange{First: httpPort, Last: httpPort}
	echo.Name, echo.Protocol, echo.Port = name+"-echo", model.UDP, model.PortRange{First: echoPort, Last: echoPort}
	http.Health, echo.Health = check(model.CheckHTTP), check(model.CheckUDP)
	echo.Health.UDP = &model.HealthUDP{Send: "are you there?", Expect: "are you there?"}
	for _, m := range members {
		backend := model.Backend{Name: m.name(), Address: r.address(m.backend), Weight: m.weight, State: m.state}
		if r.mode == model.NAT {
			backend.Port = natHTTPPort
		}
		http.Backends = append(http.Backends, backend)
		if r.mode == model.NAT {
			backend.Port = natEchoPort
		}
		echo.Backends = append(echo.Backends, backend)
	}
	return []model.Service{http, echo}
}

// check returns a health check that finds a lost backend after a second or so, and is not misled by
// a busy machine.
func check(kind model.CheckKind) *model.HealthCheck {
	return &model.HealthCheck{Kind: kind, Interval: model.Duration(200 * time.Millisecond),
		Timeout: model.Duration(600 * time.Millisecond), Fall: 2}
}

// address returns the address of a backend that the row uses. With nat it is one
// of its own, so that replies from it, and only those, are routed through a
// director.
func (r *row) address(backend int) netip.Addr {
	if r.mode == model.NAT && !r.snat {
		return lanAddress(backendNATHost+backend, r.outer6)
	}
	return lanAddress(backendHost+backend, r.outer6)
}

// directVIPs are the VIPs of the rows whose replies bypass the directors.
func directVIPs(rows []*row) (vips []netip.Addr) {
	for _, r := range rows {
		if r.direct() {
			vips = append(vips, r.vip)
		}
	}
	return vips
}

// modesOf names the rows' modes, each once.
func modesOf(rows []*row) string {
	var names []string
	for _, r := range rows {
		if name := r.modeName(); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}
