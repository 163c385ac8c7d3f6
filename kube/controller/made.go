package controller

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/gateway"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// made is what a Service or a Gateway was translated to, and from what. The API server's objects
// are not changed but replaced, so the same object says the same.
type made struct {
	of       inputs
	services []model.Service // with defaults; the same slice while they do not change
	texts    [][]byte        // the services as JSON, once needed
	usage    *usage          // what the services take, once needed
	problems []translate.Problem
	ports    []v1alpha1.ServiceNodePort           // node ports that directors are to take
	asks     map[translate.Place][]netip.AddrPort // the pods that directors have to know the way to
}

type inputs struct {
	service   *corev1.Service
	slices    []*discoveryv1.EndpointSlice
	gateway   []any // the same for a Gateway
	balancer  *translate.LoadBalancer
	addresses []netip.Addr
	policy    *translate.ServicePolicy
	group     *translate.DirectorGroup
	cluster   *translate.Cluster
	ways      *translate.Ways
	namespace map[string]string // its labels, where it is a LoadBalancer
}

func (a inputs) same(b inputs) bool {
	return a.service == b.service && a.balancer == b.balancer && a.policy == b.policy && a.group == b.group && a.cluster == b.cluster && a.ways == b.ways && slices.Equal(a.slices, b.slices) && slices.Equal(a.gateway, b.gateway) && slices.Equal(a.addresses, b.addresses) && maps.Equal(a.namespace, b.namespace)
}

// endpoints returns all EndpointSlices.
func (i *inputs) endpoints() []*discoveryv1.EndpointSlice {
	list := i.slices
	for _, o := range i.gateway {
		if s, is := o.(*discoveryv1.EndpointSlice); is {
			list = append(list, s)
		}
	}
	return list
}

// translate makes directors' services from Kubernetes' ones, where an input is new.
func (p *plan) translate(o translate.Options, slicesOf func(*corev1.Service) []*discoveryv1.EndpointSlice, namespaceOf func(metav1.Object) map[string]string) {
	for w := range p.unsettled {
		group, policy := p.governs(w, namespaceOf)
		if group != w.group {
			w.group, p.recount = group, true
			p.revision++
		}
		if policy != w.policy {
			w.policy, p.recount = policy, true
		}
		of := inputs{service: w.service, balancer: w.balancer, addresses: w.addresses, policy: policy, group: group, cluster: p.cluster}
		if group != nil {
			of.ways = p.ways[group.Of.UID]
		}
		switch {
		case w.gateway != nil:
			of.gateway = w.gateway.Sources(slicesOf)
		case w.service != nil:
			of.slices = slicesOf(w.service)
		default:
			of.namespace = namespaceOf(w.balancer.Of)
		}
		if !of.same(w.made.of) {
			p.make(w, o, of, slicesOf)
		}
		w.problems[forwarding] = w.made.problems
	}
}

// make translates one Service or Gateway. It depends on nothing but these inputs.
func (p *plan) make(w *wish, o translate.Options, of inputs, slicesOf gateway.Endpoints) {
	o = optionsOf(o, of.group, of.policy)
	o.Ways = of.ways
	p.work.translated++
	var services []model.Service
	var problems []translate.Problem
	switch {
	case w.gateway != nil:
		services, problems = w.gateway.Services(o, of.addresses, slicesOf, of.cluster)
	case w.service != nil:
		services, problems = translate.Services(o, of.service, of.slices, of.addresses, of.cluster)
	case of.group != nil:
		services, problems = w.balancer.Services(o, of.addresses)
		if !w.leaves.IsZero() && len(of.group.RefusesServices(services, w.balancer.Of.Namespace, of.namespace)) > 0 {
			services = nil // nobody asks whether it may have a group
		}
		w.kept = len(services) == 0 && len(problems)+len(w.problems[asking]) > 0
		if w.kept {
			var refused []translate.Problem
			services, refused = p.last(w, &of)
			problems = append(problems, refused...)
		}
	}
	asks := o.Asks(of.service, of.endpoints())
	ports, lacks := of.group.NodePorts(o, of.service)
	problems = append(problems, lacks...)
	if !slices.Equal(ports, w.made.ports) {
		p.revision++
	}
	if why := valid(services); why != "" {
		services, problems = nil, append(problems, translate.Problem{Reason: translate.NotForward, Message: why})
	}
	if reflect.DeepEqual(services, w.made.services) {
		services = w.made.services
	} else {
		p.revision++
	}
	texts, usage := w.made.texts, w.made.usage
	if len(services) == 0 || len(w.made.services) == 0 || &services[0] != &w.made.services[0] {
		texts, usage = nil, nil
	}
	w.made = made{of, services, texts, usage, problems, ports, asks}
}

// last returns what directors forward for a LoadBalancer whose spec has become wrong: that goes on, if
// it is still of the same group and addresses, and the group's rules, which may have become others, too, still
// let its namespace have it. It also returns what they refuse.
func (p *plan) last(w *wish, of *inputs) ([]model.Service, []translate.Problem) {
	services := w.made.services
	if len(services) == 0 && p.written != nil {
		services = p.written(of.group.Of.Name, w.key())
	}
	for i := range services {
		if s := &services[i]; w.made.of.group != nil && w.made.of.group.Of.UID != of.group.Of.UID || s.Segment != w.balancer.Segment || !slices.Contains(of.addresses, s.VIP) {
			return nil, nil
		}
	}
	if refused := of.group.RefusesServices(services, w.balancer.Of.Namespace, of.namespace); len(refused) > 0 {
		return nil, refused
	}
	return services, nil
}

// valid gives services their defaults, and says what is wrong with the first one that no director
// would take.
func valid(services []model.Service) string {
	wrong := wrongOf(services)
	for i := range services {
		if why := wrong[i]; why != "" {
			return fmt.Sprintf("%s: %s", services[i].Name, why)
		}
	}
	return ""
}

// wrongOf gives services their defaults, and returns what is wrong with some of them beside the
// others, by their numbers. How much room directors have does not matter.
func wrongOf(services []model.Service) map[int]string {
	c := model.Config{Services: services}
	c.Director.Limits = model.MostLimits
	c.SetDefaults()
	var errs model.FieldErrors
	errors.As(c.Validate(), &errs)
	wrong := map[int]string{}
	for _, e := range errs {
		if i, found := serviceIn(e.Path); found && i < len(services) && wrong[i] == "" {
			wrong[i] = e.Problem
		}
	}
	return wrong
}

// part is a service for directors, and its wish.
type part struct {
	service model.Service
	text    []byte // the service as JSON
	whose   *wish
}

// parts returns everything that the file's directors are to forward.
func (p *plan) parts() ([]part, error) {
	parts := make([]part, 0, len(p.of)) // most have one port and one address
	for _, w := range p.of {
		if w.group != nil || w.over {
			continue
		}
		if w.made.texts == nil {
			for i := range w.made.services {
				text, err := json.Marshal((*model.StoredService)(&w.made.services[i]))
				if err != nil {
					return nil, fmt.Errorf("write service %s: %w", w.made.services[i].Name, err)
				}
				w.made.texts = append(w.made.texts, text)
				p.work.written++
			}
		}
		for i, s := range w.made.services {
			parts = append(parts, part{service: s, text: w.made.texts[i], whose: w})
		}
	}
	return parts, nil
}

// setText writes the set of these parts as JSON.
func setText(parts []part) []byte {
	var text bytes.Buffer
	size := len(`{"services":[]}`)
	for _, p := range parts {
		size += len(p.text) + 1
	}
	text.Grow(size)
	text.WriteString(`{"services":[`)
	for i, p := range parts {
		if i > 0 {
			text.WriteByte(',')
		}
		text.Write(p.text)
	}
	text.WriteString("]}")
	return text.Bytes()
}
