package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// How long a redirected connection is remembered after its last packet, depending on what
// has been seen of its end, and how often connections are looked at. The first two times are
// longer than Linux keeps the remains of such connections. An open connection that is silent
// for a day has no keep-alives (2 h by default), and may have lost its other end long ago.
const (
	resetTimeout  = 10 * time.Second
	closedTimeout = 2 * time.Minute
	halfTimeout   = time.Hour
	openTimeout   = 24 * time.Hour
	ageInterval   = 10 * time.Second
)

// timeoutOf is how long a connection may be silent after these ends were seen.
func timeoutOf(out, in uint16) time.Duration {
	const fin, rst = uint16(redirectRedirectEndREDIRECT_FIN), uint16(redirectRedirectEndREDIRECT_RST)
	switch {
	case (out|in)&rst != 0:
		return resetTimeout
	case out&in&fin != 0:
		return closedTimeout
	case (out|in)&fin != 0:
		return halfTimeout
	}
	return openTimeout
}

// ageFlows removes connections that have ended, until the context ends.
func (a *Agent) ageFlows(ctx context.Context) {
	tick := time.NewTicker(ageInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		a.mu.Lock()
		if a.closed {
			a.mu.Unlock()
			return
		}
		if err := a.agePods(); err != nil {
			a.deps.Log.Error("age flows of pods", "error", err)
		}
		if err := a.countDatagrams(); err != nil {
			a.deps.Log.Error("count UDP flows", "error", err)
		}
		if err := a.agePeers(); err != nil {
			a.deps.Log.Error("forget former backends", "error", err)
		}
		if a.redirector != nil {
			if err := a.redirector.age(now(), a.hasSocket); err != nil {
				a.deps.Log.Error("age redirected connections", "error", err)
			}
		}
		a.mu.Unlock()
	}
}

// now is CLOCK_MONOTONIC, by which the programs note packets.
func now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // this clock exists
	}
	return time.Duration(t.Nano())
}

// hasSocket reports whether a socket of this host's own has that connection. It knows nothing of
// containers and virtual machines behind the host.
func (a *Agent) hasSocket(client, vip netip.AddrPort) bool {
	found, err := a.sockets.hasConnection(client, vip)
	if err != nil {
		a.deps.Log.Debug("look whether a connection that was reset is open", "client", client, "vip", vip, "error", err)
	}
	return found
}

// age removes connections that have been silent for too long: both directions, or the one that is
// left. A connection that was reset stays while the host has a socket of it, because that socket
// did not believe the RST. If there were no connections, programs need not look for any until they
// remember another one.
func (r *redirector) age(now time.Duration, hasSocket func(client, vip netip.AddrPort) bool) error {
	var before uint64
	if err := r.RedirectMemory.Lookup(remembered, &before); err != nil {
		return fmt.Errorf("read how many connections were remembered: %w", err)
	}
	arriving := map[redirectHostFlow]redirectRedirectWay{}
	if err := eachEntry(r.RedirectArriving, func(flow redirectHostFlow, way redirectRedirectWay) { arriving[flow] = way }); err != nil {
		return err
	}
	var errs []error
	isEmpty := len(arriving) == 0
	err := eachEntry(r.RedirectLeaving, func(flow redirectHostFlow, out redirectRedirectWay) {
		isEmpty = false
		back := redirectHostFlow{Client: flow.Client, Vip: out.Peer, ClientPort: flow.ClientPort, VipPort: out.PeerPort}
		in := arriving[back]
		delete(arriving, back)
		timeout, idle := timeoutOf(out.Ends, in.Ends), now-time.Duration(max(out.Seen, in.Seen))
		// The kernel is asked only about connections that would go, because a host can have many.
		if idle <= timeout || timeout == resetTimeout && idle <= openTimeout && hasSocket(flow.client(), flow.vip()) {
			return
		}
		errs = append(errs, removeFlow(r.RedirectLeaving, flow, out.same), removeFlow(r.RedirectArriving, back, in.same))
	})
	for flow, way := range arriving {
		if now-time.Duration(way.Seen) > resetTimeout {
			errs = append(errs, removeFlow(r.RedirectArriving, flow, way.same))
		}
	}
	errs = append(errs, r.count())
	if err == nil && isEmpty {
		if err = r.RedirectMemory.Put(foundEmpty, before); err != nil {
			err = fmt.Errorf("say that no connection is remembered: %w", err)
		}
	}
	return errors.Join(append(errs, err)...)
}

func (f redirectHostFlow) client() netip.AddrPort { return flowEnd(bpfAddress(f.Client), f.ClientPort) }

func (f redirectHostFlow) vip() netip.AddrPort { return flowEnd(bpfAddress(f.Vip), f.VipPort) }

// same reports whether an entry is still of the same connection, which has had no packet since.
func (w redirectRedirectWay) same(is redirectRedirectWay) bool {
	return is.Sequence == w.Sequence && is.Seen == w.Seen
}
