package ovn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"weir.io/weir/internal/ovsdb"
	"weir.io/weir/internal/retry"
)

// Options say where the Southbound database is.
type Options struct {
	// Endpoints are tcp:HOST:PORT, ssl:HOST:PORT or unix:PATH, of each member of a cluster. After one
	// that fails the next one is used.
	Endpoints []string
	// TLS is for endpoints of ssl:.
	TLS ovsdb.TLS
	// Leader says that of a cluster's members the leader alone is used. Any other member, too, leaves
	// out no change, and has it a moment later.
	Leader bool
	// Register asks for the director to be among OVN's chassis; nil: it is not asked for.
	Register *Registration
	Log      *slog.Logger
}

// The first pause after no endpoint could be used, and the longest.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 5 * time.Second
)

// check says what is wrong with the options.
func (o *Options) check() error {
	if len(o.Endpoints) == 0 {
		return errors.New("OVN's Southbound database has no endpoints")
	}
	for _, text := range o.Endpoints {
		e, err := ovsdb.ParseEndpoint(text)
		if err != nil {
			return err
		}
		if e.Secure {
			if err := o.TLS.Check(); err != nil {
				return err
			}
		}
	}
	if o.Register != nil {
		return o.Register.check()
	}
	return nil
}

// Follow follows the database until the context ends. It reports each change of the content or of the
// status, from a goroutine of its own and one at a time; changes that come while report runs are one
// change. The first report is at once, of a snapshot without content.
//
// The database need not be reachable, nor the files of TLS exist yet: Status.Problem has what is
// wrong. The error is one of the options, which time does not heal. The director stays among OVN's
// chassis when the context ends, because a process may end and its datapath go on: see Unregister.
func Follow(ctx context.Context, o Options, report func(Snapshot)) error {
	if err := o.check(); err != nil {
		return err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	f := &follower{Options: o, status: Status{Since: time.Now()}, wake: make(chan struct{}, 1), last: ovsdb.None}
	var reports sync.WaitGroup
	reports.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-f.wake:
				f.mu.Lock()
				latest := f.latest
				f.mu.Unlock()
				report(latest)
			}
		}
	})
	f.run(ctx)
	reports.Wait()
	return nil
}

// follower is owned by the goroutine of Follow, but for what the mutex guards.
type follower struct {
	Options

	replica *replica // nil: the next answer has to have all rows
	last    string   // the last transaction in it
	content content  // what was last good
	changed bool     // something that has not been published
	status  Status
	// The progress of the cluster that was last followed: a member that is behind it is not used, because
	// with it a port would be again where it was.
	cluster ovsdb.UUID
	index   int64
	next    int // endpoint
	write   registrar

	mu     sync.Mutex
	latest Snapshot
	wake   chan struct{}
}

func (f *follower) run(ctx context.Context) {
	f.trouble(errors.New("there was no connection yet"))
	pauses := retry.Backoff{First: firstPause, Last: lastPause}
	for ctx.Err() == nil {
		var problems []error
		for range f.Endpoints {
			endpoint := f.Endpoints[f.next%len(f.Endpoints)]
			f.next++
			began := time.Now()
			err := f.session(ctx, endpoint)
			if ctx.Err() != nil {
				return
			}
			err = fmt.Errorf("%s: %w", endpoint, err)
			problems = append(problems, err)
			if f.status.Connected {
				f.lost(err)
				if time.Since(began) > lastPause {
					pauses.Reset()
				}
				break
			}
		}
		f.trouble(errors.Join(problems...))
		retry.Sleep(ctx, pauses.Next())
	}
}

// lost notes that a connection has ended.
func (f *follower) lost(err error) {
	f.Log.Warn("lost the connection to OVN's Southbound database", "error", err)
	f.status.Connected, f.status.Since = false, time.Now()
	f.write = registrar{}
}

// trouble notes why there is no connection.
func (f *follower) trouble(err error) {
	if f.status.Problem == nil || f.status.Problem.Error() != err.Error() {
		f.status.Problem = err
		f.publish()
	}
}

// publish gives the latest state to the goroutine that reports.
func (f *follower) publish() {
	status := f.status
	status.Networks, status.Ports, status.Unread, status.IPsec = f.content.networks, f.content.known, f.content.unread, f.content.ipsec
	f.changed = false
	f.mu.Lock()
	f.latest = Snapshot{Status: status, content: f.content}
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default: // it has not taken the last one yet
	}
}

// The names of the monitors in notifications.
const (
	monitorContent = "weir"
	monitorServer  = "weir-server"
)

// most is how many notifications are one change, if so many are there at once: a report must not wait
// for as long as changes keep coming.
const most = 1000

// session follows the database at one endpoint until that fails.
func (f *follower) session(ctx context.Context, endpoint string) error {
	conn, err := ovsdb.Open(ctx, endpoint, f.TLS)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, conn.Close)()
	defer conn.Close()

	columns, err := conn.Columns(database)
	if err != nil {
		return err
	}
	asked, err := wanted(columns)
	if err != nil {
		return err
	}
	server := map[ovsdb.UUID]*server{}
	if err := f.server(server)(conn.Monitor("_Server", monitorServer, serverTable)); err != nil {
		return err
	}
	if f.replica == nil {
		f.last = ovsdb.None
	}
	found, last, changes, err := conn.MonitorSince(database, monitorContent, asked, f.last)
	if err != nil {
		return err
	}
	if !found || f.replica == nil {
		f.replica = newReplica()
	}
	if err := f.apply(last, changes); err != nil {
		return err
	}
	f.replica.marks, f.changed = true, true
	f.write = registrar{otherConfig: columns["Chassis"]["other_config"]}
	f.status.Connected, f.status.Endpoint, f.status.Since = true, endpoint, time.Now()
	f.Log.Info("follows OVN's Southbound database", "endpoint", endpoint, "resumed", found)

	messages := make(chan ovsdb.Message, most)
	ended := make(chan error, 1)
	gone := make(chan struct{})
	defer close(gone)
	go func() {
		for {
			m, err := conn.Next()
			if err != nil {
				ended <- err
				return
			}
			select {
			case messages <- m:
			case <-gone:
				return
			}
		}
	}()
	for {
		if err := f.settle(conn); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			return err
		case <-f.write.again:
			f.write.again = nil
		case m := <-messages:
			for n := 1; ; n++ {
				if err := f.take(m, server); err != nil {
					return err
				}
				if n == most || len(messages) == 0 {
					break
				}
				m = <-messages
			}
		}
	}
}

// take takes one message.
func (f *follower) take(m ovsdb.Message, rows map[ovsdb.UUID]*server) error {
	if m.Reply != 0 {
		f.write.answered(f, m)
		return nil
	}
	name, last, changes, err := m.Changed()
	if err != nil {
		return err
	}
	if name == monitorServer {
		return f.server(rows)(changes, nil)
	}
	return f.apply(last, changes)
}

// apply makes changes in the replica.
func (f *follower) apply(last string, changes ovsdb.Changes) error {
	if err := f.replica.apply(changes); err != nil {
		f.replica = nil
		return err
	}
	f.last = last
	f.changed = f.changed || len(changes) > 0
	return nil
}

// errEmpty says that there is a database without content. ovn-northd fills one within moments, so this is
// one that has just been made, perhaps in place of one that was lost: what was known is kept.
var errEmpty = errors.New("the database is empty: ovn-northd has not written to it")

// settle registers the director if need be, and publishes what there is now.
func (f *follower) settle(conn *ovsdb.Conn) error {
	if len(f.replica.global) == 0 {
		if f.status.Problem = errEmpty; f.changed {
			f.publish()
		}
		return nil
	}
	f.status.Problem = nil
	if f.changed {
		f.content, f.status.Known = f.replica.snapshot(), true
	}
	if f.Register != nil && f.replica.marks {
		if err := f.register(conn); err != nil {
			return err
		}
	}
	if f.changed {
		f.publish()
	}
	return nil
}
