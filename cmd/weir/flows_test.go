package main

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"weir.io/weir/internal/api"
)

// Flows that a director remembers are listed: those of slots that got another owner. The backend is
// the client, too.
func TestFlows(t *testing.T) {
	h := newHost(t)
	h.backend.Address("eth0", "10.0.0.3/24")
	h.backend.Route("203.0.113.0/24", "10.0.0.1")
	h.configure("coalesce: 1ms\ndirector: {interfaces: [eth0], store: {directory: "+h.beside("state")+"}}", "mine")
	p := h.start("director runs")
	defer p.stop()
	client := api.NewClient(h.socket)
	put := func(backends string) {
		t.Helper()
		text := "services: [{name: dns, vip: 203.0.113.53, protocol: udp, port: 53, mode: l2dsr, backends: [" + backends + "]}]"
		if _, err := client.PutSet(t.Context(), "cli", api.SetText{Text: []byte(text)}, api.Condition{}); err != nil {
			t.Fatal(err)
		}
	}
	put("{address: 10.0.0.2}")
	put("{address: 10.0.0.2}, {address: 10.0.0.3}")
	ask := func(q api.FlowQuery) api.Flows {
		t.Helper()
		flows, err := client.Flows(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		return flows
	}
	p.wait("remember flows", func() bool {
		for port := range 40 {
			conn, err := h.backend.ListenPacket("udp", fmt.Sprintf("10.0.0.2:%d", 20000+port))
			if err != nil {
				t.Fatal(err)
			}
			vip := net.UDPAddrFromAddrPort(netip.MustParseAddrPort("203.0.113.53:53"))
			for range 2 {
				if _, err := conn.WriteTo([]byte("question"), vip); err != nil {
					t.Fatal(err)
				}
			}
			conn.Close()
		}
		return len(ask(api.FlowQuery{}).Flows) > 2
	})
	all := ask(api.FlowQuery{Service: "dns", Client: netip.MustParseAddr("10.0.0.2")}).Flows
	if len(all) < 3 {
		t.Errorf("of the service and the client there are %d flows", len(all))
	}
	of := map[netip.AddrPort]int{}
	for _, f := range all {
		of[f.Backend]++
		if f.Service != "dns" || f.Client.Addr().String() != "10.0.0.2" || f.Client.Port() < 20000 || f.Port != 53 || f.State != "open" {
			t.Errorf("there is the flow %+v", f)
		}
	}
	for backend, n := range of {
		if got := ask(api.FlowQuery{Backend: backend.Addr()}); len(got.Flows) != n || got.More {
			t.Errorf("of %v there are %d flows, more: %v; of all %d are its", backend, len(got.Flows), got.More, n)
		}
	}
	if some := ask(api.FlowQuery{Most: 2}); len(some.Flows) != 2 || !some.More {
		t.Errorf("two of them are %+v", some)
	}
	if none := ask(api.FlowQuery{Service: "mine"}); len(none.Flows) > 0 || none.More {
		t.Errorf("another service has %+v", none)
	}
	if _, err := client.Flows(t.Context(), api.FlowQuery{Service: "gone"}); err == nil || err.Error() != `there is no service "gone"` {
		t.Errorf("flows of no service: %v", err)
	}
	out, err := h.weir("flows", "--socket", h.socket, "--limit", "1").Output()
	if err != nil || !strings.Contains(string(out), "dns") || !strings.Contains(string(out), "there are more: see --limit") {
		t.Errorf("weir flows prints %s: %v", out, err)
	}
}
