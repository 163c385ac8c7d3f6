package group

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

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
	vipA, vipB                = model.Untagged(netip.MustParseAddr("203.0.113.10")), model.Untagged(netip.MustParseAddr("2001:db8:1::10"))
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

func (m *member) offer(vips ...model.VIP) {
	m.t.Helper()
	if err := m.Offer(m.t.Context(), vips, nil); err != nil {
		m.t.Fatal(err)
	}
}

func (m *member) move(claim, release []model.VIP) {
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
	if err := one.Offer(t.Context(), []model.VIP{vipA}, nil); err == nil {
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
	one.move([]model.VIP{vipA, vipB}, nil)
	one.sees(both + " 2001:db8:1::10=10.0.0.2* 203.0.113.10=10.0.0.2*")
	two.sees(both + " 2001:db8:1::10=10.0.0.2 203.0.113.10=10.0.0.2")

	// A VIP that another director owns is neither taken nor given up, also by a director
	// that does not know of it.
	two.move([]model.VIP{vipA}, []model.VIP{vipB})
	two.sees(both + " 2001:db8:1::10=10.0.0.2 203.0.113.10=10.0.0.2")
	one.move(nil, []model.VIP{vipB})
	one.sees(both + " 203.0.113.10=10.0.0.2*")
	two.move([]model.VIP{vipA, vipB}, nil)
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
	before.move([]model.VIP{vipA}, nil)
	next := c.member(t, firstMember)
	next.sees("10.0.0.2:[203.0.113.10] 203.0.113.10=10.0.0.2") // not its own as long as it has no lease
	next.renew()
	next.sees("10.0.0.2:[203.0.113.10] 203.0.113.10=10.0.0.2*")
	before.sees("10.0.0.2:[203.0.113.10] 203.0.113.10=10.0.0.2")
	for what, err := range map[string]error{
		"offers": before.Offer(t.Context(), nil, nil), "moves": before.Move(t.Context(), nil, []model.VIP{vipA}),
	} {
		if err == nil {
			t.Errorf("a process that was replaced %s", what)
		}
	}
	if _, err := before.Renew(t.Context()); err == nil {
		t.Error("a process that was replaced prolongs its lease")
	}
	next.move(nil, []model.VIP{vipA})
	next.sees("10.0.0.2:[203.0.113.10]")
}

// Many VIPs move at once, and directors that were there before etcd was away follow
// those that come later.
func TestManyOwners(t *testing.T) {
	c := newCluster(t, false)
	one, two := c.member(t, firstMember), c.member(t, secondMember)
	one.renew()
	var vips []model.VIP
	for i := range 500 {
		vips = append(vips, model.Untagged(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})))
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

// asBefore is what a director of version 0.1 reads: it passes over keys that it does not know.
func asBefore(t *testing.T, c *cluster) string {
	t.Helper()
	found, err := c.Client().Get(t.Context(), c.Prefix+"/neighbor/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	g := model.NeighborGroup{Members: map[netip.Addr][]model.VIP{}, Owners: map[model.VIP]model.NeighborOwner{}}
	for _, kv := range found.Kvs {
		kind, of, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), c.Prefix+"/neighbor/"), "/")
		a, err := netip.ParseAddr(of)
		if err != nil {
			continue
		}
		if kind == "owners" {
			g.Owners[model.Untagged(a)] = model.NeighborOwner{Director: netip.MustParseAddr(string(kv.Value))}
			continue
		}
		var member struct {
			Process string       `json:"process"`
			VIPs    []netip.Addr `json:"vips"`
			Home    []netip.Addr `json:"home"`
		}
		if err := json.Unmarshal(kv.Value, &member); err != nil || member.Process == "" {
			t.Fatalf("%s is %s (%v)", kv.Key, kv.Value, err)
		}
		g.Members[a] = nil
		for _, vip := range member.VIPs {
			g.Members[a] = append(g.Members[a], model.Untagged(vip))
		}
	}
	return said(g)
}

// The same address in two segments, and in none, has three owners. A director of the version before sees
// only the one in none, and what it writes is read.
func TestOwnersInSegments(t *testing.T) {
	c := newCluster(t, false)
	one, two := c.member(t, firstMember), c.member(t, secondMember)
	in := func(id uint32) model.VIP {
		return model.VIP{Segment: model.Segment{Kind: model.SegmentVLAN, ID: id}, Address: vipA.Address}
	}
	one.renew()
	two.renew()
	one.offer(vipA, vipB, in(100), in(200), in(100<<12|200))
	two.offer(in(100))
	one.move([]model.VIP{vipA, in(200), in(100<<12 | 200)}, nil)
	two.move([]model.VIP{in(100), in(200)}, nil) // of these the second has an owner
	const members = "10.0.0.2:[203.0.113.10 2001:db8:1::10 vlan:100/203.0.113.10 vlan:200/203.0.113.10 vlan:100.200/203.0.113.10] 2001:db8::3:[vlan:100/203.0.113.10] "
	const owners = "203.0.113.10=10.0.0.2* vlan:100.200/203.0.113.10=10.0.0.2* vlan:100/203.0.113.10=2001:db8::3 vlan:200/203.0.113.10=10.0.0.2*"
	one.sees(members + owners)
	if got, want := asBefore(t, c), "10.0.0.2:[203.0.113.10 2001:db8:1::10] 2001:db8::3:[] 203.0.113.10=10.0.0.2"; got != want {
		t.Errorf("a director of the version before sees %q, want %q", got, want)
	}
	one.move(nil, []model.VIP{in(200)})
	two.move(nil, []model.VIP{vipA}) // which is not its own
	one.sees(members + strings.TrimSuffix(owners, " vlan:200/203.0.113.10=10.0.0.2*"))

	// What the version before writes, and what a later one may.
	before := netip.MustParseAddr("10.0.0.9")
	for key, value := range map[string]string{
		"/neighbor/members/" + before.String(): `{"process":"P","vips":["203.0.113.11"]}`,
		"/neighbor/members/10.0.0.10":          `{"process":"Q","vips":[],"segments":{"later:1":["203.0.113.12"],"vlan:7":["203.0.113.13"]}}`,
		"/neighbor/owners/203.0.113.11":        before.String(),
		"/neighbor/owners/later:1/203.0.113.9": before.String(),
	} {
		if _, err := c.Client().Put(t.Context(), c.Prefix+key, value); err != nil {
			t.Fatal(err)
		}
	}
	two.sees("10.0.0.10:[vlan:7/203.0.113.13] " + strings.Replace(members, "2001:db8::3:[", "10.0.0.9:[203.0.113.11] 2001:db8::3:[", 1) +
		"203.0.113.10=10.0.0.2 203.0.113.11=10.0.0.9 vlan:100.200/203.0.113.10=10.0.0.2 vlan:100/203.0.113.10=2001:db8::3*")
}
