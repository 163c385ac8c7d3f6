package bypass

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"weir.io/weir/bench/echo"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
)

// startWeir runs the director and the agents of the hosts that have one. All have the same file.
func (l *Lab) startWeir(ctx context.Context) error {
	shared := model.Config{Directors: []netip.Prefix{netip.PrefixFrom(address(weirBalancer), 32)}}
	var held []netip.Addr
	for _, w := range Ways {
		if !w.Weir {
			continue
		}
		b := model.NewBackend()
		b.Address = address(w.server)
		s := model.Service{Name: w.Name, VIP: w.to, Protocol: model.TCP, Port: model.PortRange{First: port, Last: port}, Mode: w.mode, Backends: []model.Backend{b}}
		switch w.server {
		case handedServer:
			nat := model.NAT
			s.Fallback, s.SNAT = &nat, true
		case agentServer:
			held = append(held, w.to)
		}
		shared.Services = append(shared.Services, s)
	}
	shared.Agent.Interfaces = []string{"eth0"}
	l.agents = map[int]*process.Weir{}
	for number, on := range map[int]struct {
		host *netlab.Host
		held []netip.Addr
	}{askingClient: {l.asker, nil}, agentServer: {l.agent, held}, handedServer: {l.handed, nil}} {
		agent, err := process.StartAgent(on.host, shared, "auto")
		if err != nil {
			return err
		}
		if err := agent.Holds(ctx, on.held...); err != nil {
			return err
		}
		l.agents[number] = agent
	}
	shared.Director.SNAT = model.SNAT{Addresses: []netip.Addr{address(weirBalancer)}, Ports: model.PortRange{First: 1024, Last: 4095}}
	shared.Director.Interfaces = []string{"eth0"}
	var err error
	if l.director, err = process.StartDirector(l.balancers["weir"], shared); err != nil {
		return err
	}
	return l.director.Forwards(ctx)
}

// startIptables sets up iptables, which changes the destination and has replies come back through
// it.
func (l *Lab) startIptables(ctx context.Context) error {
	_, err := process.Run(ctx, l.balancers["iptables"], "iptables", "-w", "-t", "nat", "-A", "PREROUTING", "-d", vip(5).String(),
		"-p", "tcp", "--dport", strconv.Itoa(port), "-j", "DNAT", "--to-destination", address(iptablesServer).String())
	return err
}

// startNginx starts nginx, which opens a connection to the server for each of the client's.
func (l *Lab) startNginx(ctx context.Context) error {
	h := l.balancers["nginx"]
	text := fmt.Sprintf(`load_module /usr/lib/nginx/modules/ngx_stream_module.so;
daemon off; master_process off; user root; pid DIR/nginx.pid; error_log DIR/nginx.err;
events { worker_connections 1024; }
stream { tcp_nodelay on; server { listen %s:%d backlog=1024; proxy_pass %s:%d; } }
`, vip(6), port, address(plainServer), port)
	conf := filepath.Join(h.Dir(), "balancer.conf")
	if err := os.WriteFile(conf, []byte(strings.ReplaceAll(text, "DIR", h.Dir())), 0o644); err != nil {
		return fmt.Errorf("configuration of nginx: %w", err)
	}
	// It has the same priority as client and server.
	p, err := process.Start(h, "nginx", "chrt", "--fifo", strconv.Itoa(echo.Priority), "nginx", "-e", "stderr", "-c", conf)
	if err != nil {
		return err
	}
	return p.Await(ctx, "listen", func() error { return listens(ctx, h) })
}
