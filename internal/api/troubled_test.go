package api

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"weir.io/weir/internal/model"
)

// A host that is down is one line, however many services have it.
func TestTroubledHostsAreOneLine(t *testing.T) {
	var list LiveTroubled
	down := func(address, reason string) LiveBackend {
		return LiveBackend{Name: "b", Address: netip.MustParseAddr(address), State: model.Down, Reason: reason}
	}
	for n := range 100 {
		list.add(fmt.Sprint("service", n), down("10.0.0.1", "refused"))
	}
	list.add("other", down("10.0.0.1", "status"))
	list.add("other", down("10.0.0.2", "refused"))
	got := make([]string, len(list.Backends))
	for i, b := range list.Backends {
		got[i] = fmt.Sprint(b.Service, " ", b.Services, " ", b.Address, " ", b.Reason)
	}
	want := []string{"service0 100 10.0.0.1 refused", "other 1 10.0.0.1 status", "other 1 10.0.0.2 refused"}
	if list.Count != 102 || !slices.Equal(got, want) {
		t.Errorf("%d backends as %q, want 102 as %q", list.Count, got, want)
	}
}
