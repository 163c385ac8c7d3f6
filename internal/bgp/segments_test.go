package bgp

import (
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// Two neighbors have the same address, one of them in a VRF: each has its own session, and is told the
// routes of its segment. Another segment is told on the same session.
func TestNeighborsWithEqualAddresses(t *testing.T) {
	first := newNeighbor(t)
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	second := &neighbor{t: t, listener: listener, config: first.config, speaker: first.speaker, log: first.log}
	second.config.Port, second.config.VRF = uint16(listener.Addr().(*net.TCPAddr).Port), "lo" // which any interface may stand for
	in := func(id uint32) model.Segment { return model.Segment{Kind: model.SegmentVLAN, ID: id} }
	route := func(s model.Segment, prefix string) model.Route {
		return model.Route{Segment: s, Prefix: netip.MustParsePrefix(prefix)}
	}
	set := func(one, other model.Segment) {
		first.config.Segment, second.config.Segment = one, other
		first.speaker.Set(model.BGP{ASN: ourAS, RouterID: netip.MustParseAddr("10.0.0.1"), Neighbors: []model.BGPNeighbor{first.config, second.config}},
			[]model.Route{route(model.Segment{}, "192.0.2.1/32"), route(in(100), "192.0.2.1/32"), route(in(100), "192.0.2.100/32"), route(in(200), "192.0.2.200/32")})
	}
	set(in(100), in(200))
	c, _ := first.establish(helper)
	other, _ := second.establish(helper)
	told, toldOther := map[string]bool{}, map[string]bool{}
	hears := func(want, wantOther string) {
		t.Helper()
		listed := func(told map[string]bool) string {
			return strings.Join(slices.DeleteFunc(slices.Sorted(maps.Keys(told)), func(p string) bool { return p == "end" }), " ")
		}
		first.hears(c, told, func() bool { return told["end"] && listed(told) == want })
		second.hears(other, toldOther, func() bool { return toldOther["end"] && listed(toldOther) == wantOther })
	}
	hears("192.0.2.1/32 192.0.2.100/32", "192.0.2.200/32")
	set(model.Segment{}, in(100))
	hears("192.0.2.1/32", "192.0.2.1/32 192.0.2.100/32")

	says := func() (text string) {
		status := first.speaker.Status()
		for _, n := range status.Neighbors {
			text += fmt.Sprintf("%s %s %s %d; ", n.Name(), n.Segment, n.State, n.Announced)
		}
		for _, r := range status.Routes {
			text += fmt.Sprintf("%s %s %d; ", r.Segment, r.Prefix, r.Neighbors)
		}
		return text
	}
	const want = "127.0.0.1 none established 1; 127.0.0.1%lo vlan:100 established 2; " +
		"none 192.0.2.1/32 1; vlan:100 192.0.2.1/32 1; vlan:100 192.0.2.100/32 1; vlan:200 192.0.2.200/32 0; "
	for end := time.Now().Add(time.Minute); says() != want; time.Sleep(2 * time.Millisecond) { // between two looks
		if time.Now().After(end) {
			t.Fatalf("the status is %q, want %q", says(), want)
		}
	}

	// A VRF that is not there ends the session of that neighbor, and is its problem.
	second.config.VRF = "nowhere"
	set(model.Segment{}, in(100))
	if got := second.ends(other); !strings.Contains(got, "peer deconfigured") {
		t.Errorf("the session of a neighbor that is in another VRF now ends with %q", got)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) { // between two looks
		s := first.speaker.Status().Neighbors
		if s[1].Name() == "127.0.0.1%nowhere" && s[1].Problem == "connect: there is no interface nowhere (vrf)" && s[1].Own && s[0].State == model.SessionEstablished && s[0].Losses == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the status is %+v", s)
		}
	}
}

// A passive neighbor in a VRF has a listener there, with its own password, and a connection is its own
// only if it comes there.
func TestPassiveNeighborsInVRFs(t *testing.T) {
	free, err := net.Listen("tcp4", "127.0.0.3:0")
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
	s := New(nil, slog.New(slog.NewTextHandler(t.Output(), nil)))
	t.Cleanup(s.Close)
	s.port = uint16(free.Addr().(*net.TCPAddr).Port)
	passive := model.BGPNeighbor{Address: loopback, ASN: theirAS, Passive: true, HoldTime: model.DefaultHoldTime, RestartTime: model.DefaultRestartTime, Families: []model.BGPFamily{model.BGPIPv4}}
	in := func(vrf string) model.BGPNeighbor {
		n := passive
		n.VRF = vrf
		return n
	}
	here := netip.MustParseAddr("127.0.0.3")
	listens := func(neighbors ...model.BGPNeighbor) (text string) {
		t.Helper()
		s.Set(model.BGP{ASN: ourAS, RouterID: netip.MustParseAddr("10.0.0.1"), Listen: []netip.Addr{here}, Neighbors: neighbors}, nil)
		s.mu.Lock()
		defer s.mu.Unlock()
		var list []string
		for at := range s.listeners {
			list = append(list, model.InVRF(at.address, at.vrf))
		}
		slices.Sort(list)
		return strings.Join(list, " ")
	}
	for _, test := range []struct {
		neighbors []model.BGPNeighbor
		want      string
	}{
		{nil, "127.0.0.3"},
		{[]model.BGPNeighbor{passive}, "127.0.0.3"},
		{[]model.BGPNeighbor{in("lo")}, "127.0.0.3%lo"},
		{[]model.BGPNeighbor{in("lo"), passive, in("nowhere")}, "127.0.0.3 127.0.0.3%lo 127.0.0.3%nowhere"},
	} {
		if got := listens(test.neighbors...); got != test.want {
			t.Errorf("with neighbors %+v it listens at %q, want %q", test.neighbors, got, test.want)
		}
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) { // between two looks
		status := s.Status()
		if p := status.Listen[0].Problem; strings.Contains(p, "there is no interface nowhere (vrf)") && strings.Contains(p, "cannot be had in no VRF and on an interface that is no VRF's") &&
			status.Neighbors[2].Own && strings.Contains(status.Neighbors[2].Problem, "there is no interface nowhere (vrf)") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the status is %+v", status)
		}
	}
	if got := listens(in("lo")); got != "127.0.0.3%lo" {
		t.Fatalf("it listens at %q", got)
	}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: loopback.AsSlice()}}
	for end := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) { // until it listens again
		conn, err := dialer.DialContext(t.Context(), "tcp4", netip.AddrPortFrom(here, s.port).String())
		if err == nil {
			defer conn.Close()
			n := &neighbor{t: t, speaker: s}
			if m := n.read(&connection{conn}); m.kind != 1 {
				t.Fatalf("the neighbor in a VRF is sent a message of type %d first", m.kind)
			}
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
