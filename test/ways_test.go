package test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// way is a mode in a family: how a service of the tests forwards.
type way struct {
	mode   string // as in the file
	snat   bool
	inner6 bool // the VIP's family
	outer6 bool // the backends' family
}

// ways are all possible ways.
var ways = []way{
	{mode: "l2dsr"}, {mode: "l2dsr", inner6: true, outer6: true},
	{mode: "ipip"}, {mode: "ipip", inner6: true, outer6: true},
	{mode: "ipip", inner6: true}, {mode: "ipip", outer6: true},
	{mode: "gue"}, {mode: "gue", inner6: true, outer6: true},
	{mode: "gue", inner6: true}, {mode: "gue", outer6: true},
	{mode: "nat"}, {mode: "nat", inner6: true, outer6: true},
	{mode: "nat", snat: true}, {mode: "nat", snat: true, inner6: true, outer6: true},
}

// String names the way as a subtest: gue-6in4.
func (w way) String() string {
	name := w.mode
	if w.snat {
		name = "snat"
	}
	family := map[bool]string{false: "4", true: "6"}
	if w.mode == "ipip" || w.mode == "gue" {
		return name + "-" + family[w.inner6] + "in" + family[w.outer6]
	}
	return name + "-" + family[w.inner6]
}

// vip returns a VIP of the way's own, so that all ways fit in one configuration.
func (w way) vip() netip.Addr {
	for i, other := range ways {
		if other == w {
			if w.inner6 {
				return netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", i+1))
			}
			return netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", i+1))
		}
	}
	panic("no such way: " + w.String())
}

// url returns the address of a file behind the way's VIP.
func (w way) url(file string) string {
	return "http://" + netip.AddrPortFrom(w.vip(), 80).String() + "/" + file
}

// eachWay runs the claim for every way.
func eachWay(t *testing.T, claim func(t *testing.T, w way)) {
	for _, w := range ways {
		t.Run(w.String(), func(t *testing.T) { claim(t, w) })
	}
}

// backend is a line of a service in a configuration.
type backend struct {
	number int // of the lab's backend, from 1; 0: the director's own host
	weight int // 0: the default
	state  string
}

func everyBackend(n int) []backend {
	list := make([]backend, n)
	for i := range list {
		list[i].number = i + 1
	}
	return list
}

// service returns the text of a service for a configuration.
func (w way) service(protocol, port string, backends []backend) string {
	var b strings.Builder
	fmt.Fprintf(&b, "- name: %s-%s-%s\n  vip: %s\n  protocol: %s\n  port: %s\n  mode: %s\n",
		w, protocol, port, w.vip(), protocol, port, w.mode)
	if w.snat {
		b.WriteString("  snat: true\n")
	}
	if len(backends) == 0 {
		b.WriteString("  backends: []\n")
		return b.String()
	}
	b.WriteString("  backends:\n")
	for _, one := range backends {
		fmt.Fprintf(&b, "  - {name: backend%d, address: \"%s\"", one.number, w.address(one.number))
		if one.weight > 0 {
			fmt.Fprintf(&b, ", weight: %d", one.weight)
		}
		if one.state != "" {
			fmt.Fprintf(&b, ", state: %s", one.state)
		}
		b.WriteString("}\n")
	}
	return b.String()
}

// address returns the backend's address that the way uses; for 0 the director's.
func (w way) address(number int) netip.Addr {
	switch {
	case number == 0:
		return lanAddress(directorHost, w.outer6)
	case w.mode == "nat" && !w.snat:
		return lanAddress(natHost+number-1, w.outer6)
	}
	return lanAddress(backendHost+number-1, w.outer6)
}

// at returns the address at which packets of the way reach a server on a backend.
func (w way) at(number int, port uint16) netip.AddrPort {
	if w.mode == "nat" {
		return netip.AddrPortFrom(w.address(number), port)
	}
	return netip.AddrPortFrom(w.vip(), port)
}

// overhead returns the bytes that packets must leave free for the longest headers that the way may
// add.
func (w way) overhead() int {
	var mode model.Mode
	if err := mode.UnmarshalText([]byte(w.mode)); err != nil {
		panic(err)
	}
	return mode.MaxOverhead(w.address(1))
}
