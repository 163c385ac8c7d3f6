package daemon

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"weir.io/weir/internal/api"
)

// A socket that was removed is made again while its process runs, and not when that ends: its server
// removes it then.
func TestSocketIsMadeAgainUntilTheEnd(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	defer end()
	k := NewSocket(ctx, filepath.Join(t.TempDir(), "run.sock"))
	listener, err := api.Listen(k.path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := k.Answer(listener, func(net.Listener) (wait func()) { return func() {} }); err != nil {
		t.Fatal(err)
	}
	for _, ended := range []bool{false, true} {
		if ended {
			end()
		}
		if err := os.Remove(k.path); err != nil {
			t.Fatal(err)
		}
		found, err := k.look()
		if err != nil || (len(found) == 0) != ended {
			t.Errorf("the process has ended: %v; it finds %v (%v)", ended, found, err)
		}
		for _, d := range found {
			if err := d.Repair(); err != nil {
				t.Fatal(err)
			}
			defer k.listener.Close()
		}
	}
}
