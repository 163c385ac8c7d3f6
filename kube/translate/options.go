// Package translate turns a Kubernetes Service into weir's services, and says which parts of it
// weir cannot do. It is pure: no clock, no API server.
package translate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/pool"
)

// Annotations of Services.
const (
	AnnotationPool      = "weir.io/address-pool" // the name of the pool whose addresses it gets
	AnnotationAddresses = "weir.io/addresses"    // the exact addresses, one per family, with commas
	AnnotationMode      = "weir.io/mode"         // its mode
	AnnotationBackends  = "weir.io/backends"     // what its backends are: nodes or pods
	AnnotationSharing   = "weir.io/sharing-key"  // Services with the same key and different ports may share an address
	// AnnotationSharingWith are other namespaces, with commas, whose Services may share its
	// address, if it had the address first; *: all.
	AnnotationSharingWith = "weir.io/sharing-namespaces"
)

// Target says what weir's backends are.
type Target string

// The targets.
const (
	Nodes Target = "nodes" // nodes, where kube-proxy or its replacement goes on to a pod
	Pods  Target = "pods"  // pods, without a second hop
)

// UnmarshalText reads one of the targets.
func (t *Target) UnmarshalText(text []byte) error {
	switch Target(text) {
	case Nodes, Pods:
		*t = Target(text)
		return nil
	}
	return fmt.Errorf("%q is not a target (nodes or pods)", text)
}

// Options say how Services are forwarded unless they ask for something else.
type Options struct {
	Mode     model.Mode
	SNAT     bool // in mode nat
	Backends Target
	// NodeHealth lets directors check kube-proxy on each node; only for Nodes.
	NodeHealth bool
	// Zone is the directors' zone, for Services that are to be served in their clients' zone;
	// empty: they may be in any zone.
	Zone string
	// MTU is the MTU of the paths to backends; 0: that of the directors' interfaces.
	MTU uint16
	// NoAgents says why nodes' agents are not told what these directors forward; empty: they are.
	NoAgents string
	// Ways are how these directors' packets get to pods' addresses, for mode ipip.
	Ways *Ways

	// What else a ServicePolicy says; zero: the directors' defaults.
	Policy          model.Policy
	Affinity        model.Affinity
	AffinityPrefix  model.AffinityPrefix
	Drain, MaxDrain model.Duration
	Health          *model.HealthCheck // instead of NodeHealth
	MinHealthy      *uint32            // healthy ones that a VIP needs to be announced; nil: one
}

// To returns what the backends are. In mode gue they are always pods: kube-proxy would not know
// what to do with its packets.
func (o Options) To() Target {
	if o.Mode == model.GUE {
		return Pods
	}
	return o.Backends
}

// ByAgent reports whether the agents of pods' nodes deliver packets to them.
func (o Options) ByAgent() bool {
	return o.To() == Pods && (o.Mode == model.GUE || o.Mode == model.IPIP)
}

// LacksAgents says why the agents that deliver packets to pods do not know of these directors'
// Services; empty: none is needed, or they do.
func (o Options) LacksAgents() string {
	if !o.ByAgent() || o.NoAgents == "" {
		return ""
	}
	return fmt.Sprintf("mode %s to pods needs weir agent on their nodes, and %s", o.Mode, o.NoAgents)
}

// Check says why directors could not forward with these options, or nothing.
func (o Options) Check() string {
	switch {
	case o.Mode == model.Redirect:
		return "redirect is not available here yet: clients' hosts have to be told of each Service"
	case o.Mode == model.L2DSR && o.Backends == Pods:
		return "mode l2dsr reaches nodes only: use gue, ipip or nat, or backends: nodes"
	}
	return ""
}

// of returns the options of one Service, by its annotations.
func (o Options) of(s *corev1.Service) (Options, []Problem) {
	asked := o
	for _, a := range []struct {
		name string
		into interface{ UnmarshalText([]byte) error }
	}{{AnnotationMode, &asked.Mode}, {AnnotationBackends, &asked.Backends}} {
		if text, given := s.Annotations[a.name]; given {
			if err := a.into.UnmarshalText([]byte(text)); err != nil {
				return o, problem(Unsupported, "annotation %s: %v; %s", a.name, err, o)
			}
		}
	}
	why := asked.Check()
	if asked.Mode == model.GUE && s.Annotations[AnnotationBackends] == string(Nodes) {
		why = "mode gue reaches pods only"
	}
	if why != "" {
		name := AnnotationMode
		if _, given := s.Annotations[name]; !given {
			name = AnnotationBackends
		}
		return o, problem(Unsupported, "annotation %s: %s; %s", name, why, o)
	}
	return asked, nil
}

// String says how a Service is forwarded if what it asks for is not possible.
func (o Options) String() string {
	return fmt.Sprintf("it is forwarded in mode %s to %s", o.Mode, o.To())
}

// Reason is the reason of a problem, in the form of events' reasons.
type Reason string

// The reasons of problems.
const (
	Unsupported Reason = "Unsupported"  // it asks for something that weir cannot do
	NoAddress   Reason = "NoAddress"    // it lacks some or all of its addresses
	NoBackends  Reason = "NoBackends"   // no backend serves it
	NoAgent     Reason = "NoAgent"      // some pods get nothing, because of their nodes
	NoWay       Reason = "NoWay"        // some pods get nothing, because of the way to them
	NotForward  Reason = "NotForwarded" // directors have not accepted it
)

// Problem is what a user has to know about a Service.
type Problem struct {
	Reason  Reason
	Message string
}

func problem(r Reason, format string, args ...any) []Problem {
	return []Problem{{r, fmt.Sprintf(format, args...)}}
}

// Wants returns which addresses a Service asks for.
func Wants(s *corev1.Service) (pool.Request, []Problem) {
	r := pool.Request{Service: Of(s), Pool: s.Annotations[AnnotationPool], Key: s.Annotations[AnnotationSharing], With: SharedWith(s.Annotations)}
	for _, p := range s.Spec.Ports {
		r.Ports = append(r.Ports, fmt.Sprintf("%d/%s", p.Port, cmp.Or(p.Protocol, corev1.ProtocolTCP)))
	}
	slices.Sort(r.Ports)
	for _, f := range s.Spec.IPFamilies {
		r.Families = append(r.Families, pool.Family(f == corev1.IPv6Protocol))
	}
	for _, i := range s.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(i.IP); err == nil {
			r.Had = append(r.Had, a)
		}
	}
	where, text := "annotation "+AnnotationAddresses, s.Annotations[AnnotationAddresses]
	if text == "" {
		where, text = "spec.loadBalancerIP", s.Spec.LoadBalancerIP
	}
	if text == "" {
		return r, nil
	}
	var problems []Problem
	for one := range strings.SplitSeq(text, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(one))
		switch {
		case err != nil || a.Zone() != "" || a.Is4In6():
			problems = append(problems, problem(NoAddress, "%s: %q is not an IP address", where, one)...)
		case !slices.Contains(r.Families, pool.FamilyOf(a)):
			problems = append(problems, problem(NoAddress, "%s: %s is %s, which is not in spec.ipFamilies", where, a, pool.FamilyOf(a))...)
		default:
			r.Wanted = append(r.Wanted, a)
		}
	}
	return r, problems
}

// SharedWith returns the namespaces that annotations let share an address, in order.
func SharedWith(annotations map[string]string) (list []string) {
	for one := range strings.SplitSeq(annotations[AnnotationSharingWith], ",") {
		if one = strings.TrimSpace(one); one != "" {
			list = append(list, one)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// Of returns the name of a Service, or of another object, as one.
func Of(o metav1.Object) pool.Service {
	return pool.Service{Namespace: o.GetNamespace(), Name: o.GetName()}
}
