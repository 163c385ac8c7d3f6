package controller

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/tools/cache"

	"weir.io/weir/kube/follow"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/translate"
)

// agents returns what is known about nodes' agents, by node name, and when the next agent becomes
// silent if nothing is heard of it until then; the zero time: never. Leases of other namespaces do
// not count.
func (h *heard) agents(leases cache.SharedIndexInformer, namespace string, now time.Time) (by map[string]translate.Agent, next time.Time) {
	by = map[string]translate.Agent{}
	for _, l := range follow.List[coordinationv1.Lease](leases) {
		p, err := group.ReadAgentPresence(l.Annotations[group.AnnotationAgent])
		if err != nil || l.Namespace != namespace {
			continue
		}
		silent := h.last(l).Add(group.Silence)
		switch {
		case p.Unfit != "" || !now.Before(silent):
			by[p.Node] = translate.AgentSilent
		default:
			by[p.Node], next = translate.AgentRuns, sooner(next, silent)
		}
	}
	return by, next
}

// nodes returns the existing nodes, with their agents.
func (c *Controller) nodes(now time.Time) (nodes []translate.Node) {
	agents, next := c.heard.agents(c.cache.agent, c.Namespace, now)
	nodes, c.silence = c.cache.nodes(), next
	for i := range nodes {
		nodes[i].Agent = agents[nodes[i].Name]
	}
	return nodes
}

// silent reports whether some agent may not have been heard of for too long.
func (c *Controller) silent(now time.Time) bool {
	return !c.silence.IsZero() && !now.Before(c.silence)
}
