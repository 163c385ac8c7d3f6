package site

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
)

// startIptables spreads by random choice among the remaining rules, as kube-proxy does.
func (s *Site) startIptables(ctx context.Context) error {
	for _, w := range through("iptables") {
		for _, n := range s.sizes {
			for i := range n {
				args := []string{"-w", "-t", "nat", "-A", "PREROUTING", "-d", w.VIP(n).String(), "-p", "tcp", "--dport", "80"}
				if left := n - i; left > 1 {
					args = append(args, "-m", "statistic", "--mode", "random", "--probability", fmt.Sprintf("%.6f", 1/float64(left)))
				}
				args = append(args, "-j", "DNAT", "--to-destination", returnAddress("iptables", i, w.Six).String()+":80")
				if _, err := process.Run(ctx, s.balancers["iptables"], "iptables", args...); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// startNftables spreads by turns, with one rule per VIP.
func (s *Site) startNftables(ctx context.Context) error {
	var rules strings.Builder
	for _, w := range through("nftables") {
		for _, n := range s.sizes {
			fmt.Fprintf(&rules, "\t\tip daddr %s tcp dport 80 dnat to numgen inc mod %d map {", w.VIP(n), n)
			for i := range n {
				fmt.Fprintf(&rules, " %d : %s,", i, returnAddress("nftables", i, w.Six))
			}
			rules.WriteString(" }\n")
		}
	}
	text := "table ip spread {\n\tchain prerouting {\n\t\ttype nat hook prerouting priority dstnat;\n" + rules.String() + "\t}\n}"
	_, err := process.Run(ctx, s.balancers["nftables"], "nft", text)
	return err
}

// holdVIPs gives a balancer that is a process the addresses where it listens.
func (s *Site) holdVIPs(balancer string) {
	for _, w := range through(balancer) {
		for _, n := range s.sizes {
			s.balancers[balancer].Address("lo", w.VIP(n).String()+"/32")
		}
	}
}

// startNginx spreads by nginx's stream proxy, by turns.
func (s *Site) startNginx(ctx context.Context) error {
	s.holdVIPs("nginx")
	var spread strings.Builder
	for _, w := range through("nginx") {
		for _, n := range s.sizes {
			fmt.Fprintf(&spread, "\tupstream over%d {", n)
			for i := range n {
				fmt.Fprintf(&spread, " server %s:80;", lanAddress(serverNumber+i+1, w.Six))
			}
			fmt.Fprintf(&spread, " }\n\tserver { listen %s:80 backlog=8192 reuseport; proxy_pass over%d; }\n", w.VIP(n), n)
		}
	}
	_, err := process.Nginx(ctx, s.balancers["nginx"], "nginx", webPort, `worker_processes auto;
load_module /usr/lib/nginx/modules/ngx_stream_module.so;
events { worker_connections 16384; }
stream {
	tcp_nodelay on;
`+spread.String()+"}")
	return err
}

// startHAProxy spreads by HAProxy in TCP mode, by turns.
func (s *Site) startHAProxy(ctx context.Context) error {
	s.holdVIPs("haproxy")
	text := "global\n\tmaxconn 8000\ndefaults\n\tmode tcp\n\tbalance roundrobin\n\ttimeout connect 5s\n\ttimeout client 60s\n\ttimeout server 60s\n"
	for _, w := range through("haproxy") {
		for _, n := range s.sizes {
			text += fmt.Sprintf("listen over%d\n\tbind %s:80 backlog 8192\n", n, w.VIP(n))
			for i := range n {
				text += fmt.Sprintf("\tserver server%d %s:80\n", i+1, lanAddress(serverNumber+i+1, w.Six))
			}
		}
	}
	conf, err := process.Configure(s.balancers["haproxy"], "balancer.conf", text)
	if err != nil {
		return err
	}
	_, err = process.Serve(ctx, s.balancers["haproxy"], "haproxy", webPort, "haproxy", "-db", "-f", conf)
	return err
}

// startWeir runs the director and its agents, with a service for every way through
// weir and every number of servers.
func (s *Site) startWeir(ctx context.Context) error {
	shared := model.Config{}
	for _, six := range []bool{false, true} {
		director := lanAddress(balancerNumber+1, six)
		shared.Directors = append(shared.Directors, netip.PrefixFrom(director, director.BitLen()))
	}
	var tunnelled []netip.Addr
	for _, w := range through("weir") {
		for _, n := range s.sizes {
			shared.Services = append(shared.Services, s.service(w, n))
			if !w.nat() {
				tunnelled = append(tunnelled, w.VIP(n))
			}
		}
	}
	holds := map[*netlab.Host][]netip.Addr{}
	for i, h := range s.agents {
		for _, vip := range tunnelled {
			if n := vip.AsSlice(); int(n[len(n)-1]) > i { // it has that many servers
				holds[h] = append(holds[h], vip)
			}
		}
	}
	if _, err := process.RunAgents(ctx, shared, "auto", holds); err != nil {
		return err
	}
	shared.Director.TunnelSource = shared.Directors
	shared.Director.SNAT.Addresses = []netip.Addr{lanAddress(snatNumber, false), lanAddress(snatNumber, true)}
	_, err := process.RunDirector(ctx, s.balancers["weir"], shared)
	return err
}

// service is one of weir's services, over the first n servers.
func (s *Site) service(w *Way, n int) model.Service {
	service := process.Service(fmt.Sprintf("%s-%s-%d", w.Name, w.Family(), n), w.VIP(n), webPort.Port(), w.mode)
	service.SNAT = w.snat
	for i := range n {
		b := model.NewBackend()
		switch {
		case w.snat:
			b.Address = lanAddress(serverNumber+i+1, w.Six)
		case w.nat():
			b.Address, b.Port = returnAddress("weir", i, w.Six), natPort(n)
		default:
			b.Address = lanAddress(agentNumber(i), w.Six)
		}
		service.Backends = append(service.Backends, b)
	}
	return service
}
