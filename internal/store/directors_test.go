package store

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
)

// What a director's process is known by comes to the others, stays when etcd is away, is
// written again when etcd has lost it, and is replaced by that of the next process.
func TestFingerprintsAreFollowed(t *testing.T) {
	c := newCluster(t, 1, false)
	director, other := c.open(), c.open()
	one, two := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("2001:db8::2")
	seen := other.FollowFingerprints(t.Context())
	says := func(a netip.Addr, want string) {
		t.Helper()
		eventually(t, "fingerprints are followed", func() error {
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

	leases, err := c.client().Leases(t.Context())
	if err != nil || len(leases.Leases) != 1 {
		t.Fatalf("there are the leases %v, %v, want one", leases, err)
	}
	if _, err := c.client().Revoke(t.Context(), leases.Leases[0].ID); err != nil {
		t.Fatal(err)
	}
	says(one, "")
	says(one, "abc")

	c.kill(0)
	if got, known := seen.Fingerprint(one); !known || got != "abc" {
		t.Errorf("without etcd it is known %q, %v", got, known)
	}
	end()
	<-done
	c.start(0)
	next := c.open()
	second, endNext := context.WithCancel(t.Context())
	t.Cleanup(endNext)
	go next.KeepFingerprint(second, []netip.Addr{one}, "def")
	says(one, "def")
	late := c.open().FollowFingerprints(t.Context())
	eventually(t, "who comes later reads them", func() error {
		if got, known := late.Fingerprint(one); !known || got != "def" {
			return fmt.Errorf("it is known %q, %v", got, known)
		}
		return nil
	})
}
