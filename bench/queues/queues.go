// Package queues is a lab with many servers, each of which answers one request at a time, and a
// director that chooses one for each request by several policies: it measures what each policy does
// to the servers' queues.
package queues

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
)

// Host numbers in the network. Servers have an address each.
const (
	director = 1
	client   = 2
	source   = 3      // of connections that the director relays by full NAT
	group    = 1 << 8 // servers in groups, on hosts with agents: from this number on
	single   = 2 << 8 // servers with a host each
)

// Groups are the hosts of the servers to which connections are redirected: a server is an address
// of a group.
const groups = 3

var vip = netip.MustParseAddr("198.18.0.1") // for benchmarks (RFC 2544, appendix C.2.2)

// relayed is the mode of a connection that is not redirected.
var relayed = model.NAT

// Way is how a server is chosen, and how requests get there.
type Way struct {
	Name   string
	mode   model.Mode
	policy model.Policy
	port   uint16
}

// Ways are all ways. The first is random: a hash without memory, with all packets of clients
// through the director. Policies that use loads use the agents' reports.
var Ways = []*Way{
	{"dsr random", model.L2DSR, model.Maglev, 8000},
	{"redirect random", model.Redirect, model.Random, 8001},
	{"redirect round-robin", model.Redirect, model.RoundRobin, 8002},
	{"redirect p2c", model.Redirect, model.P2C, 8003},
	{"redirect least-conn", model.Redirect, model.LeastConn, 8004},
}

// Random and RoundRobin are the names of two ways.
const (
	Random     = "dsr random"
	RoundRobin = "redirect round-robin"
)

// Lab is:
//
//	client (agent) --- switch --- director
//	                         --- group1 ... group3 (agents, an address for each server)
//	                         --- server1 ... serverN (for dsr, which has no agents)
type Lab struct {
	client   *netlab.Host
	balancer *netlab.Host
	groups   []*netlab.Host
	singles  []*netlab.Host
	cables   map[*netlab.Host]*netlab.Port
	servers  int
	service  time.Duration
	request  []byte
	answer   int      // bytes
	queues   *servers // nil: they are processes of their own (files.go)
	director *process.Weir
	seed     uint64
}

func address(number int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 1, byte(number >> 8), byte(number)})
}

// New builds the lab with that many servers of each kind, whose requests take that long. It returns
// when the director forwards.
func New(ctx context.Context, lab *netlab.Lab, servers int, service time.Duration) (*Lab, error) {
	l, err := build(lab, servers)
	if err != nil {
		return nil, err
	}
	l.service, l.request, l.answer = service, []byte{answerByte}, 1
	if err := l.serve(); err != nil {
		return nil, err
	}
	if err := l.start(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// build makes the hosts.
func build(lab *netlab.Lab, servers int) (*Lab, error) {
	l := &Lab{servers: servers, cables: map[*netlab.Host]*netlab.Port{}}
	lan := lab.Switch("switch")
	plug := func(h *netlab.Host, number int) *netlab.Host {
		l.cables[h] = lab.Link(h, lan, netlab.LinkOptions{XDP: true, A: []string{address(number).String() + "/16"}}).A
		h.Sysctl("net.core.somaxconn", strconv.Itoa(waiting))
		return h
	}
	l.balancer = plug(lab.Router("director"), director)
	l.balancer.Address("eth0", address(source).String()+"/16")
	l.client = plug(lab.Host("client"), client)
	l.client.Sysctl("net.ipv4.ip_local_port_range", "1024 65535")
	l.client.Route(netip.PrefixFrom(vip, 32).String(), address(director).String())
	for i := range min(groups, servers) {
		l.groups = append(l.groups, plug(lab.Host("group"+strconv.Itoa(i+1)), group+200+i))
	}
	for i := range servers {
		l.groupOf(i).Address("eth0", address(group+i).String()+"/16")
		h := plug(lab.Host("server"+strconv.Itoa(i+1)), single+i)
		// It has the VIP, but does not announce it.
		h.Sysctl("net.ipv4.conf.all.arp_ignore", "1")
		h.Sysctl("net.ipv4.conf.all.arp_announce", "2")
		h.Address("lo", vip.String()+"/32")
		l.singles = append(l.singles, h)
	}
	return l, lab.Err()
}

// groupOf is the host of a server.
func (l *Lab) groupOf(server int) *netlab.Host { return l.groups[server%len(l.groups)] }

// place is a way's server: its host, and the address from which it answers.
func (l *Lab) place(w *Way, server int) (*netlab.Host, netip.Addr) {
	if w.mode == model.L2DSR {
		return l.singles[server], vip
	}
	return l.groupOf(server), address(group + server)
}

// serve starts a server of each address and way.
func (l *Lab) serve() (err error) {
	if l.queues, err = newServers(l.service); err != nil {
		return err
	}
	for _, w := range Ways {
		for i := range l.servers {
			h, at := l.place(w, i)
			if err := l.queues.add(h, netip.AddrPortFrom(at, w.port)); err != nil {
				return err
			}
		}
	}
	go l.queues.run()
	return nil
}

// Close ends the servers. Call it before the lab ends.
func (l *Lab) Close() error {
	if l.queues == nil {
		return nil
	}
	return l.queues.close()
}

// start runs the director and the agents.
func (l *Lab) start(ctx context.Context) error {
	c := model.Config{Directors: []netip.Prefix{netip.PrefixFrom(address(director), 32)}}
	c.Director.SNAT.Addresses = []netip.Addr{address(source)}
	if err := l.report(&c); err != nil {
		return err
	}
	for _, w := range Ways {
		first := group
		if w.mode == model.L2DSR {
			first = single
		}
		var servers []netip.Addr
		for i := range l.servers {
			servers = append(servers, address(first+i))
		}
		s := process.Service(w.policy.String()+"-"+w.mode.String(), vip, w.port, w.mode, servers...)
		s.Policy = w.policy
		if w.mode == model.Redirect {
			// A retransmitted SYN is not redirected, and its server does not have the VIP.
			s.Fallback, s.SNAT = &relayed, true
		}
		c.Services = append(c.Services, s)
	}
	holds := map[*netlab.Host][]netip.Addr{l.client: nil}
	for _, h := range l.groups {
		holds[h] = nil
	}
	_, err := process.RunAgents(ctx, c, "auto", holds)
	if err != nil {
		return err
	}
	if l.director, err = process.RunDirector(ctx, l.balancer, c); err != nil {
		return err
	}
	_, err = l.awaitLoads(ctx)
	return err
}

// Measure puts a load on a way. With load 1 all servers would be busy all the time.
func (l *Lab) Measure(ctx context.Context, w *Way, load float64, settle, duration time.Duration) (Result, error) {
	l.seed++
	before, err := l.awaitLoads(ctx)
	if err != nil {
		return Result{}, err
	}
	r, err := run(l.client, netip.AddrPortFrom(vip, w.port), Load{Rate: load * float64(l.servers) / l.service.Seconds(),
		Settle: settle, Duration: duration, Request: l.request, Seed: l.seed}, l.answer)
	if err != nil {
		return r, fmt.Errorf("%s at load %g: %w", w.Name, load, err)
	}
	services, err := l.services(ctx)
	if err != nil {
		return r, err
	}
	r.Degraded = count(services) - before
	return r, nil
}

// reportInterval is how often agents report loads: as often as they may. Listing all sockets takes
// them longer, so they report as often as they can.
const reportInterval = model.Duration(10 * time.Millisecond)

// report makes agents tell the director their servers' loads.
func (l *Lab) report(c *model.Config) error {
	key := make([]byte, 32) // every host in the lab knows it
	file, err := process.Configure(l.balancer, "loads.keys", hex.EncodeToString(key))
	c.Loads = model.Loads{KeyFile: file, Interval: reportInterval}
	return errors.Join(err, os.Chmod(file, 0o600))
}

// awaitLoads returns when every policy that uses loads knows them. It returns how often services
// have been placed without loads so far, because reports were missing. If the machine is busy for a
// moment, reports may be missing at any time; that is counted, and ends nothing.
func (l *Lab) awaitLoads(ctx context.Context) (degradations uint64, err error) {
	err = l.director.Await(ctx, "know the servers' loads", func() error {
		services, err := l.services(ctx)
		if err != nil {
			return err
		}
		for _, s := range services {
			if s.Loads != nil && s.Loads.Degraded {
				return fmt.Errorf("service %s goes in turn: loads of %d of its backends are not known", s.Name, s.Loads.Stale)
			}
		}
		degradations = count(services)
		return nil
	})
	return degradations, err
}

func (l *Lab) services(ctx context.Context) ([]model.ServiceStatus, error) {
	services, err := api.NewClient(l.director.Socket).Services(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask for the services: %w", err)
	}
	return services, nil
}

// count is how often the services have been placed without loads.
func count(services []model.ServiceStatus) (degradations uint64) {
	for _, s := range services {
		if s.Loads != nil {
			degradations += s.Loads.Degradations
		}
	}
	return degradations
}
