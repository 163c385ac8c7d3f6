package demo

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
)

// group is the weir processes of the demo.
type group struct {
	rows      []*row
	announces bool // the directors tell the router what they forward
	directors []*daemon
	agents    []*daemon
}

// applyTime bounds how long an edit may take to be applied.
const applyTime = 20 * time.Second

// startGroup starts agents and directors with these members and waits until all of them are ready.
func startGroup(ctx context.Context, weir string, top *topology, rows []*row, members []member, announces bool) (*group, error) {
	g := &group{rows: rows, announces: announces}
	for _, host := range top.backends {
		text, err := g.agentConfig(members)
		if err != nil {
			return nil, err
		}
		d, err := startDaemon(weir, "agent", host, text)
		if err != nil {
			return nil, err
		}
		g.agents = append(g.agents, d)
	}
	for i, host := range top.directors {
		text, err := g.directorConfig(i, members)
		if err != nil {
			return nil, err
		}
		d, err := startDaemon(weir, "run", host, text)
		if err != nil {
			return nil, err
		}
		g.directors = append(g.directors, d)
	}
	if err := top.lab.Err(); err != nil {
		return nil, err
	}
	if err := g.agentsReady(ctx, members); err != nil {
		return nil, err
	}
	return g, g.directorsReady(ctx, members)
}

// edit writes the files of new members: first those of agents on members, so that they are ready
// when directors send to them, and last those of agents on hosts that are no longer members.
func (g *group) edit(ctx context.Context, members []member) error {
	agents, err := g.agentConfig(members)
	if err != nil {
		return err
	}
	for _, m := range members {
		if err := g.agents[m.backend].write(agents); err != nil {
			return err
		}
	}
	if err := g.agentsReady(ctx, members); err != nil {
		return err
	}
	for i, d := range g.directors {
		text, err := g.directorConfig(i, members)
		if err != nil {
			return err
		}
		if err := d.write(text); err != nil {
			return err
		}
	}
	if err := g.directorsReady(ctx, members); err != nil {
		return err
	}
	for i, d := range g.agents {
		if !slices.ContainsFunc(members, func(m member) bool { return m.backend == i }) {
			if err := d.write(agents); err != nil {
				return err
			}
		}
	}
	return nil
}

// services returns every row's services, or only those of direct modes for agents: nat needs
// nothing on the backends' hosts.
func (g *group) services(members []member, onlyDirect bool) []model.Service {
	var list []model.Service
	for _, r := range g.rows {
		if r.direct() || !onlyDirect {
			list = append(list, r.services(members)...)
		}
	}
	return list
}

// sources are where tunnels come from.
func (g *group) sources() []netip.Prefix {
	var list []netip.Prefix
	for i := range directors {
		for _, six := range []bool{false, true} {
			a := lanAddress(directorHost+i, six)
			list = append(list, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return list
}

func (g *group) directorConfig(number int, members []member) ([]byte, error) {
	c := model.Config{Directors: g.sources(), Services: g.services(members, false)}
	c.Director.Interfaces = []string{"eth0", "eth1"}
	c.API.ReadOnly = []netip.AddrPort{dashboard}
	if g.announces {
		c.BGP = bgp(number)
	}
	for _, six := range []bool{false, true} {
		a := lanAddress(directorHost+number, six)
		c.Director.TunnelSource = append(c.Director.TunnelSource, netip.PrefixFrom(a, a.BitLen()))
		c.Director.SNAT.Addresses = append(c.Director.SNAT.Addresses, lanAddress(directorSNAT+number, six))
	}
	c.SetDefaults()
	return config.Marshal(c)
}

func (g *group) agentConfig(members []member) ([]byte, error) {
	c := model.Config{Directors: g.sources(), Services: g.services(members, true)}
	c.Agent.Interfaces = []string{"eth0"}
	c.SetDefaults()
	return config.Marshal(c)
}

// agentsReady waits until the members hold the VIPs of the direct modes.
func (g *group) agentsReady(ctx context.Context, members []member) error {
	for _, m := range members {
		d := g.agents[m.backend]
		if err := d.wait(ctx, "hold the VIPs", func() error { return d.holds(g.rows) }); err != nil {
			return err
		}
	}
	return nil
}

// directorsReady waits until every service of every director has these members, and
// every ring their shares.
func (g *group) directorsReady(ctx context.Context, members []member) error {
	for _, d := range g.directors {
		if err := d.wait(ctx, "forward to the backends", func() error { return d.forwards(ctx, g.rows, members) }); err != nil {
			return err
		}
	}
	return nil
}

// wait polls until nothing is wrong any more.
func (d *daemon) wait(ctx context.Context, what string, wrong func() error) error {
	deadline := time.Now().Add(applyTime)
	for {
		if err := d.alive(); err != nil {
			return err
		}
		err := wrong()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not %s: %w; its log ends with:\n%s", d.host.Name, what, err, d.tail())
		}
		if !sleep(ctx, 5*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// holds says which VIP of a direct mode is not on the host's loopback interface.
func (d *daemon) holds(rows []*row) error {
	return d.host.Do(func() error {
		lo, err := net.InterfaceByName("lo")
		if err != nil {
			return err
		}
		addresses, err := lo.Addrs()
		if err != nil {
			return err
		}
		held := map[netip.Addr]bool{}
		for _, a := range addresses {
			if ip, ok := netip.AddrFromSlice(a.(*net.IPNet).IP); ok {
				held[ip.Unmap()] = true
			}
		}
		for _, r := range rows {
			if r.direct() && !held[r.vip] {
				return fmt.Errorf("VIP %s is not on lo", r.vip)
			}
		}
		return nil
	})
}

// tolerance is how far a share of a ring's slots may be from the weight's.
const tolerance = 0.02

// forwards says which ring of the director has other shares than these.
func (d *daemon) forwards(ctx context.Context, rows []*row, members []member) error {
	services, err := api.NewClient(d.socket).Services(ctx)
	if err != nil {
		return err
	}
	if want := len(rows) * 2; len(services) != want {
		return fmt.Errorf("it has %d services, not %d", len(services), want)
	}
	for _, s := range services {
		if err := forwardsTo(s, members); err != nil {
			return fmt.Errorf("service %s: %w", s.Name, err)
		}
	}
	return nil
}

func forwardsTo(s model.ServiceStatus, members []member) error {
	// Shares alone do not tell a drained member from one that is gone.
	if len(s.Backends) != len(members) {
		return fmt.Errorf("it has %d backends, not %d", len(s.Backends), len(members))
	}
	share := stage{members: members}.share()
	var got [backends]float64
	for _, b := range s.Backends {
		for i := range got {
			if b.Name != (member{backend: i}).name() || s.Slots == 0 {
				continue
			}
			got[i] = float64(b.Slots) / float64(s.Slots)
			// Without a next hop its slots are not its own yet.
			if got[i] > 0 && b.State != model.Active {
				return fmt.Errorf("%s is %s", b.Name, b.State)
			}
		}
	}
	for i := range got {
		if math.Abs(got[i]-share[i]) > tolerance {
			return fmt.Errorf("%s has %.0f %% of the slots, not %.0f %%", member{backend: i}.name(), 100*got[i], 100*share[i])
		}
	}
	return nil
}
