package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"weir.io/weir/kube/test/cluster"
	"weir.io/weir/kube/test/site"
)

// groupEvery is the interval of requests to the DirectorGroup's Service.
const groupEvery = 4 * time.Millisecond

// group makes a DirectorGroup with all directors except one, its Service, and the agents that
// deliver packets to pods.
func (m *measuring) group(ctx context.Context) error {
	if err := m.MakeGroup(ctx); err != nil {
		return err
	}
	if _, err := m.MakeService(ctx, "edge", "web", edgeVIP, site.ByEdge); err != nil {
		return err
	}
	for _, e := range m.Edges[:len(m.Edges)-1] {
		if _, err := e.Join(ctx); err != nil {
			return err
		}
	}
	if m.mode == "gue" || m.mode == "ipip" {
		for _, n := range m.Nodes {
			if err := m.StartAgent(ctx, n); err != nil {
				return err
			}
		}
	}
	return cluster.Until(ctx, "an answer from outside by the DirectorGroup", func() error { return m.Ask(ctx, edgeVIP).Err })
}

// nodeJoins measures how soon a node forwards after it was labeled. Then the node leaves.
func (m *measuring) nodeJoins(ctx context.Context) error {
	requests := site.Request(ctx, groupEvery, func(ctx context.Context) site.Answer { return m.Ask(ctx, edgeVIP) })
	defer requests.Close()
	e := m.Edges[len(m.Edges)-1]
	began, err := e.Join(ctx)
	if err != nil {
		return err
	}
	var route time.Time
	if err := cluster.Until(ctx, "the router to send to "+e.Name, func() error {
		hops, err := m.NextHops(edgeVIP)
		if err == nil && !slices.Contains(hops, e.Address) {
			err = fmt.Errorf("it sends to %v", hops)
		}
		route = time.Now()
		return err
	}); err != nil {
		return err
	}
	first, err := requests.By(ctx, e.Address)
	if err != nil {
		return err
	}
	m.since(nodeLabelled, routed, began, route)
	m.since(nodeLabelled, request, began, first)
	if err := e.Leave(ctx, edgeVIP); err != nil {
		return err
	}
	requests.Close()
	stories := requests.Failures(time.Time{})
	for _, story := range stories {
		say("  failed: %s", story)
	}
	m.add(nodeLabelled, failed, float64(len(stories)))
	m.add(nodeLabelled, made, float64(len(requests.Since(time.Time{}))))
	return nil
}
