package group

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"weir.io/weir/internal/etcdclient"
	"weir.io/weir/internal/model"
)

// Keys below PREFIX/neighbor/. Both end with the director's lease. An owner's key is made only where
// there is none, and deleted only by its owner. Directors of version 0.1 know no segments: they read
// what is about VIPs in none, and pass over the rest.
const (
	membersKey = "members/" // ADDRESS: a director that is there, and the VIPs that it could answer for
	ownersKey  = "owners/"  // VIP, or SEGMENT/VIP: the address of the one director that answers for it
)

// ownersEntry is what one of these keys says.
type ownersEntry struct {
	member   ownersMember // of a member's key
	offers   []model.VIP  // of it
	director netip.Addr   // of an owner's key
}

// ownersMember is what a director writes about itself.
type ownersMember struct {
	Process string       `json:"process"`
	VIPs    []netip.Addr `json:"vips"`
	Home    []netip.Addr `json:"home,omitempty"` // those of VIPs that are this director's addresses of full NAT
	// Segments are the VIPs in segments, each in order.
	Segments map[string][]netip.Addr `json:"segments,omitempty"`
}

// offer sets the VIPs, which are in order.
func (m *ownersMember) offer(vips []model.VIP) {
	m.VIPs, m.Segments = nil, nil
	for _, vip := range vips {
		if !vip.InSegment() {
			m.VIPs = append(m.VIPs, vip.Address)
			continue
		}
		if m.Segments == nil {
			m.Segments = map[string][]netip.Addr{}
		}
		segment := vip.Segment.String()
		m.Segments[segment] = append(m.Segments[segment], vip.Address)
	}
}

// offers returns the VIPs in order.
func (m *ownersMember) offers() (vips []model.VIP) {
	for _, a := range m.VIPs {
		vips = append(vips, model.Untagged(a))
	}
	for text, addresses := range m.Segments {
		var segment model.Segment
		if segment.UnmarshalText([]byte(text)) != nil {
			continue // of a kind that a later version knows
		}
		for _, a := range addresses {
			vips = append(vips, model.VIP{Segment: segment, Address: a})
		}
	}
	if len(m.Segments) > 0 {
		slices.SortFunc(vips, model.VIP.Compare)
	}
	return vips
}

// ownerOf reads the VIP of an owner's key.
func ownerOf(of string) (vip model.VIP, err error) {
	segment, address, in := strings.Cut(of, "/")
	if !in {
		segment, address = "", of
	}
	if err = vip.Segment.UnmarshalText([]byte(segment)); err != nil {
		return vip, err
	}
	vip.Address, err = netip.ParseAddr(address)
	return vip, err
}

func readOwners(name string, value []byte) (e ownersEntry, err error) {
	if strings.HasPrefix(name, membersKey) {
		err = json.Unmarshal(value, &e.member)
		e.offers = e.member.offers()
	} else {
		e.director, err = netip.ParseAddr(string(value))
	}
	return e, err
}

// Owners is a director's part in owning VIPs: without a router, the directors of a group agree on which
// of them answers for which VIP.
type Owners struct {
	client  *etcdclient.Client
	prefix  string
	keys    *etcdclient.Mirror[ownersEntry]
	notify  func()
	self    netip.Addr
	ttl     time.Duration
	process string // tells this process from another one that claims to be the same director
	stop    context.CancelFunc
	running sync.WaitGroup

	mu    sync.Mutex
	lease clientv3.LeaseID // NoLease: none that is known to live
}

// errReplaced says that another process has taken this director's place.
var errReplaced = errors.New("another process is this director by its address in the group")

// Owners begins to follow which director answers for which VIP, until Leave. notify is called when
// something has changed. The director is known by its address, and counts as gone a time to live
// after it last prolonged its lease.
func (g *Group) Owners(self netip.Addr, ttl time.Duration, notify func()) *Owners {
	ctx, cancel := context.WithCancel(context.Background())
	o := &Owners{client: g.client, prefix: g.client.Prefix + "/neighbor/", notify: notify, self: self, ttl: ttl, process: rand.Text(), stop: cancel}
	o.keys = etcdclient.NewMirror(g.client, o.prefix, readOwners, notify)
	o.running.Go(func() { o.keys.Run(ctx, "who answers for which VIP cannot be read") })
	return o
}

// Group returns what is known now.
func (o *Owners) Group() model.NeighborGroup {
	o.mu.Lock()
	own := o.lease
	o.mu.Unlock()
	g := model.NeighborGroup{Known: o.keys.Listed(), Members: map[netip.Addr][]model.VIP{}, Homes: map[netip.Addr]netip.Addr{}, Owners: map[model.VIP]model.NeighborOwner{}}
	replaced := false
	o.keys.All(func(name string, e ownersEntry, lease clientv3.LeaseID) {
		kind, of, _ := strings.Cut(name, "/")
		mine := own != clientv3.NoLease && lease == own
		if kind+"/" == ownersKey {
			if vip, err := ownerOf(of); err == nil {
				g.Owners[vip] = model.NeighborOwner{Director: e.director, Mine: mine}
			}
			return
		}
		if a, err := netip.ParseAddr(of); err == nil && kind+"/" == membersKey {
			g.Members[a] = e.offers
			for _, home := range e.member.Home {
				g.Homes[home] = a
			}
			if a == o.self {
				g.Home = e.member.Home
				replaced = e.member.Process != o.process
				g.Joined = mine && !replaced
			}
		}
	})
	if replaced { // the other process answers
		for vip, owner := range g.Owners {
			g.Owners[vip] = model.NeighborOwner{Director: owner.Director}
		}
	}
	return g
}

// replaced reports whether another process has written what this director offers.
func (o *Owners) replaced() bool {
	e, has := o.keys.Get(membersKey + o.self.String())
	return has && e.member.Process != o.process
}

// Renew prolongs the lease, or begins one, and returns how long it lasts from the call on. If the
// lease of an ended earlier process still lives, this process takes it over with its VIPs.
func (o *Owners) Renew(ctx context.Context) (time.Duration, error) {
	client, err := o.client.Connect()
	if err != nil {
		return 0, err
	}
	o.mu.Lock()
	lease := o.lease
	o.mu.Unlock()
	if lease == clientv3.NoLease {
		return o.acquireLease(ctx, client)
	}
	if o.replaced() {
		return 0, errReplaced
	}
	kept, err := client.KeepAliveOnce(ctx, lease)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		o.have(clientv3.NoLease)
	}
	if err != nil {
		return 0, fmt.Errorf("prolong the lease of the VIPs: %w", err)
	}
	return time.Duration(kept.TTL) * time.Second, nil
}

// acquireLease takes over the earlier process's lease, or makes one.
func (o *Owners) acquireLease(ctx context.Context, client *clientv3.Client) (time.Duration, error) {
	found, err := client.Get(ctx, o.member())
	if err != nil {
		return 0, fmt.Errorf("look for the lease of the VIPs: %w", err)
	}
	for _, kv := range found.Kvs {
		kept, err := client.KeepAliveOnce(ctx, clientv3.LeaseID(kv.Lease))
		if err != nil {
			continue // it has ended meanwhile
		}
		var m ownersMember
		_ = json.Unmarshal(kv.Value, &m) // written by another version: it counts as offering nothing
		m.Process = o.process
		same := clientv3.Compare(clientv3.ModRevision(o.member()), "=", kv.ModRevision)
		done, err := o.putMember(ctx, client, m, clientv3.LeaseID(kv.Lease), same)
		if err == nil && !done {
			err = errReplaced
		}
		if err != nil {
			return 0, err
		}
		o.have(clientv3.LeaseID(kv.Lease))
		return time.Duration(kept.TTL) * time.Second, nil
	}
	granted, err := client.Grant(ctx, int64((o.ttl+time.Second-1)/time.Second))
	if err != nil {
		return 0, fmt.Errorf("ask for a lease of VIPs: %w", err)
	}
	o.have(granted.ID)
	return time.Duration(granted.TTL) * time.Second, nil
}

// have sets the current lease. VIPs owned by another lease are not owned.
func (o *Owners) have(lease clientv3.LeaseID) {
	o.mu.Lock()
	o.lease = lease
	o.mu.Unlock()
	o.notify()
}

func (o *Owners) member() string { return o.prefix + membersKey + o.self.String() }

// Offer says for which VIPs this director could answer, in order, and which of them are its own
// addresses of full NAT.
func (o *Owners) Offer(ctx context.Context, vips []model.VIP, home []netip.Addr) error {
	client, lease, err := o.connect()
	if err != nil {
		return err
	}
	m := ownersMember{Process: o.process, Home: home}
	m.offer(vips)
	_, err = o.putMember(ctx, client, m, lease)
	return err
}

func (o *Owners) connect() (*clientv3.Client, clientv3.LeaseID, error) {
	client, err := o.client.Connect()
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case err != nil:
	case o.lease == clientv3.NoLease:
		err = errors.New("there is no lease of VIPs yet")
	case o.replaced():
		err = errReplaced
	}
	return client, o.lease, err
}

func (o *Owners) putMember(ctx context.Context, client *clientv3.Client, m ownersMember, lease clientv3.LeaseID, where ...clientv3.Cmp) (done bool, err error) {
	text, err := json.Marshal(&m)
	if err != nil {
		return false, fmt.Errorf("encode the VIPs: %w", err)
	}
	response, err := client.Txn(ctx).If(where...).Then(clientv3.OpPut(o.member(), string(text), clientv3.WithLease(lease))).Commit()
	if err != nil {
		return false, o.failed("offer VIPs to the group", err)
	}
	if response.Succeeded {
		o.keys.Wrote(o.member(), text, lease, response.Header.Revision)
	}
	return response.Succeeded, nil
}

// failed notes that the lease has ended, if that caused the error.
func (o *Owners) failed(what string, err error) error {
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		o.have(clientv3.NoLease)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// movesAtOnce is how many VIPs one transaction moves: etcd takes 128 operations in one.
const movesAtOnce = 60

// Move makes this director the owner of VIPs that have none, and gives up others, which are not
// among them, each by itself. After an error some may still have been moved: Group says which, when
// etcd does.
func (o *Owners) Move(ctx context.Context, claim, release []model.VIP) error {
	client, lease, err := o.connect()
	if err != nil {
		return err
	}
	type move struct {
		key string
		op  clientv3.Op
	}
	var moves []move
	for _, vip := range release {
		key := o.prefix + ownersKey + vip.String()
		mine := clientv3.Compare(clientv3.LeaseValue(key), "=", lease)
		moves = append(moves, move{key, clientv3.OpTxn([]clientv3.Cmp{mine}, []clientv3.Op{clientv3.OpDelete(key)}, []clientv3.Op{clientv3.OpGet(key)})})
	}
	for _, vip := range claim {
		key := o.prefix + ownersKey + vip.String()
		free := clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
		put := clientv3.OpPut(key, o.self.String(), clientv3.WithLease(lease))
		moves = append(moves, move{key, clientv3.OpTxn([]clientv3.Cmp{free}, []clientv3.Op{put}, []clientv3.Op{clientv3.OpGet(key)})})
	}
	for some := range slices.Chunk(moves, movesAtOnce) {
		ops := make([]clientv3.Op, len(some))
		for i := range some {
			ops[i] = some[i].op
		}
		response, err := client.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return o.failed("move VIPs", err)
		}
		for i, one := range response.Responses {
			o.moved(some[i].key, lease, response.Header.Revision, one.GetResponseTxn())
		}
	}
	return nil
}

// moved notes the result of an attempt to own a VIP, or to give it up.
func (o *Owners) moved(key string, lease clientv3.LeaseID, revision int64, t *etcdserverpb.TxnResponse) {
	switch one := t.Responses[0]; {
	case one.GetResponsePut() != nil:
		o.keys.Wrote(key, []byte(o.self.String()), lease, revision)
	case one.GetResponseDeleteRange() != nil || len(one.GetResponseRange().GetKvs()) == 0:
		o.keys.Gone(key, revision)
	default:
		kv := one.GetResponseRange().Kvs[0]
		o.keys.Wrote(key, kv.Value, clientv3.LeaseID(kv.Lease), kv.ModRevision)
	}
}

// Leave ends the lease, and with it this director's ownership of VIPs: at once if etcd can be
// asked, else when the lease expires. No other method is called after it.
func (o *Owners) Leave(ctx context.Context) error {
	o.stop()
	o.running.Wait()
	o.mu.Lock()
	lease := o.lease
	o.lease = clientv3.NoLease
	o.mu.Unlock()
	if lease == clientv3.NoLease {
		return nil
	}
	client, err := o.client.Connect()
	if err != nil {
		return err
	}
	if _, err := client.Revoke(ctx, lease); err != nil {
		return fmt.Errorf("end the lease of the VIPs: %w", err)
	}
	return nil
}
