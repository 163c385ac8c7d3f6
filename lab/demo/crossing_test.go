package demo

import (
	"net/netip"
	"testing"

	"weir.io/weir/lab/netlab"
)

// client --- server, which has the first two rows' VIPs
func TestCrossingsAreRepliesOfVIPs(t *testing.T) {
	lab := netlab.ForTest(t)
	client, server := lab.Host("client"), lab.Host("server")
	link := lab.Link(client, server, netlab.LinkOptions{
		A: []string{"10.0.0.2/24", "fd00::2/64"}, B: []string{"10.0.0.1/24", "fd00::1/64"}})
	watched := rows()[:3]
	for _, r := range watched {
		if r.vip.Is6() {
			server.Address("lo", r.vip.String()+"/128")
			client.Route(r.vip.String()+"/128", "fd00::1")
			continue
		}
		server.Address("lo", r.vip.String()+"/32")
		client.Route(r.vip.String()+"/32", "10.0.0.1")
	}
	if err := serve(t.Context(), server, 1); err != nil {
		t.Fatal(err)
	}
	c, err := countCrossings([]*netlab.Port{link.A}, watched, clientAddresses)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	// Like answers to health checks, these packets go to another host.
	others, err := countCrossings([]*netlab.Port{link.A}, watched, []netip.Addr{netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("fd00::9")})
	if err != nil {
		t.Fatal(err)
	}
	defer others.close()
	for _, r := range watched[:2] {
		conn, err := dialEcho(t.Context(), client, r.vip)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for range 3 {
			if backend, err := conn.ask(100); err != nil || backend != 1 {
				t.Fatalf("echo of %s by backend %d: %v", r.vip, backend, err)
			}
		}
	}
	conn, err := dialHTTP(t.Context(), client, watched[1].vip)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if backend, err := conn.ask(8000); err != nil || backend != 1 {
		t.Fatalf("HTTP by backend %d: %v", backend, err)
	}
	// SYN-ACK, an ACK or more, and an answer of several segments.
	for i, want := range []struct{ low, high uint64 }{{3, 3}, {3 + 7, 3 + 20}, {0, 0}} {
		n, err := c.of(watched[i].vip)
		if err != nil || n < want.low || n > want.high {
			t.Errorf("%s: %d replies crossed (%v), want %d to %d", watched[i].vip, n, err, want.low, want.high)
		}
		if n, err := others.of(watched[i].vip); err != nil || n > 0 {
			t.Errorf("%s: %d replies to others crossed (%v), want none", watched[i].vip, n, err)
		}
	}
}
