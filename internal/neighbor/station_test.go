package neighbor

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// wire is a station on one end of a link, and the other end.
type wire struct {
	t       *testing.T
	station *station
	fd      int
	link    *netlab.Link
}

func newWire(t *testing.T) *wire {
	t.Helper()
	return newWireAt(t, bootTime)
}

func newWireAt(t *testing.T, clock func() time.Duration) *wire {
	t.Helper()
	lab := netlab.ForTest(t)
	here, there := lab.Host("director"), lab.Host("neighbor")
	w := &wire{t: t, link: lab.Link(here, there, netlab.LinkOptions{Tagged: false})}
	g := &guard{clock: clock, until: forever}
	at := model.NeighborPlace{Interface: "eth0"}
	g.set(map[model.NeighborPlace]map[model.VIP]bool{at: {model.Untagged(vip4): true, model.Untagged(vip6): true}})
	w.station = &station{at: at, log: slog.New(slog.DiscardHandler), guard: g, conflict: func(model.VIP, mac) {}}
	w.on(here, func() error {
		if !w.station.set(link{index: w.link.A.Index, address: mac(w.link.A.MAC)}, []netip.Addr{vip4, vip6}) || !w.station.works() {
			return fmt.Errorf("the station does not work: %s", w.station.why())
		}
		return nil
	})
	t.Cleanup(w.station.close)
	w.on(there, func() (err error) {
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		// All frames, also those with tags beside them.
		return unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: 0x0300, Ifindex: w.link.B.Index})
	})
	t.Cleanup(func() { unix.Close(w.fd) })
	return w
}

func (w *wire) on(h *netlab.Host, do func() error) {
	w.t.Helper()
	if err := h.Do(do); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wire) send(frame []byte) {
	w.t.Helper()
	if _, err := unix.Write(w.fd, frame); err != nil {
		w.t.Fatal(err)
	}
}

// answered waits until so many questions are answered, all that was sent before having come.
func (w *wire) answered(what string, want uint64) {
	w.t.Helper()
	for end := time.Now().Add(10 * time.Second); w.station.answered.Load() < want; time.Sleep(time.Millisecond) { // between two looks
		if time.Now().After(end) {
			break
		}
	}
	if got := w.station.answered.Load(); got != want {
		w.t.Errorf("%s: %d questions are answered, want %d", what, got, want)
	}
}

// Only questions on this link and to this host are answered: not those with a VLAN tag, nor
// those that a switch has flooded, nor for other addresses.
func TestStationAnswers(t *testing.T) {
	w := newWire(t)
	broadcastARP := func(vip netip.Addr) []byte { return arpFrame(t, arpRequest, other4, vip) }
	tagged := func(id uint16) []byte {
		frame := broadcastARP(vip4)
		return append(append(append([]byte{}, frame[:12]...), 0x81, 0, byte(id>>8), byte(id)), frame[12:]...)
	}
	toOther := broadcastARP(vip4)
	copy(toOther, []byte{2, 9, 9, 9, 9, 9})
	for _, frame := range [][]byte{broadcastARP(vip4), tagged(7), toOther, broadcastARP(other4), tagged(0), broadcastARP(vip4)} {
		w.send(frame)
	}
	w.answered("ARP", 3) // the first, the last, and what only has a priority

	group := solicitedNode(vip6)
	ask := &layers.ICMPv6NeighborSolicitation{TargetAddress: vip6.AsSlice()}
	frame := ndpFrame(t, other6, group, 255, neighborSolicitation, ask)
	m := multicast(group)
	copy(frame, m[:])
	w.send(frame)
	far := ndpFrame(t, other6, vip6, 254, neighborSolicitation, ask)
	near := ndpFrame(t, other6, vip6, 255, neighborSolicitation, ask)
	for _, f := range [][]byte{far, near} {
		copy(f, w.link.A.MAC)
		w.send(f)
	}
	w.answered("NDP", 5)
	if n := w.station.conflicts.Load(); n != 0 {
		t.Errorf("%d conflicts", n)
	}
}

// Floods are not answered as fast as they come.
func TestStationIsLimited(t *testing.T) {
	w := newWire(t)
	w.flood(arpFrame(t, arpRequest, other4, vip4))
}

// flood asks until something is not answered.
func (w *wire) flood(question []byte) {
	w.t.Helper()
	for end := time.Now().Add(10 * time.Second); w.station.limited.Load() == 0; {
		if time.Now().After(end) {
			w.t.Fatal("all of a flood is answered")
		}
		w.send(question)
	}
}

// A flood from one address leaves the questions of others answered, and what all may ask together is
// bounded. The clock stands still: no answer becomes possible again meanwhile.
func TestFloodLeavesOthersAnswered(t *testing.T) {
	w := newWireAt(t, func() time.Duration { return time.Hour })
	question := arpFrame(t, arpRequest, other4, vip4)
	w.flood(question)
	answered := w.station.answered.Load()
	other := slices.Clone(question)
	for w.station.answered.Load() == answered {
		other[11]++ // another host, which may say what it likes in the rest. A few share the place of the first one
		w.send(other)
		if w.station.limited.Load() > 100_000 {
			t.Fatal("while one host asks too much, no other one is answered")
		}
	}
	for i := range 1 << 16 {
		binary.BigEndian.PutUint16(other[10:], uint16(i))
		w.send(other)
	}
	limited := w.station.limited.Load()
	for end := time.Now().Add(10 * time.Second); w.station.limited.Load() == limited; {
		if time.Now().After(end) {
			t.Fatal("all of a flood from many addresses is answered")
		}
		w.send(other)
	}
	if most := uint64(answersPerSecond/10 + 256*answersPerAsker); w.station.answered.Load() > most {
		t.Errorf("%d questions are answered at once, want at most %d", w.station.answered.Load(), most)
	}
}

// The host is in the groups that questions about its IPv6 VIPs are sent to, as many as there
// are, and in no others.
func TestStationJoinsGroups(t *testing.T) {
	w := newWire(t)
	in := func() (n int) {
		w.on(w.link.A.Host, func() error {
			text, err := os.ReadFile("/proc/thread-self/net/igmp6")
			for line := range strings.Lines(string(text)) {
				fields := strings.Fields(line)
				// The host's own address has a group, too.
				if fields[1] == "eth0" && strings.HasPrefix(fields[2], "ff0200000000000000000001ff0a") {
					n++
				}
			}
			return err
		})
		return n
	}
	var many []netip.Addr
	for i := range 3*groupsPerSocket + 1 {
		many = append(many, netip.MustParseAddr(fmt.Sprintf("2001:db8::a:%x", i)).Unmap())
	}
	for i := range many { // groups are named by the last 24 bits
		b := many[i].As16()
		b[13] = 0x0a
		many[i] = netip.AddrFrom16(b)
	}
	set := func(vips []netip.Addr) {
		w.on(w.link.A.Host, func() error { return w.station.groups.set(vips) })
	}
	for _, want := range []int{len(many), 1, len(many), 0} {
		set(many[:want])
		is := in()
		// The kernel lists groups in pieces, which need not be of the same moment.
		for end := time.Now().Add(10 * time.Second); is != want && time.Now().Before(end); is = in() {
			time.Sleep(time.Millisecond) // between two looks
		}
		if is != want {
			t.Errorf("the host is in %d groups, want %d", is, want)
		}
	}
}

// A link that goes and comes is heard again, also under another index.
func TestStationFollowsItsLink(t *testing.T) {
	w := newWire(t)
	question := arpFrame(t, arpRequest, other4, vip4)
	w.send(question)
	w.answered("before", 1)
	for _, up := range []bool{false, true} {
		if err := w.link.A.SetUp(up); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(10 * time.Second); w.station.answered.Load() == 1; time.Sleep(10 * time.Millisecond) { // between two attempts
		if time.Now().After(end) {
			t.Fatal("after the link was down nothing is answered")
		}
		_, _ = unix.Write(w.fd, question) // it may be down yet
	}
	if !w.station.set(link{problem: "gone"}, nil) || w.station.works() || w.station.why() != "gone" {
		t.Error("without a link the station works")
	}
	w.on(w.link.A.Host, func() error {
		found, err := net.InterfaceByName("eth0")
		if err == nil && !w.station.set(link{index: found.Index, address: mac(found.HardwareAddr)}, nil) {
			t.Error("a link that is back is nothing new")
		}
		return err
	})
	before := w.station.answered.Load()
	w.send(question)
	w.answered("with a link again", before+1)
}
