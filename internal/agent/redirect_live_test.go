package agent

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// redirecting opens an agent on a host of the street.
func redirecting(t *testing.T, h *netlab.Host, clsact bool, config model.Config) *Agent {
	t.Helper()
	var a *Agent
	err := h.Do(func() (err error) {
		if a, err = Open(Deps{Pin: h.BPFFS(), Attach: AttachTC, Log: slog.New(slog.DiscardHandler), noTCX: clsact}); err != nil {
			return err
		}
		return a.Set(config)
	})
	if err != nil {
		t.Fatalf("start agent on %s: %v", h.Name, err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a
}

func (s *street) redirectStatus(t *testing.T, h *netlab.Host, a *Agent) (status model.AgentStatus, events map[string]uint64) {
	t.Helper()
	err := h.Do(func() (err error) {
		status, err = a.Status()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	events = map[string]uint64{}
	for _, r := range status.Redirects {
		for _, e := range r.Events {
			events[r.Name+" "+e.Name] += e.Count
		}
	}
	return status, events
}

// filters returns how many of clsact an interface has, both ways.
func (s *street) filters(t *testing.T, h *netlab.Host, index int) (n int) {
	t.Helper()
	err := h.Do(func() error {
		link, err := netlink.LinkByIndex(index)
		if err != nil {
			return err
		}
		for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
			filters, err := netlink.FilterList(link, parent)
			if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // no clsact
				return err
			}
			n += len(filters)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("filters of %s: %v", h.Name, err)
	}
	return n
}

// A host of clients alone gets the programs of redirection and nothing else, by tcx and
// by clsact, and another process goes on with what the first one has attached. There is
// no director on this street: the VIP answers by itself.
func TestClientAgent(t *testing.T) {
	for _, via := range []string{viaTCX, viaClsact} {
		t.Run(via, func(t *testing.T) {
			if via == viaTCX && !hasTCX() {
				t.Skip("this kernel is older than 6.6 and has no tcx")
			}
			s := newStreet(t, false)
			s.client.Route("default", "10.0.1.11")
			backend := redirecting(t, s.host, via == viaClsact, redirectConfig())
			for _, vip := range []netip.AddrPort{handedVIP4, handedVIP6} {
				l, err := s.host.Listen("tcp", vip.String())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = l.Close() })
			}
			for n := range 2 {
				a := redirecting(t, s.client, via == viaClsact, redirectConfig())
				for _, vip := range []netip.AddrPort{handedVIP4, handedVIP6} {
					conn, err := s.client.DialContext(t.Context(), "tcp", vip.String())
					if err != nil {
						t.Fatal(err)
					}
					_ = conn.Close()
				}
				status, events := s.redirectStatus(t, s.client, a)
				if i := status.Interfaces; len(i) != 1 || i[0].Redirect != via || i[0].Ingress != "" || i[0].Egress != "" {
					t.Errorf("attached as %+v, want redirection alone, by %s", i, via)
				}
				if len(status.VIPs) != 0 {
					t.Errorf("the client's host holds %v", status.VIPs)
				}
				for _, event := range []string{"four asked", "four not_taken", "six asked", "six not_taken"} {
					if events[event] != uint64(n+1) {
						t.Errorf("counted %q %d times, want %d", event, events[event], n+1)
					}
				}
				if err := s.client.Do(func() error {
					value, err := read("all", arpIgnore)
					if err == nil && value != 0 {
						err = errors.New("it answers ARP in another way than before")
					}
					return err
				}); err != nil {
					t.Errorf("client's host: %v", err)
				}
				if n := s.filters(t, s.client, s.link.A.Index); n != map[string]int{viaTCX: 0, viaClsact: 2}[via] {
					t.Errorf("by %s there are %d filters", via, n)
				}
				if err := a.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if i, _ := s.redirectStatus(t, s.host, backend); len(i.Interfaces) != 1 || i.Interfaces[0].Redirect != via || i.Interfaces[0].Egress != via {
				t.Errorf("the backend's host is attached as %+v, want all by %s", i.Interfaces, via)
			}
			if err := s.client.Do(func() error { return Detach(s.client.BPFFS()) }); err != nil {
				t.Errorf("detach: %v", err)
			}
			if left, err := filepath.Glob(filepath.Join(s.client.BPFFS(), "*", "*")); err != nil || len(left) > 0 {
				t.Errorf("after weir detach there are %v (%v)", left, err)
			}
			if n := s.filters(t, s.client, s.link.A.Index); n != 0 {
				t.Errorf("after weir detach there are %d filters", n)
			}
		})
	}
}

// Without a service that is redirected there is nothing of redirection; once there was
// one it stays, for connections that have begun.
func TestRedirectionComesAndStays(t *testing.T) {
	s := newStreet(t, false)
	pins := func() int {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(s.host.BPFFS(), "agent", "state", redirectDirectories+"*"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return len(found)
	}
	a := redirecting(t, s.host, false, testConfig())
	if status, _ := s.redirectStatus(t, s.host, a); pins() != 0 || status.Interfaces[0].Redirect != "" {
		t.Errorf("without redirection: %d directories, attached as %+v", pins(), status.Interfaces)
	}
	set := func(c model.Config) {
		t.Helper()
		if err := s.host.Do(func() error { return a.Set(c) }); err != nil {
			t.Fatal(err)
		}
	}
	set(redirectConfig())
	set(testConfig())
	status, _ := s.redirectStatus(t, s.host, a)
	if pins() != 1 || status.Interfaces[0].Redirect == "" || len(status.Redirects) != 0 {
		t.Errorf("after redirection: %d directories, attached as %+v, redirecting %+v", pins(), status.Interfaces, status.Redirects)
	}
}
