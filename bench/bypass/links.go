package bypass

import (
	"context"
	"net/netip"
	"strconv"

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
