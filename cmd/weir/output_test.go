package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.io/weir/internal/model"
)

// Text of a backend or a router stays in one cell of a table, and moves no cursor.
func TestTablesArePrintable(t *testing.T) {
	var text bytes.Buffer
	out := output{format: "table"}
	if err := out.write(&text, nil, func(t *table) {
		t.row("WHY", "HEALTH")
		t.row("GET / was answered with 500 \x1b[2J\x1b]0;owned\a\tnone\r\nall well\u202e\u009b", "down")
	}); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(text.String(), "\n"); len(lines) != 3 || strings.ContainsAny(text.String(), "\x1b\a\r\t\u202e\u009b") || !strings.Contains(lines[1], "500 \ufffd[2J") || !strings.HasSuffix(lines[1], "down") {
		t.Errorf("a terminal gets %q", text.String())
	}
}

// A table of services or backends fits a terminal of 120 columns, except for its last cell, which
// is free text; a wide table has every column.
func TestTablesFitATerminal(t *testing.T) {
	socket, _ := serveFakes(t)
	for _, command := range []string{"services", "backends"} {
		var narrow, wide bytes.Buffer
		for format, out := range map[string]*bytes.Buffer{"table": &narrow, "wide": &wide} {
			if code := execute(t.Context(), []string{command, "-o", format, "--socket", socket}, out, out); code != 0 {
				t.Fatalf("weir %s -o %s: %s", command, format, out)
			}
		}
		head, _, _ := strings.Cut(narrow.String(), "\n")
		if len(head) > 120 || !strings.Contains(head, "MODE") {
			t.Errorf("weir %s begins with %d columns:\n%s", command, len(head), head)
		}
		all, _, _ := strings.Cut(wide.String(), "\n")
		for _, name := range strings.Fields(head) {
			if !slices.Contains(strings.Fields(all), name) {
				t.Errorf("weir %s -o wide has no %s:\n%s", command, name, all)
			}
		}
		if len(strings.Fields(all)) <= len(strings.Fields(head)) {
			t.Errorf("weir %s -o wide has no column more:\n%s", command, all)
		}
	}
}

func TestWhyABackendHasLess(t *testing.T) {
	down := &model.BackendHealth{State: model.HealthDown, Reason: "status", Detail: "500"}
	for _, test := range []struct {
		backend model.BackendStatus
		want    string
	}{
		{model.BackendStatus{}, ""},
		{model.BackendStatus{Health: &model.BackendHealth{State: model.HealthUp}}, ""},
		{model.BackendStatus{Health: down}, "status: 500"},
		{model.BackendStatus{Health: down, Strain: &model.BackendStrain{Parts: 4, Refused: 3}}, "status: 500"},
		{model.BackendStatus{Strain: &model.BackendStrain{Parts: 8, Refused: 0.4}}, "strain: in a second 0.4 connections are refused, and 0 find no room"},
		{model.BackendStatus{Strain: &model.BackendStrain{Parts: 5, Overflows: 12.4}}, "strain: in a second 0 connections are refused, and 12.4 find no room; it keeps 5/8 of its share"},
		{model.BackendStatus{Strain: &model.BackendStrain{Parts: 7}}, "strain: none any more; it keeps 7/8 of its share"},
	} {
		if got := whyOf(&test.backend); got != test.want {
			t.Errorf("of %+v it is said %q, want %q", test.backend, got, test.want)
		}
	}
}

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
