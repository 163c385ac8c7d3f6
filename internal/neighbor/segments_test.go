package neighbor

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// trunk is a director on one end of a link whose frames have tags, and the other end.
type trunk struct {
	wire
	turn *turn
}

func vlan(ids ...uint32) model.Segment {
	id := uint32(0)
	for _, one := range ids {
		id = id<<12 | one
	}
	return model.Segment{Kind: model.SegmentVLAN, ID: id}
}

// newTrunk makes a director answer for both VIPs in each of the segments, and in none if untagged.
func newTrunk(t *testing.T, untagged bool, segments ...model.Segment) *trunk {
	t.Helper()
	lab := netlab.ForTest(t)
	here, there := lab.Host("director"), lab.Host("neighbor")
	w := &trunk{wire: wire{t: t, link: lab.Link(here, there, netlab.LinkOptions{XDP: true, Tagged: true, A: []string{"203.0.113.1/24", "2001:db8::1/64"}})}}
	w.link.A.ReceiveXDP() // stands for the director's program
	w.fd = openAll(t, w.link.B)
	var config model.Neighbor
	var vips []model.VIP
	if untagged {
		segments = append([]model.Segment{{}}, segments...)
	}
	for _, s := range segments {
		config.Interfaces = append(config.Interfaces, model.NeighborInterface{Name: "eth0", Segment: s})
	}
	for _, s := range append([]model.Segment{{}, vlan(900)}, segments...) { // some are for no interface
		for _, a := range []netip.Addr{vip4, vip6} {
			vips = append(vips, model.VIP{Segment: s, Address: a})
		}
	}
	slices.SortFunc(vips, model.VIP.Compare)
	config.Refresh, config.Rate = model.DefaultNeighborRefresh, model.DefaultNeighborRate
	s := newSpeaker(nil, slog.New(slog.NewTextHandler(t.Output(), nil)), bootTime)
	s.Set(config, nil, slices.Compact(vips), Sources{})
	w.turn = newTurn(s)
	w.on(here, func() error {
		w.turn.take(t.Context())
		return nil
	})
	t.Cleanup(w.turn.end)
	for _, one := range s.Status().Interfaces {
		if one.Problem != "" {
			t.Fatalf("on %v nothing is answered: %s", one.Place(), one.Problem)
		}
	}
	return w
}

// openAll opens a socket that gets all frames of a port, with their tags beside them.
func openAll(t *testing.T, port *netlab.Port) (fd int) {
	t.Helper()
	if err := port.Host.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		for _, option := range []int{unix.PACKET_AUXDATA, unix.PACKET_IGNORE_OUTGOING} {
			if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, option, 1); err != nil {
				return err
			}
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: 0x0300, Ifindex: port.Index})
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// frames reads so many frames of the director's, as texts: their tags, and what they say of which
// address. Other frames are the kernels' own.
func (w *trunk) frames(most int) (list []string) {
	w.t.Helper()
	buffer, aside := make([]byte, 2048), make([]byte, 256)
	for end := time.Now().Add(10 * time.Second); len(list) < most && time.Now().Before(end); {
		_ = unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000})
		n, length, _, _, err := unix.Recvmsg(w.fd, buffer, aside, 0)
		if err != nil {
			continue
		}
		messages, err := unix.ParseSocketControlMessage(aside[:length])
		if err != nil {
			w.t.Fatal(err)
		}
		tags := ""
		for _, m := range messages {
			if m.Header.Type == unix.PACKET_AUXDATA && binary.NativeEndian.Uint32(m.Data)&unix.TP_STATUS_VLAN_VALID != 0 {
				tags = fmt.Sprintf("%x:%d ", binary.NativeEndian.Uint16(m.Data[18:]), binary.NativeEndian.Uint16(m.Data[16:]))
			}
		}
		frame := buffer[:n]
		for kind := binary.BigEndian.Uint16(frame[12:]); kind == 0x8100 || kind == 0x88a8; kind = binary.BigEndian.Uint16(frame[12:]) {
			tags += fmt.Sprintf("%x:%d ", kind, binary.BigEndian.Uint16(frame[14:]))
			frame = slices.Concat(frame[:12], frame[16:])
		}
		if h, ok := parse(frame); ok && (h.claims == vip4 || h.claims == vip6) {
			if want := mac(w.link.A.MAC); h.from != want || mac(frame[6:12]) != want {
				w.t.Errorf("%v says that it has %v, and %v sends it, want %v", h.from, h.claims, mac(frame[6:12]), want)
			}
			to := "all"
			if frame[0]&1 == 0 {
				to = "one"
			}
			list = append(list, tags+h.claims.String()+" to "+to)
		}
	}
	slices.Sort(list)
	return list
}

// withTags puts tags into a frame as another program than weir would.
func withTags(frame []byte, tags ...uint16) []byte {
	text := slices.Clone(frame[:12])
	for _, one := range tags {
		text = binary.BigEndian.AppendUint16(text, one)
	}
	return append(text, frame[12:]...)
}

// solicitation asks for the IPv6 VIP.
func solicitation(t *testing.T) []byte {
	group := solicitedNode(vip6)
	frame := ndpFrame(t, other6, group, 255, neighborSolicitation, &layers.ICMPv6NeighborSolicitation{TargetAddress: vip6.AsSlice(), Options: option(layers.ICMPv6OptSourceAddress, otherMAC)})
	m := multicast(group)
	copy(frame, m[:])
	return frame
}

// On a trunk, VIPs of a segment are announced with the segment's tags, and each question is answered
// only where it was asked: the same address in another segment, or in none, is another VIP.
func TestSegmentsOnATrunk(t *testing.T) {
	w := newTrunk(t, false, vlan(100), vlan(200), vlan(100, 300))
	var want []string
	for _, tags := range []string{"8100:100 ", "8100:200 ", "88a8:100 8100:300 "} {
		want = append(want, tags+vip4.String()+" to all", tags+vip4.String()+" to all", tags+vip6.String()+" to all")
	}
	slices.Sort(want)
	if got := w.frames(len(want)); !slices.Equal(got, want) {
		t.Errorf("announced is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	ask4, ask6 := arpFrame(t, arpRequest, other4, vip4), solicitation(t)
	tagged := map[string][]uint16{"": nil, "8100:100 ": {0x8100, 100}, "8100:200 ": {0x8100, 200}, "8100:300 ": {0x8100, 300}, "8100:900 ": {0x8100, 900},
		"88a8:100 8100:300 ": {0x88a8, 100, 0x8100, 300}, "8100:100 8100:300 ": {0x8100, 100, 0x8100, 300}, "8100:200 8100:300 ": {0x8100, 200, 0x8100, 300}}
	answered := map[string]bool{"8100:100 ": true, "8100:200 ": true, "88a8:100 8100:300 ": true, "8100:100 8100:300 ": true}
	want = nil
	for tags := range answered {
		want = append(want, tags+vip4.String()+" to one", tags+vip6.String()+" to one")
	}
	slices.Sort(want)
	for _, tags := range slices.Sorted(maps.Keys(tagged)) { // those that are to be answered are not all the last ones
		w.send(withTags(ask4, tagged[tags]...))
		w.send(withTags(ask6, tagged[tags]...))
	}
	w.send(withTags(ask4, 0x8100, 200)) // an answer to this comes after all others
	w.send(withTags(ask6, 0x8100, 200))
	want = append(want, "8100:200 "+vip4.String()+" to one", "8100:200 "+vip6.String()+" to one")
	slices.Sort(want)
	if got := w.frames(len(want)); !slices.Equal(got, want) {
		t.Errorf("answered is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	// Announcements have the tags that the segment's hosts use.
	w.send(withTags(ask4, tagged["8100:100 8100:300 "]...))
	w.frames(1)
	for _, h := range w.turn.holds {
		for _, a := range h.on {
			a.due = 0
		}
	}
	w.on(w.link.A.Host, func() error {
		w.turn.take(t.Context())
		return nil
	})
	if got := w.frames(9); !slices.Contains(got, "8100:100 8100:300 "+vip4.String()+" to all") {
		t.Errorf("announced is\n%s\nwant the outer tag that hosts ask with", strings.Join(got, "\n"))
	}
}

// A director that answers without a tag, too, does so for the VIPs in no segment.
func TestSegmentBesideNone(t *testing.T) {
	w := newTrunk(t, true, vlan(100))
	if got := w.frames(6); len(got) != 6 {
		t.Fatalf("announced is %v", got)
	}
	ask := arpFrame(t, arpRequest, other4, vip4)
	for _, tags := range [][]uint16{{0x8100, 200}, nil, {0x8100, 100}} {
		w.send(withTags(ask, tags...))
	}
	want := []string{vip4.String() + " to one", "8100:100 " + vip4.String() + " to one"}
	if got := w.frames(2); !slices.Equal(got, want) {
		t.Errorf("answered is %q, want %q", got, want)
	}
}

// Another host that claims a VIP in one segment is a conflict in that segment only.
func TestClaimsAreOfTheirSegment(t *testing.T) {
	w := newTrunk(t, true, vlan(100), vlan(200))
	w.frames(9)
	for _, tags := range [][]uint16{{0x8100, 900}, {0x8100, 200}} {
		w.send(withTags(arpFrame(t, arpReply, vip4, other4), tags...))
	}
	of := w.turn.stations[model.NeighborPlace{Interface: "eth0", Segment: vlan(200)}]
	for end := time.Now().Add(10 * time.Second); of.conflicts.Load() == 0; time.Sleep(time.Millisecond) { // between two looks
		if time.Now().After(end) {
			t.Fatal("the claim is not heard")
		}
	}
	w.send(withTags(arpFrame(t, arpRequest, other4, vip4), 0x8100, 200)) // comes after it
	w.frames(1)
	w.on(w.link.A.Host, func() error {
		w.turn.take(t.Context())
		return nil
	})
	for _, v := range w.turn.last.VIPs {
		if claimed := v.Of() == (model.VIP{Segment: vlan(200), Address: vip4}); claimed != (v.Problem != "") && v.Segment != (model.Segment{}) {
			t.Errorf("the problem of %v is %q", v.Of(), v.Problem)
		}
	}
	for at, one := range w.turn.stations {
		if n, want := one.conflicts.Load(), map[bool]uint64{true: 1}[one == of]; n != want {
			t.Errorf("%v has %d conflicts, want %d", at, n, want)
		}
	}
}

// A configuration that names an interface which is none of the director's is told so before it runs.
func TestExamineSegments(t *testing.T) {
	lab := netlab.ForTest(t)
	here := lab.Host("director")
	lab.Link(here, lab.Host("first"), netlab.LinkOptions{A: []string{"203.0.113.1/24"}})
	lab.Link(here, lab.Host("second"), netlab.LinkOptions{})
	w := &wire{t: t}
	for _, test := range []struct {
		on       model.NeighborInterface
		prefixes string
		problem  string
	}{
		{model.NeighborInterface{Name: "eth0"}, "[203.0.113.0/24]", ""},
		{model.NeighborInterface{Name: "eth0", Segment: vlan(100)}, "[]", ""},
		{model.NeighborInterface{Name: "eth0", Segment: vlan(100), Prefixes: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}, "[198.51.100.0/24]", ""},
		{model.NeighborInterface{Name: "eth1", Segment: vlan(100)}, "[]", "its packets come by eth1, which is none of director.interfaces"},
		{model.NeighborInterface{Name: "eth1"}, "[]", "it has no address in a network, and director.neighbor names no prefixes for it"},
		{model.NeighborInterface{Name: "tenant100", Segment: vlan(100)}, "[]", "there is no such interface"},
	} {
		w.on(here, func() error {
			if prefixes, problem := Examine(&test.on, []string{"eth0"}); fmt.Sprint(prefixes) != test.prefixes || problem != test.problem {
				t.Errorf("on %s VIPs in %v are answered for, and the problem is %q, want %s and %q", test.on.Place(), prefixes, problem, test.prefixes, test.problem)
			}
			return nil
		})
	}
}

// VIPs of networks that no interface is for are not asked for: they are neither answered nor a problem.
func TestOnlySegments(t *testing.T) {
	w := newTrunk(t, false, vlan(100))
	var listed []string
	for _, v := range w.turn.last.VIPs {
		listed = append(listed, fmt.Sprintf("%v %s%s", v.Of(), v.State, v.Problem))
	}
	if want := []string{"vlan:100/203.0.113.10 answers", "vlan:100/2001:db8::10 answers"}; !slices.Equal(listed, want) {
		t.Errorf("the VIPs are %q, want %q", listed, want)
	}
}
