package doctor

import (
	"context"
	"errors"
	"net"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// TestConnectionsAreReadInPart: a host may have a million connections, and an examination has to end
// in time. That not all of them were read is a finding of its own.
func TestConnectionsAreReadInPart(t *testing.T) {
	h := netlab.ForTest(t).Host("host")
	const rules = "add table ip turn; add chain ip turn on { type nat hook output priority -100; }; add rule ip turn on ip daddr 127.0.0.1 tcp dport 80 dnat to 127.0.0.1:8080"
	if out, err := h.Command(t.Context(), "nft", rules).CombinedOutput(); err != nil {
		t.Fatalf("nft %s: %v: %s", rules, err, out)
	}
	listener, err := h.Listen("tcp", "127.0.0.1:8080")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	for range 3 {
		var conn net.Conn
		if conn, err = h.DialContext(t.Context(), "tcp", "127.0.0.1:80"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Do(func() error {
		for _, test := range []struct {
			ctx        context.Context
			most, want int
			whole      bool
		}{{t.Context(), 3, 3, true}, {t.Context(), 2, 2, false}, {ended, 3, 0, false}} {
			got := 0
			if err := translations(test.ctx, test.most, func(translation) { got++ }); got != test.want || err == nil != test.whole {
				t.Errorf("of three connections %d are read, with the error %v; want %d of at most %d, all: %v", got, err, test.want, test.most, test.whole)
			} else if test.ctx == ended && !errors.Is(err, context.Canceled) {
				t.Errorf("a reading that was ended says %v", err)
			}
		}
		x := newExamination(ended, &Options{Config: &model.Config{}})
		x.translated("sockets", func(*translation) *model.Service { return nil }, nil)
		if len(x.findings) != 1 || x.findings[0].Level != Warn || x.findings[0].Check != "sockets" {
			t.Errorf("if not all could be read it finds %+v", x.findings)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
