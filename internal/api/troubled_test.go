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
	port := func(port uint16) LiveBackend {
		b := down("10.0.0.1", "status")
		b.Port = port
		return b
	}
	list.add("other", port(8080)) // two ports of a host are two backends of one service
	list.add("other", port(8081))
	list.add("other", down("10.0.0.2", "refused"))
	got := make([]string, len(list.Backends))
	for i, b := range list.Backends {
		got[i] = fmt.Sprint(b.Service, " ", b.Services, " ", b.Count, " ", b.Address, " ", b.Port, " ", b.Reason)
	}
	want := []string{"service0 100 100 10.0.0.1 0 refused", "other 1 2 10.0.0.1 0 status", "other 1 1 10.0.0.2 0 refused"}
	if list.Count != 103 || !slices.Equal(got, want) {
		t.Errorf("%d backends as %q, want 103 as %q", list.Count, got, want)
	}
}
