package datapath

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// settle is how long changes are collected before next hops are determined again.
const settle = 20 * time.Millisecond

// resolver finds next hops through the kernel's routes and neighbors, and tells when any of these
// has changed. The kernel keeps the neighbors fresh by itself.
type resolver struct {
	log     *slog.Logger
	changed func()
	recheck time.Duration    // between two readings of the routes
	netlink *netlink.Handle  // one socket for all questions
	strict  *nl.SocketHandle // see strictSocket
	stop    chan struct{}
	done    sync.WaitGroup

	mu     sync.Mutex
	onward *onward
	socket *nl.NetlinkSocket // of changes
	links  map[int]netlink.Link
	named  map[string]int // the director's interfaces, by their names in the configuration
	routes map[netip.Addr]route
	from   []string                   // the interfaces that routes are looked up for; nil: to be asked again
	vrf    int                        // that these interfaces are in; 0: none
	others map[otherFamily]netip.Addr // this host's addresses where routes name one of the other family
	macs   map[neighbor]model.MAC     // nil: to be read
	own    hostMACs
	// What has to be asked for again.
	oldRoutes, oldNeighbors bool

	managed map[neighbor]bool        // neighbors that the kernel keeps, or was asked to keep
	doubts  map[neighbor]*time.Timer // neighbors that the kernel has given up, and that are asked again until then

	events chan struct{} // one: something has changed
}

func newResolver(log *slog.Logger, onward *onward, recheck time.Duration, changed func()) (*resolver, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	strict, err := strictSocket()
	if err != nil {
		handle.Close()
		return nil, err
	}
	r := &resolver{log: log, onward: onward, changed: changed, recheck: recheck, netlink: handle, strict: strict, stop: make(chan struct{}), doubts: map[neighbor]*time.Timer{},
		events: make(chan struct{}, 1)}
	onward.again = r.tryOnward
	r.outdated(true)
	r.forget()
	if r.socket, err = subscribe(); err != nil {
		handle.Close()
		strict.Close()
		return nil, err
	}
	r.done.Go(r.listen)
	r.done.Go(r.run)
	r.done.Go(r.readAgain)
	return r, nil
}

// changeGroups report everything that decides how packets leave. Next-hop objects have a group of
// their own: when one changes, the routes that name it do not, so the groups of routes do not
// report it. A change of the kernel's settings (NETCONF) may close a way, too: an interface may
// ignore routes without a carrier.
var changeGroups = []uint{unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
	unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
	unix.RTNLGRP_NEXTHOP, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF}

func subscribe() (*nl.NetlinkSocket, error) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, changeGroups...)
	if err != nil {
		return nil, fmt.Errorf("watch routes and neighbors: %w", err)
	}
	return socket, nil
}

func (r *resolver) close() {
	close(r.stop)
	r.mu.Lock()
	r.socket.Close()
	r.mu.Unlock()
	r.done.Wait()
	r.mu.Lock()
	for n := range r.doubts {
		r.believe(n)
	}
	r.mu.Unlock()
	r.netlink.Close()
	r.strict.Close()
}

// listen turns messages into events. Routes, links and addresses are asked for again after any
// message. Neighbors are followed one by one, because many of their messages only confirm what is
// known. If messages are lost, everything is asked for again.
func (r *resolver) listen() {
	for {
		messages, _, err := r.socket.Receive()
		if r.wait(0) {
			return
		}
		news := false
		for i := range messages {
			news = r.take(messages[i].Header.Type, messages[i].Data) || news
		}
		if err != nil {
			news = true
			r.forgetHostMACs()
			r.outdated(true)
			if !errors.Is(err, unix.ENOBUFS) && !r.subscribeAgain(err) {
				return
			}
		}
		if news {
			r.tell()
		}
	}
}

// tryOnward lets the way by the kernel be opened again, after an error.
func (r *resolver) tryOnward() {
	r.mu.Lock()
	r.onward.failed = nil
	r.mu.Unlock()
	r.tell()
}

// tell lets run know that something has changed.
func (r *resolver) tell() {
	select {
	case r.events <- struct{}{}:
	default:
	}
}

// subscribeAgain replaces a socket that failed; false: the resolver was closed.
func (r *resolver) subscribeAgain(cause error) bool {
	r.log.Error("watch routes and neighbors: trying again", "error", cause)
	for !r.wait(time.Second) {
		socket, err := subscribe()
		if err != nil {
			continue
		}
		r.mu.Lock()
		r.socket.Close()
		r.socket = socket
		r.mu.Unlock()
		if r.wait(0) {
			socket.Close()
			return false
		}
		return true
	}
	return false
}

// wait reports whether the resolver was closed meanwhile.
func (r *resolver) wait(d time.Duration) bool {
	if d == 0 {
		select {
		case <-r.stop:
			return true
		default:
			return false
		}
	}
	select {
	case <-r.stop:
		return true
	case <-time.After(d):
		return false
	}
}

// take reports whether a message changes how packets may leave.
func (r *resolver) take(kind uint16, data []byte) bool {
	if kind != unix.RTM_NEWNEIGH && kind != unix.RTM_DELNEIGH {
		if kind == unix.RTM_NEWLINK || kind == unix.RTM_DELLINK {
			r.forgetHostMACs()
		}
		r.outdated(kind == unix.RTM_DELLINK)
		return true
	}
	entry, err := netlink.NeighDeserialize(data)
	if err != nil {
		r.log.Warn("read a change of neighbors", "error", err)
		r.outdated(true)
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.learn(kind, entry)
}

// outdated makes run ask the kernel again; until then the old answers are used.
func (r *resolver) outdated(neighbors bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.oldRoutes = true
	r.oldNeighbors = r.oldNeighbors || neighbors
}

// forget drops what is outdated.
func (r *resolver) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.oldRoutes {
		r.links, r.routes, r.others = map[int]netlink.Link{}, map[netip.Addr]route{}, map[otherFamily]netip.Addr{}
		r.from = nil
		r.onward.forget()
	}
	if r.oldNeighbors {
		r.macs = nil
	}
	r.oldRoutes, r.oldNeighbors = false, false
}

// run collects events for a moment and then tells that something has changed. It rests four times
// as long as that took: a host that follows thousands of routes by BGP must not spend its time on
// asking for the routes of its backends.
func (r *resolver) run() {
	var next time.Time
	for {
		select {
		case <-r.stop:
			return
		case <-r.events:
		}
		if r.wait(max(settle, time.Until(next))) {
			return
		}
		start := time.Now()
		r.forget()
		r.changed()
		next = time.Now().Add(4 * time.Since(start))
	}
}
