package model

import (
	"maps"
	"testing"
)

func TestNearest(t *testing.T) {
	known := map[string]int{"name": 0, "vip": 1, "port": 2, "mode": 3, "backends": 4, "affinity": 5, "mac": 6}
	for key, want := range map[string]string{
		"backend":   "backends",
		"backends_": "backends",
		"prot":      "port",
		"vips":      "vip",
		"afinitty":  "affinity",
		"Mode":      "mode",
		"host":      "",
		"weight":    "",
		"":          "",
	} {
		if got := Nearest(key, maps.Keys(known)); got != want {
			t.Errorf("%q is taken for %q, want %q", key, got, want)
		}
	}
}
