package node

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/follow"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/v1alpha1"
)

// tunnels are the addresses that tunnels may come from, and until when: a node that is no longer a
// director goes on forwarding for a while.
type tunnels map[tunnel]time.Time

// tunnel is the address of a group's director.
type tunnel struct {
	group string
	from  netip.Addr
}

// from takes in the current directors of groups, and returns all from which packets may come.
func (t tunnels) from(groups []*v1alpha1.DirectorGroup, now time.Time) []netip.Prefix {
	for _, g := range groups {
		for _, d := range g.Status.Directors {
			for _, text := range d.Addresses {
				if a, err := netip.ParseAddr(text); err == nil {
					t[tunnel{g.Name, a}] = now.Add(lingers(g))
				}
			}
		}
	}
	maps.DeleteFunc(t, func(_ tunnel, until time.Time) bool { return now.After(until) })
	var list []netip.Prefix
	for of := range t {
		list = append(list, netip.PrefixFrom(of.from, of.from.BitLen()))
	}
	slices.SortFunc(list, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return slices.Compact(list)
}

// of returns the addresses of a group's directors.
func (t tunnels) of(group string) (list []netip.Addr) {
	for of := range t {
		if of.group == group {
			list = append(list, of.from)
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}

// lingers is how long packets may come from former directors, or those of a removed group: they may
// learn of it later.
func lingers(g *v1alpha1.DirectorGroup) time.Duration { return 2 * (drainOf(g) + again) }

// agentFile returns the file of weir agent on a node: the services that have a backend which the
// node delivers tunneled packets to, also at node ports of directors, as ports returns them.
func agentFile(services []decoded, ports func(*decoded) []model.Document, from []netip.Prefix, f *facts, interfaces, replies []string) ([]byte, error) {
	mine := []model.Service{}
	for _, d := range services {
		documents := slices.Concat(d.documents, ports(&d))
		for i := range documents {
			if s := &documents[i].Service; slices.ContainsFunc(s.Backends, func(b model.Backend) bool { return delivers(s, &b, f) }) {
				mine = append(mine, *s)
			}
		}
	}
	text, err := written("agent.yaml", "Written by weir-kube node.", map[string]any{"agent": agentOf(interfaces, replies), "directors": from, "services": mine})
	if err != nil {
		return nil, fmt.Errorf("what the node's services are is no agent's file: %w", err)
	}
	return text, nil
}

func agentOf(interfaces, replies []string) map[string]any {
	agent := map[string]any{}
	if len(interfaces) > 0 {
		agent["interfaces"] = interfaces
	}
	if len(replies) > 0 {
		agent["reply-interfaces"] = replies
	}
	return agent
}

// toPods reports whether the Service's backends are pods that agents deliver to.
func (d *decoded) toPods() bool {
	return slices.ContainsFunc(d.documents, func(d model.Document) bool {
		return slices.ContainsFunc(d.Service.Backends, func(b model.Backend) bool { return b.Host.IsValid() })
	})
}

// delivers reports whether a node's agent delivers a backend's packets: it is one of the node's
// pods, or the node itself.
func delivers(s *model.Service, b *model.Backend, f *facts) bool {
	if mode := b.ModeIn(*s); mode != model.GUE && mode != model.IPIP {
		return false
	}
	at := b.Address
	if b.Host.IsValid() {
		at = b.Host
	}
	return slices.Contains(f.addresses(), at)
}

// writeAgent writes the agent's file. While there are no directors, and were none lately, an
// existing file stays as it is: the group may be a new one.
func (n *Node) writeAgent(groups []*v1alpha1.DirectorGroup, f *facts, now time.Time) error {
	n.forgetGroups(groups, now)
	if err := n.sets.read(follow.List[v1alpha1.DirectorSet](n.set)); err != nil {
		return err
	}
	from := n.tunnels.from(groups, now)
	if len(from) == 0 || len(f.addresses()) == 0 {
		if _, err := os.Stat(n.AgentFile); err == nil {
			return nil
		}
	}
	var all []decoded
	for _, name := range slices.Sorted(maps.Keys(n.sets.decoded)) {
		// For nodes it would need the VIP on lo, and sysctls that a container cannot write;
		// kube-proxy, and the kernel's own tunnel device, need neither.
		if d := n.sets.decoded[name]; n.Group != "" || d.toPods() {
			all = append(all, d)
		}
	}
	ports := func(d *decoded) []model.Document {
		return d.atDirectors(n.ports.of(d, now), n.tunnels.of(d.group))
	}
	text, err := agentFile(all, ports, from, f, n.AgentInterfaces, n.AgentReplies)
	if err != nil {
		return err
	}
	return replace(n.AgentFile, text)
}

// forgetGroups takes out what removed groups forwarded, when their directors have stopped: other
// groups may have the Services.
func (n *Node) forgetGroups(groups []*v1alpha1.DirectorGroup, now time.Time) {
	for _, g := range groups {
		n.forwarding[g.Name] = now.Add(lingers(g))
	}
	for name, o := range n.sets.objects {
		if now.After(n.forwarding[o.Spec.Group]) {
			n.sets.forget(name)
		}
	}
}

// writeOnce writes the agent's file, if there is none: an agent that starts needs one, and an
// existing one is what ran before.
func (n *Node) writeOnce() error {
	if _, err := os.Stat(n.AgentFile); err == nil {
		return nil
	}
	text, err := agentFile(nil, nil, []netip.Prefix{}, &facts{}, n.AgentInterfaces, n.AgentReplies)
	if err != nil {
		return err
	}
	return replace(n.AgentFile, text)
}

// reportAgent reports to the controller that the node's agent runs, once it has. Pods of nodes without
// an agent get nothing in the modes that need it.
func (n *Node) reportAgent(ctx context.Context, now time.Time) error {
	if n.AgentSocket == "" {
		return nil
	}
	// It listens when it has done what its file says.
	p := group.AgentPresence{Node: n.Node}
	conn, err := net.Dial("unix", n.AgentSocket)
	switch {
	case err == nil:
		conn.Close()
		n.agentRan = now
	case n.agentRan.IsZero():
		return nil
	case now.Sub(n.agentRan) >= group.Silence: // it may only be restarting, and what it has set up goes on
		p.Unfit = "weir agent does not run"
	}
	ctx, cancel := context.WithTimeout(ctx, group.Renew)
	defer cancel()
	return n.agentLease.renew(ctx, n.ownerOfAgent(), p.String(), nil, now)
}

// ownerOfAgent is the Node, the owner of the agent's Lease; none, if it is in another cluster than
// the Lease.
func (n *Node) ownerOfAgent() *metav1.OwnerReference {
	if node := follow.One[corev1.Node](n.node, n.Node); node != nil && !n.elsewhere {
		return &metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
	}
	return nil
}
