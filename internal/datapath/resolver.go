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

// settle is how long changes are collected before next hops are worked out again.
const settle = 20 * time.Millisecond

// resolver finds next hops through the kernel's routes and neighbours, and tells
// when any of it has changed. The kernel keeps the neighbours fresh by itself.
type resolver struct {
	log     *slog.Logger
	changed func()
	netlink *netlink.Handle // one socket for all questions
	stop    chan struct{}
	done    sync.WaitGroup

	mu      sync.Mutex
	links   map[int]netlink.Link
	routes  map[netip.Addr]route
	macs    map[neighbour]model.MAC // nil: to be read
	managed map[neighbour]bool      // the kernel keeps it, or has been asked to
}

func newResolver(log *slog.Logger, changed func()) (*resolver, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	r := &resolver{log: log, changed: changed, netlink: handle, stop: make(chan struct{})}
	r.forget(true)
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR,
		unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
	if err != nil {
		handle.Close()
		return nil, fmt.Errorf("watch routes and neighbours: %w", err)
	}
	events := make(chan struct{}, 1)
	r.done.Go(func() { r.listen(socket, events) })
	r.done.Go(func() { r.run(events) })
	r.done.Go(func() {
		<-r.stop
		socket.Close()
	})
	return r, nil
}

func (r *resolver) close() {
	close(r.stop)
	r.done.Wait()
	r.netlink.Close()
}

// listen turns messages into events. Routes, links and addresses are asked for
// again after any message; neighbours, of which there are many that only confirm
// what is known, are followed one by one. A lost message means: ask for all.
func (r *resolver) listen(socket *nl.NetlinkSocket, events chan<- struct{}) {
	for {
		messages, _, err := socket.Receive()
		select {
		case <-r.stop:
			return
		default:
		}
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			r.log.Error("watch routes and neighbours", "error", err)
			return
		}
		news := err != nil
		if err != nil {
			r.forget(true)
		}
		for i := range messages {
			news = r.take(messages[i].Header.Type, messages[i].Data) || news
		}
		if news {
			select {
			case events <- struct{}{}:
			default:
			}
		}
	}
}

// take reports whether a message changes how packets may leave.
func (r *resolver) take(kind uint16, data []byte) bool {
	if kind != unix.RTM_NEWNEIGH && kind != unix.RTM_DELNEIGH {
		r.forget(kind == unix.RTM_DELLINK)
		return true
	}
	entry, err := netlink.NeighDeserialize(data)
	if err != nil {
		r.log.Warn("read a change of neighbours", "error", err)
		r.forget(true)
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.learn(kind, entry)
}

// forget makes the next resolve ask the kernel again.
func (r *resolver) forget(neighbours bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.links, r.routes = map[int]netlink.Link{}, map[netip.Addr]route{}
	if neighbours {
		r.macs = nil
	}
}

// run collects events for a moment and then tells that something has changed.
func (r *resolver) run(events <-chan struct{}) {
	for {
		select {
		case <-r.stop:
			return
		case <-events:
		}
		select {
		case <-r.stop:
			return
		case <-time.After(settle):
		}
		r.changed()
	}
}
