// Package bypass is a lab in which requests go to servers directly, by a director's mode redirect,
// which sees only the beginning of a connection, and through balancers that see all of it. Every
// host has one cable, and all cables end in one switch.
package bypass

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"

	"weir.io/weir/bench/echo"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
)

// The CPUs of clients with the balancers, and of servers. Each host receives in a kernel thread of
// its own, which has to be woken, as a NIC wakes a machine. Otherwise a sender would do the work of
// all hosts on the way, and a hop would cost next to nothing.
const (
	clientCPU = 0
	serverCPU = 1
)

// port is the port of the servers and of the VIPs.
const port = 7000

// anywhere is the port at any of a host's addresses.
var anywhere = netip.AddrPortFrom(netip.Addr{}, port)

// Host numbers in the network.
const (
	plainClient = 1 + iota
	askingClient
	plainServer
	agentServer
	handedServer
	natServer      // the plain server's, from which replies go back through weir
	iptablesServer // the same through iptables
	weirBalancer
	iptablesBalancer
	nginxBalancer
)

var balancerNumbers = map[string]int{"weir": weirBalancer, "iptables": iptablesBalancer, "nginx": nginxBalancer}

// Way is a way for requests to reach a server.
type Way struct {
	Name string
	Weir bool // by a director, whose counters tell what it saw

	mode     model.Mode
	balancer string
	server   int        // number of the host that a director sends requests to
	to       netip.Addr // the address that is asked
}

// Handover is the name of mode redirect: another program is already called redirect. BesideTunnels
// is the same mode to the server at which tunnels end, too.
const (
	Handover      = "weir-redirect"
	BesideTunnels = "weir-redirect-gue"
)

// Ways are all ways. The first one has no balancer.
var Ways = []*Way{
	{Name: "direct", to: address(plainServer)},
	{Name: Handover, Weir: true, mode: model.Redirect, balancer: "weir", server: handedServer, to: vip(1)},
	{Name: BesideTunnels, Weir: true, mode: model.Redirect, balancer: "weir", server: agentServer, to: vip(7)},
	{Name: "gue", Weir: true, mode: model.GUE, balancer: "weir", server: agentServer, to: vip(2)},
	{Name: "ipip", Weir: true, mode: model.IPIP, balancer: "weir", server: agentServer, to: vip(3)},
	{Name: "nat", Weir: true, mode: model.NAT, balancer: "weir", server: natServer, to: vip(4)},
	{Name: "iptables", balancer: "iptables", to: vip(5)},
	{Name: "nginx", balancer: "nginx", to: vip(6)},
}

func address(number int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, 0, byte(number)}) }

// vip is an address for benchmarks (RFC 2544, appendix C.2.2).
func vip(number int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 0, byte(number)}) }

// Lab is:
//
//	client (no agent), asker (agent) --- switch --- weir, iptables, nginx
//	                                            --- server (no agent), agent, handed (agents)
//
// The asker's host has an agent because mode redirect needs one there; the client uses all other
// ways. Servers differ likewise: tunnels end at host agent; connections redirected to host handed
// fall back to full NAT, so it needs nothing for tunnels.
type Lab struct {
	lan       *netlab.Host
	client    *netlab.Host
	asker     *netlab.Host
	server    *netlab.Host
	agent     *netlab.Host
	handed    *netlab.Host
	balancers map[string]*netlab.Host
	ports     []*netlab.Port // of the hosts
	lab       *netlab.Lab
	director  *process.Weir
	agents    map[int]*process.Weir // by the host's number
	program   string                // this program, whose commands are server and client
}

// New builds the lab, and returns when every way has been seen to lead to its server.
func New(ctx context.Context, lab *netlab.Lab) (*Lab, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the benchmarks' own program: %w", err)
	}
	l := &Lab{lab: lab, lan: lab.Switch("switch"), balancers: map[string]*netlab.Host{}, program: program}
	l.client, l.asker = l.plugIn(lab.Host("client"), plainClient), l.plugIn(lab.Host("asker"), askingClient)
	l.server, l.agent = l.plugIn(lab.Host("server"), plainServer), l.plugIn(lab.Host("agent"), agentServer)
	l.handed = l.plugIn(lab.Host("handed"), handedServer)
	for name, number := range balancerNumbers {
		l.balancers[name] = l.plugIn(lab.Router(name), number)
	}
	l.route()
	if err := errors.Join(lab.Err(), l.receive()); err != nil {
		return nil, err
	}
	for _, start := range []func(context.Context) error{l.startServers, l.startWeir, l.startIptables, l.startNginx} {
		if err := start(ctx); err != nil {
			return nil, err
		}
	}
	return l, lab.Err()
}

// plugIn connects a host to the switch. All cables are alike: XDP may run at any end.
func (l *Lab) plugIn(h *netlab.Host, number int) *netlab.Host {
	link := l.lab.Link(h, l.lan, netlab.LinkOptions{XDP: true, A: []string{address(number).String() + "/16"}})
	l.ports = append(l.ports, link.A)
	h.Sysctl("net.ipv4.ip_local_port_range", "1024 65535")
	// A balancer with one arm must not tell hosts of shorter routes.
	h.Sysctl("net.ipv4.conf.all.send_redirects", "0")
	h.Sysctl("net.ipv4.conf.eth0.send_redirects", "0")
	return h
}

// receive gives each host its thread, which runs before ordinary programs.
func (l *Lab) receive() error {
	for _, port := range l.ports {
		cpu := clientCPU
		if slices.Contains(l.servers(), port.Host) {
			cpu = serverCPU
		}
		threads, err := process.ThreadNAPI(port, cpu)
		if err != nil {
			return err
		}
		if err := threads.RealTime(echo.Priority + 1); err != nil {
			return err
		}
	}
	return nil
}

// route routes VIPs to their balancers, and replies that have to pass a balancer back to it.
func (l *Lab) route() {
	for _, w := range Ways {
		if w.balancer == "" {
			continue
		}
		for _, h := range []*netlab.Host{l.client, l.asker} {
			h.Route(netip.PrefixFrom(w.to, 32).String(), address(balancerNumbers[w.balancer]).String())
		}
	}
	for own, through := range map[int]int{natServer: weirBalancer, iptablesServer: iptablesBalancer} {
		l.server.Address("eth0", address(own).String()+"/16")
		l.server.RouteFrom(netip.PrefixFrom(address(own), 32).String(), "default", address(through).String())
	}
	l.balancers["nginx"].Address("lo", vip(6).String()+"/32")
}

func (l *Lab) servers() []*netlab.Host { return []*netlab.Host{l.server, l.agent, l.handed} }

func (l *Lab) startServers(ctx context.Context) error {
	for _, h := range l.servers() {
		if _, err := process.Serve(ctx, h, "echo", anywhere, l.program, "echo-server", "--port", strconv.Itoa(port), "--cpu", strconv.Itoa(serverCPU)); err != nil {
			return err
		}
	}
	return nil
}
