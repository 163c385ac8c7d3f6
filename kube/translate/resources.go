package translate

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/v1alpha1"
)

// text is a text of a custom resource that a type of the model parses.
type text struct {
	field, text string
	into        interface{ UnmarshalText([]byte) error }
}

// readTexts reads the texts that are given.
func readTexts(in string, list []text) error {
	for _, t := range list {
		if t.text == "" {
			continue
		}
		if err := t.into.UnmarshalText([]byte(t.text)); err != nil {
			return fmt.Errorf("%s%s: %w", in, t.field, err)
		}
	}
	return nil
}

// selector returns the selector of a custom resource; without one it selects everything.
func selector(field string, s *metav1.LabelSelector) (labels.Selector, error) {
	if s == nil {
		return labels.Everything(), nil
	}
	read, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return read, nil
}

func duration(d *v1alpha1.Duration) string { return string(ptr.Deref(d, "")) }

// AddressPool is an AddressPool that was read.
type AddressPool struct {
	pool.Pool
	services, namespaces labels.Selector
}

// ReadAddressPool returns what an AddressPool says, or what is wrong with it that its schema
// cannot refuse.
func ReadAddressPool(p *v1alpha1.AddressPool) (*AddressPool, error) {
	read := &AddressPool{Pool: pool.Pool{Name: p.Name, OnRequest: p.Spec.OnRequest, AvoidBuggy: p.Spec.AvoidBuggyIPs, Namespaces: p.Spec.Namespaces,
		AcrossNamespaces: p.Spec.ShareAcrossNamespaces}}
	for i, text := range p.Spec.Addresses {
		r, err := pool.ParseRange(string(text))
		if err != nil {
			return nil, fmt.Errorf("spec.addresses[%d]: %w", i, err)
		}
		read.Addresses = append(read.Addresses, r)
	}
	var err error
	if read.services, err = selector("spec.serviceSelector", p.Spec.ServiceSelector); err != nil {
		return nil, err
	}
	read.namespaces, err = selector("spec.namespaceSelector", p.Spec.NamespaceSelector)
	return read, err
}

// Excludes says why the pool is not for a Service or a Gateway in a namespace with these labels;
// empty: it is.
func (p *AddressPool) Excludes(o metav1.Object, namespace map[string]string) string {
	switch {
	case !p.services.Matches(labels.Set(o.GetLabels())):
		return "Services with its labels"
	case !p.namespaces.Matches(labels.Set(namespace)):
		return "namespaces with the labels of " + o.GetNamespace()
	}
	return ""
}

// DirectorGroup is a DirectorGroup that was read.
type DirectorGroup struct {
	Of       *v1alpha1.DirectorGroup
	Options  Options         // for Services that have no ServicePolicy
	Policies ServicePolicies // read with the group's options as defaults
	Notice   time.Duration   // before new generations place connections

	services, namespaces labels.Selector
	snatPorts            model.PortRange // of full NAT, at nodes' addresses
	segments             []*Segment
	members              []members      // outside of segments
	peers                []netip.Prefix // the VTEPs that packets of all segments without peers are taken from
}

// ReadDirectorGroup returns the options that Services have by a DirectorGroup over those of the
// controller's file, or what is wrong with the group that its schema cannot refuse.
func ReadDirectorGroup(g *v1alpha1.DirectorGroup, o Options) (*DirectorGroup, error) {
	read := &DirectorGroup{Of: g}
	var err error
	if read.services, err = selector("spec.serviceSelector", g.Spec.ServiceSelector); err != nil {
		return nil, err
	}
	if read.namespaces, err = selector("spec.namespaceSelector", g.Spec.NamespaceSelector); err != nil {
		return nil, err
	}
	var notice model.Duration
	if err := readTexts("spec.", []text{{"mode", g.Spec.Mode, &o.Mode}, {"backends", g.Spec.Backends, &o.Backends},
		{"snatPorts", g.Spec.SNATPorts, &read.snatPorts}, {"notice", string(g.Spec.Notice), &notice}}); err != nil {
		return nil, err
	}
	o.SNAT = ptr.Deref(g.Spec.SNAT, o.SNAT)
	if g.Spec.MTU != 0 {
		o.MTU = uint16(g.Spec.MTU)
	}
	// Agents of nodes follow what groups forward, and accept tunnels from the groups' nodes.
	o.NoAgents = ""
	if g.Spec.Namespace != "" {
		o.NoAgents = fmt.Sprintf("pods that are directors, as those of DirectorGroup %s, forward in mode nat alone", g.Name)
	}
	o.NodeHealth = o.NodeHealth && o.To() == Nodes
	if zone := g.Spec.NodeSelector[corev1.LabelTopologyZone]; zone != "" {
		o.Zone = zone // all of the group's directors are there
	}
	if why := o.Check(); why != "" {
		return nil, fmt.Errorf("spec.mode: %s", why)
	}
	if err = read.readSegments(); err != nil {
		return nil, err
	}
	if err = read.readMembers(); err != nil {
		return nil, err
	}
	read.Options, read.Notice = o, time.Duration(notice)
	return read, nil
}

// Selects reports whether a Service or a Gateway in a namespace with these labels is one of the
// group's.
func (g *DirectorGroup) Selects(o metav1.Object, namespace map[string]string) bool {
	return g.services.Matches(labels.Set(o.GetLabels())) && g.namespaces.Matches(labels.Set(namespace))
}

// BGPPeer is a BGPPeer that was read.
type BGPPeer struct {
	Of       *v1alpha1.BGPPeer
	Neighbor model.BGPNeighbor // without its password's file
	nodes    labels.Selector
}

// ReadBGPPeer returns what a BGPPeer becomes in a director's file, or what is wrong with it that
// its schema cannot refuse.
func ReadBGPPeer(p *v1alpha1.BGPPeer) (*BGPPeer, error) {
	read := &BGPPeer{Of: p}
	n, spec := &read.Neighbor, &p.Spec
	var err error
	if read.nodes, err = selector("spec.nodeSelector", spec.NodeSelector); err != nil {
		return nil, err
	}
	n.ASN, n.Port, n.TTL, n.TTLSecurity, n.GracefulRestart = uint32(spec.ASN), uint16(spec.Port), uint8(spec.TTL), uint8(spec.TTLSecurity), spec.GracefulRestart
	if n.Port == 179 {
		n.Port = 0 // the file's default
	}
	texts := []text{{"address", spec.Address, &n.Address}, {"holdTime", duration(spec.HoldTime), &n.HoldTime}, {"restartTime", duration(spec.RestartTime), &n.RestartTime}, {"segment", string(spec.Segment), &n.Segment}}
	n.VRF = spec.VRF
	if spec.BFD != nil {
		n.BFD = &model.BGPNeighborBFD{}
		n.BFD.Multiplier, n.BFD.Multihop = uint8(spec.BFD.Multiplier), spec.BFD.Multihop
		texts = append(texts, text{"bfd.interval", duration(spec.BFD.Interval), &n.BFD.Interval})
	}
	for _, f := range spec.Families {
		n.Families = append(n.Families, model.BGPFamily(f))
	}
	n.Attributes.Communities = make([]model.Community, len(spec.Communities))
	for i, community := range spec.Communities {
		texts = append(texts, text{fmt.Sprintf("communities[%d]", i), community, &n.Attributes.Communities[i]})
	}
	if err := readTexts("spec.", texts); err != nil {
		return nil, err
	}
	if spec.LocalPref != nil {
		n.Attributes.LocalPref = new(uint32(*spec.LocalPref))
	}
	return read, nil
}

// Serves reports whether the group's directors speak with the peer.
func (p *BGPPeer) Serves(g *v1alpha1.DirectorGroup) bool {
	return g.Spec.BGP != nil && (len(p.Of.Spec.Groups) == 0 || slices.Contains(p.Of.Spec.Groups, g.Name))
}

// Selects reports whether a node with these labels speaks with the peer.
func (p *BGPPeer) Selects(node map[string]string) bool {
	return p.nodes.Matches(labels.Set(node))
}

// Valid says what is wrong with the peer for directors of an AS, by the rules of a director's file.
func (p *BGPPeer) Valid(asn int64) error {
	c := model.Config{Director: model.Director{Interfaces: []string{"eth0"}}}
	n := p.Neighbor
	c.BGP = model.BGP{ASN: uint32(asn), RouterID: netip.AddrFrom4([4]byte{192, 0, 2, 1}), Neighbors: []model.BGPNeighbor{n}}
	c.SetDefaults()
	return c.Validate()
}

// ServicePolicy is a ServicePolicy that was read.
type ServicePolicy struct {
	Of       *v1alpha1.ServicePolicy
	Options  Options // for Services that it selects
	selector labels.Selector
}

// ReadServicePolicy returns the options that Services have by a ServicePolicy over those that they
// have without one, or what is wrong with the policy that its schema cannot refuse.
func ReadServicePolicy(p *v1alpha1.ServicePolicy, o Options) (*ServicePolicy, error) {
	matches, err := selector("spec.selector", &p.Spec.Selector)
	if err != nil {
		return nil, err
	}
	if err := readTexts("spec.", []text{{"mode", p.Spec.Mode, &o.Mode}}); err != nil {
		return nil, err
	}
	if why := o.Check(); why != "" {
		return nil, fmt.Errorf("spec.mode: %s", why)
	}
	if o, err = o.placed("spec.", &p.Spec.Placement); err != nil {
		return nil, err
	}
	return &ServicePolicy{Of: p, Options: o, selector: matches}, nil
}

// placed returns the options with what a placement says over them, or what is wrong with the
// placement, behind the path that it is in.
func (o Options) placed(in string, p *v1alpha1.Placement) (Options, error) {
	err := readTexts(in, []text{{"policy", p.Policy, &o.Policy}, {"affinity", p.Affinity, &o.Affinity}, {"affinityPrefix", p.AffinityPrefix, &o.AffinityPrefix},
		{"drain", duration(p.Drain), &o.Drain}, {"maxDrain", duration(p.MaxDrain), &o.MaxDrain}})
	if err != nil {
		return o, err
	}
	if o.Health, err = health(in+"health.", p.Health); err != nil {
		return o, err
	}
	if n := p.MinHealthy; n != nil {
		o.MinHealthy = new(uint32(max(*n, 0)))
	}
	return o, nil
}

// ServicePolicies are a cluster's ServicePolicies by namespace, each list in order of precedence.
type ServicePolicies map[string][]*ServicePolicy

// NewServicePolicies sorts policies by namespace and precedence.
func NewServicePolicies(list []*ServicePolicy) ServicePolicies {
	p := ServicePolicies{}
	for _, one := range list {
		p[one.Of.Namespace] = append(p[one.Of.Namespace], one)
	}
	for _, list := range p {
		slices.SortFunc(list, func(a, b *ServicePolicy) int {
			return cmp.Or(cmp.Compare(b.Of.Spec.Priority, a.Of.Spec.Priority),
				a.Of.CreationTimestamp.Compare(b.Of.CreationTimestamp.Time), cmp.Compare(a.Of.Name, b.Of.Name))
		})
	}
	return p
}

// For returns the policy that counts for a Service or a Gateway; nil: none.
func (p ServicePolicies) For(o metav1.Object) *ServicePolicy {
	for _, one := range p[o.GetNamespace()] {
		if one.selector.Matches(labels.Set(o.GetLabels())) {
			return one
		}
	}
	return nil
}

// health returns how a placement wants backends checked, by its path; nil: it does not say.
func health(in string, h *v1alpha1.Health) (*model.HealthCheck, error) {
	if h == nil {
		return nil, nil
	}
	check := &model.HealthCheck{Port: uint16(h.Port), Rise: uint16(h.Rise), Fall: uint16(h.Fall)}
	if h.Panic != nil {
		check.Panic = new(uint8(min(max(*h.Panic, 0), 100)))
	}
	texts := []text{{"kind", h.Kind, &check.Kind}, {"to", h.To, &check.To}, {"interval", duration(h.Interval), &check.Interval}, {"timeout", duration(h.Timeout), &check.Timeout}, {"startDelay", duration(h.StartDelay), &check.StartDelay}}
	if t := h.HTTP; t != nil {
		check.HTTP = &model.HealthHTTP{}
		if len(t.Requests) > 0 {
			check.HTTP.Requests = make([]model.HealthRequest, len(t.Requests))
		}
		texts = append(texts, text{"http.version", t.Version, &check.HTTP.Version})
		texts = append(texts, request("http.", &t.HealthRequest, &check.HTTP.HealthRequest)...)
		for i := range t.Requests {
			texts = append(texts, request(fmt.Sprintf("http.requests[%d].", i), &t.Requests[i], &check.HTTP.Requests[i])...)
		}
	}
	if t := h.SMTP; t != nil {
		check.SMTP = &model.HealthSMTP{Helo: t.Helo, StartTLS: t.StartTLS}
	}
	if t := h.TLS; t != nil {
		check.TLS = &model.HealthTLS{Name: t.Name, CA: t.CA, SkipVerify: t.SkipVerify}
	}
	if t := h.GRPC; t != nil {
		check.GRPC = &model.HealthGRPC{Service: t.Service}
	}
	if t := h.UDP; t != nil {
		check.UDP = &model.HealthUDP{}
		texts = append(texts, text{"udp.send", t.Send, &check.UDP.Send}, text{"udp.expect", t.Expect, &check.UDP.Expect})
	}
	if t := h.DNS; t != nil {
		check.DNS = &model.HealthDNS{Name: t.Name, RCodes: make([]model.DNSCode, len(t.RCodes))}
		texts = append(texts, text{"dns.type", t.Type, &check.DNS.Type})
		for i, code := range t.RCodes {
			texts = append(texts, text{fmt.Sprintf("dns.rcodes[%d]", i), code, &check.DNS.RCodes[i]})
		}
	}
	if err := readTexts(in, texts); err != nil {
		return nil, err
	}
	return check, refusedHealth(in, check)
}

// request gives a request what needs no reading, and returns what does.
func request(in string, t *v1alpha1.HealthRequest, to *model.HealthRequest) (texts []text) {
	*to = model.HealthRequest{Method: t.Method, Path: t.Path, Host: t.Host, Body: t.Body, BodyRegexp: t.BodyRegexp, Status: make([]model.StatusRange, len(t.Status))}
	for i, status := range t.Status {
		texts = append(texts, text{fmt.Sprintf("%sstatus[%d]", in, i), status, &to.Status[i]})
	}
	return append(texts, text{in + "digest", t.Digest, &to.Digest})
}

// healthKeys turns the keys of a director's file into those of resources.
var healthKeys = strings.NewReplacer("body-regexp", "bodyRegexp", "skip-verify", "skipVerify", "starttls", "startTLS", "start-delay", "startDelay")

// refusedHealth says what a director would refuse in a check of any service: things that no schema
// can refuse, such as an invalid certificate.
func refusedHealth(in string, h *model.HealthCheck) error {
	check := *h
	b := model.NewBackend()
	b.Address, b.Port = netip.AddrFrom4([4]byte{192, 0, 2, 2}), 80
	one := model.Service{Name: "any", VIP: netip.AddrFrom4([4]byte{192, 0, 2, 1}), Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}, Mode: model.NAT, SNAT: true,
		Health: &check, Backends: []model.Backend{b}}
	if check.Kind == model.CheckSCTP {
		one.Protocol = model.SCTP
	}
	c := model.Config{Services: []model.Service{one}}
	c.SetDefaults()
	var errs model.FieldErrors
	errors.As(c.Validate(), &errs)
	for _, e := range errs {
		if field, is := strings.CutPrefix(e.Path, "services[0].health."); is {
			return fmt.Errorf("%s%s: %s", in, healthKeys.Replace(field), e.Problem)
		}
	}
	return nil
}
