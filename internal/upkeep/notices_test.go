package upkeep

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

const patience = 10 * time.Second

func listen(t *testing.T, h *netlab.Host) *Notices {
	t.Helper()
	var n *Notices
	if err := h.Do(func() (err error) {
		n, err = Listen(unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n
}

func ip(t *testing.T, h *netlab.Host, args ...string) {
	t.Helper()
	if out, err := h.Command(context.Background(), "ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %v: %v: %s", args, err, out)
	}
}

func await(t *testing.T, n *Notices, what string) {
	t.Helper()
	select {
	case <-n.C():
	case <-time.After(patience):
		t.Fatalf("%s is no notice within %v", what, patience)
	}
}

// TestHand takes an address away from a host, by another process, and finds that process.
func TestHand(t *testing.T) {
	h := netlab.ForTest(t).Host("host")
	n := listen(t, h)
	address := netip.MustParseAddr("192.0.2.10")
	gone := func(c Change) bool { return c.Type == unix.RTM_DELADDR && c.Address == address }
	var events []Event
	k := New(Deps{Log: slog.New(slog.DiscardHandler), OnEvent: func(e Event) { events = append(events, e) }}, Part{Name: "addresses", Look: func() ([]Difference, error) {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return nil, err
		}
		wanted, err := netlink.ParseAddr(address.String() + "/32")
		if err != nil {
			return nil, err
		}
		list, err := netlink.AddrList(lo, netlink.FAMILY_V4)
		for _, a := range list {
			if a.Equal(*wanted) {
				return nil, err
			}
		}
		return []Difference{{What: address.String(), Found: "is gone", By: n.By(gone), Repair: func() error { return netlink.AddrAdd(lo, wanted) }}}, err
	}})
	look := func() {
		if err := h.Do(func() error { k.Look(); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	look()
	await(t, n, "an address that comes")
	ip(t, h, "addr", "del", address.String()+"/32", "dev", "lo")
	await(t, n, "an address that goes")
	look()
	ip(t, h, "addr", "del", address.String()+"/32", "dev", "lo") // an error where it is not there again
	if len(events) != 2 || events[1].State != model.UpkeepRepaired || !strings.HasPrefix(events[1].By, "process ") {
		t.Errorf("events are %+v, want two repairs, the second of what a process has done", events)
	}
	if status := k.Status(); len(status) != 1 || status[0].Repairs != 2 || status[0].Problems != nil {
		t.Errorf("status is %+v, want two repairs and no problem", status)
	}
}

// TestFilesAreNoticed changes a file, and one in a directory.
func TestFilesAreNoticed(t *testing.T) {
	n := listen(t, netlab.ForTest(t).Host("host"))
	dir := t.TempDir()
	if err := n.Files(dir, filepath.Join(dir, "not there")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	await(t, n, "a file that comes")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	await(t, n, "a directory that goes")
}

// TestRunLooks has a reconciler look by itself, without a notice, and when it is woken.
func TestRunLooks(t *testing.T) {
	looks := make(chan struct{}, 1)
	k := New(Deps{Log: slog.New(slog.DiscardHandler)}, Part{Name: "nothing", Look: func() ([]Difference, error) {
		select {
		case looks <- struct{}{}:
		default:
		}
		return nil, nil
	}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		k.Run(ctx, Hear(func() (*Notices, error) { return nil, errors.New("too many open files") }))
	}()
	for range 2 {
		select {
		case <-looks:
		case <-time.After(patience):
			t.Fatalf("nobody looks for %v", patience)
		}
	}
	cancel()
	<-ended
}

// TestNoticesEnd: after Close no goroutine listens.
func TestNoticesEnd(t *testing.T) {
	n, err := Listen(unix.RTNLGRP_LINK)
	if err != nil {
		t.Fatal(err)
	}
	n.Close()
	ended := make(chan struct{})
	go func() { n.hearing.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatalf("somebody listens %v after Close", patience)
	}
}

// Notices that the kernel refuses at first are heard as soon as it gives them, and not after Close.
func TestNoticesComeLater(t *testing.T) {
	refused := errors.New("too many open files")
	h := Hear(func() (*Notices, error) {
		if refused != nil {
			return nil, refused
		}
		return Listen(unix.RTNLGRP_LINK)
	})
	if h.C() != nil || !errors.Is(h.Problem(), refused) || h.Files("/proc/none") != nil || h.By(func(Change) bool { return true }) != "" {
		t.Errorf("without notices, the problem is %v", h.Problem())
	}
	refused = nil
	if h.C() == nil || h.Problem() != nil {
		t.Errorf("there are notices, and they are not heard: %v", h.Problem())
	}
	watched := t.TempDir()
	if err := h.Files(watched); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(watched, "new"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	select {
	case <-h.C():
	case <-time.After(patience):
		t.Errorf("a new file is no notice within %v", patience)
	}
	h.Close()
	h = Hear(func() (*Notices, error) { t.Error("a closed one listens"); return nil, refused })
	h.Close()
	h.C()
}
