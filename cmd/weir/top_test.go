package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.io/weir/internal/model"
)

// TestTopRates: rates are the counts between two readings, per second, also if a backend is new or
// its counters began again.
func TestTopRates(t *testing.T) {
	backend := func(name string, opened, packets, bytes uint64) model.BackendStatus {
		return model.BackendStatus{Name: name, State: model.Active, Slots: 50, Opened: opened, Packets: packets, Bytes: bytes}
	}
	part := func(share float64) *float64 { return &share }
	at := time.Unix(100, 0)
	before := topReading{at: at, services: []model.ServiceStatus{
		{Name: "web", Slots: 100, Opened: 100, Packets: 1000, Bytes: 100000, Dropped: 7, Backends: []model.BackendStatus{backend("a", 60, 600, 60000), backend("b", 40, 400, 40000)}},
		{Name: "quiet", Packets: 5}, {Name: "anew", Packets: 900, Bytes: 900, Opened: 9}}}
	now := topReading{at: at.Add(2 * time.Second), services: []model.ServiceStatus{
		{Name: "quiet", Packets: 5},
		{Name: "web", Slots: 100, Opened: 140, Packets: 3000, Bytes: 300000, Dropped: 9, Backends: []model.BackendStatus{backend("a", 90, 1600, 160000), backend("c", 10, 1000, 100000)}},
		{Name: "anew", Packets: 40, Bytes: 4000, Opened: 4}}}
	got := now.since(before)
	got.order("packets")
	want := topRates{Seconds: 2, Services: []topService{
		{Name: "web", topRate: topRate{20, 1000, 100000}, Dropped: 1, Active: 2, Backends: []topBackend{
			{Name: "a", State: model.Active, topRate: topRate{15, 500, 50000}, Share: part(0.75), Slots: 0.5},
			{Name: "c", State: model.Active, topRate: topRate{5, 500, 50000}, Share: part(0.25), Slots: 0.5}}},
		{Name: "anew", topRate: topRate{2, 20, 2000}, Backends: []topBackend{}},
		{Name: "quiet", Backends: []topBackend{}}}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(topService{}, topBackend{})); diff != "" {
		t.Errorf("rates (-want +got):\n%s", diff)
	}
	got.order("name")
	if got.Services[0].Name != "anew" || got.Services[2].Name != "web" {
		t.Errorf("by name it begins with %s and ends with %s", got.Services[0].Name, got.Services[2].Name)
	}
}

func TestShort(t *testing.T) {
	for n, want := range map[float64]string{0: "0", 1: "1", 2.5: "2.5", 99.94: "99.9", 100: "100", 999.4: "999", 999.6: "1.00k", 1234: "1.23k", 12345: "12.3k",
		123456: "123k", 1234567: "1.23M", 9.999e9: "10.0G", 2.5e13: "25.0T"} {
		if got := short(n); got != want {
			t.Errorf("%v is written %s, want %s", n, got, want)
		}
	}
}
