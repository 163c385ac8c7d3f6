package nexthop

import (
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// TestLostNeighborIsNews: also while its address is not known, as nobody else
// would ask again.
func TestLostNeighborIsNews(t *testing.T) {
	t.Parallel()
	r := &Resolver{macs: map[Neighbor]model.MAC{}, managed: map[Neighbor]bool{}}
	entry := &netlink.Neigh{LinkIndex: 2, IP: net.IPv4(10, 0, 0, 9), State: netlink.NUD_FAILED, FlagsExt: netlink.NTF_EXT_MANAGED}
	if r.learn(unix.RTM_NEWNEIGH, entry) {
		t.Error("a neighbor that still does not answer is news")
	}
	if !r.learn(unix.RTM_DELNEIGH, entry) {
		t.Error("the loss of a neighbor that the kernel was asked to keep is not news")
	}
}

// TestGoneNeighborsTakeNoMemory: whoever is on a link can have any number.
func TestGoneNeighborsTakeNoMemory(t *testing.T) {
	t.Parallel()
	r := &Resolver{macs: map[Neighbor]model.MAC{}, managed: map[Neighbor]bool{}}
	entry := &netlink.Neigh{LinkIndex: 2, IP: net.IPv4(10, 0, 0, 9), State: netlink.NUD_REACHABLE, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 9}}
	if !r.learn(unix.RTM_NEWNEIGH, entry) || len(r.macs) != 1 {
		t.Errorf("a new neighbor is not known: %v", r.macs)
	}
	if !r.learn(unix.RTM_DELNEIGH, entry) || len(r.macs) != 0 || len(r.managed) != 0 {
		t.Errorf("a neighbor that is gone left %v and %v", r.macs, r.managed)
	}
}

// TestAnswerThatNobodyHasRead: the time in which a neighbor may answer again is over, and it has
// answered, but this process has not read that yet.
func TestAnswerThatNobodyHasRead(t *testing.T) {
	l := netlab.ForTest(t)
	host := l.Host("host")
	port := l.Link(host, l.Host("far"), netlab.LinkOptions{}).A
	mac := model.MAC{2, 0, 0, 0, 0, 11}
	r := &Resolver{log: slog.New(slog.DiscardHandler), macs: map[Neighbor]model.MAC{}, managed: map[Neighbor]bool{},
		doubts: map[Neighbor]*time.Timer{}, events: make(chan struct{}, 1)}
	n := Neighbor{Ifindex: port.Index, Address: netip.MustParseAddr("10.0.0.11")}
	entry := &netlink.Neigh{LinkIndex: n.Ifindex, IP: n.Address.AsSlice(), HardwareAddr: mac[:], State: netlink.NUD_PERMANENT}
	for _, answered := range []bool{true, false} {
		r.macs[n], r.doubts[n] = mac, time.NewTimer(time.Hour)
		want, change := model.MAC{}, netlink.NeighDel
		if answered {
			want, change = mac, netlink.NeighSet
		}
		err := host.Do(func() error {
			defer r.lose(n)
			return change(entry)
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := r.macs[n]; got != want || len(r.doubts) > 0 {
			t.Errorf("of a neighbor that has answered (%v) %v is known, and there are %d doubts", answered, got, len(r.doubts))
		}
	}
}

// TestNobodyAsksForMACs: without l2dsr the host's addresses are neither kept nor read again.
func TestNobodyAsksForMACs(t *testing.T) {
	t.Parallel()
	r := &Resolver{own: hostMACs{wanted: true, known: map[uint64]uint8{1: 1}}}
	r.IgnoreHostMACs()
	if r.own.known != nil || r.ownMACsDiffer() {
		t.Errorf("of addresses that nobody asks for it is known that they are %v", r.own.known)
	}
}
