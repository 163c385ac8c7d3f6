package group

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"weir.io/weir/internal/etcdclient"
	"weir.io/weir/lab/etcdlab"
)

// The fingerprint of a director's process comes to the others, stays when etcd is away,
// is written again when etcd has lost it, and is replaced by that of the next process.
func TestFingerprintsAreFollowed(t *testing.T) {
	c := newCluster(t, false)
	director, other := c.open(), c.open()
	one, two := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("2001:db8::2")
	seen := other.FollowFingerprints(t.Context())
	says := func(a netip.Addr, want string) {
		t.Helper()
		etcdlab.Eventually(t, "fingerprints are followed", func() error {
			if got, known := seen.Fingerprint(a); !known || got != want {
				return fmt.Errorf("of %v it is known %q (%v), want %q", a, got, known, want)
			}
			return nil
		})
	}
	says(one, "")
	first, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		director.KeepFingerprint(first, []netip.Addr{one, two}, "abc")
	}()
	says(one, "abc")
	says(two, "abc")
	says(netip.MustParseAddr("10.0.0.3"), "")

	lives := func(a netip.Addr, want bool) {
		t.Helper()
		etcdlab.Eventually(t, "it is followed who lives", func() error {
			if got := seen.Lives(a); got != want {
				return fmt.Errorf("%v lives: %v, want %v", a, got, want)
			}
			return nil
		})
	}
	lives(one, true)
	lives(two, true)
	lives(netip.MustParseAddr("10.0.0.3"), false)

	// The process writes lost data again at a moment that the test does not know.
	lost := c.endLease(livesFor)
	c.endLease(reportsLive)
	c.writtenAgain(lost, director.directorsKey(), 4)
	says(one, "abc")
	lives(one, true)
	lives(two, true)

	c.Kill(0)
	if got, known := seen.Fingerprint(one); !known || got != "abc" {
		t.Errorf("without etcd it is known %q, %v", got, known)
	}
	end()
	<-done
	c.Start(0)
	// A director that has shown no life for some seconds, and none for days.
	c.endLease(livesFor)
	lives(one, false)
	says(one, "abc")
	c.endLease(reportsLive)
	says(one, "")
	next := c.open()
	second, endNext := context.WithCancel(t.Context())
	t.Cleanup(endNext)
	go next.KeepFingerprint(second, []netip.Addr{one}, "def")
	says(one, "def")
	late := c.open().FollowFingerprints(t.Context())
	etcdlab.Eventually(t, "who comes later reads them", func() error {
		if got, known := late.Fingerprint(one); !known || got != "def" {
			return fmt.Errorf("it is known %q, %v", got, known)
		}
		if !late.Lives(one) {
			return errors.New("it does not live")
		}
		return nil
	})
}

// endLease ends the lease of so many seconds, of which there is one, and returns etcd's revision
// without it.
func (c *cluster) endLease(seconds int64) (revision int64) {
	c.t.Helper()
	leases, err := c.Client().Leases(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	var ended int
	for _, l := range leases.Leases {
		state, err := c.Client().TimeToLive(c.t.Context(), l.ID)
		if err != nil {
			c.t.Fatal(err)
		}
		if state.GrantedTTL == seconds {
			ended++
			response, err := c.Client().Revoke(c.t.Context(), l.ID)
			if err != nil {
				c.t.Fatal(err)
			}
			revision = response.Header.Revision
		}
	}
	if ended != 1 {
		c.t.Fatalf("there are %d leases of %d s, want one", ended, seconds)
	}
	return revision
}

// writtenAgain waits until there are so many keys, all of them made after a revision.
func (c *cluster) writtenAgain(revision int64, prefix string, keys int) {
	c.t.Helper()
	etcdlab.Eventually(c.t, "what was lost is written again", func() error {
		found, err := c.Client().Get(c.t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithMinCreateRev(revision+1))
		if err == nil && len(found.Kvs) != keys {
			err = fmt.Errorf("%d keys are new, want %d", len(found.Kvs), keys)
		}
		return err
	})
}

// TestNamesakeIsListed: two directors with one address, such as a host and its copy, write their
// fingerprints one over the other. A process whose predecessor has written last is none.
func TestNamesakeIsListed(t *testing.T) {
	c := newCluster(t, false)
	address := []netip.Addr{netip.MustParseAddr("10.0.0.2")}
	type process struct {
		*Group
		life *etcdclient.Lease
		same namesake
		name string
	}
	open := func(name string) *process {
		g := c.open()
		return &process{Group: g, life: g.newLife(), name: name}
	}
	says := func(p *process) error {
		t.Helper()
		over, err := p.putFingerprint(t.Context(), p.life, address, p.name)
		if err != nil {
			t.Fatal(err)
		}
		return p.same.note(over)
	}
	before, one, copied := open("before"), open("one"), open("copied")
	for _, p := range []*process{before, before, one, before, one, one} { // before writes once more at its end
		if err := says(p); err != nil {
			t.Errorf("the process %s, of one director, is said to have a namesake: %v", p.name, err)
		}
	}
	for range 2 {
		_, _ = says(copied), says(one)
	}
	for _, p := range []*process{copied, one} {
		if err := says(p); err == nil || !strings.Contains(err.Error(), "10.0.0.2") {
			t.Errorf("the process %s says of its namesake: %v, want its address", p.name, err)
		}
	}
	for range namesakeOver {
		_ = says(one)
	}
	if err := says(one); err != nil {
		t.Errorf("after the copy has ended it is said: %v", err)
	}
}
