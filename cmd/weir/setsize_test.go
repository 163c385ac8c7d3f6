package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// 10,000 services are one PUT.
func TestTenThousandServices(t *testing.T) {
	const services = 10000
	h := newHost(t)
	h.configure("director: {interfaces: [eth0], limits: {services: 16384, backends: 65536, ring-memory: 536870912}, store: {directory: "+h.beside("state")+"}}", "mine")
	p := h.start("director runs")
	defer p.stop()
	set := wanted{make([]model.Service, services)}
	for i := range set.Services {
		s := &set.Services[i]
		*s = model.Service{Name: fmt.Sprintf("service-%d", i), VIP: netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}),
			Protocol: model.TCP, Port: model.PortRange{First: 443, Last: 443}, Mode: model.L2DSR}
		for j := range 2 {
			b := model.NewBackend()
			b.Address = netip.AddrFrom4([4]byte{10, 0, 0, byte(2 + j)})
			s.Backends = append(s.Backends, b)
		}
	}
	client := api.NewClient(h.socket)
	text, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	change, err := client.PutSet(t.Context(), "cli", api.SetText{JSON: true, Text: text}, api.Condition{None: true})
	if err != nil {
		t.Fatalf("after %v: %v\n%s", time.Since(began), err, p.stderr)
	}
	t.Logf("%d services in %d bytes are put in %v", services, len(text), time.Since(began).Round(time.Millisecond))
	if len(change.Added) != services {
		t.Errorf("%d services are added", len(change.Added))
	}
	got, err := client.Set(t.Context(), "cli")
	if err != nil || len(got.Services) != services || got.Tag != change.Tag {
		t.Errorf("%d services are got: %v", len(got.Services), err)
	}
	if status := h.status(); status.Services != services+1 {
		t.Errorf("%d services are forwarded", status.Services)
	}
}
