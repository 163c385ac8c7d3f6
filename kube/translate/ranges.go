package translate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"weir.io/weir/kube/pool"
)

// sourceRanges returns where a Service's clients may be, in each family; nil: anywhere. An
// unreadable range is an error: without it, clients could come that are not meant to.
func sourceRanges(s *corev1.Service) (map[pool.Family][]netip.Prefix, error) {
	if len(s.Spec.LoadBalancerSourceRanges) == 0 {
		return nil, nil
	}
	ranges := map[pool.Family][]netip.Prefix{}
	for i, text := range s.Spec.LoadBalancerSourceRanges {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil || p.Addr().Is4In6() {
			return nil, fmt.Errorf("spec.loadBalancerSourceRanges[%d]: %q is not a prefix (203.0.113.0/28), so nothing is forwarded", i, text)
		}
		family := pool.FamilyOf(p.Addr())
		ranges[family] = append(ranges[family], p.Masked())
	}
	for family, list := range ranges {
		slices.SortFunc(list, func(a, b netip.Prefix) int {
			return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
		})
		ranges[family] = slices.Compact(list)
	}
	return ranges, nil
}

// reachable returns the addresses that some client may reach, and reports the others: for a
// director a service without ranges is open to every client.
func reachable(addresses []netip.Addr, ranges map[pool.Family][]netip.Prefix) (list []netip.Addr, problems []Problem) {
	for _, a := range addresses {
		if family := pool.FamilyOf(a); ranges == nil || len(ranges[family]) > 0 {
			list = append(list, a)
		} else {
			problems = append(problems, problem(Unsupported, "spec.loadBalancerSourceRanges has no %s prefix, so nobody may reach %s, and it is not forwarded", family, a)...)
		}
	}
	return list, problems
}
