package main

import (
	"time"

	"weir.io/weir/internal/bgp"
	"weir.io/weir/internal/hooks"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/neighbor"
)

// announcers tell others which VIPs this director forwards.
type announcers struct {
	bgp      *bgp.Speaker
	hooks    *hooks.Caller
	neighbor *neighbor.Speaker
}

// Set is the engine's way to all announcers.
func (a announcers) Set(now model.Announcement) {
	a.bgp.Set(now.BGP, now.Routes)
	a.hooks.Set(now.Hooks, now.VIPs)
	a.neighbor.Set(now.Neighbor, now.Group, now.VIPs)
}

// withdraw makes routers, and hosts on the link, turn away from a director that will end after a
// while.
func (d *director) withdraw(wait time.Duration) {
	d.announcers.bgp.Withdraw(min(time.Duration(d.Config().BGP.GracefulShutdown), wait/2))
	d.announcers.hooks.Withdraw()
	d.announcers.neighbor.Withdraw()
}

// endAnnouncing ends the sessions with routers, and the calls of hooks. If forwarding goes on,
// announcements stay. VIPs that this director answers for itself are given up: a process that does
// not run cannot answer.
func (d *director) endAnnouncing() {
	if !d.drain.over.Load() {
		d.announcers.bgp.Resume()
	}
	d.announcers.neighbor.Close()
	d.announcers.hooks.Close()
	d.announcers.bgp.Close()
}
