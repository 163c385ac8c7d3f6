package gateway_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/gateway"
	"weir.io/weir/kube/translate"
)

var (
	toPods  = translate.Options{Mode: model.NAT, SNAT: true, Backends: translate.Pods}
	toNodes = translate.Options{Mode: model.NAT, SNAT: true, Backends: translate.Nodes}
)

// pods returns a slice of endpoints, NAME=ADDRESS, with ~ behind those that terminate.
func pods(port string, number int32, endpoints ...string) []*discoveryv1.EndpointSlice {
	protocol := corev1.ProtocolTCP
	if port == "dns" {
		protocol = corev1.ProtocolUDP
	}
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &port, Port: &number, Protocol: &protocol}}}
	for _, text := range endpoints {
		plain := strings.TrimSuffix(text, "~")
		name, address, _ := strings.Cut(plain, "=")
		ready, terminating, serving, node := plain == text, plain != text, true, "n1"
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}, NodeName: &node, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: name},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Terminating: &terminating, Serving: &serving}})
	}
	if strings.Contains(s.Endpoints[0].Addresses[0], ":") {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	return []*discoveryv1.EndpointSlice{s}
}

// forwarded writes what is forwarded for all Gateways, each at the same addresses.
func (c *cluster) forwarded(t *testing.T, v *gateway.View, o translate.Options, more ...string) string {
	t.Helper()
	addresses := []netip.Addr{netip.MustParseAddr("203.0.113.1")}
	for _, a := range more {
		addresses = append(addresses, netip.MustParseAddr(a))
	}
	nodes := translate.NewCluster([]translate.Node{{Name: "n1", V4: netip.MustParseAddr("10.0.0.1"), Ready: true, Agent: translate.AgentRuns}, {Name: "n2", V4: netip.MustParseAddr("10.0.0.2"), Ready: true}})
	endpoints := func(s *corev1.Service) []*discoveryv1.EndpointSlice { return c.slices[translate.Of(s).String()] }
	var lines []string
	for _, g := range v.Gateways {
		services, problems := g.Services(o, addresses, endpoints, nodes)
		for _, s := range services {
			lines = append(lines, fmt.Sprintf("%s %s:%s %s", s.Name, s.VIP, s.Port, s.Mode))
			for _, b := range s.Backends {
				lines = append(lines, fmt.Sprintf("  %s %s %d %s", b.Name, b.Endpoint(), b.Weight, b.State))
			}
		}
		for _, p := range problems {
			lines = append(lines, string(p.Reason)+": "+p.Message)
		}
	}
	return strings.Join(lines, "\n")
}

func TestServices(t *testing.T) {
	one, three := pods("http", 8080, "x=10.1.0.9"), pods("http", 8080, "a=10.1.0.1", "b=10.1.0.2", "c=10.1.0.3")
	for _, test := range []struct {
		name        string
		objects     []string
		options     translate.Options
		web, canary []*discoveryv1.EndpointSlice
		more        string // a second address
		want        string
	}{
		{"a Service's share is shared out over its pods, however many another one has", []string{edge, route("{name: web, port: 80, weight: 30}, {name: canary, port: 80, weight: 10}")}, toPods, three, one, "", `
gateway/shop/edge/80-tcp 203.0.113.1:80 nat
  canary/x 10.1.0.9:8080 21845 active
  web/a 10.1.0.1:8080 21845 active
  web/b 10.1.0.2:8080 21845 active
  web/c 10.1.0.3:8080 21845 active`},
		{"without weights Services have the same share", []string{edge, route("{name: web, port: 80}, {name: canary, port: 80}")}, toPods, three, one, "", `
gateway/shop/edge/80-tcp 203.0.113.1:80 nat
  canary/x 10.1.0.9:8080 65535 active
  web/a 10.1.0.1:8080 21845 active
  web/b 10.1.0.2:8080 21845 active
  web/c 10.1.0.3:8080 21845 active`},
		{"weight 0 gets no new connections, and the smallest that is not 0 some", []string{edge, route("{name: web, port: 80, weight: 0}, {name: canary, port: 80, weight: 1000000}, {name: vault, namespace: bank, port: 80, weight: 1}"), `
{kind: ReferenceGrant, metadata: {namespace: bank, name: x}, spec: {from: [{group: gateway.networking.k8s.io, kind: TCPRoute, namespace: shop}], to: [{group: "", kind: Service}]}}`}, toPods, three, one, "", `
gateway/shop/edge/80-tcp 203.0.113.1:80 nat
  bank/vault/v 10.1.0.7:8080 1 active
  canary/x 10.1.0.9:8080 65535 active
  web/a 10.1.0.1:8080 0 active
  web/b 10.1.0.2:8080 0 active
  web/c 10.1.0.3:8080 0 active`},
		{"pods that terminate have no share of their Service's", []string{edge, route("{name: web, port: 80}, {name: canary, port: 80}")}, toPods, pods("http", 8080, "a=10.1.0.1", "b=10.1.0.2~", "c=10.1.0.3"), one, "", `
gateway/shop/edge/80-tcp 203.0.113.1:80 nat
  canary/x 10.1.0.9:8080 65535 active
  web/a 10.1.0.1:8080 32768 active
  web/b 10.1.0.2:8080 32768 draining
  web/c 10.1.0.3:8080 32768 active`},
		{"a pod of two Services has both shares, and no more than there is", []string{edge, route("{name: web, port: 80}, {name: canary, port: 80}")}, toPods, pods("http", 8080, "a=10.1.0.1", "x=10.1.0.9"), one, "", `
gateway/shop/edge/80-tcp 203.0.113.1:80 nat
  web/a 10.1.0.1:8080 32768 active
  web/x 10.1.0.9:8080 65535 active`},
		{"backends that cannot be used leave their share to the others", []string{edge, route("{name: nobody, port: 80, weight: 9}, {name: canary, port: 80, weight: 1}")}, toPods, three, one, "", `
gateway/shop/edge/80-tcp 203.0.113.1:80 nat
  canary/x 10.1.0.9:8080 65535 active`},
		{"with none that can be used nothing is forwarded", []string{edge, route("{name: nobody, port: 80}")}, toPods, three, one, "", ``},
		{"UDP, and both families", []string{edge, dnsRoute}, toPods, append(pods("dns", 5353, "a=10.1.0.1"), pods("dns", 5353, "a=fd00::1")...), nil, "2001:db8::1", `
gateway/shop/edge/53-udp 203.0.113.1:53 nat
  web/a 10.1.0.1:5353 65535 active
gateway/shop/edge/53-udp-ipv6 2001:db8::1:53 nat
  web/a [fd00::1]:5353 65535 active`},
		{"a route to several listeners", []string{listeners("{name: a, port: 80, protocol: TCP}, {name: b, port: 81, protocol: TCP}, {name: c, port: 82, protocol: HTTP}"), webRoute}, toPods, pods("http", 8080, "a=10.1.0.1"), nil, "", `
gateway/shop/edge/80-tcp 203.0.113.1:80 nat
  web/a 10.1.0.1:8080 65535 active
gateway/shop/edge/81-tcp 203.0.113.1:81 nat
  web/a 10.1.0.1:8080 65535 active`},
		{"nodes, at node ports", []string{edge, route("{name: canary, port: 80}")}, toNodes, nil, one, "", `
gateway/shop/edge/80-tcp 203.0.113.1:80 nat
  canary/n1 10.0.0.1:30080 32768 active
  canary/n2 10.0.0.2:30080 32768 active`},
		{"Services without node ports are not reached by nodes", []string{edge, route("{name: web, port: 80}")}, toNodes, three, one, "", ``},
		{"pods by agents", []string{edge, webRoute}, translate.Options{Mode: model.GUE, Backends: translate.Nodes, SNAT: true}, one, three, "", `
gateway/shop/edge/80-tcp 203.0.113.1:80 gue
  web/x 10.1.0.9:8080 65535 active`},
		{"pods by agents that are told nothing", []string{edge, webRoute}, translate.Options{Mode: model.GUE, NoAgents: "these are alone"}, one, three, "", `Unsupported: mode gue to pods needs weir agent on their nodes, and these are alone`},
		{"modes of which nodes would have to know", []string{edge, webRoute}, translate.Options{Mode: model.IPIP, Backends: translate.Nodes}, three, one, "", `Unsupported: Gateways are forwarded in mode nat, or to pods, and not in ipip to nodes: these know addresses of Services alone`},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := read(t, append([]string{base}, test.objects...)...)
			c.target = test.options.Backends
			c.slices["shop/web"], c.slices["shop/canary"], c.slices["bank/vault"] = test.web, test.canary, pods("http", 8080, "v=10.1.0.7")
			var more []string
			if test.more != "" {
				more = append(more, test.more)
			}
			if d := cmp.Diff(strings.TrimSpace(test.want), c.forwarded(t, gateway.Read(&c.Cluster), test.options, more...)); d != "" {
				t.Error("(-want +got):", d)
			}
		})
	}
}
