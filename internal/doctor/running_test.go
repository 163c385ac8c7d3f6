package doctor_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// running examines the host of a process that runs, and checks that it fails for one reason, or for
// none.
func running(t *testing.T, h *netlab.Host, role doctor.Role, c *model.Config, check, text string) {
	t.Helper()
	var found []doctor.Finding
	if err := h.Do(func() (err error) {
		found, err = doctor.Running(t.Context(), doctor.Options{Config: c, Role: role, BPFFS: h.BPFFS()})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if check == "" && len(found) == 0 {
		return
	}
	if len(found) != 1 || found[0].Check != check || found[0].Level != doctor.Fail || found[0].Text != text || found[0].Fix == "" {
		t.Errorf("it finds %+v, want a failure of %q: %s", found, check, text)
	}
}

// A running process is told of failures that it does not find by itself, and of nothing else.
func TestRunning(t *testing.T) {
	l := newLab(t)
	onDirector := func(c *model.Config, check, text string) {
		t.Helper()
		running(t, l.director, doctor.Director, c, check, text)
	}
	onDirector(config(model.IPIP, "10.0.1.2", "10.0.3.2"), "", "")
	known := config(model.L2DSR, "192.0.2.1", "10.0.3.2") // no way to a backend, and an interface that is not there
	known.Director.Interfaces = []string{"eth0", "eth9"}
	onDirector(known, "", "")
	onDirector(config(model.NAT, "10.0.1.2"), "nat eth1",
		"nat backend 10.0.1.2 is reached through eth1, which is not in director.interfaces: its replies are not translated back")

	grouped := config(model.IPIP, "10.0.1.2")
	grouped.Director.Group = []netip.Addr{netip.MustParseAddr("10.0.1.9")}
	onDirector(grouped, "group", "director.group has no address of this host: fragments stay where they arrive")

	if out, err := l.director.Command(t.Context(), "ip", "addr", "add", "2001:db8:1::1/64", "dev", "eth1", "nodad").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	setMTU(t, l.director, "eth1", 1310) // an outer header of IPv6 leaves less
	onDirector(config(model.IPIP, "10.0.1.2"), "", "")
	onDirector(config(model.IPIP, "2001:db8:1::2"), "mtu eth1", "1310 leaves 1270 bytes for packets by ipip, less than IPv6 may rely on")
	onDirector(config(model.GUE, "2001:db8:1::2"), "mtu eth1", "1310 leaves 1174 bytes for packets by gue, less than IPv6 may rely on")
	setMTU(t, l.director, "eth1", 1200)
	onDirector(config(model.IPIP, "10.0.1.2"), "mtu eth1", "1200 leaves 1180 bytes for packets by ipip, less than IPv6 may rely on")
	onDirector(config(model.L2DSR, "10.0.1.2"), "mtu eth1", "1200 is less than IPv6 may rely on")
	onDirector(config(model.IPIP, "10.0.3.2"), "", "")
	setMTU(t, l.director, "eth0", 1000)
	onDirector(config(model.IPIP, "10.0.3.2"), "mtu eth0", "1000 is less than IPv6 may rely on: larger packets of clients do not come in")

	running(t, l.backend, doctor.Agent, config(model.GUE, "10.0.1.2"), "", "") // neither VIP nor sysctls are set up
	routed := config(model.NAT, "10.0.1.2")
	routed.Directors = []netip.Prefix{netip.MustParsePrefix("10.0.1.9/32")}
	l.backend.Route("default", "10.0.1.1")
	running(t, l.backend, doctor.Agent, routed, "nat route IPv4",
		"replies go by default to 10.0.1.1 on eth0, which is none of directors: nobody translates them back, and all clients time out")

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := doctor.Running(ended, doctor.Options{Config: config(model.IPIP, "10.0.1.2"), Role: doctor.Director}); !errors.Is(err, context.Canceled) {
		t.Errorf("an examination that is not finished ends with %v", err)
	}
}

// An address of full NAT that this host has lost is missed where backends ask for it on a link of
// this host: not where this host answers all the same, or where routes lead to it.
func TestLostSNATAddress(t *testing.T) {
	l := newLab(t)
	full := func(address, backend string) *model.Config {
		c := config(model.NAT, backend)
		c.Services[0].SNAT = true
		c.Director.SNAT.Addresses = []netip.Addr{netip.MustParseAddr(address)}
		return c
	}
	const lost = "is on no interface of this host: backends on eth1 ask for it by ARP or neighbor requests, and nobody answers"
	l.director.Address("eth1", "10.0.1.9/32")
	want(t, examine(t, l.director, doctor.Options{Config: full("10.0.1.9", "10.0.1.2")}), "snat 10.0.1.9", doctor.OK, "", "")
	ip(t, l.director, "addr", "del", "10.0.1.9/32", "dev", "eth1")
	running(t, l.director, doctor.Director, full("10.0.1.9", "10.0.1.2"), "snat 10.0.1.9", lost)
	want(t, examine(t, l.director, doctor.Options{Config: full("10.0.1.9", "10.0.1.2")}), "snat 10.0.1.9", doctor.Fail, lost, "ip addr add 10.0.1.9/32 dev eth1")
	running(t, l.director, doctor.Director, full("10.0.1.9", "10.0.3.2"), "", "")     // behind a router, which has a route
	running(t, l.director, doctor.Director, full("198.51.100.9", "10.0.1.2"), "", "") // the backends have a route
	inside := full("10.0.1.9", "10.0.1.2")                                            // the director answers for it in the tenant's network
	inside.Services[0].Backends[0].Segment = &model.Segment{Kind: model.SegmentVXLAN, ID: 5}
	if got, found := examine(t, l.director, doctor.Options{Config: inside})["snat 10.0.1.9"]; found {
		t.Errorf("in a tenant's network: %+v", got)
	}
	for _, answered := range [][2]string{
		{"neighbor add proxy 10.0.1.9 dev eth1", "neighbor del proxy 10.0.1.9 dev eth1"},
		{"route add local 10.0.1.9/32 dev lo", "route del local 10.0.1.9/32 dev lo"},
	} {
		ip(t, l.director, strings.Fields(answered[0])...)
		running(t, l.director, doctor.Director, full("10.0.1.9", "10.0.1.2"), "", "")
		ip(t, l.director, strings.Fields(answered[1])...)
	}
	running(t, l.director, doctor.Director, full("10.0.1.9", "10.0.1.2"), "snat 10.0.1.9", lost)
}

func ip(t *testing.T, h *netlab.Host, args ...string) {
	t.Helper()
	if out, err := h.Command(t.Context(), "ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %v: %v: %s", args, err, out)
	}
}
