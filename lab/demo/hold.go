package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"weir.io/weir/lab/netlab"
)

// dashboard is the address of a director's dashboard, on the director's host.
var dashboard = netip.MustParseAddrPort("127.0.0.1:6084")

// holdPause is the pause between requests of one client while the lab is held: there is something
// to see, and the machine has time for the user.
const holdPause = 100 * time.Millisecond

// holdAsks is how many requests a connection has while the lab is held.
const holdAsks = 5

// hold keeps the lab, with some traffic in it and the dashboards at addresses of this host, until
// the user has seen enough.
func (r *run) hold(ctx context.Context) error {
	var relays []*relay
	defer func() {
		for _, relay := range relays {
			relay.close()
		}
	}()
	for _, d := range r.group.directors {
		relay, err := newRelay(d.host, dashboard)
		if err != nil {
			return err
		}
		relays = append(relays, relay)
	}
	running, stop := context.WithCancel(ctx)
	var clients sync.WaitGroup
	defer clients.Wait()
	defer stop()
	for _, row := range r.rows {
		for _, dial := range []dialer{dialHTTP, dialEcho} {
			clients.Go(func() { keepAsking(running, r.top.client, row.vip, dial) })
		}
	}
	r.opts.Hold(ctx, r.guide(relays))
	return nil
}

// keepAsking opens connections, one after the other. It reports no failures: a user who looks for
// them sees them.
func keepAsking(ctx context.Context, client *netlab.Host, vip netip.Addr, dial dialer) {
	for ctx.Err() == nil {
		askSome(ctx, client, vip, dial)
		sleep(ctx, holdPause)
	}
}

func askSome(ctx context.Context, client *netlab.Host, vip netip.Addr, dial dialer) {
	conn, err := dial(ctx, client, vip)
	if err != nil {
		return
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	for asked := range holdAsks {
		if _, err := conn.ask(sizes[asked%len(sizes)]); err != nil || !sleep(ctx, holdPause) {
			return
		}
	}
}

// relay forwards connections to an address of this host to an address of a host in the lab.
type relay struct {
	listener net.Listener
	host     *netlab.Host
	to       netip.AddrPort
	running  sync.WaitGroup
	ctx      context.Context
	stop     context.CancelFunc
}

// newRelay listens at a free port of loopback.
func newRelay(host *netlab.Host, to netip.AddrPort) (*relay, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for who looks at %s: %w", host.Name, err)
	}
	r := &relay{listener: listener, host: host, to: to}
	r.ctx, r.stop = context.WithCancel(context.Background())
	r.running.Go(r.accept)
	return r, nil
}

func (r *relay) address() string { return r.listener.Addr().String() }

func (r *relay) accept() {
	for {
		conn, err := r.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			sleep(r.ctx, holdPause) // too many files are open, say
			continue
		}
		r.running.Go(func() { r.pass(conn) })
	}
}

// pass copies in both directions, until either side or the relay ends.
func (r *relay) pass(conn net.Conn) {
	defer conn.Close()
	there, err := r.host.DialContext(r.ctx, "tcp", r.to.String())
	if err != nil {
		return // the director may be restarting: the user tries again
	}
	end := sync.OnceFunc(func() { conn.Close(); there.Close() })
	defer context.AfterFunc(r.ctx, end)()
	r.running.Go(func() {
		defer end()
		_, _ = io.Copy(there, conn)
	})
	defer end()
	_, _ = io.Copy(conn, there)
}

func (r *relay) close() {
	r.listener.Close()
	r.stop()
	r.running.Wait()
}
