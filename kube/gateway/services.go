package gateway

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/translate"
)

// Endpoints finds the EndpointSlices of a Service.
type Endpoints func(*corev1.Service) []*discoveryv1.EndpointSlice

// Sources returns all objects that Services makes its services of. The API server's objects are not
// changed but replaced: while the objects are the same, so are the services.
func (g *Gateway) Sources(endpoints Endpoints) []any {
	list := []any{g.Of, g.Accepted()}
	for _, l := range g.Listeners {
		if l.wrong() || len(l.routes) == 0 {
			continue
		}
		list = append(list, l.Of.Name, l.routes[0].Of)
		for _, t := range l.routes[0].to {
			list = append(list, t.service)
			for _, s := range endpoints(t.service) {
				list = append(list, s)
			}
		}
	}
	return list
}

// Services returns what directors forward for a Gateway that has these addresses: a service
// for each listener that has a route, and each address.
func (g *Gateway) Services(o translate.Options, addresses []netip.Addr, endpoints Endpoints, c *translate.Cluster) ([]model.Service, []translate.Problem) {
	if !g.Accepted() {
		return nil, nil
	}
	why := o.LacksAgents()
	if o.Mode != model.NAT && !o.ByAgent() {
		why = fmt.Sprintf("Gateways are forwarded in mode nat, or to pods, and not in %s to nodes: these know addresses of Services alone", o.Mode)
	}
	if why != "" {
		return nil, []translate.Problem{{Reason: translate.Unsupported, Message: why}}
	}
	o, problems := o.InGUE()
	var list []model.Service
	for _, l := range g.Listeners {
		if l.wrong() || len(l.routes) == 0 || len(l.routes[0].to) == 0 {
			continue
		}
		for _, vip := range addresses {
			to := slices.DeleteFunc(slices.Clone(l.routes[0].to), func(b backend) bool { return !b.reached(o.To()) })
			if len(to) == 0 {
				continue
			}
			// No name of a Service has as many parts.
			s := o.Service(fmt.Sprintf("gateway/%s/%s", g.Of.Namespace, g.Of.Name), vip, l.Protocol, l.Of.Port)
			var lacks []translate.Problem
			s.Backends, lacks = backends(o, to, endpoints, pool.FamilyOf(vip), c)
			problems = translate.AddNew(problems, lacks)
			checked := &corev1.Service{}
			if len(to) == 1 {
				checked = to[0].service // the Service may have a port of its own for checks
			}
			s.Health = translate.HealthCheck(o, checked, l.Protocol)
			list = append(list, s)
		}
	}
	return list, problems
}

// backends returns the pods or nodes of all Services of a route. A Service has its share however
// many backends serve it, so its weight is divided among its backends by their own weights. The
// scale does not depend on their number: pods that come and go change only the weights of their own
// Service.
func backends(o translate.Options, to []backend, endpoints Endpoints, family pool.Family, c *translate.Cluster) (list []model.Backend, problems []translate.Problem) {
	most := int32(0)
	for _, t := range to {
		most = max(most, t.weight)
	}
	list = []model.Backend{}
	places := map[netip.AddrPort]int{}
	ends := map[netip.Addr]netip.AddrPort{}
	for _, t := range to {
		found, lacks := translate.Backends(o, t.service, t.port, endpoints(t.service), family, c)
		problems = translate.AddNew(problems, lacks)
		whole := 0
		for _, b := range found {
			if b.State != model.Draining {
				whole += int(b.Weight)
			}
		}
		for _, b := range found {
			b.Weight = share(b.Weight, whole, t.weight, most)
			b.Name = longName(t.name+b.Name, &b)
			place := netip.AddrPortFrom(b.Address, b.Port)
			at, twice := places[place]
			if other, is := ends[b.Address]; is && other != place && o.Mode == model.IPIP {
				problems = translate.AddNew(problems, []translate.Problem{translate.SamePod(place)})
				continue
			}
			ends[b.Address] = place
			if !twice {
				places[place] = len(list)
				list = append(list, b)
				continue
			}
			// Two Services may have the same pods.
			first := &list[at]
			first.Weight = uint16(min(int(first.Weight)+int(b.Weight), math.MaxUint16))
			if first.State == model.Draining {
				first.State = b.State
			}
		}
	}
	slices.SortFunc(list, func(a, b model.Backend) int { return cmp.Compare(a.Name, b.Name) })
	return list, problems
}

// share returns the weight of a backend with the weight own among the sum whole of its Service,
// where the Service has the weight weight and the greatest weight of a Service is most. The
// greatest share becomes the greatest possible weight; any share becomes some weight.
func share(own uint16, whole int, weight, most int32) uint16 {
	if weight <= 0 || own == 0 {
		return 0
	}
	exact := math.MaxUint16 * float64(weight) / float64(most) * float64(own) / float64(max(whole, int(own)))
	return uint16(max(1, math.Round(exact)))
}

// longName returns the name, or the backend's address and port if the name is too long.
func longName(name string, b *model.Backend) string {
	if len(name) > model.MaxNameLength {
		return netip.AddrPortFrom(b.Address, b.Port).String()
	}
	return name
}
