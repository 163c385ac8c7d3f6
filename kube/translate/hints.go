package translate

import (
	"slices"

	"weir.io/weir/internal/model"
)

// meantFor gives nodes the shares of the pods that are meant for them (hints.forNodes, which
// trafficDistribution PreferSameNode leads to), and drains the other nodes. A client outside is on
// no node, so such a hint does not say which pod it is to reach. But a node that gets its packets
// hands them only to the pods that are meant for the node (kube-proxy, KEP-3015): if all nodes had
// equal shares, pods would have unequal ones, and nodes without a pod would send packets on. As in
// kube-proxy, hints count if all endpoints that get connections have them; and some node has to be
// able to take the connections.
func meantFor(list []model.Backend, found []endpoint) []model.Backend {
	shares := map[string]int{}
	for _, e := range found {
		if e.draining {
			continue
		}
		if len(e.nodes) == 0 {
			return list
		}
		for _, n := range e.nodes {
			shares[n.Name] += int(e.weight) / len(e.nodes)
		}
	}
	if !slices.ContainsFunc(list, func(b model.Backend) bool { return b.State == model.Active && shares[b.Name] > 0 }) {
		return list
	}
	for i := range list {
		if share := shares[list[i].Name]; share > 0 {
			list[i].Weight = uint16(min(share, maxWeight))
		} else {
			list[i].State = model.Draining
		}
	}
	return list
}
