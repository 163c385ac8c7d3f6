package kube

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/pool"
)

// portsOf returns a Service's ports in the format of claims.
func (a *asked) portsOf() (list []string) {
	for _, p := range a.ports {
		list = append(list, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
	}
	slices.Sort(list)
	return list
}

// together reports whether two Services may have the same address.
func (a *asked) together(b *asked) bool {
	return a.key != "" && a.key == b.key && !slices.ContainsFunc(a.portsOf(), func(p string) bool { return slices.Contains(b.portsOf(), p) })
}

// isOf reports whether an address is of a family.
func isOf(f corev1.IPFamily) func(netip.Addr) bool {
	return func(x netip.Addr) bool { return x.Is6() == (f == corev1.IPv6Protocol) }
}

// statuses returns the addresses in the statuses of Services.
func (h *history) statuses() map[string][]netip.Addr {
	h.t.Helper()
	all, err := h.core.Services(namespace).List(h.t.Context(), metav1.ListOptions{LabelSelector: "!provider"}) // not the API server's own
	if err != nil {
		h.t.Fatal(err)
	}
	list := map[string][]netip.Addr{}
	for _, s := range all.Items {
		list[s.Name] = nil
		for _, i := range s.Status.LoadBalancer.Ingress {
			list[s.Name] = append(list[s.Name], netip.MustParseAddr(i.IP))
		}
	}
	return list
}

// held returns the holders of each address, by weir's claims.
func (h *history) held() map[netip.Addr][]pool.Holder {
	h.t.Helper()
	all, err := h.networking.IPAddresses().List(h.t.Context(), metav1.ListOptions{LabelSelector: "ipaddress.kubernetes.io/managed-by=weir.io"})
	if err != nil {
		h.t.Fatal(err)
	}
	list := map[netip.Addr][]pool.Holder{}
	for _, a := range all.Items {
		holders := []pool.Holder{{Service: pool.Service{Namespace: a.Spec.ParentRef.Namespace, Name: a.Spec.ParentRef.Name}}}
		if text := a.Annotations["weir.io/holders"]; text != "" {
			holders = nil
			if err := json.Unmarshal([]byte(text), &holders); err != nil {
				h.t.Fatalf("%s says of its holders %q: %v", a.Name, text, err)
			}
		}
		list[netip.MustParseAddr(a.Name)] = holders
	}
	return list
}

// forwarded returns the services of the director's set.
func (h *history) forwarded() []model.Service {
	h.t.Helper()
	set, err := h.api.Set(h.t.Context(), "kube")
	if err != nil {
		return nil // no controller has written one yet
	}
	return set.Services
}

// look fails if an address, or a port of one, belongs to two Services that may not share it, and if
// a Service has lost an address though its request did not change.
func (h *history) look(when string) {
	h.t.Helper()
	before := h.held()
	forwarded := h.forwarded()
	statuses := h.statuses()
	after := h.held()
	for x, holders := range after {
		for i, one := range holders {
			for _, other := range holders[:i] {
				both := slices.ContainsFunc(one.Ports, func(p string) bool { return slices.Contains(other.Ports, p) })
				if one.Key == "" || one.Key != other.Key || both {
					h.t.Fatalf("%s: %s is claimed for %+v and for %+v", when, x, one, other)
				}
			}
		}
	}
	of := func(holders []pool.Holder, name string) bool {
		return slices.ContainsFunc(holders, func(o pool.Holder) bool { return o.Name == name })
	}
	taken := map[string]string{}
	for _, s := range forwarded {
		name := strings.Split(s.Name, "/")[1]
		port := fmt.Sprintf("%s %s %d", s.VIP, s.Protocol, s.Port.First)
		if other, twice := taken[port]; twice {
			h.t.Fatalf("%s: %s is forwarded for %s and for %s", when, port, other, s.Name)
		}
		taken[port] = s.Name
		if !of(before[s.VIP], name) && !of(after[s.VIP], name) {
			h.t.Fatalf("%s: %s is forwarded for %s, and claimed for %+v", when, port, s.Name, after[s.VIP])
		}
	}
	users := map[netip.Addr][]string{}
	for name, a := range h.there {
		if a.moved {
			continue // its status may still answer its previous request
		}
		for _, x := range statuses[name] {
			for _, other := range users[x] {
				if !a.together(h.there[other]) {
					h.t.Fatalf("%s: %s and %s both have %s", when, name, other, x)
				}
			}
			users[x] = append(users[x], name)
			if !of(after[x], name) {
				h.t.Fatalf("%s: %s has %s, which is claimed for %+v", when, name, x, after[x])
			}
		}
		for _, x := range h.had[name] {
			if !slices.Contains(statuses[name], x) {
				h.t.Fatalf("%s: %s had %v, has %v, and asked for nothing else", when, name, h.had[name], statuses[name])
			}
		}
		h.had[name] = statuses[name]
	}
}

// settle waits until everything is as it must be.
func (h *history) settle(when string) {
	h.t.Helper()
	wrong := ""
	defer func() {
		if wrong != "" {
			h.t.Logf("%s: %s", when, wrong)
		}
	}()
	waitFor(h.t, when+": all to be done", func() bool { wrong = h.wrong(); return wrong == "" })
	h.count()
	for name, a := range h.there {
		if a.moved {
			a.moved = false
			delete(h.had, name)
		}
	}
	h.look(when)
}

// wrong says how claims, statuses and forwarded services differ from what was requested; empty: not
// at all. Only the choice of address depends on what was free when.
func (h *history) wrong() string {
	h.t.Helper()
	statuses, held := h.statuses(), h.held()
	var claims, services, have []string
	for name, a := range h.there {
		for _, x := range statuses[name] {
			claims = append(claims, claimText(x, name, a.key, a.portsOf()))
			for _, p := range a.ports {
				services = append(services, serviceText(name, x, p, a.pods))
			}
		}
		for _, f := range a.families {
			if why := h.lacks(a, f, statuses[name], held); why != "" {
				return name + " " + why
			}
		}
		if len(statuses[name]) > len(a.families) {
			return fmt.Sprintf("%s has %v", name, statuses[name])
		}
	}
	for x, holders := range held {
		for _, one := range holders {
			have = append(have, claimText(x, one.Name, one.Key, one.Ports))
		}
	}
	if d := difference(have, claims); d != "" {
		return "claims: " + d
	}
	have = nil
	for _, s := range h.forwarded() {
		have = append(have, forwardText(s))
	}
	if d := difference(have, services); d != "" {
		return "what is forwarded: " + d
	}
	if len(statuses) != len(h.there) {
		return fmt.Sprintf("there are %d Services, and should be %d", len(statuses), len(h.there))
	}
	return ""
}

// lacks says what is wrong with a Service's address of a family; empty if it has the one that it
// wants, or none because none is available.
func (h *history) lacks(a *asked, f corev1.IPFamily, has []netip.Addr, held map[netip.Addr][]pool.Holder) string {
	i, w := slices.IndexFunc(has, isOf(f)), slices.IndexFunc(a.wanted, isOf(f))
	switch {
	case i >= 0 && w >= 0 && has[i] != a.wanted[w]:
		return fmt.Sprintf("has %s and wants %s", has[i], a.wanted[w])
	case i >= 0 && !slices.Contains(historyPool(f), has[i]):
		return fmt.Sprintf("has %s, which is in no pool", has[i])
	case i >= 0:
		return ""
	case w >= 0 && h.free(a, held[a.wanted[w]]):
		return fmt.Sprintf("does not have %s, and might", a.wanted[w])
	case w < 0:
		for _, x := range historyPool(f) {
			if h.free(a, held[x]) {
				return fmt.Sprintf("has no %s address, and might have %s", f, x)
			}
		}
	}
	return ""
}

// free reports whether a Service may share an address with those that have it.
func (h *history) free(a *asked, holders []pool.Holder) bool {
	for _, one := range holders {
		if other := h.there[one.Name]; other == nil || other != a && !a.together(other) {
			return false
		}
	}
	return true
}

// count counts the cases that make a history worth testing.
func (h *history) count() {
	for _, holders := range h.held() {
		if len(holders) > 1 {
			h.shared++
		}
	}
	statuses := h.statuses()
	for name, a := range h.there {
		for _, f := range a.families {
			switch has := slices.ContainsFunc(statuses[name], isOf(f)); {
			case has:
			case slices.ContainsFunc(a.wanted, isOf(f)):
				h.refused++
			default:
				h.lacked++
			}
		}
	}
}

// reach asks each Service at each of its addresses and ports.
func (h *history) reach() {
	h.t.Helper()
	for name, list := range h.statuses() {
		for _, x := range list {
			for _, p := range h.there[name].ports {
				at := net.JoinHostPort(x.String(), strconv.Itoa(int(p.Port)))
				ask := h.ask
				if p.Protocol == corev1.ProtocolUDP {
					ask = h.askDatagram
				}
				pod, err := ask(at)
				if i, _ := strconv.Atoi(strings.TrimPrefix(pod, "pod")); err != nil || !slices.Contains(h.there[name].pods, i) {
					h.t.Errorf("%s at %s is answered by %q, error %v, and its pods are %v", name, at, pod, err, h.there[name].pods)
				}
			}
		}
	}
}

func claimText(x netip.Addr, name, key string, ports []string) string {
	if key == "" {
		return fmt.Sprintf("%s is %s's", x, name)
	}
	return fmt.Sprintf("%s is %s's, key %s, ports %v", x, name, key, ports)
}

func serviceText(name string, x netip.Addr, p corev1.ServicePort, pods []int) string {
	full := fmt.Sprintf("%s/%s/%d-%s", namespace, name, p.Port, strings.ToLower(string(p.Protocol)))
	if x.Is6() {
		full += "-ipv6"
	}
	var list []string
	for _, i := range pods {
		list = append(list, fmt.Sprintf("pod%d", i))
	}
	slices.Sort(list)
	return fmt.Sprintf("%s at %s port %d to %v", full, x, p.Port, list)
}

func forwardText(s model.Service) string {
	var list []string
	for _, b := range s.Backends {
		if b.State == model.Active {
			list = append(list, b.Name)
		}
	}
	slices.Sort(list)
	return fmt.Sprintf("%s at %s port %d to %v", s.Name, s.VIP, s.Port.First, list)
}

// difference says what only one of the lists has; empty: both have the same.
func difference(have, want []string) string {
	var list []string
	for _, x := range have {
		if !slices.Contains(want, x) {
			list = append(list, "too much: "+x)
		}
	}
	for _, x := range want {
		if !slices.Contains(have, x) {
			list = append(list, "missing: "+x)
		}
	}
	if len(list) == 0 && len(have) != len(want) {
		return fmt.Sprintf("%d, and not %d: some twice", len(have), len(want))
	}
	return strings.Join(list[:min(len(list), 8)], "; ")
}
