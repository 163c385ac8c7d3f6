package main

import (
	"context"
	"net/netip"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/process"
	"weir.io/weir/test/chaos/schedule"
)

// startAgents starts an agent on every backend's host. Agents know the whole pool from the
// beginning: they must be told of backends before directors are.
func (g *group) startAgents(ctx context.Context, pool schedule.Group) error {
	if !g.mode.agent {
		return nil
	}
	pool = pool.Clone()
	for i := range pool.Backends {
		pool.Backends[i].State = schedule.Active
	}
	g.agentConfig = model.Config{Directors: g.sources(), Services: g.services(pool)}
	g.agentConfig.Agent.Interfaces = []string{"eth0"}
	if g.mode.forgetful {
		g.agentConfig.Agent.SocketsElsewhere, g.agentConfig.Agent.UDPFlows = true, new(uint32)
	}
	if g.store != nil && !g.mode.forgetful {
		g.agentConfig.Agent.Store.Etcd.Endpoints = g.store.endpoints
	}
	g.agents = make([]*process.Weir, len(g.top.backends))
	for i := range g.top.backends {
		if _, err := g.launchAgent(i, schedule.This); err != nil {
			return err
		}
	}
	for _, a := range g.agents {
		if err := a.Holds(ctx, netip.MustParseAddr(vip)); err != nil {
			return err
		}
	}
	if !g.mode.redirects {
		return nil
	}
	return g.launchClient(ctx, schedule.This)
}

// launchClient starts the agent of the client's host, and waits until it redirects.
func (g *group) launchClient(ctx context.Context, v schedule.Version) error {
	g.mu.Lock()
	a, err := process.StartAgentAs(g.top.client, g.binaries[v], g.agentConfig, "auto")
	if err == nil {
		g.client = a
	}
	g.mu.Unlock()
	if err != nil {
		return err
	}
	return a.Holds(ctx)
}

// clientAgain is agentAgain for the client.
func (g *group) clientAgain(ctx context.Context, v schedule.Version) error {
	g.mu.Lock()
	a := g.client
	g.client = nil
	g.mu.Unlock()
	if err := a.Stop(); err != nil {
		return err
	}
	return g.launchClient(ctx, v)
}

func (g *group) launchAgent(i int, v schedule.Version) (*process.Weir, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	a, err := process.StartAgentAs(g.top.backends[i].Host, g.binaries[v], g.agentConfig, "auto")
	if err == nil {
		g.agents[i] = a
	}
	return a, err
}

// agentAgain ends an agent's process and starts one of a version; what it left in the kernel keeps
// working.
func (g *group) agentAgain(ctx context.Context, i int, v schedule.Version) error {
	g.mu.Lock()
	a := g.agents[i]
	g.agents[i] = nil
	g.mu.Unlock()
	if err := a.Stop(); err != nil {
		return err
	}
	a, err := g.launchAgent(i, v)
	if err != nil {
		return err
	}
	return a.Holds(ctx, netip.MustParseAddr(vip))
}

// agentSockets returns the sockets of the running agents, by host.
func (g *group) agentSockets() map[string]string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return socketsOf(g.agents)
}
