package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.io/weir/lab/netlab"
)

// TestManyRoutes: what a router's host has of routes is not listed with each look at the host, and
// what few routes say is known at once.
func TestManyRoutes(t *testing.T) {
	host := netlab.ForTest(t).Host("router")
	ip := func(commands ...string) {
		t.Helper()
		cmd := host.Command(t.Context(), "ip", "-batch", "-")
		cmd.Stdin = strings.NewReader(strings.Join(commands, "\n"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("ip: %v: %s", err, out)
		}
	}
	var routes defaultRoutes
	now := time.Unix(1e9, 0)
	list := func() (indexes []int) {
		t.Helper()
		do(t, host, "list routes", func() (err error) {
			indexes, err = routes.list(now)
			return err
		})
		return indexes
	}
	const lo = 1
	ip("link set lo up")
	if got := list(); len(got) != 0 {
		t.Fatalf("default routes leave by %v, and there are none", got)
	}
	ip("route add default dev lo")
	if got := list(); !slices.Equal(got, []int{lo}) {
		t.Errorf("default routes leave by %v, want lo at once", got)
	}
	var many []string
	for i := range manyRoutes + 1 {
		many = append(many, fmt.Sprintf("route add blackhole 198.18.%d.%d/32", i>>8, i&0xff))
	}
	ip(many...)
	list()
	ip("route del default dev lo")
	if got := list(); !slices.Equal(got, []int{lo}) {
		t.Errorf("default routes leave by %v: many routes were listed twice", got)
	}
	now = now.Add(routesRest)
	if got := list(); len(got) != 0 {
		t.Errorf("default routes leave by %v after %v, and there are none", got, routesRest)
	}
	ip("route add default dev lo")
	routes.forget()
	if got := list(); !slices.Equal(got, []int{lo}) {
		t.Errorf("default routes leave by %v, want lo for another configuration", got)
	}
}
