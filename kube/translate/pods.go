package translate

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/pool"
)

// gueDrain is how long rows name a pod that may still have connections, if no drain is given:
// directors remember no TCP that goes by gue, and agents do not report pods' connections. With a
// longer one, Services of many pods would wait for room in their logs when all pods are replaced.
const gueDrain = model.Duration(10 * time.Minute)

// InGUE adapts the options to mode gue, if that is the mode, and says what that mode cannot do.
func (o Options) InGUE() (Options, []Problem) {
	if o.Mode != model.GUE {
		return o, nil
	}
	if o.Drain == 0 {
		o.Drain = gueDrain
		if o.MaxDrain != 0 {
			o.Drain = min(o.Drain, o.MaxDrain)
		}
	}
	if o.Policy == model.Maglev {
		return o, nil
	}
	problems := problem(Unsupported, "policy %s of its ServicePolicy places a connection on any pod, and in mode gue directors do not remember on which: it is forwarded with maglev", o.Policy)
	o.Policy = model.Maglev
	return o, problems
}

// SamePod says that pods at an address and port get nothing in mode ipip, because the address
// serves at another port, too.
func SamePod(at netip.AddrPort) Problem {
	return Problem{NoWay, fmt.Sprintf("pods of %s get nothing: their address serves at another port already, and in mode ipip an agent knows a pod by its address alone; use gue", at)}
}

// pods returns the pods that directors send to without an agent.
func pods(found []endpoint) []model.Backend {
	list := make([]model.Backend, 0, len(found))
	names := map[string]bool{}
	for _, e := range found {
		list = append(list, e.backend(names))
	}
	return list
}

// backend returns the endpoint as a backend, with a name that is not among the known ones.
func (e *endpoint) backend(names map[string]bool) model.Backend {
	b := model.NewBackend()
	b.Name, b.Address, b.Port, b.Weight = e.name, e.at.Addr(), e.at.Port(), e.weight
	if names[b.Name] || len(validation.IsDNS1123Subdomain(b.Name)) > 0 { // no pod has this name, whatever the slice says
		b.Name = e.at.String()
	}
	names[b.Name] = true
	if e.draining {
		b.State = model.Draining
	}
	return b
}

// delivered returns the pods to which their nodes' agents deliver packets, and why others get
// nothing. Pods of a silent agent keep their connections and get no new ones, unless there are no
// others.
func (c *Cluster) delivered(o Options, found []endpoint, family pool.Family) ([]model.Backend, []Problem) {
	list := make([]model.Backend, 0, len(found))
	names, silent := map[string]bool{}, map[int]bool{}
	taken := map[netip.Addr]bool{}
	var without left
	var same []Problem
	active, heard := false, false
	for i := range found {
		e := &found[i]
		n, known := c.all[e.node]
		switch {
		case e.node == "":
			without.add(NoAgent, e.at.Addr().String(), "no EndpointSlice says on which node it is")
			continue
		case !known:
			without.add(NoAgent, e.node, "there is no such node")
			continue
		case n.Agent == AgentNone:
			without.add(NoAgent, e.node, "no weir agent runs there, which delivers packets in mode %s", o.Mode)
			continue
		}
		host, has := c.address(n, family, o.Mode)
		if !has {
			without.add(NoAgent, e.node, "it has no address")
			continue
		}
		if o.Mode == model.IPIP {
			if way := o.Ways.to(e.node, family); way != "" {
				without.add(NoWay, e.node, "%s; mode gue needs no way to pods", way)
				continue
			}
			if taken[e.at.Addr()] {
				same = append(same, SamePod(e.at))
				continue
			}
			taken[e.at.Addr()] = true
		}
		b := e.backend(names)
		b.Host = host
		active = active || b.State == model.Active
		if silent[len(list)] = n.Agent == AgentSilent; !silent[len(list)] {
			heard = heard || b.State == model.Active
		}
		list = append(list, b)
	}
	if !active {
		return []model.Backend{}, append(without.problems(), same...)
	}
	for i := range list {
		if heard && silent[i] {
			list[i].State = model.Draining
		}
	}
	return list, append(without.problems(), same...)
}

// left has the nodes, or addresses, whose pods get nothing, by reason.
type left map[Problem][]string

func (l *left) add(r Reason, who, why string, args ...any) {
	if *l == nil {
		*l = left{}
	}
	p := Problem{r, fmt.Sprintf(why, args...)}
	if !slices.Contains((*l)[p], who) {
		(*l)[p] = append((*l)[p], who)
	}
}

// mostNamed is how many nodes or addresses one message names.
const mostNamed = 5

func (l left) problems() (list []Problem) {
	for why, who := range l {
		slices.Sort(who)
		names := strings.Join(who[:min(len(who), mostNamed)], ", ")
		if len(who) > mostNamed {
			names += fmt.Sprintf(" and %d others", len(who)-mostNamed)
		}
		list = append(list, Problem{why.Reason, fmt.Sprintf("pods of %s get nothing: %s", names, why.Message)})
	}
	slices.SortFunc(list, func(a, b Problem) int { return strings.Compare(a.Message, b.Message) })
	return list
}

// Place stands for the pods of one node in a family.
type Place struct {
	Node   string
	Family pool.Family
}

// Ways say how packets of a group's directors get to pods' addresses. An unknown way does not count
// as one.
type Ways struct {
	known map[Place]string
}

// NewWays returns the known ways to nodes' pods: what is in the way; empty: nothing.
func NewWays(known map[Place]string) *Ways { return &Ways{maps.Clone(known)} }

// Same reports whether the ways are these.
func (w *Ways) Same(known map[Place]string) bool { return w != nil && maps.Equal(w.known, known) }

// to returns what is in the way to a node's pods; empty: nothing.
func (w *Ways) to(node string, family pool.Family) string {
	if w != nil {
		if why, known := w.known[Place{node, family}]; known {
			return why
		}
	}
	return NotLooked
}

// NotLooked is the obstacle of an unknown way.
const NotLooked = "directors have not looked yet how packets get to pods' addresses there"

// Asks returns the pods of a Service by node, or those of a Gateway if s is nil, if directors have
// to know the ways to them.
func (o Options) Asks(s *corev1.Service, list []*discoveryv1.EndpointSlice) map[Place][]netip.AddrPort {
	if s != nil {
		o, _ = o.of(s)
	}
	if !o.ByAgent() || o.Mode != model.IPIP {
		return nil
	}
	asks := map[Place][]netip.AddrPort{}
	for _, slice := range list {
		for _, p := range slice.Ports {
			if p.Port == nil || *p.Port < 1 || *p.Port > 65535 {
				continue
			}
			for i := range slice.Endpoints {
				if e, known := endpointOf(&slice.Endpoints[i], uint16(*p.Port)); known && !e.draining && e.node != "" {
					at := Place{e.node, pool.FamilyOf(e.at.Addr())}
					asks[at] = append(asks[at], e.at)
				}
			}
		}
	}
	return asks
}
