package bypass

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"

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
		s := process.Service(w.Name, w.to, port, w.mode, address(w.server))
		switch w.server {
		case handedServer:
			nat := model.NAT
			s.Fallback, s.SNAT = &nat, true
		case agentServer:
			held = append(held, w.to)
		}
		shared.Services = append(shared.Services, s)
	}
	agents, err := process.RunAgents(ctx, shared, "auto", map[*netlab.Host][]netip.Addr{l.asker: nil, l.agent: held, l.handed: nil})
	if err != nil {
		return err
	}
	l.agents = map[int]*process.Weir{askingClient: agents[l.asker], agentServer: agents[l.agent], handedServer: agents[l.handed]}
	shared.Director.SNAT = model.SNAT{Addresses: []netip.Addr{address(weirBalancer)}, Ports: model.PortRange{First: 1024, Last: 4095}}
	l.director, err = process.RunDirector(ctx, l.balancers["weir"], shared)
	return err
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
	text := fmt.Sprintf(`load_module /usr/lib/nginx/modules/ngx_stream_module.so;
master_process off;
events { worker_connections 1024; }
stream { tcp_nodelay on; server { listen %s:%d backlog=1024; proxy_pass %s:%d; } }`, vip(6), port, address(plainServer), port)
	// It has the same priority as client and server.
	_, err := process.Nginx(ctx, l.balancers["nginx"], "nginx", anywhere, text, "chrt", "--fifo", strconv.Itoa(echo.Priority))
	return err
}
