package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
	"weir.io/weir/kube/follow"
	"weir.io/weir/kube/v1alpha1"
)

// tunnels are the addresses that tunnels may come from, and until when: a node that is no
// director any more goes on to forward for a while.
type tunnels map[netip.Addr]time.Time

// from takes in who the directors are now, and returns all whom packets may come from.
func (t tunnels) from(g *v1alpha1.DirectorGroup, now time.Time) []netip.Prefix {
	if g != nil {
		for _, d := range g.Status.Directors {
			for _, text := range d.Addresses {
				if a, err := netip.ParseAddr(text); err == nil {
					t[a] = now.Add(2 * (drainOf(g) + again)) // they learn of it later, perhaps
				}
			}
		}
	}
	maps.DeleteFunc(t, func(_ netip.Addr, until time.Time) bool { return now.After(until) })
	var list []netip.Prefix
	for _, a := range slices.SortedFunc(maps.Keys(t), netip.Addr.Compare) {
		list = append(list, netip.PrefixFrom(a, a.BitLen()))
	}
	return list
}

// agentFile returns the file of weir agent on a node: the services that have a backend which
// the node delivers tunnelled packets to.
func agentFile(services []decoded, from []netip.Prefix, f *facts) ([]byte, error) {
	mine := []model.Service{}
	for _, d := range services {
		for i := range d.documents {
			if s := &d.documents[i].Service; slices.ContainsFunc(s.Backends, func(b model.Backend) bool { return delivers(s, &b, f) }) {
				mine = append(mine, *s)
			}
		}
	}
	var text bytes.Buffer
	text.WriteString("# Written by weir-kube node.\n")
	encoder := json.NewEncoder(&text)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(map[string]any{"directors": from, "services": mine}); err != nil {
		return nil, fmt.Errorf("write the agent's file: %w", err)
	}
	if _, err := config.Parse("agent.yaml", text.Bytes()); err != nil {
		return nil, fmt.Errorf("what the node's services are is no agent's file: %w", err)
	}
	return text.Bytes(), nil
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

// writeAgent writes the agent's file. While there are no directors, and none has just been, it
// stays what it is: the group may be a new one.
func (n *Node) writeAgent(g *v1alpha1.DirectorGroup, f *facts, now time.Time) error {
	if err := n.sets.read(follow.List[v1alpha1.DirectorSet](n.set)); err != nil {
		return err
	}
	from := n.tunnels.from(g, now)
	if len(from) == 0 || len(f.addresses()) == 0 {
		return nil
	}
	var all []decoded
	for _, name := range slices.Sorted(maps.Keys(n.sets.decoded)) {
		all = append(all, n.sets.decoded[name])
	}
	text, err := agentFile(all, from, f)
	if err != nil {
		return err
	}
	return replace(n.AgentFile, text)
}
