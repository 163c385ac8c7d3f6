package bypass

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
)

// Links is a lab whose cables are the limit, all of them the same:
//
//	client1 ... clientN --- switch --- director
//	                              --- server1 ... serverN
//
// All clients and servers have agents.
type Links struct{ clients, servers []*netlab.Host }

// LinkWays are the ways of a client's requests to the servers, by the name of the mode.
var LinkWays = []string{Handover, "gue", "ipip"}

var linkModes = map[string]model.Mode{Handover: model.Redirect, "gue": model.GUE, "ipip": model.IPIP}

// Host numbers of this lab.
const (
	linkDirector = 10
	linkClient   = 20
	linkServer   = 40
)

// A cable's queue has room for all frames that are sent in a closed loop, and up to a hundredth of a
// second without sending may be caught up on, because the kernel that sends is not always in time.
const (
	waiting = 8192
	catchUp = 100 // parts of a second
)

func linkVIP(way string) netip.Addr { return vip(11 + slices.Index(LinkWays, way)) }

// NewLinks builds the lab with that many clients and as many servers, whose cables carry that many
// bits per second in each direction. It returns when the director forwards.
func NewLinks(ctx context.Context, lab *netlab.Lab, hosts int, rate uint64) (*Links, error) {
	l := &Links{}
	lan := lab.Switch("switch")
	plug := func(h *netlab.Host, number int) (*netlab.Host, error) {
		link := lab.Link(h, lan, netlab.LinkOptions{XDP: true, A: []string{address(number).String() + "/16"}})
		h.Sysctl("net.ipv4.ip_local_port_range", "1024 65535")
		if err := lab.Err(); err != nil {
			return nil, err
		}
		// Packets that an XDP program sends back are not limited: except for headers, a director
		// sends no more than it is sent.
		whole := netlab.Class{Rate: rate, Burst: uint32(rate / 8 / catchUp)}
		return h, errors.Join(link.A.Shape(waiting, whole), link.B.Shape(waiting, whole))
	}
	director, err := plug(lab.Router("director"), linkDirector)
	if err != nil {
		return nil, err
	}
	for i := range hosts {
		client, err := plug(lab.Host("client"+strconv.Itoa(i+1)), linkClient+i)
		if err != nil {
			return nil, err
		}
		for _, way := range LinkWays {
			client.Route(netip.PrefixFrom(linkVIP(way), 32).String(), address(linkDirector).String())
		}
		server, err := plug(lab.Host("server"+strconv.Itoa(i+1)), linkServer+i)
		if err != nil {
			return nil, err
		}
		echo := func(conn net.Conn) { _, _ = io.Copy(conn, conn) } // until the client ends it
		if err := server.Serve("tcp4", ":"+strconv.Itoa(port), echo); err != nil {
			return nil, err
		}
		l.clients, l.servers = append(l.clients, client), append(l.servers, server)
	}
	if err := l.start(ctx, director); err != nil {
		return nil, err
	}
	return l, lab.Err()
}

// start runs the director and all agents.
func (l *Links) start(ctx context.Context, director *netlab.Host) error {
	shared := model.Config{Directors: []netip.Prefix{netip.PrefixFrom(address(linkDirector), 32)}}
	var vips []netip.Addr
	for _, way := range LinkWays {
		s := process.Service(way, linkVIP(way), port, linkModes[way], l.serverAddresses()...)
		if s.Mode == model.Redirect {
			s.Policy = model.RoundRobin // each server must have as many of the few connections
		}
		shared.Services, vips = append(shared.Services, s), append(vips, s.VIP)
	}
	holds := map[*netlab.Host][]netip.Addr{}
	for i := range l.servers {
		holds[l.servers[i]], holds[l.clients[i]] = vips, nil
	}
	if _, err := process.RunAgents(ctx, shared, "auto", holds); err != nil {
		return err
	}
	_, err := process.RunDirector(ctx, director, shared)
	return err
}

func (l *Links) serverAddresses() (all []netip.Addr) {
	for i := range l.servers {
		all = append(all, address(linkServer+i))
	}
	return all
}

// Load is the load of each client: requests that come back unchanged. A connection sends its next
// request when the one before it has come back.
type Load struct {
	Connections int // of each client at a time
	Size        int // bytes of a request
	PerRequest  bool
	Settle      time.Duration // before it is measured
	Duration    time.Duration
}

// Goodput is the outcome of a load.
type Goodput struct {
	Bytes   uint64 // of requests that came back
	Elapsed time.Duration
}

// Goodput puts a load on a way.
func (l *Links) Goodput(ctx context.Context, way string, load Load) (Goodput, error) {
	ctx, cancel := context.WithCancel(ctx)
	var done atomic.Uint64
	var running sync.WaitGroup
	ended := make(chan error, len(l.clients)*load.Connections)
	for _, h := range l.clients {
		for range load.Connections {
			running.Go(func() {
				if err := exchange(ctx, h, netip.AddrPortFrom(linkVIP(way), port), load, &done); ctx.Err() == nil {
					ended <- fmt.Errorf("%s: a connection of %s: %w", way, h.Name, err)
				}
			})
		}
	}
	var g Goodput
	err := pause(ctx, load.Settle, ended)
	if err == nil {
		began, before := time.Now(), done.Load()
		err = pause(ctx, load.Duration, ended)
		g = Goodput{Bytes: done.Load() - before, Elapsed: time.Since(began)}
	}
	cancel()
	running.Wait()
	return g, err
}

// pause waits, unless something ends it earlier.
func pause(ctx context.Context, duration time.Duration, ended chan error) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-ended:
		return err
	case <-time.After(duration): // the measurement's duration
		return nil
	}
}

// exchange sends requests until the context ends, or something goes wrong.
func exchange(ctx context.Context, h *netlab.Host, to netip.AddrPort, load Load, done *atomic.Uint64) error {
	request, back := make([]byte, load.Size), make([]byte, load.Size)
	for i := range request {
		request[i] = byte(i)
	}
	for ctx.Err() == nil {
		if err := overOne(ctx, h, to, load, request, back, done); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// counter counts bytes as they come: if large requests were counted when they are whole, some would
// count that began before the measurement, and others would be missed.
type counter struct{ bytes *atomic.Uint64 }

func (c counter) Write(text []byte) (int, error) {
	c.bytes.Add(uint64(len(text)))
	return len(text), nil
}

var errOther = errors.New("something else came back")

// overOne uses one connection.
func overOne(ctx context.Context, h *netlab.Host, to netip.AddrPort, load Load, request, back []byte, done *atomic.Uint64) error {
	conn, err := h.DialContext(ctx, "tcp4", to.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	// Nothing of the connection must be under way, or remembered, in the next measurement.
	if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	for {
		if _, err := conn.Write(request); err != nil {
			return err
		}
		if _, err := io.ReadFull(io.TeeReader(conn, counter{done}), back); err != nil {
			return err
		}
		if back[len(back)-1] != request[len(request)-1] || back[0] != request[0] {
			return errOther
		}
		if load.PerRequest {
			return nil
		}
	}
}
