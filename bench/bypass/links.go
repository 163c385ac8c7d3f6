package bypass

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"

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
type Links struct {
	clients  []*netlab.Host
	servers  []*netlab.Host
	director *process.Weir
}

// LinkWays are the ways of a client's requests to the servers, by the name of the mode.
var LinkWays = []string{Handover, "gue", "ipip"}

var linkModes = map[string]model.Mode{Handover: model.Redirect, "gue": model.GUE, "ipip": model.IPIP}

// Host numbers of this lab.
const (
	linkDirector = 10
	linkClient   = 20
	linkServer   = 40
)

func linkVIP(way string) netip.Addr {
	for i, name := range LinkWays {
		if name == way {
			return vip(11 + i)
		}
	}
	panic("no such way: " + way)
}

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
		return h, limit(link, rate)
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
		if err := answer(server); err != nil {
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
		s := model.Service{Name: way, VIP: linkVIP(way), Protocol: model.TCP, Port: model.PortRange{First: port, Last: port}, Mode: linkModes[way]}
		if s.Mode == model.Redirect {
			s.Policy = model.RoundRobin // each server must have as many of the few connections
		}
		for i := range l.servers {
			b := model.NewBackend()
			b.Address = address(linkServer + i)
			s.Backends = append(s.Backends, b)
		}
		shared.Services, vips = append(shared.Services, s), append(vips, s.VIP)
	}
	shared.Agent.Interfaces = []string{"eth0"}
	agents := map[*netlab.Host]*process.Weir{}
	for _, hosts := range [][]*netlab.Host{l.servers, l.clients} {
		for _, h := range hosts {
			agent, err := process.StartAgent(h, shared, "auto")
			if err != nil {
				return err
			}
			agents[h] = agent
		}
	}
	for _, h := range l.servers {
		if err := agents[h].Holds(ctx, vips...); err != nil {
			return err
		}
	}
	for _, h := range l.clients {
		if err := agents[h].Holds(ctx); err != nil {
			return err
		}
	}
	shared.Director.Interfaces = []string{"eth0"}
	var err error
	if l.director, err = process.StartDirector(director, shared); err != nil {
		return err
	}
	return l.director.Forwards(ctx)
}

// answer sends back what comes to a host's port, until the lab is closed.
func answer(h *netlab.Host) error {
	listener, err := h.Listen("tcp4", fmt.Sprintf(":%d", port))
	if err != nil {
		return fmt.Errorf("serve on %s: %w", h.Name, err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				buffer := make([]byte, 1<<16)
				for {
					n, err := conn.Read(buffer)
					if err != nil {
						return
					}
					if _, err := conn.Write(buffer[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	return nil
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

// The properties of a limited cable: its queue has room for all frames that are sent in a closed
// loop, and up to a hundredth of a second without sending may be caught up on, because the kernel
// that sends is not always there in time.
const (
	catchUp = 100 // parts of a second
	waiting = 8192
)

// limit lets both ends of a cable send at most that many bits per second. Packets that an XDP
// program sends back are not limited: except for headers, a director sends no more than it is sent.
func limit(link *netlab.Link, rate uint64) error {
	for _, port := range []*netlab.Port{link.A, link.B} {
		if err := port.Host.Do(func() error { return limitPort(port.Index, rate) }); err != nil {
			return fmt.Errorf("limit the rate of a port of %s: %w", port.Host.Name, err)
		}
	}
	return nil
}

func limitPort(index int, rate uint64) error {
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return err
	}
	// The queue of a class is as long as the port's.
	if err := netlink.LinkSetTxQLen(link, waiting); err != nil {
		return err
	}
	root, all := netlink.MakeHandle(1, 0), netlink.MakeHandle(1, 1)
	htb := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: index, Handle: root, Parent: netlink.HANDLE_ROOT})
	htb.Defcls = 1
	if err := netlink.QdiscAdd(htb); err != nil {
		return err
	}
	burst := uint32(rate / 8 / catchUp)
	return netlink.ClassAdd(netlink.NewHtbClass(netlink.ClassAttrs{LinkIndex: index, Handle: all, Parent: root},
		netlink.HtbClassAttrs{Rate: rate, Ceil: rate, Buffer: burst, Cbuffer: burst}))
}
