package group

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"weir.io/weir/internal/etcdclient"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/retry"
)

// renewFingerprint is the time between two checks that the written keys are still there.
const renewFingerprint = 5 * time.Second

// livesFor is how long a silent process counts as alive, in seconds: it may be late with two of its
// checks.
const livesFor = 15

const livesKey = "/lives"

func (g *Group) directorsKey() string { return g.client.Prefix + "/directors/" }

// Fingerprints are the keys by which the directors of a group know each other's processes. The value is
// the fingerprint of the certificate that the process has made. The key with a director's address alone
// stays for days, so that directors that cannot reach etcd go on with each other; the one that ends in
// livesKey disappears some seconds after the process. Only directors may write there: a client that may
// write there counts as one.
type Fingerprints struct{ keys *etcdclient.Mirror[string] }

// Fingerprint returns what the director with an address has written, "" if nothing; known
// is false as long as etcd has not said.
func (f *Fingerprints) Fingerprint(director netip.Addr) (fingerprint string, known bool) {
	known = f.keys.Listed() // before the look: what comes between them may be missing in it
	fingerprint, _ = f.keys.Get(director.String())
	return fingerprint, known
}

// Lives returns whether the director with an address has said in the last seconds that it is there.
func (f *Fingerprints) Lives(director netip.Addr) bool {
	_, lives := f.keys.Get(director.String() + livesKey)
	return lives
}

func readFingerprint(name string, value []byte) (string, error) {
	_, err := netip.ParseAddr(strings.TrimSuffix(name, livesKey))
	return string(value), err
}

// FollowFingerprints follows what directors write, until the context ends.
func (g *Group) FollowFingerprints(ctx context.Context) *Fingerprints {
	f := &Fingerprints{etcdclient.NewMirror(g.client, g.directorsKey(), readFingerprint, func() {})}
	go f.keys.Run(ctx, "the directors' fingerprints cannot be read")
	return f
}

// KeepFingerprint writes this process's fingerprint under each of its addresses, and that it lives,
// and writes both again if etcd has lost them, until the context ends. After the process has ended
// the keys are of no use, and disappear with their leases.
func (g *Group) KeepFingerprint(ctx context.Context, addresses []netip.Addr, fingerprint string) {
	life, same := g.newLife(), namesake{}
	defer g.forget(partFlows, partNamesake)
	g.client.Repeat(ctx, etcdclient.Task{
		Try: func(ctx context.Context) error {
			over, err := g.putFingerprint(ctx, life, addresses, fingerprint)
			if err == nil {
				g.client.Problem(model.ProblemGroup, partNamesake, "two directors are one to the group", same.note(over))
			}
			return err
		},
		Rest:        func(ctx context.Context) { retry.Sleep(ctx, renewFingerprint) },
		Consequence: "directors that come now do not learn of this one, and share no flows with it; those that know it go on", Kind: model.ProblemGroup, Part: partFlows,
	})
}

// newLife returns a lease by which keys live that say that this process does.
func (g *Group) newLife() *etcdclient.Lease {
	return g.client.NewLease(livesFor, "what says that this director lives")
}

// forget ends what is listed of parts at which nobody looks any more.
func (g *Group) forget(parts ...string) {
	for _, part := range parts {
		g.client.Problem(model.ProblemGroup, part, "", nil)
	}
}

// namesake notices another process that says that it is the director with this one's address, such
// as that of a copied host. This process's predecessor may have written once since it began.
type namesake struct {
	began   bool
	written int        // how often in a row another fingerprint stood where this process's was written
	address netip.Addr // where
	quiet   int        // how often in a row none has
}

// Another process writes as often as this one.
const (
	namesakeAfter = 2
	namesakeOver  = 3
)

// note takes the address over which another process has written, if any, and returns what is wrong.
func (n *namesake) note(over netip.Addr) error {
	switch {
	case !over.IsValid():
		if n.quiet++; n.quiet >= namesakeOver {
			n.written = 0
		}
	case n.began:
		n.quiet, n.address = 0, over
		n.written++
	}
	n.began = true
	if n.written < namesakeAfter {
		return nil
	}
	return fmt.Errorf("another process also says that it is director %v: give each host its own address in director.group, for example where one is a copy of the other", n.address)
}

// putFingerprint writes what another process or etcd has changed, and returns the address over which
// another process has written.
func (g *Group) putFingerprint(ctx context.Context, life *etcdclient.Lease, addresses []netip.Addr, fingerprint string) (over netip.Addr, err error) {
	for _, one := range []struct {
		lease  *etcdclient.Lease
		suffix string
	}{{g.stays, ""}, {life, livesKey}} {
		err := one.lease.Use(ctx, func(lease clientv3.LeaseID) error {
			for _, a := range addresses {
				key := g.directorsKey() + a.String() + one.suffix
				same := []clientv3.Cmp{clientv3.Compare(clientv3.Value(key), "=", fingerprint), clientv3.Compare(clientv3.LeaseValue(key), "=", lease)}
				response, err := g.client.Transact(ctx, func(t clientv3.Txn) clientv3.Txn {
					return t.If(same...).Else(clientv3.OpPut(key, fingerprint, clientv3.WithLease(lease), clientv3.WithPrevKV()))
				})
				if err != nil {
					return fmt.Errorf("write by what this director is known: %w", err)
				}
				if response.Succeeded {
					continue
				}
				if before := response.Responses[0].GetResponsePut().GetPrevKv(); before != nil && string(before.Value) != fingerprint {
					over = a
				}
			}
			return nil
		})
		if err != nil {
			return over, err
		}
	}
	return over, nil
}
