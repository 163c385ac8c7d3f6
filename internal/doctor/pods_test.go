package doctor_test

import (
	"net/netip"
	"testing"

	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/model"
)

// TestPodsHost: a host whose backends are pods needs no VIP, but forwarding, and ways to them.
func TestPodsHost(t *testing.T) {
	l := newLab(t)
	c := config(model.GUE, "10.244.1.5", "10.244.2.9")
	c.Services[0].Backends[0].Host = netip.MustParseAddr("10.0.1.2")
	c.Services[0].Backends[1].Host = netip.MustParseAddr("10.0.1.99")
	found := examine(t, l.backend, doctor.Options{Config: c})
	want(t, found, "pod 10.244.1.5", doctor.Fail, "no route", "another one")
	want(t, found, "forwarding IPv4", doctor.Fail, "ip_forward is 0", "sysctl -w net/ipv4/ip_forward=1")
	for _, never := range []string{"pods", "vip 203.0.113.10", "pod 10.244.2.9", "forwarding IPv6"} {
		if f, is := found[never]; is {
			t.Errorf("about %q it says %+v", never, f)
		}
	}
	l.backend.Sysctl("net.ipv4.ip_forward", "1")
	l.backend.Route("10.244.1.5/32", "10.0.1.1")
	found = examine(t, l.backend, doctor.Options{Config: c})
	want(t, found, "pods", doctor.OK, "1 have a route", "")
	want(t, found, "forwarding IPv4", doctor.OK, "are forwarded", "")
	found = examine(t, l.director, doctor.Options{Config: c})
	want(t, found, "backend 10.0.1.99", doctor.Warn, "10.0.1.99 is not known", "")
}
