package translate

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/utils/ptr"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/v1alpha1"
)

// The reasons of problems of LoadBalancers.
const (
	NotAllowed Reason = v1alpha1.ReasonNotAllowed // its namespace may not use a segment or an address
	Conflict   Reason = v1alpha1.ReasonConflict   // another LoadBalancer has an address
	NoGroup    Reason = v1alpha1.ReasonNoGroup    // no DirectorGroup can forward it
)

// down is the adminState of what is not to be forwarded.
const down = "down"

// LoadBalancer is a LoadBalancer that was read.
type LoadBalancer struct {
	Of        *v1alpha1.LoadBalancer
	Segment   model.Segment // of its addresses
	Addresses []netip.Addr  // that it asks for; none: it takes them from pools

	listeners []listener
}

// listener is a listener that was read.
type listener struct {
	of       *v1alpha1.LoadBalancerListener
	at       string // its path
	protocol model.Protocol
	ports    model.PortRange
	ranges   map[pool.Family][]netip.Prefix // nil: everywhere
	members  string                         // the path of its members
	backends []model.Backend
}

// ReadLoadBalancer returns what a LoadBalancer says, or also what is wrong with it that its schema
// cannot refuse: then it has no listeners.
func ReadLoadBalancer(b *v1alpha1.LoadBalancer) (*LoadBalancer, error) {
	read := &LoadBalancer{Of: b}
	err := readTexts("spec.", []text{{"segment", string(b.Spec.Segment), &read.Segment}})
	if err == nil {
		read.Addresses, err = addresses("spec.addresses", b.Spec.Addresses)
	}
	if err == nil {
		read.listeners, err = readListeners(b)
	}
	return read, err
}

func readListeners(b *v1alpha1.LoadBalancer) (list []listener, err error) {
	shared, err := readMembers("spec.members", b.Spec.Members)
	if err != nil {
		return nil, err
	}
	for i := range b.Spec.Listeners {
		of := &b.Spec.Listeners[i]
		l := listener{of: of, at: fmt.Sprintf("spec.listeners[%d].", i), members: "spec.members", backends: shared}
		if err := readTexts(l.at, []text{{"protocol", of.Protocol, &l.protocol}, {"ports", of.Ports, &l.ports}}); err != nil {
			return nil, err
		}
		if len(of.Members) > 0 {
			l.members = l.at + "members"
			if l.backends, err = readMembers(l.members, of.Members); err != nil {
				return nil, err
			}
		}
		ranges, err := prefixes(l.at+"sourceRanges", of.SourceRanges)
		if err != nil {
			return nil, err
		}
		for _, p := range ranges {
			if l.ranges == nil {
				l.ranges = map[pool.Family][]netip.Prefix{}
			}
			l.ranges[pool.FamilyOf(p.Addr())] = append(l.ranges[pool.FamilyOf(p.Addr())], p)
		}
		list = append(list, l)
	}
	return list, nil
}

// readMembers returns members as backends.
func readMembers(at string, list []v1alpha1.LoadBalancerMember) (read []model.Backend, err error) {
	read = make([]model.Backend, len(list))
	for i := range list {
		m, b := &list[i], &read[i]
		*b = model.NewBackend()
		b.Name, b.Port, b.VLAN, b.VNI, b.Tier = m.Name, uint16(m.Port), uint16(m.VLAN), uint32(m.VNI), uint8(min(max(m.Tier, 0), model.MaxTier+1))
		if m.Weight != nil {
			b.Weight = uint16(*m.Weight)
		}
		texts := []text{{"address", string(m.Address), &b.Address}, {"state", m.State, &b.State}, {"mac", m.MAC, &b.MAC},
			{"vtep", string(ptr.Deref(m.VTEP, "")), &b.VTEP}, {"geneveOptions", m.GeneveOptions, &b.GeneveOptions}, {"host", string(ptr.Deref(m.Host, "")), &b.Host}}
		if c := m.Check; c != nil {
			b.Check = &model.BackendCheck{Port: uint16(c.Port)}
			texts = append(texts, text{"check.address", string(ptr.Deref(c.Address, "")), &b.Check.Address})
		}
		if m.Segment != "" {
			b.Segment = new(model.Segment)
			texts = append(texts, text{"segment", string(m.Segment), b.Segment})
		}
		if err := readTexts(fmt.Sprintf("%s[%d].", at, i), texts); err != nil {
			return nil, err
		}
	}
	return read, nil
}

// Name returns the name that the LoadBalancer's addresses are assigned to.
func (b *LoadBalancer) Name() pool.Service { return LoadBalancerName(b.Of) }

// LoadBalancerName returns the name that a LoadBalancer's addresses are assigned to.
func LoadBalancerName(b *v1alpha1.LoadBalancer) pool.Service {
	return pool.Service{Kind: pool.LoadBalancer, Namespace: b.Namespace, Name: b.Name}
}

// Request returns which addresses of pools it asks for: none in a segment.
func (b *LoadBalancer) Request() pool.Request {
	r := pool.Request{Service: b.Name(), Pool: b.Of.Spec.AddressPool}
	if b.Segment != (model.Segment{}) {
		return r
	}
	for _, text := range b.Of.Status.Addresses {
		if a, err := netip.ParseAddr(text); err == nil && b.Of.Status.Segment == "" {
			r.Had = append(r.Had, a)
		}
	}
	r.Wanted = b.Addresses
	for _, a := range b.Addresses {
		r.Families = append(r.Families, pool.FamilyOf(a))
	}
	for _, f := range b.Of.Spec.Families {
		r.Families = append(r.Families, pool.Family(f == "ipv6"))
	}
	if len(r.Families) == 0 {
		r.Families = []pool.Family{pool.IPv4}
	}
	return r
}

// Families returns the families of the addresses that it is to have.
func (b *LoadBalancer) Families() []pool.Family {
	if b.Segment == (model.Segment{}) {
		return b.Request().Families
	}
	var list []pool.Family
	for _, a := range b.Addresses {
		if f := pool.FamilyOf(a); !slices.Contains(list, f) {
			list = append(list, f)
		}
	}
	return list
}

// Leaving returns the LoadBalancer with draining members: their connections go on, and they get no
// new ones.
func (b *LoadBalancer) Leaving() *LoadBalancer {
	leaving := *b
	leaving.listeners = slices.Clone(b.listeners)
	for i := range leaving.listeners {
		l := &leaving.listeners[i]
		l.backends = slices.Clone(l.backends)
		for j := range l.backends {
			l.backends[j].State = model.Draining
		}
	}
	return &leaving
}

// Down reports whether nothing of it is to be forwarded.
func (b *LoadBalancer) Down() bool {
	return b.Of.Spec.AdminState == down || !slices.ContainsFunc(b.listeners, func(l listener) bool { return l.of.AdminState != down })
}

// IsDown reports whether nothing of its listener of this number is to be forwarded.
func (b *LoadBalancer) IsDown(listener int) bool {
	return b.Of.Spec.AdminState == down || b.Of.Spec.Listeners[listener].AdminState == down
}

// NeedsSource reports whether directors with these options need an address of their own to send from.
func (b *LoadBalancer) NeedsSource(o Options) bool {
	return slices.ContainsFunc(b.listeners, func(l listener) bool {
		mode, snat := cmp.Or(l.of.Mode, o.Mode.String()), ptr.Deref(l.of.SNAT, o.SNAT)
		return mode == model.NAT.String() && snat
	})
}

// Refuses says what a group's directors may not, or cannot, do of it for a namespace with these
// labels, each with its place; none: nothing.
func (g *DirectorGroup) Refuses(b *LoadBalancer, namespace map[string]string) []Problem {
	r := rules{group: g, namespace: b.Of.Namespace, labels: namespace}
	if !g.Selects(b.Of, namespace) {
		r.refuse(NotAllowed, "spec.group", "DirectorGroup %s selects by its namespaceSelector and serviceSelector other namespaces or labels than those of %s", g.Of.Name, b.Name())
	}
	if b.Segment != (model.Segment{}) {
		if s := r.segment("spec.segment", b.Segment); s != nil {
			for i, a := range b.Addresses {
				r.vip(fmt.Sprintf("spec.addresses[%d]", i), s, a)
			}
		}
	}
	for i := range b.listeners {
		l := &b.listeners[i]
		s := model.Service{Segment: b.Segment, Mode: g.Options.Mode, SNAT: ptr.Deref(l.of.SNAT, g.Options.SNAT)}
		_ = readTexts("", []text{{"mode", l.of.Mode, &s.Mode}}) // Services says what is wrong with it
		for j := range l.backends {
			r.member(&s, &l.backends[j], fmt.Sprintf("%s[%d]", l.members, j), l.at)
		}
	}
	return r.problems
}

// RefusesServices is Refuses for services of a namespace that directors forward already, whatever its
// LoadBalancer says now.
func (g *DirectorGroup) RefusesServices(services []model.Service, namespace string, labels map[string]string) []Problem {
	r := rules{group: g, namespace: namespace, labels: labels}
	for i := range services {
		s := &services[i]
		if s.Segment != (model.Segment{}) {
			if own := r.segment(s.Name, s.Segment); own != nil {
				r.vip(s.Name, own, s.VIP)
			}
		}
		for j := range s.Backends {
			r.member(s, &s.Backends[j], fmt.Sprintf("member %s of %s", s.Backends[j].Name, s.Name), s.Name+".")
		}
	}
	return r.problems
}

// rules are those of a group for one namespace, and what they refuse of it.
type rules struct {
	group     *DirectorGroup
	namespace string
	labels    map[string]string // of the namespace
	problems  []Problem
}

func (r *rules) refuse(why Reason, at, format string, args ...any) {
	r.problems = AddNew(r.problems, problem(why, at+": "+format, args...))
}

// segment returns what the group says of a segment; nil: the namespace may not use it.
func (r *rules) segment(at string, id model.Segment) *Segment {
	s := r.group.Segment(id)
	if s == nil || !s.admits(r.namespace, r.labels) {
		r.refuse(NotAllowed, at, "DirectorGroup %s does not let namespace %s use segment %s", r.group.Of.Name, r.namespace, id)
		return nil
	}
	return s
}

func (r *rules) vip(at string, in *Segment, vip netip.Addr) {
	if !in.hasVIP(vip) {
		r.refuse(NotAllowed, at, "%s is in none of the prefixes that DirectorGroup %s lets VIPs of segment %s be in", vip, r.group.Of.Name, in.Settings.ID)
	}
}

// member checks a member of a service, which has its segment, its mode and snat. Its place is at, and that of the
// service's fields begins with of.
func (r *rules) member(s *model.Service, m *model.Backend, at, of string) {
	g, none := r.group, model.Segment{}
	in, field := m.TenantIn(s), ".segment"
	if in == none { // the directors' routes lead there, to whatever has the address
		for _, one := range []struct {
			field   string
			address netip.Addr
		}{{".address", m.Address}, {".host", m.Host}, {".check.address", m.ProbedAt()}} {
			if one.address.IsValid() && !g.mayReach(one.address, r.namespace, r.labels) {
				r.refuse(NotAllowed, at+one.field, "DirectorGroup %s does not let namespace %s have members at %s outside of segments: its spec.members says which it may have", g.Of.Name, r.namespace, one.address)
			}
		}
	}
	if tag := m.Tag(); tag != 0 && in.Kind != model.SegmentVLAN { // packets leave with it, whatever the VIP's segment is
		in = model.Segment{Kind: model.SegmentVLAN, ID: uint32(tag)}
	}
	if m.VLAN != 0 {
		field = ".vlan"
	}
	if in == none {
		return
	}
	own := g.Segment(in)
	if in != s.Segment || m.Segment != nil || m.VLAN != 0 || m.VNI != 0 { // else it was asked for the VIP's segment
		own = r.segment(at+field, in)
	}
	if own == nil {
		return
	}
	if tunnels := s.Mode == model.IPIP || s.Mode == model.GUE; tunnels && m.Segment != nil && !g.hasOwn(in, m.Address.Is6()) {
		r.refuse(NoGroup, at+field, "%s needs an address of each director in %s, from which its tunnels come: directors of DirectorGroup %s have none of the family of %s", s.Mode, in, g.Of.Name, m.Address)
	}
	if wire := own.Settings.Wire(); m.VNI != 0 && own.Settings.Network != "" && own.Settings.VNI == 0 {
		r.refuse(NotAllowed, at+".vni", "OVN says which VNI segment %s has: DirectorGroup %s gives it network %s, and no vni", in, g.Of.Name, own.Settings.Network)
	} else if m.VNI != 0 && m.VNI != wire.ID {
		r.refuse(NotAllowed, at+".vni", "%d is another network than segment %s, whose VNI in DirectorGroup %s is %d", m.VNI, in, g.Of.Name, wire.ID)
	}
	if why := g.refusesVTEP(own, m.VTEP); why != "" {
		r.refuse(NotAllowed, at+".vtep", "%s", why)
	}
	// What it sends from its address and port leaves in the network of the VIP, whoever has opened the connection.
	if s.Mode == model.NAT && !s.SNAT && in.IsOverlay() && in != s.Segment {
		r.refuse(NotAllowed, of+"snat", "without snat a member in segment %s (%s) could open connections into segment %s, where the addresses are: give snat: true", in, at, s.Segment)
	}
}

// Services returns what directors forward for a LoadBalancer that has these addresses, a service for
// each of its listeners and addresses, and what a user has to know about it, each with its place. If
// any part of it cannot be forwarded, nothing is: half of it would be worse than none.
func (b *LoadBalancer) Services(o Options, addresses []netip.Addr) (list []model.Service, problems []Problem) {
	if b.Of.Spec.AdminState == down {
		return nil, nil
	}
	var of []*listener
	wrong := false
	for i := range b.listeners {
		l := &b.listeners[i]
		if l.of.AdminState == down {
			continue
		}
		s, notes, err := b.service(l, o)
		problems = AddNew(problems, notes)
		if err != nil {
			problems, wrong = append(problems, Problem{Unsupported, err.Error()}), true
			continue
		}
		for _, vip := range addresses {
			if l.ranges != nil && len(l.ranges[pool.FamilyOf(vip)]) == 0 {
				problems = append(problems, problem(Unsupported, "%ssourceRanges: has no %s prefix, so nobody may reach %s, and it is not forwarded there", l.at, pool.FamilyOf(vip), vip)...)
				continue
			}
			one := s
			one.Name, one.VIP, one.SourceRanges = fmt.Sprintf("%s/%s", b.listenerName(l.of.Name), vip), vip, l.ranges[pool.FamilyOf(vip)]
			one.Backends = slices.Clone(s.Backends)
			list, of = append(list, one), append(of, l)
		}
	}
	if wrong {
		return nil, problems
	}
	if bad := b.refused(list, of); len(bad) > 0 {
		return nil, AddNew(problems, bad)
	}
	return list, problems
}

// listenerName begins the names of a listener's services. No name of a Service has as many parts.
func (b *LoadBalancer) listenerName(listener string) string {
	return fmt.Sprintf("loadbalancer/%s/%s/%s", b.Of.Namespace, b.Of.Name, listener)
}

// ListenerOf returns the name of the listener that a service of the LoadBalancer is of.
func (b *LoadBalancer) ListenerOf(service string) string {
	name := strings.TrimPrefix(service, b.listenerName(""))
	name, _, _ = strings.Cut(name, "/")
	return name
}

// service returns a listener's service, without address.
func (b *LoadBalancer) service(l *listener, o Options) (s model.Service, notes []Problem, err error) {
	if err := readTexts(l.at, []text{{"mode", l.of.Mode, &o.Mode}}); err != nil {
		return s, nil, err
	}
	o.SNAT = ptr.Deref(l.of.SNAT, o.SNAT)
	if o, err = o.placed(l.at, &l.of.Placement); err != nil {
		return s, nil, err
	}
	if o.Mode == model.GUE && o.Policy != model.Maglev {
		notes = problem(Unsupported, "%spolicy: %s places a connection on any member, and in mode gue directors do not remember on which: it is forwarded with maglev", l.at, o.Policy)
		o.Policy = model.Maglev
	}
	o, _ = o.InGUE()
	s = model.Service{Segment: b.Segment, Protocol: l.protocol, Port: l.ports, Mode: o.Mode, SNAT: o.SNAT && o.Mode == model.NAT, Policy: o.Policy, Affinity: o.Affinity, AffinityPrefix: o.AffinityPrefix,
		Retention: o.Drain, MaxRetention: o.MaxDrain, MinHealthy: o.MinHealthy, Health: o.Health, Backends: slices.Clone(l.backends)}
	for i := range s.Backends {
		m := &s.Backends[i]
		if m.TenantIn(&s) == (model.Segment{}) && m.Tag() == 0 {
			m.MTU = o.MTU
		}
		if m.Port != 0 && o.Mode != model.NAT && !m.Host.IsValid() {
			if !l.ports.Single() || m.Port != l.ports.First {
				return s, notes, fmt.Errorf("%s[%d].port: %d is for mode nat, or with host: %s leaves the port as it is, %s", l.members, i, m.Port, o.Mode, l.ports)
			}
			m.Port = 0 // the packet's own
		}
	}
	return s, notes, nil
}

// refused says what a director would refuse of services of these listeners, whatever others it has,
// with the places in the LoadBalancer.
func (b *LoadBalancer) refused(list []model.Service, of []*listener) (problems []Problem) {
	c := model.Config{Services: list}
	c.Director.Limits = model.MostLimits
	c.SetDefaults()
	var errs model.FieldErrors
	errors.As(c.Validate(), &errs)
	for _, e := range errs {
		i, field, found := serviceField(e.Path)
		if !found || i >= len(of) {
			continue // of the file that is not there
		}
		problems = AddNew(problems, problem(Unsupported, "%s: %s", of[i].place(field), e.Problem))
	}
	return problems
}

// serviceField takes the path of a field of a service apart: services[3].vip is vip of 3.
func serviceField(path string) (i int, field string, found bool) {
	if _, err := fmt.Sscanf(path, "services[%d]", &i); err != nil {
		return 0, "", false
	}
	_, field, _ = strings.Cut(path, "].")
	return i, field, true
}

// fields are the LoadBalancer's names of a service's and a backend's fields, where these differ.
var fields = map[string]string{"vip": "spec.addresses", "segment": "spec.segment", "port": "ports", "source-ranges": "sourceRanges", "retention": "drain", "max-retention": "maxDrain",
	"min-healthy": "minHealthy", "geneve-options": "geneveOptions"}

// place returns the place in a LoadBalancer of a field of a service of the listener's.
func (l *listener) place(field string) string {
	if member, is := strings.CutPrefix(field, "backends["); is {
		number, rest, _ := strings.Cut(member, "].")
		return fmt.Sprintf("%s[%s].%s", l.members, number, cmp.Or(fields[rest], rest))
	}
	name, rest, _ := strings.Cut(field, "[")
	own := cmp.Or(fields[name], name)
	if rest != "" {
		own += "[" + rest
	}
	if strings.HasPrefix(own, "spec.") {
		return own
	}
	return l.at + own
}
