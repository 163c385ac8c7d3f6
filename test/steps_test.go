package test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir.io/weir/internal/api"
)

// A change that is applied in steps to a group stops, and the group has its previous set again,
// when clients that get a new backend reset their connections. Open connections to others stay,
// with a policy that remembers flows, whichever director gets their packets. When clients are
// content, the same change runs to its end.
//
//	client --- router --- switch --- director, director2
//	                             --- backend1, backend2, backend3
//	                             --- store (an etcd)
func TestGroupAppliesInSteps(t *testing.T) {
	t.Parallel()
	w := way{mode: "l2dsr"}
	group := fmt.Sprintf("  group: [%s, %s]\n", lanAddress(directorHost, false), lanAddress(directorHost+1, false))
	l := newGroupLabIn(t, w.mode, group)
	set := func(backends int) string {
		return w.service("tcp", fmt.Sprint(linesPort), everyBackend(backends)) + "  policy: round-robin\n"
	}
	l.apply(t, set(2))
	l.by(0)
	var sessions []*session
	for range 30 {
		sessions = append(sessions, l.open(t, w))
	}
	asked := l.directors[0]
	apply := func(watch string) (string, error) {
		file := write(t, asked.host, "next.yaml", "services:\n"+set(3))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		out, err := asked.host.Command(ctx, weir, "apply", "-f", file, "--socket", asked.socket, "--steps", "3", "--watch", watch, "--max-resets", "0.1", "--max-dropped", "1e9").CombinedOutput()
		return string(out), err
	}
	has := func(backends int) {
		t.Helper()
		for _, d := range l.directors {
			d.waitFor(fmt.Sprintf("forward to %d backends, as the group's other director does", backends), func() bool {
				services, err := d.services()
				return err == nil && len(services) == 1 && len(services[0].Backends) == backends && active(services[0]) == backends && services[0].Log.Coming == 0
			})
		}
		asked.waitFor("know that both directors follow the same revision", func() bool {
			runs, both := asked.directors()
			return both && runs[0].Revision == runs[1].Revision
		})
	}

	// These clients do not expect the new backend's answers. They come by the director that is not
	// asked: it tells the other one how connections end.
	l.knows(t, 1, sessions)
	l.by(1)
	clients := l.abortAt(w, "backend3")
	out, err := apply("20s")
	clients.end()
	if err == nil || !strings.Contains(out, "are refused or reset more than before") || !strings.Contains(out, "the set is what it was before") {
		t.Fatalf("with %d connections that clients have reset, weir apply says\n%s, error %v", clients.aborted.Load(), out, err)
	}
	t.Logf("after %d resets weir apply says\n%s", clients.aborted.Load(), out)
	has(2)
	for _, s := range sessions {
		if got := s.ask(t); got != s.backend {
			t.Fatalf("after the way back %s has a connection of %s", got, s.backend)
		}
	}
	l.knows(t, 1, sessions) // this director imports flows a moment after the other one sees them
	l.stay(t, sessions, "by each director after the way back")
	l.by(1)
	for range 6 {
		if s := l.open(t, w); s.backend == "backend3" {
			t.Errorf("after the way back a connection comes to %s", s.backend)
		}
	}

	l.by(0)
	clients = l.abortAt(w, "nobody")
	out, err = apply("2s")
	clients.end()
	if err != nil {
		t.Fatalf("with content clients weir apply ends with %v:\n%s", err, out)
	}
	has(3)
	if failed := clients.failed.Load(); failed > 0 {
		t.Errorf("%d of the clients' connections failed in the steps, the last with %v", failed, clients.last.Load())
	}
	l.stay(t, sessions, "by each director after all steps")
}

// knows waits until a director remembers these connections as open ones.
func (l *groupLab) knows(t *testing.T, director int, sessions []*session) {
	t.Helper()
	d := l.directors[director]
	d.waitFor("know of connections that the other one has seen", func() bool {
		known, err := askWeir[api.Flows](d, "flows", "--limit", "100000")
		if err != nil {
			return false
		}
		open := map[string]bool{}
		for _, f := range known.Flows {
			open[f.Client.String()] = f.State == "open"
		}
		return !slices.ContainsFunc(sessions, func(s *session) bool { return !open[s.LocalAddr().String()] })
	})
}

// demanding are clients that reset their connection when a certain backend answers. Their kernel
// must keep TIME_WAIT sockets: without them (tcp_max_tw_buckets) it answers each server's FIN with
// an RST, which counts as a reset.
type demanding struct {
	stop            atomic.Bool
	running         sync.WaitGroup
	aborted, failed atomic.Int64
	last            atomic.Value // error
}

func (l *groupLab) abortAt(w way, backend string) *demanding {
	d := &demanding{}
	for range 4 {
		d.running.Go(func() {
			for !d.stop.Load() {
				if err := d.ask(l, w, backend); err != nil {
					d.failed.Add(1)
					d.last.Store(err)
				}
				time.Sleep(10 * time.Millisecond) // between two connections: ports are free again after a minute
			}
		})
	}
	return d
}

func (d *demanding) ask(l *groupLab, w way, backend string) error {
	var conn net.Conn
	err := l.client.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", netip.AddrPortFrom(w.vip(), linesPort).String(), time.Minute)
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := fmt.Fprintln(conn, "who?"); err != nil {
		return err
	}
	name, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	if strings.TrimSpace(name) == backend {
		d.aborted.Add(1)
		return conn.(*net.TCPConn).SetLinger(0)
	}
	return nil
}

func (d *demanding) end() {
	d.stop.Store(true)
	d.running.Wait()
}
