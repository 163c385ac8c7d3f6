package group

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/etcdlab"
)

// member is a director of a test's group.
type member struct {
	*Owners
	t       *testing.T
	changed chan struct{}
}

var (
	firstMember, secondMember = netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("2001:db8::3")
	vipA, vipB                = netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:1::10")
)

func (c *cluster) member(t *testing.T, self netip.Addr) *member {
	m := &member{t: t, changed: make(chan struct{}, 1)}
	m.Owners = c.open().Owners(self, 30*time.Second, func() {
		select {
		case m.changed <- struct{}{}:
		default:
		}
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = m.Leave(ctx) // some tests have killed etcd by now
	})
	return m
}

// renew prolongs the lease, and says that it could.
func (m *member) renew() {
	m.t.Helper()
	if left, err := m.Renew(m.t.Context()); err != nil || left < time.Second || left > time.Minute {
		m.t.Fatalf("%v's lease has %v left, error %v", m.self, left, err)
	}
}

func (m *member) offer(vips ...netip.Addr) {
	m.t.Helper()
	if err := m.Offer(m.t.Context(), vips, nil); err != nil {
		m.t.Fatal(err)
	}
}

func (m *member) move(claim, release []netip.Addr) {
	m.t.Helper()
	if err := m.Move(m.t.Context(), claim, release); err != nil {
		m.t.Fatal(err)
	}
}

// sees waits until a director knows that, each VIP with its owner, "*" if that is itself.
func (m *member) sees(want string) {
	m.t.Helper()
	for end := time.After(patience); ; {
		got := said(m.Group())
		if got == want {
			return
		}
		select {
		case <-m.changed:
		case <-end:
			m.t.Fatalf("%v sees %q, want %q", m.self, got, want)
		}
	}
}

func said(g model.NeighborGroup) string {
	var members, owners []string
	for a, vips := range g.Members {
		members = append(members, fmt.Sprintf("%v:%v", a, vips))
	}
	for vip, o := range g.Owners {
		owners = append(owners, fmt.Sprintf("%v=%v%s", vip, o.Director, map[bool]string{true: "*"}[o.Mine]))
	}
	slices.Sort(members)
	slices.Sort(owners)
	return strings.Join(append(members, owners...), " ")
}

// Each VIP has one owner, which alone can give it up, and which loses it with its lease.
func TestOwners(t *testing.T) {
	c := newCluster(t, false)
	one, two := c.member(t, firstMember), c.member(t, secondMember)
	if err := one.Offer(t.Context(), []netip.Addr{vipA}, nil); err == nil {
		t.Error("without a lease something is offered")
	}
	one.renew()
	two.renew()
	one.offer(vipA, vipB)
	two.offer(vipB)
	both := "10.0.0.2:[203.0.113.10 2001:db8:1::10] 2001:db8::3:[2001:db8:1::10]"
	one.sees(both)
	if !one.Group().Joined {
		t.Error("a member with a lease has not joined")
	}
	one.move([]netip.Addr{vipA, vipB}, nil)
	one.sees(both + " 2001:db8:1::10=10.0.0.2* 203.0.113.10=10.0.0.2*")
	two.sees(both + " 2001:db8:1::10=10.0.0.2 203.0.113.10=10.0.0.2")

	// A VIP that another director owns is neither taken nor given up, also by a director
	// that does not know of it.
	two.move([]netip.Addr{vipA}, []netip.Addr{vipB})
	two.sees(both + " 2001:db8:1::10=10.0.0.2 203.0.113.10=10.0.0.2")
	one.move(nil, []netip.Addr{vipB})
	one.sees(both + " 203.0.113.10=10.0.0.2*")
	two.move([]netip.Addr{vipA, vipB}, nil)
	two.sees(both + " 2001:db8:1::10=2001:db8::3* 203.0.113.10=10.0.0.2")

	// A director that has no lease any more loses all VIPs, and knows it when it asks.
	if _, err := c.Client().Revoke(t.Context(), two.lease); err != nil {
		t.Fatal(err)
	}
	one.sees("10.0.0.2:[203.0.113.10 2001:db8:1::10] 203.0.113.10=10.0.0.2*")
	if _, err := two.Renew(t.Context()); err == nil {
		t.Error("a lease is prolonged that has ended")
	}
	if two.Group().Joined {
		t.Error("without a lease it is still a member")
	}
	two.renew()
	two.offer(vipB)
	if err := two.Leave(t.Context()); err != nil {
		t.Error(err)
	}
	one.sees("10.0.0.2:[203.0.113.10 2001:db8:1::10] 203.0.113.10=10.0.0.2*")
}

// A process that begins while the lease of the one before it lives goes on with what that
// answered for, and that one, if it is still there, does not.
func TestOwnersOutliveTheirProcess(t *testing.T) {
	c := newCluster(t, false)
	before := c.member(t, firstMember)
	before.renew()
	before.offer(vipA)
	before.move([]netip.Addr{vipA}, nil)
	next := c.member(t, firstMember)
	next.sees("10.0.0.2:[203.0.113.10] 203.0.113.10=10.0.0.2") // not its own as long as it has no lease
	next.renew()
	next.sees("10.0.0.2:[203.0.113.10] 203.0.113.10=10.0.0.2*")
	before.sees("10.0.0.2:[203.0.113.10] 203.0.113.10=10.0.0.2")
	for what, err := range map[string]error{
		"offers": before.Offer(t.Context(), nil, nil), "moves": before.Move(t.Context(), nil, []netip.Addr{vipA}),
	} {
		if err == nil {
			t.Errorf("a process that was replaced %s", what)
		}
	}
	if _, err := before.Renew(t.Context()); err == nil {
		t.Error("a process that was replaced prolongs its lease")
	}
	next.move(nil, []netip.Addr{vipA})
	next.sees("10.0.0.2:[203.0.113.10]")
}

// Many VIPs move at once, and directors that were there before etcd was away follow
// those that come later.
func TestManyOwners(t *testing.T) {
	c := newCluster(t, false)
	one, two := c.member(t, firstMember), c.member(t, secondMember)
	one.renew()
	var vips []netip.Addr
	for i := range 500 {
		vips = append(vips, netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}))
	}
	one.offer(vips...)
	one.move(vips, nil)
	owns := func(m *member, n int) func() error {
		return func() error {
			if got := len(m.Group().Owners); got != n {
				return fmt.Errorf("%v sees %d owners, want %d", m.self, got, n)
			}
			return nil
		}
	}
	etcdlab.Eventually(t, "the other one sees all", owns(two, 500))
	c.Kill(0)
	c.Start(0)
	etcdlab.Eventually(t, "the lease lives", func() error {
		_, err := one.Renew(t.Context())
		return err
	})
	one.move(nil, vips[:499])
	etcdlab.Eventually(t, "the other one sees what changed since", owns(two, 1))
}
