package gateway

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/translate"
)

// AnnotationFamilies is the annotation of Gateways that says in which families they have
// addresses: IPv4, IPv6, or both with a comma. Without it they have IPv4, or the families of
// spec.addresses.
const AnnotationFamilies = "weir.io/ip-families"

// wants is which addresses a Gateway asks for.
type wants struct {
	families    []pool.Family
	addresses   []netip.Addr
	unsupported string   // the first wish that is not supported at all
	unusable    []string // which of the addresses it cannot have, and why
}

func readWants(g *gatewayv1.Gateway) wants {
	var w wants
	empty := 0
	for i, a := range g.Spec.Addresses {
		where := fmt.Sprintf("spec.addresses[%d]", i)
		if kind := ptr.Deref(a.Type, gatewayv1.IPAddressType); kind != gatewayv1.IPAddressType {
			w.unsupported = fmt.Sprintf("%s is of type %s, and only IPAddress can be", where, kind)
			return w
		}
		if a.Value == "" {
			empty++
			continue
		}
		address, err := netip.ParseAddr(a.Value)
		switch {
		case err != nil || address.Zone() != "" || address.Is4In6():
			w.unsupported = fmt.Sprintf("%s: %q is not an IP address", where, a.Value)
			return w
		case slices.Contains(w.families, pool.FamilyOf(address)):
			w.unusable = append(w.unusable, fmt.Sprintf("%s: %s is one more of %s, and a Gateway has one address of each family", where, address, pool.FamilyOf(address)))
		default:
			w.families = append(w.families, pool.FamilyOf(address))
			w.addresses = append(w.addresses, address)
		}
	}
	if text, given := g.Annotations[AnnotationFamilies]; given {
		for one := range strings.SplitSeq(text, ",") {
			family := pool.Family(strings.TrimSpace(one) == pool.IPv6.String())
			if family.String() != strings.TrimSpace(one) {
				w.unsupported = fmt.Sprintf("annotation %s: %q is neither IPv4 nor IPv6", AnnotationFamilies, one)
				return w
			}
			w.add(family)
		}
	}
	// An address without a value is one of a family that the Gateway does not have yet.
	for _, family := range []pool.Family{pool.IPv4, pool.IPv6} {
		if len(w.families) < max(1, len(w.addresses)+empty) {
			w.add(family)
		}
	}
	return w
}

func (w *wants) add(f pool.Family) {
	if !slices.Contains(w.families, f) {
		w.families = append(w.families, f)
	}
}

// Request returns which addresses the Gateway asks for. A Gateway that is not accepted keeps its
// addresses, so that no other gets them while a mistake is corrected.
func (g *Gateway) Request() (pool.Request, []translate.Problem) {
	annotations := g.Of.Annotations
	r := pool.Request{Service: g.Name(), Pool: annotations[translate.AnnotationPool], Key: annotations[translate.AnnotationSharing], With: translate.SharedWith(annotations)}
	for _, a := range g.Of.Status.Addresses {
		if had, err := netip.ParseAddr(a.Value); err == nil && ptr.Deref(a.Type, gatewayv1.IPAddressType) == gatewayv1.IPAddressType {
			r.Had = append(r.Had, had)
		}
	}
	for _, l := range g.Listeners {
		if !l.wrong() {
			r.Ports = append(r.Ports, fmt.Sprintf("%d/%s", l.Of.Port, l.Of.Protocol))
		}
	}
	slices.Sort(r.Ports)
	if !g.Accepted() {
		for _, had := range r.Had {
			r.Families = append(r.Families, pool.FamilyOf(had))
		}
		r.Families = slices.Compact(r.Families)
		return r, nil
	}
	r.Families, r.Wanted = g.wants.families, g.wants.addresses
	var problems []translate.Problem
	for _, text := range g.wants.unusable {
		problems = append(problems, translate.Problem{Reason: translate.NoAddress, Message: text})
	}
	return r, problems
}

// SameWish reports whether two versions of a Gateway ask for the same addresses.
func SameWish(a, b *gatewayv1.Gateway) bool {
	return a.Generation == b.Generation && a.Annotations[AnnotationFamilies] == b.Annotations[AnnotationFamilies] &&
		a.Annotations[translate.AnnotationPool] == b.Annotations[translate.AnnotationPool] && a.Annotations[translate.AnnotationSharing] == b.Annotations[translate.AnnotationSharing]
}
