// Package nexthop finds how packets leave for a backend: by the kernel's routes, rules, neighbors and
// interfaces, and where XDP cannot send, by the kernel itself. It follows them, and says when
// something has changed.
//
// It works on the network namespace of its process.
package nexthop

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// settle is how long changes are collected before next hops are determined again.
const settle = 20 * time.Millisecond

// Resolver finds next hops through the kernel's routes and neighbors, and tells when any of these
// has changed. The kernel keeps the neighbors fresh by itself.
type Resolver struct {
	log     *slog.Logger
	changed func()
	recheck time.Duration    // between two readings of the routes
	netlink *netlink.Handle  // one socket for all questions
	strict  *nl.SocketHandle // see strictSocket
	stop    chan struct{}
	done    sync.WaitGroup

	mu        sync.Mutex
	onward    *onward
	socket    *nl.NetlinkSocket // of changes
	links     map[int]netlink.Link
	vlans     map[vlanOf]int                            // the host's VLAN interfaces; nil: to be read
	places    func(model.TableBackend) (Inside, string) // where hosts of tenants' networks are; nil: this director is no VTEP
	named     map[string]int                            // the director's interfaces, by their names in the configuration
	routes    map[netip.Addr]Route
	from      []string                  // the interfaces that routes are looked up for; nil: to be asked again
	vrf       int                       // that these interfaces are in; 0: none
	addresses map[linkFamily]netip.Addr // this host's own, where no route names one
	macs      map[Neighbor]model.MAC    // nil: to be read
	own       hostMACs
	// What has to be asked for again.
	oldRoutes, oldNeighbors bool

	managed map[Neighbor]bool        // neighbors that the kernel keeps, or was asked to keep
	doubts  map[Neighbor]*time.Timer // neighbors that the kernel has given up, and that are asked again until then

	events chan struct{} // one: something has changed
}

// Deps is what a Resolver works with.
type Deps struct {
	Log     *slog.Logger
	Pin     string        // the datapath's directory, after which the device is named by which the kernel sends
	Generic bool          // programs run in no interface's driver
	Recheck time.Duration // how often routes are read again without news; 0: every five seconds
	Changed func()        // called, in a goroutine of the resolver's, when packets may leave otherwise
}

// New begins to follow the kernel.
func New(deps Deps) (*Resolver, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	strict, err := strictSocket()
	if err != nil {
		handle.Close()
		return nil, err
	}
	r := &Resolver{log: deps.Log, changed: deps.Changed, recheck: cmp.Or(deps.Recheck, recheckRoutes), netlink: handle, strict: strict,
		stop: make(chan struct{}), doubts: map[Neighbor]*time.Timer{}, events: make(chan struct{}, 1)}
	r.onward = newOnward(deps, r.tryOnward)
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

// Close ends that.
func (r *Resolver) Close() {
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
func (r *Resolver) listen() {
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
			r.notify()
		}
	}
}

// tryOnward lets the way by the kernel be opened again, after an error.
func (r *Resolver) tryOnward() {
	r.mu.Lock()
	r.onward.failed = nil
	r.mu.Unlock()
	r.notify()
}

// notify lets run know that something has changed.
func (r *Resolver) notify() {
	select {
	case r.events <- struct{}{}:
	default:
	}
}

// subscribeAgain replaces a socket that failed; false: the resolver was closed.
func (r *Resolver) subscribeAgain(cause error) bool {
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
func (r *Resolver) wait(d time.Duration) bool {
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
func (r *Resolver) take(kind uint16, data []byte) bool {
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

// Refresh has routes and links asked for again, and all backends looked at again.
func (r *Resolver) Refresh() {
	r.outdated(false)
	r.notify()
}

// outdated makes run ask the kernel again; until then the old answers are used.
func (r *Resolver) outdated(neighbors bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.oldRoutes = true
	r.oldNeighbors = r.oldNeighbors || neighbors
}

// forget drops what is outdated.
func (r *Resolver) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.oldRoutes {
		r.vlans = nil
		r.links, r.routes, r.addresses = map[int]netlink.Link{}, map[netip.Addr]Route{}, map[linkFamily]netip.Addr{}
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
func (r *Resolver) run() {
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

// NameInterfaces remembers which interfaces the names of a table stand for.
func (r *Resolver) NameInterfaces(names []string, links []netlink.Link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	named := map[string]int{}
	for i, link := range links {
		if link != nil {
			named[names[i]] = link.Attrs().Index
		}
	}
	if !maps.Equal(named, r.named) {
		r.own.forget() // the new interfaces may take frames for other addresses
	}
	r.named = named
}

// CurrentNames are the names that these interfaces of the configuration have now, if they have been
// in a table.
func (r *Resolver) CurrentNames(names []string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	links := make([]netlink.Link, len(names))
	for i, name := range names {
		if index := r.named[name]; index != 0 {
			links[i] = r.link(index)
		}
	}
	return NamesOf(names, links)
}

// NamesOf are the names that interfaces have now; those that are not there keep the names under which
// they are awaited.
func NamesOf(names []string, links []netlink.Link) []string {
	current := slices.Clone(names)
	for i, link := range links {
		if link != nil {
			current[i] = link.Attrs().Name
		}
	}
	return current
}

// recheckRoutes is how often routes are read again without news. The kernel does not report the
// exceptions to its routes: path MTUs and redirects that other hosts have sent, and that end after
// minutes. Nor does it report MAC addresses that interfaces of other network namespaces add.
const recheckRoutes = 5 * time.Second

// recheckShare is how many times longer the pause is than the reading before it: a director may
// have thousands of backends.
const recheckShare = 50

// readAgain reads the routes in use from time to time, and tells run if one has changed.
func (r *Resolver) readAgain() {
	rest := r.recheck
	for !r.wait(rest) {
		began := time.Now()
		if r.ownMACsDiffer() || r.stale() {
			r.Refresh()
		}
		rest = max(r.recheck, recheckShare*time.Since(began))
	}
}

// stale says whether the kernel's way to some address has changed. It frees the lock between two
// questions.
func (r *Resolver) stale() bool {
	r.mu.Lock()
	known := maps.Clone(r.routes)
	r.mu.Unlock()
	for address, way := range known {
		if r.wait(0) {
			return false
		}
		if r.differs(address, way) {
			return true
		}
	}
	return false
}

func (r *Resolver) differs(address netip.Addr, way Route) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lookup(address) != way
}
