package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// There are fewer addresses than Services that may want one.
const (
	historyAddresses = `203.0.113.1-203.0.113.12, "2001:db8:1::1-2001:db8:1::c"`
	historyServices  = 24
)

// asked is the latest request of a Service in a history.
type asked struct {
	families []corev1.IPFamily
	ports    []corev1.ServicePort
	key      string       // for sharing; empty: none
	wanted   []netip.Addr // particular addresses; none: any
	pods     []int
	moved    bool // its request has changed since all was done
}

// history is the requests of a lab's Services, one change after the other.
type history struct {
	*lab
	random *rand.Rand
	there  map[string]*asked
	had    map[string][]netip.Addr // in their statuses

	made                    map[string]int // changes, by kind
	shared, lacked, refused int            // addresses when all was done: shared, missing since none was left, refused since another's
}

func newHistory(l *lab, random *rand.Rand) *history {
	l.t.Helper()
	l.client.Address("eth0", "fd00::2/64")
	l.director.Address("eth0", "fd00::1/64")
	l.director.Address("eth1", "fd00:2::11/64", "fd00:2::16/64")
	l.client.Route("default", "fd00::1")
	for i, pod := range l.servers {
		pod.Address("eth0", podAddress6(i+1)+"/64")
		answerDatagrams(l.t, pod)
	}
	if err := l.net.Err(); err != nil {
		l.t.Fatal(err)
	}
	return &history{lab: l, random: random, there: map[string]*asked{}, had: map[string][]netip.Addr{}, made: map[string]int{}}
}

func podAddress6(i int) string { return fmt.Sprintf("fd00:2::%d", 20+i) }

// String says what has happened.
func (h *history) String() string {
	var list []string
	for _, what := range slices.Sorted(maps.Keys(h.made)) {
		list = append(list, fmt.Sprintf("%s %d", what, h.made[what]))
	}
	addresses := 0
	for _, a := range h.there {
		addresses += len(a.families)
	}
	return fmt.Sprintf("%s; now %d Services that want %d addresses; whenever all was done, in all: %d addresses of several Services, %d for which none was left, %d that were another's",
		strings.Join(list, ", "), len(h.there), addresses, h.shared, h.lacked, h.refused)
}

// change makes a random change.
func (h *history) change() {
	h.t.Helper()
	name := fmt.Sprintf("s%d", h.random.IntN(historyServices))
	a := h.there[name]
	if a == nil {
		h.create(name)
		return
	}
	switch what := h.random.IntN(8); what {
	case 0, 1:
		h.deleteService(name)
		delete(h.there, name)
		delete(h.had, name)
		h.made["deleted"]++
		if what == 1 { // another one of the same name
			h.create(name)
		}
	case 2:
		a.ports, a.moved = h.somePorts(), true
		h.patch(name, "ports", map[string]any{"spec": map[string]any{"ports": a.ports}})
	case 3:
		a.key, a.moved = h.someKey(), true
		h.patch(name, "key", annotation("weir.io/sharing-key", a.key))
	case 4:
		a.wanted, a.moved = h.someAddresses(a.families), true
		patch := annotation("weir.io/addresses", texts(a.wanted))
		patch["spec"] = map[string]any{"loadBalancerIP": nil}
		h.patch(name, "wanted addresses", patch)
	default:
		a.pods = h.somePods()
		h.serve(name, a)
		h.made["pods"]++
	}
}

func (h *history) create(name string) {
	h.t.Helper()
	families := [][]corev1.IPFamily{{corev1.IPv4Protocol}, {corev1.IPv6Protocol}, {corev1.IPv4Protocol, corev1.IPv6Protocol}}[h.random.IntN(3)]
	a := &asked{families: families, ports: h.somePorts(), key: h.someKey(), wanted: h.someAddresses(families), pods: h.somePods()}
	byField := len(a.wanted) == 1 && h.random.IntN(2) == 0
	h.service(name, func(s *corev1.Service) {
		policy := corev1.IPFamilyPolicySingleStack
		if len(families) == 2 {
			policy = corev1.IPFamilyPolicyRequireDualStack
		}
		s.Spec.IPFamilyPolicy, s.Spec.IPFamilies, s.Spec.Ports, s.Annotations = &policy, families, a.ports, map[string]string{}
		if a.key != "" {
			s.Annotations["weir.io/sharing-key"] = a.key
		}
		if byField {
			s.Spec.LoadBalancerIP = a.wanted[0].String()
		} else if len(a.wanted) > 0 {
			s.Annotations["weir.io/addresses"] = texts(a.wanted)
		}
	})
	h.serve(name, a)
	h.there[name] = a
	h.made["created"]++
}

// somePorts returns at least one port, in random order.
func (h *history) somePorts() []corev1.ServicePort {
	all := []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}, {Name: "also", Port: 443, Protocol: corev1.ProtocolTCP}, {Name: "datagrams", Port: 53, Protocol: corev1.ProtocolUDP}}
	h.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:[]int{1, 1, 1, 2, 3}[h.random.IntN(5)]]
}

func (h *history) someKey() string { return []string{"", "k", "k", "l"}[h.random.IntN(4)] }

func (h *history) someAddresses(families []corev1.IPFamily) (list []netip.Addr) {
	if h.random.IntN(3) > 0 {
		return nil
	}
	for _, f := range families {
		if h.random.IntN(3) > 0 {
			list = append(list, historyPool(f)[h.random.IntN(12)])
		}
	}
	return list
}

func (h *history) somePods() []int {
	all := h.random.Perm(len(h.servers))
	for i := range all {
		all[i]++
	}
	return all[:1+h.random.IntN(len(all))]
}

// historyPool returns all addresses of a family.
func historyPool(f corev1.IPFamily) (list []netip.Addr) {
	first := netip.MustParseAddr("203.0.113.1")
	if f == corev1.IPv6Protocol {
		first = netip.MustParseAddr("2001:db8:1::1")
	}
	for range 12 {
		list = append(list, first)
		first = first.Next()
	}
	return list
}

func texts(addresses []netip.Addr) string {
	var list []string
	for _, a := range addresses {
		list = append(list, a.String())
	}
	return strings.Join(list, ",")
}

// annotation is a patch that sets or removes an annotation.
func annotation(key, value string) map[string]any {
	one := map[string]any{key: nil}
	if value != "" {
		one[key] = value
	}
	return map[string]any{"metadata": map[string]any{"annotations": one}}
}

func (h *history) patch(name, what string, patch map[string]any) {
	h.t.Helper()
	text, err := json.Marshal(patch)
	if err != nil {
		h.t.Fatal(err)
	}
	if _, err := h.core.Services(namespace).Patch(h.t.Context(), name, types.MergePatchType, text, metav1.PatchOptions{}); err != nil {
		h.t.Fatalf("change %s of %s by %s: %v", what, name, text, err)
	}
	h.made[what]++
}

// serve writes a Service's pods into its EndpointSlices, one for each family.
func (h *history) serve(name string, a *asked) {
	h.t.Helper()
	for family, address := range map[discoveryv1.AddressType]func(int) string{discoveryv1.AddressTypeIPv4: podAddress, discoveryv1.AddressTypeIPv6: podAddress6} {
		slice := h.newSlice(name)
		slice.Name, slice.AddressType, slice.Ports = strings.ToLower(name+"-"+string(family)), family, nil
		for name, protocol := range map[string]corev1.Protocol{"http": corev1.ProtocolTCP, "also": corev1.ProtocolTCP, "datagrams": corev1.ProtocolUDP} {
			port := int32(podPort)
			if protocol == corev1.ProtocolUDP {
				port = datagramPort
			}
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Port: &port, Protocol: &protocol})
		}
		for _, i := range a.pods {
			yes := true
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address(i)},
				TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: fmt.Sprintf("pod%d", i)},
				Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes}})
		}
		h.putSlice(slice)
	}
}
