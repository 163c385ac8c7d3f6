// Package translate turns what Kubernetes says of a Service into weir's services, and says
// what of it weir cannot do. It is pure: no clock, no API server.
package translate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/pool"
)

// Annotations of Services.
const (
	AnnotationPool      = "weir.io/address-pool" // the name of the pool whose addresses it gets
	AnnotationAddresses = "weir.io/addresses"    // the very addresses, one per family, with commas
	AnnotationMode      = "weir.io/mode"         // its mode
	AnnotationBackends  = "weir.io/backends"     // what its backends are: nodes or pods
	AnnotationSharing   = "weir.io/sharing-key"  // Services with the same one, and other ports, may share an address
	// AnnotationSharingWith are other namespaces, with commas, whose Services may share its
	// address, if it had that first; *: all.
	AnnotationSharingWith = "weir.io/sharing-namespaces"
)

// Target is what weir's backends are.
type Target string

// The targets.
const (
	Nodes Target = "nodes" // nodes, where kube-proxy or what stands for it goes on to a pod
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

// Options are how Services are forwarded that say nothing else.
type Options struct {
	Mode     model.Mode
	SNAT     bool // in mode nat
	Backends Target
	// NodeHealth lets directors ask kube-proxy on each node how it is; only for Nodes.
	NodeHealth bool
	// Zone is where the directors are, for Services that are to be served in their clients'
	// zone; empty: they are anywhere.
	Zone string
	// MTU is of the paths to backends; 0: as the directors' interfaces have it.
	MTU uint16
	// NoAgents says why no agents of nodes are told of what these directors forward; empty:
	// they are.
	NoAgents string
	// Ways are how these directors' packets get to pods' addresses, for mode ipip.
	Ways *Ways

	// What a ServicePolicy says besides; zero: as directors do by themselves.
	Policy          model.Policy
	Affinity        model.Affinity
	Drain, MaxDrain model.Duration
	Health          *model.HealthCheck // instead of NodeHealth
	MinHealthy      *uint32            // backends for a VIP to be announced; nil: one
}

// To returns what the backends are. Those of gue are pods always: no kube-proxy would know what
// to do with its packets.
func (o Options) To() Target {
	if o.Mode == model.GUE {
		return Pods
	}
	return o.Backends
}

// ByAgent reports whether packets get to pods by the agents of their nodes.
func (o Options) ByAgent() bool {
	return o.To() == Pods && (o.Mode == model.GUE || o.Mode == model.IPIP)
}

// Check says why directors could not forward so, or nothing.
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

// String says how a Service is forwarded that asks for what cannot be.
func (o Options) String() string {
	return fmt.Sprintf("it is forwarded in mode %s to %s", o.Mode, o.To())
}

// Reason begins what is told about a Service, in the form of events' reasons.
type Reason string

// The reasons of problems.
const (
	Unsupported Reason = "Unsupported"  // it asks for what weir cannot do
	NoAddress   Reason = "NoAddress"    // it has none, or not all
	NoBackends  Reason = "NoBackends"   // nothing serves it
	NoAgent     Reason = "NoAgent"      // some pods get nothing, because of their nodes
	NoWay       Reason = "NoWay"        // some pods get nothing, because of the way to them
	NotForward  Reason = "NotForwarded" // directors have not taken it
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

// Of returns a Service's name.
func Of(s *corev1.Service) pool.Service { return pool.Service{Namespace: s.Namespace, Name: s.Name} }
