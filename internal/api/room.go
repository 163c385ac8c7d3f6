package api

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"weir.io/weir/internal/model"
)

// room is a listener with a bounded number of connections. When it is full it closes a connection
// of a stranger, so that strangers cannot keep clients out: the oldest one of the address that has
// most of them. Connections of known clients are kept; if no others are left the next one waits. A known client
// but an administrator must leave as many to others as it has: see claim.
type room struct {
	net.Listener
	most int

	mu   sync.Mutex
	held []*guest // the oldest first
	went uint64   // strangers' connections that were closed since the last question
	left chan struct{}
	shut chan struct{}
	once sync.Once
}

func newRoom(l net.Listener, most int) *room {
	return &room{Listener: l, most: most, left: make(chan struct{}, 1), shut: make(chan struct{})}
}

// guest is a connection of a room.
type guest struct {
	net.Conn
	room  *room
	from  string // the address, without the port
	known atomic.Bool
	name  string // of the client that is known, with the room's lock
	gone  sync.Once
}

// Accept returns the next connection, when there is room for it.
func (r *room) Accept() (net.Conn, error) {
	conn, err := r.Listener.Accept()
	if err != nil {
		return nil, err
	}
	g := &guest{Conn: conn, room: r, from: hostOf(conn.RemoteAddr().String())}
	for !r.take(g) {
		select {
		case <-r.left:
		case <-r.shut:
			return nil, errors.Join(net.ErrClosed, conn.Close())
		}
	}
	return g, nil
}

// take gives a connection a place, for which another connection may have to go; false:
// there is no place.
func (r *room) take(g *guest) bool {
	r.mu.Lock()
	var goes *guest
	if len(r.held) >= r.most {
		if goes = r.stranger(); goes == nil {
			r.mu.Unlock()
			return false
		}
		r.remove(goes)
		r.went++
	}
	r.held = append(r.held, g)
	r.mu.Unlock()
	if goes != nil {
		_ = goes.Close()
	}
	return true
}

// stranger returns the connection to close first; nil: all are of known clients. It is called with
// the lock held.
func (r *room) stranger() *guest {
	many := map[string]int{}
	for _, g := range r.held {
		if !g.known.Load() {
			many[g.from]++
		}
	}
	var goes *guest
	for _, g := range r.held {
		if !g.known.Load() && (goes == nil || many[g.from] > many[goes.from]) {
			goes = g
		}
	}
	return goes
}

// crowd returns how many strangers' connections were closed since the last call.
func (r *room) crowd() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	went := r.went
	r.went = 0
	return went
}

// remove is called with the lock held.
func (r *room) remove(g *guest) {
	r.held = slices.DeleteFunc(r.held, func(h *guest) bool { return h == g })
}

// Close ends listening, and the wait for room.
func (r *room) Close() error {
	r.once.Do(func() { close(r.shut) })
	return r.Listener.Close()
}

// Close gives the place to the next connection.
func (g *guest) Close() error {
	g.gone.Do(func() {
		g.room.mu.Lock()
		g.room.remove(g)
		g.room.mu.Unlock()
		select {
		case g.room.left <- struct{}{}:
		default:
		}
	})
	return g.Conn.Close()
}

type guestKey struct{}

// withGuest lets handlers say whose a connection is: it is a server's ConnContext.
func withGuest(ctx context.Context, conn net.Conn) context.Context {
	if over, is := conn.(interface{ NetConn() net.Conn }); is {
		conn = over.NetConn() // TLS
	}
	if g, is := conn.(*guest); is {
		return context.WithValue(ctx, guestKey{}, g)
	}
	return ctx
}

// claim says that a known client has the connection of a request, and reports whether it may keep it.
func claim(ctx context.Context, c Caller) bool {
	g, is := ctx.Value(guestKey{}).(*guest)
	return !is || g.room.claim(g, c)
}

func (r *room) claim(g *guest, c Caller) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if g.known.Load() && g.name == c.Name {
		return true
	}
	has, known := 0, 0
	for _, h := range r.held {
		if h == g || !h.known.Load() {
			continue
		}
		if known++; h.name == c.Name {
			has++
		}
	}
	if c.Role != model.RoleAdmin && !leavesAsMuch(has, known, 1, r.most) {
		g.known.Store(false)
		return false
	}
	g.name = c.Name
	g.known.Store(true)
	return true
}

// markKnown says whether a known client has the connection of a request.
func markKnown(ctx context.Context, known bool) {
	if g, is := ctx.Value(guestKey{}).(*guest); is {
		g.known.Store(known)
	}
}
