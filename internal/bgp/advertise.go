package bgp

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// errReplaced says that a passive neighbor has opened another connection: it has lost this one (RFC
// 4724, section 5).
var errReplaced = errors.New("it has opened another connection")

// advertiser advertises routes to one neighbor on one connection.
type advertiser struct {
	*connection
	begun      *want // what the session was opened for
	peer       *peer
	advertised map[netip.Prefix]string // keys of advertisements
	evpn       map[evpnKey]string      // the same of EVPN routes
	feed       *evpnFeed               // of the neighbor's EVPN routes; nil: there is no EVPN
	local      netip.Addr
}

// advertise advertises routes in an established session until one side ends it. It returns why.
func (s *session) advertise(ctx context.Context, c *connection, w *want, p *peer, feed *evpnFeed) error {
	t := &advertiser{c, w, p, map[netip.Prefix]string{}, map[evpnKey]string{}, feed, addressOf(c.LocalAddr())}
	ended := make(chan struct{})
	defer close(ended)
	heard := receive(c, p, ended, func(m message) error { return s.learn(feed, evpnContext{w.neighbor.ASN == w.asn, p.old}, m) })
	others := &reconnects{want: w, heard: make(chan reconnect), ended: ended}
	defer func() {
		if other := others.rest(); other != nil {
			s.before = other
		}
	}()
	beat := w.neighbor.KeepaliveOrDefault()
	if third := p.hold / 3; beat > third {
		beat = third
	}
	alive := time.NewTicker(beat)
	defer alive.Stop()
	// The end must not wait for a neighbor that does not read.
	defer context.AfterFunc(ctx, func() { _ = c.SetWriteDeadline(time.Now().Add(farewell)) })()
	patience := func() time.Duration {
		if ctx.Err() != nil {
			return farewell
		}
		return p.hold
	}
	err := t.update(s, true, patience())
	for err == nil {
		select {
		case <-ctx.Done():
			_ = t.update(s, false, farewell) // the last routes hold until a new process says more
			return goodbye(context.Cause(ctx), p)
		case other := <-s.incoming:
			others.listen(other)
		case h := <-others.heard:
			again, why := others.of(h)
			if again != nil {
				s.before = again
				return errReplaced
			}
			if why != nil {
				s.logOnce("BGP session goes on", why)
			}
		case <-s.wake:
			err = t.update(s, false, patience())
		case <-alive.C:
			err = c.write(patience(), gobgp.NewBGPKeepAliveMessage())
		case h := <-heard:
			if err = h.err; err == nil {
				t.again(h.refresh)
				err = t.update(s, false, patience())
			}
		}
	}
	return err
}

// update advertises to the neighbor what differs from what it knows, and after the first time sends the end of
// all routes (RFC 4724, section 2).
func (t *advertiser) update(s *session, first bool, patience time.Duration) error {
	w := s.now.Load()
	if !sameSession(w, t.begun) {
		return nil // the context has ended
	}
	messages := changes(w, t.peer, t.advertised, advertisements(w, t.peer, t.local))
	if t.feed != nil {
		messages = append(messages, evpnChanges(w, t.peer, t.evpn)...)
	}
	if first {
		for _, f := range t.peer.families {
			messages = append(messages, gobgp.NewEndOfRib(families[f]))
		}
	}
	if t.feed != nil && t.feed.takeRefresh() {
		messages = append(messages, gobgp.NewBGPRouteRefreshMessage(gobgp.AFI_L2VPN, 0, gobgp.SAFI_EVPN))
	}
	if len(messages) == 0 {
		return nil
	}
	if err := t.write(patience, messages...); err != nil {
		return err
	}
	s.noteAdvertised(t.advertised, len(t.evpn))
	return nil
}

// again has what a ROUTE-REFRESH asks for advertised again.
func (t *advertiser) again(refresh []byte) {
	if binary.BigEndian.Uint16(refresh) == gobgp.AFI_L2VPN && refresh[3] == gobgp.SAFI_EVPN {
		clear(t.evpn)
		return
	}
	clear(t.advertised)
}

// goodbye returns what to tell the neighbor when a session is ended on purpose. When only a
// director's process ends, it says nothing: routers then keep its routes.
func goodbye(why error, p *peer) error {
	subcode := uint8(gobgp.BGP_ERROR_SUB_ADMINISTRATIVE_SHUTDOWN)
	switch {
	case (errors.Is(why, errStopped) || errors.Is(why, errChanged)) && p.restarts:
		return why
	case errors.Is(why, errChanged):
		subcode = gobgp.BGP_ERROR_SUB_OTHER_CONFIGURATION_CHANGE
	case errors.As(why, new(unreachable)):
		subcode = subcodeBFDDown
	case errors.Is(why, errRemoved):
		subcode = gobgp.BGP_ERROR_SUB_PEER_DECONFIGURED
	}
	f := &fault{code: gobgp.BGP_ERROR_CEASE, subcode: subcode, text: why.Error(), because: why}
	if p.hardReset {
		f.subcode, f.data = gobgp.BGP_ERROR_SUB_HARD_RESET, []byte{gobgp.BGP_ERROR_CEASE, subcode}
	}
	return f
}

// heard is what a neighbor asks for, or why it is no longer heard.
type heard struct {
	refresh []byte // the body of a ROUTE-REFRESH
	err     error
}

// receive reads until the connection ends, or the session is over. Of the neighbor's routes only those of
// EVPN are taken; that others came is a sign of life.
func receive(c *connection, p *peer, ended <-chan struct{}, learn func(message) error) <-chan heard {
	news := make(chan heard)
	go func() {
		for {
			m, err := c.read(time.Now().Add(p.hold))
			if err == nil {
				err = violation(m)
			}
			if err == nil {
				err = learn(m)
			}
			if err == nil && m.kind != gobgp.BGP_MSG_ROUTE_REFRESH {
				continue
			}
			select {
			case news <- heard{m.body, err}:
			case <-ended:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return news
}

// learn takes what a message says of EVPN.
func (s *session) learn(feed *evpnFeed, in evpnContext, m message) error {
	switch {
	case feed == nil:
	case m.kind == gobgp.BGP_MSG_KEEPALIVE:
		feed.quiet()
	case m.kind == gobgp.BGP_MSG_UPDATE:
		u, err := readEVPN(m.body, in)
		if why := (unreadable{}); errors.As(err, &why) {
			feed.disable(why.text)
			return nil
		}
		if err != nil || u == nil {
			return err
		}
		if feed.apply(u) {
			s.rouse()
		}
	}
	return nil
}

// violation returns what is wrong with a message of an established session. For an UPDATE it only
// checks that its parts fit: most of them are not used.
func violation(m message) error {
	switch m.kind {
	case gobgp.BGP_MSG_OPEN:
		return newFault(gobgp.BGP_ERROR_FSM_ERROR, 3, "it says who it is a second time")
	case gobgp.BGP_MSG_UPDATE:
		rest := m.body
		for _, part := range []string{"withdrawn routes", "path attributes"} {
			if len(rest) < 2 || int(binary.BigEndian.Uint16(rest)) > len(rest)-2 {
				return newFault(gobgp.BGP_ERROR_UPDATE_MESSAGE_ERROR, gobgp.BGP_ERROR_SUB_MALFORMED_ATTRIBUTE_LIST,
					"it sends an UPDATE whose %s are longer than the message", part)
			}
			rest = rest[2+int(binary.BigEndian.Uint16(rest)):]
		}
	}
	return nil
}
