package gateway_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"weir.io/weir/kube/gateway"
	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/translate"
)

const controller = "weir.io/gateway"

// base has what most rows need: a class, a Gateway with a port of each protocol, and Services.
const base = `
{kind: GatewayClass, metadata: {name: weir}, spec: {controllerName: weir.io/gateway}}
---
{kind: GatewayClass, metadata: {name: other}, spec: {controllerName: example.org/other}}
---
{kind: Service, metadata: {namespace: shop, name: web}, spec: {ports: [{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}]}}
---
{kind: Service, metadata: {namespace: shop, name: canary}, spec: {ports: [{name: http, port: 80, nodePort: 30080}]}}
---
{kind: Service, metadata: {namespace: bank, name: vault}, spec: {ports: [{name: http, port: 80}]}}
---
{kind: Service, metadata: {namespace: shop, name: out}, spec: {type: ExternalName, externalName: example.org, ports: [{port: 80}]}}
`

const edge = `
{kind: Gateway, metadata: {namespace: shop, name: edge, generation: 3}, spec: {gatewayClassName: weir, listeners: [{name: web, port: 80, protocol: TCP}, {name: dns, port: 53, protocol: UDP}]}}
`

// cluster reads objects as kubectl would.
type cluster struct {
	gateway.Cluster
	services map[pool.Service]*corev1.Service
	slices   map[string][]*discoveryv1.EndpointSlice
	target   translate.Target
}

func read(t *testing.T, texts ...string) *cluster {
	t.Helper()
	c := &cluster{services: map[pool.Service]*corev1.Service{}, slices: map[string][]*discoveryv1.EndpointSlice{}, target: translate.Pods}
	labels := map[string]map[string]string{}
	c.Controller = controller
	c.Backends = func(*gatewayv1.Gateway) translate.Target { return c.target }
	c.Namespace = func(name string) map[string]string { return labels[name] }
	c.Service = func(name pool.Service) *corev1.Service { return c.services[name] }
	for one := range strings.SplitSeq(strings.Join(texts, "\n---\n"), "\n---\n") {
		var kind struct{ Kind string }
		body, err := yaml.ToJSON([]byte("#\n" + one)) // it takes what begins with a brace for JSON
		if err == nil {
			err = json.Unmarshal(body, &kind)
		}
		if err != nil {
			t.Fatalf("%s: %v", one, err)
		}
		into := func(o any) {
			if err := json.Unmarshal(body, o); err != nil {
				t.Fatalf("%s: %v", one, err)
			}
		}
		switch kind.Kind {
		case "GatewayClass":
			c.Classes = append(c.Classes, &gatewayv1.GatewayClass{})
			into(c.Classes[len(c.Classes)-1])
		case "Gateway":
			c.Gateways = append(c.Gateways, &gatewayv1.Gateway{})
			into(c.Gateways[len(c.Gateways)-1])
		case "TCPRoute":
			c.TCPRoutes = append(c.TCPRoutes, &gatewayv1.TCPRoute{})
			into(c.TCPRoutes[len(c.TCPRoutes)-1])
		case "UDPRoute":
			c.UDPRoutes = append(c.UDPRoutes, &gatewayv1.UDPRoute{})
			into(c.UDPRoutes[len(c.UDPRoutes)-1])
		case "ReferenceGrant":
			c.Grants = append(c.Grants, &gatewayv1.ReferenceGrant{})
			into(c.Grants[len(c.Grants)-1])
		case "Namespace":
			var n corev1.Namespace
			into(&n)
			labels[n.Name] = n.Labels
		case "Service":
			s := &corev1.Service{}
			into(s)
			c.services[translate.Of(s)] = s
		case "":
		default:
			t.Fatalf("the tests do not know the kind %s", kind.Kind)
		}
	}
	return c
}

var at = metav1.NewTime(time.Unix(1_800_000_000, 0))

// told writes statuses as lines: each condition as TYPE=REASON, with ! before it where it is
// false.
func told(v *gateway.View) string {
	var lines []string
	conditions := func(list []metav1.Condition) string {
		var texts []string
		for _, c := range list {
			text := c.Type + "=" + c.Reason
			if c.Status != metav1.ConditionTrue {
				text = "!" + text
			}
			texts = append(texts, text)
		}
		slices.Sort(texts)
		return strings.Join(texts, " ")
	}
	for _, g := range v.Gateways {
		s := g.Status(g.Of.Status, gateway.Outcome{}, at)
		lines = append(lines, fmt.Sprintf("%s: %s", g.Of.Name, conditions(s.Conditions)))
		for _, l := range s.Listeners {
			var kinds []string
			for _, k := range l.SupportedKinds {
				kinds = append(kinds, string(k.Kind))
			}
			lines = append(lines, fmt.Sprintf("  %s %v %d: %s", l.Name, kinds, l.AttachedRoutes, conditions(l.Conditions)))
		}
	}
	for _, r := range v.Routes {
		s := v.RouteStatus(r, gatewayv1.RouteStatus{}, at)
		for _, p := range s.Parents {
			lines = append(lines, fmt.Sprintf("%s on %s: %s", r, p.ParentRef.Name, conditions(p.Conditions)))
		}
	}
	return strings.Join(lines, "\n")
}

const (
	webRoute = `{kind: TCPRoute, metadata: {namespace: shop, name: web}, spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: web, port: 80}]}]}}`
	dnsRoute = `{kind: UDPRoute, metadata: {namespace: shop, name: dns}, spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: web, port: 53}]}]}}`

	fine    = "!Conflicted=NoConflicts Accepted=Accepted Programmed=Programmed ResolvedRefs=ResolvedRefs"
	isFine  = "edge: Accepted=Accepted Programmed=Programmed"
	noRoute = isFine + "\n  web [TCPRoute] 0: " + fine + "\n  dns [UDPRoute] 0: " + fine
	webHas  = isFine + "\n  web [TCPRoute] 1: " + fine + "\n  dns [UDPRoute] 0: " + fine
)

// route is a TCPRoute to edge with other backends.
func route(backends string) string {
	return `{kind: TCPRoute, metadata: {namespace: shop, name: web}, spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [` + backends + `]}]}}`
}

// listeners is edge with other listeners.
func listeners(text string) string {
	return `{kind: Gateway, metadata: {namespace: shop, name: edge}, spec: {gatewayClassName: weir, listeners: [` + text + `]}}`
}

func TestStatus(t *testing.T) {
	for _, test := range []struct{ name, objects, want string }{
		{"a Gateway without routes waits for some", edge, noRoute},
		{"one of another controller's class is not looked at, nor is one without a class", `
{kind: Gateway, metadata: {namespace: shop, name: a}, spec: {gatewayClassName: other, listeners: [{name: web, port: 80, protocol: TCP}]}}
---
{kind: Gateway, metadata: {namespace: shop, name: b}, spec: {gatewayClassName: none, listeners: [{name: web, port: 80, protocol: TCP}]}}
---
{kind: TCPRoute, metadata: {namespace: shop, name: web}, spec: {parentRefs: [{name: a}, {name: b}, {name: c}, {kind: Service, group: "", name: web}]}}`, ""},
		{"routes are attached to what takes their kind", edge + "\n---\n" + webRoute + "\n---\n" + dnsRoute, isFine + `
  web [TCPRoute] 1: ` + fine + `
  dns [UDPRoute] 1: ` + fine + `
UDPRoute shop/dns on edge: Accepted=Accepted ResolvedRefs=ResolvedRefs
TCPRoute shop/web on edge: Accepted=Accepted ResolvedRefs=ResolvedRefs`},
		{"one that names a listener of another kind is not", edge + `
---
{kind: TCPRoute, metadata: {namespace: shop, name: web}, spec: {parentRefs: [{name: edge, sectionName: dns}], rules: [{backendRefs: [{name: web, port: 80}]}]}}`,
			noRoute + "\nTCPRoute shop/web on edge: !Accepted=NotAllowedByListeners ResolvedRefs=ResolvedRefs"},
		{"nor one that names none that there is, by its name, port or both", edge + `
---
{kind: TCPRoute, metadata: {namespace: shop, name: web}, spec: {parentRefs: [{name: edge, sectionName: x}, {name: edge, port: 81}, {name: edge, sectionName: web, port: 53}, {name: edge, sectionName: web, port: 80}], rules: [{backendRefs: [{name: web, port: 80}]}]}}`,
			webHas + strings.Repeat("\nTCPRoute shop/web on edge: !Accepted=NoMatchingParent ResolvedRefs=ResolvedRefs", 3) + "\nTCPRoute shop/web on edge: Accepted=Accepted ResolvedRefs=ResolvedRefs"},
		{"nor one of another namespace, without leave", edge + `
---
{kind: TCPRoute, metadata: {namespace: bank, name: web}, spec: {parentRefs: [{namespace: shop, name: edge}], rules: [{backendRefs: [{name: vault, port: 80}]}]}}`,
			noRoute + "\nTCPRoute bank/web on edge: !Accepted=NotAllowedByListeners ResolvedRefs=ResolvedRefs"},
		{"with leave for all, for some, or by a selector that cannot be read", listeners(`
{name: all, port: 80, protocol: TCP, allowedRoutes: {namespaces: {from: All}}},
{name: some, port: 81, protocol: TCP, allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {rich: "yes"}}}}},
{name: wrong, port: 82, protocol: TCP, allowedRoutes: {namespaces: {from: Selector, selector: {matchExpressions: [{key: x, operator: Never}]}}}}`) + `
---
{kind: Namespace, metadata: {name: bank, labels: {rich: "yes"}}}
---
{kind: TCPRoute, metadata: {namespace: bank, name: web}, spec: {parentRefs: [{namespace: shop, name: edge}], rules: [{backendRefs: [{name: vault, port: 80}]}]}}
---
{kind: TCPRoute, metadata: {namespace: poor, name: web}, spec: {parentRefs: [{namespace: shop, name: edge}], rules: [{backendRefs: [{name: vault, port: 80}]}]}}`, `edge: Accepted=ListenersNotValid Programmed=Programmed
  all [TCPRoute] 2: ` + fine + `
  some [TCPRoute] 1: ` + fine + `
  wrong [TCPRoute] 0: !Accepted=UnsupportedValue !Conflicted=NoConflicts !Programmed=Invalid ResolvedRefs=ResolvedRefs
TCPRoute bank/web on edge: Accepted=Accepted ResolvedRefs=ResolvedRefs
TCPRoute poor/web on edge: !ResolvedRefs=BackendNotFound Accepted=Accepted`},
		{"what is wrong with backends", edge + strings.ReplaceAll(`
---
{kind: TCPRoute, metadata: {namespace: shop, name: a-kind}, REST [{name: web, kind: Pod, port: 80}]}]}}
---
{kind: TCPRoute, metadata: {namespace: shop, name: b-group}, REST [{name: web, group: example.org, port: 80}]}]}}
---
{kind: TCPRoute, metadata: {namespace: shop, name: c-none}, REST [{name: webb, port: 80}]}]}}
---
{kind: TCPRoute, metadata: {namespace: shop, name: d-port}, REST [{name: web, port: 81}]}]}}
---
{kind: TCPRoute, metadata: {namespace: shop, name: e-protocol}, REST [{name: web, port: 53}]}]}}
---
{kind: TCPRoute, metadata: {namespace: shop, name: f-elsewhere}, REST [{name: vault, namespace: bank, port: 80}]}]}}
---
{kind: TCPRoute, metadata: {namespace: shop, name: g-out}, REST [{name: out, port: 80}]}]}}
---
{kind: TCPRoute, metadata: {namespace: shop, name: h-one-of-two}, REST [{name: web, port: 80}, {name: vault, namespace: bank, port: 80}, {name: webb, port: 80}]}]}}`,
			"REST", "spec: {parentRefs: [{name: edge}], rules: [{backendRefs:"), strings.Replace(webHas, "web [TCPRoute] 1", "web [TCPRoute] 8", 1) + strings.NewReplacer("{", "on edge: !ResolvedRefs=", "}", " Accepted=Accepted").Replace(`
TCPRoute shop/a-kind {InvalidKind}
TCPRoute shop/b-group {InvalidKind}
TCPRoute shop/c-none {BackendNotFound}
TCPRoute shop/d-port {BackendNotFound}
TCPRoute shop/e-protocol {UnsupportedProtocol}
TCPRoute shop/f-elsewhere {RefNotPermitted}
TCPRoute shop/g-out {InvalidKind}
TCPRoute shop/h-one-of-two {RefNotPermitted}`)},
		{"a grant is for a kind, from a namespace, to all Services or one", edge + "\n---\n" + route("{name: vault, namespace: bank, port: 80}") + `
---
{kind: ReferenceGrant, metadata: {namespace: bank, name: x}, spec: {from: [{group: gateway.networking.k8s.io, kind: TCPRoute, namespace: shop}], to: [{group: "", kind: Service, name: vault}]}}`,
			webHas + "\nTCPRoute shop/web on edge: Accepted=Accepted ResolvedRefs=ResolvedRefs"},
		{"and not for others", edge + "\n---\n" + route("{name: vault, namespace: bank, port: 80}") + `
---
{kind: ReferenceGrant, metadata: {namespace: bank, name: a}, spec: {from: [{group: gateway.networking.k8s.io, kind: UDPRoute, namespace: shop}], to: [{group: "", kind: Service}]}}
---
{kind: ReferenceGrant, metadata: {namespace: bank, name: b}, spec: {from: [{group: gateway.networking.k8s.io, kind: TCPRoute, namespace: shops}], to: [{group: "", kind: Service}]}}
---
{kind: ReferenceGrant, metadata: {namespace: bank, name: c}, spec: {from: [{group: gateway.networking.k8s.io, kind: TCPRoute, namespace: shop}], to: [{group: "", kind: Service, name: other}, {group: "", kind: Secret}]}}
---
{kind: ReferenceGrant, metadata: {namespace: shop, name: d}, spec: {from: [{group: gateway.networking.k8s.io, kind: TCPRoute, namespace: shop}], to: [{group: "", kind: Service}]}}
---
{kind: ReferenceGrant, metadata: {namespace: bank, name: e}, spec: {from: [{group: example.org, kind: TCPRoute, namespace: shop}], to: [{group: "", kind: Service}]}}`,
			webHas + "\nTCPRoute shop/web on edge: !ResolvedRefs=RefNotPermitted Accepted=Accepted"},
		{"protocols that are not served, alone", listeners(`{name: web, port: 80, protocol: HTTP}, {name: x, port: 81, protocol: example.org/x, allowedRoutes: {kinds: [{kind: XRoute, group: example.org}]}}`), `edge: !Accepted=ListenersNotValid !Programmed=Invalid
  web [] 0: !Accepted=UnsupportedProtocol !Conflicted=NoConflicts !Programmed=Invalid ResolvedRefs=ResolvedRefs
  x [] 0: !Accepted=UnsupportedProtocol !Conflicted=NoConflicts !Programmed=Invalid !ResolvedRefs=InvalidRouteKinds`},
		{"on the port of one that is, they keep it from being served, and UDP does not", listeners(`{name: web, port: 80, protocol: TCP}, {name: http, port: 80, protocol: HTTP}, {name: dns, port: 80, protocol: UDP}`) + "\n---\n" + webRoute, `edge: Accepted=ListenersNotValid Programmed=Programmed
  web [TCPRoute] 1: !Accepted=PortUnavailable !Programmed=Invalid Conflicted=ProtocolConflict ResolvedRefs=ResolvedRefs
  http [] 0: !Accepted=UnsupportedProtocol !Conflicted=NoConflicts !Programmed=Invalid ResolvedRefs=ResolvedRefs
  dns [UDPRoute] 0: ` + fine + `
TCPRoute shop/web on edge: Accepted=Accepted ResolvedRefs=ResolvedRefs`},
		{"kinds of routes that a listener cannot take", listeners(`{name: a, port: 80, protocol: TCP, allowedRoutes: {kinds: [{kind: HTTPRoute}]}}, {name: b, port: 81, protocol: TCP, allowedRoutes: {kinds: [{kind: UDPRoute}, {kind: TCPRoute}, {kind: TCPRoute, group: gateway.networking.k8s.io}]}}`), `edge: Accepted=ListenersNotValid Programmed=Programmed
  a [] 0: !Conflicted=NoConflicts !Programmed=Invalid !ResolvedRefs=InvalidRouteKinds Accepted=Accepted
  b [TCPRoute] 0: !Conflicted=NoConflicts !ResolvedRefs=InvalidRouteKinds Accepted=Accepted Programmed=Programmed`},
		{"addresses that are none, and parameters", `
{kind: GatewayClass, metadata: {name: tuned}, spec: {controllerName: weir.io/gateway, parametersRef: {group: x, kind: Kind, name: z}}}
---
{kind: Gateway, metadata: {namespace: shop, name: a}, spec: {gatewayClassName: weir, addresses: [{type: Hostname, value: example.org}], listeners: [{name: web, port: 80, protocol: TCP}]}}
---
{kind: Gateway, metadata: {namespace: shop, name: b}, spec: {gatewayClassName: weir, addresses: [{value: 203.0.113}], listeners: [{name: web, port: 80, protocol: TCP}]}}
---
{kind: Gateway, metadata: {namespace: shop, name: c}, spec: {gatewayClassName: weir, infrastructure: {parametersRef: {group: x, kind: Kind, name: z}}, listeners: [{name: web, port: 80, protocol: TCP}]}}
---
{kind: Gateway, metadata: {namespace: shop, name: d}, spec: {gatewayClassName: tuned, listeners: [{name: web, port: 80, protocol: TCP}]}}
---
{kind: Gateway, metadata: {namespace: shop, name: e, annotations: {weir.io/ip-families: IPv5}}, spec: {gatewayClassName: weir, listeners: [{name: web, port: 80, protocol: TCP}]}}`, strings.NewReplacer("{", ": !Accepted=", "}", " !Programmed=Invalid\n  web [TCPRoute] 0: !Conflicted=NoConflicts !Programmed=Pending Accepted=Accepted ResolvedRefs=ResolvedRefs").Replace(`
a{UnsupportedAddress}
b{UnsupportedAddress}
c{InvalidParameters}
d{InvalidParameters}
e{UnsupportedAddress}`)},
		{"a Gateway or a route that is being deleted is none", strings.Replace(edge, "generation: 3", `deletionTimestamp: "2026-01-01T00:00:00Z"`, 1) + "\n---\n" + webRoute, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := read(t, base, test.objects)
			if d := cmp.Diff(strings.Split(strings.TrimSpace(test.want), "\n"), strings.Split(told(gateway.Read(&c.Cluster)), "\n")); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// Where nodes are reached by node ports, a Service without one is not reached; each of several
// Gateways has its own kind of backends.
func TestNoNodePort(t *testing.T) {
	c := read(t, base, edge, strings.Replace(edge, "name: edge", "name: inner", 1), `
{kind: TCPRoute, metadata: {namespace: shop, name: web}, spec: {parentRefs: [{name: edge}, {name: inner}], rules: [{backendRefs: [{name: canary, port: 80}, {name: web, port: 80}]}]}}`)
	c.Backends = func(g *gatewayv1.Gateway) translate.Target {
		if g.Name == "edge" {
			return translate.Nodes
		}
		return translate.Pods
	}
	got := told(gateway.Read(&c.Cluster))
	const want = "TCPRoute shop/web on edge: !ResolvedRefs=NoNodePort Accepted=Accepted\nTCPRoute shop/web on inner: Accepted=Accepted ResolvedRefs=ResolvedRefs"
	if !strings.HasSuffix(got, want) {
		t.Errorf("says\n%s\nwant in the end\n%s", got, want)
	}
}

// If several routes refer to a listener, the oldest one has it, then the first by name; the others
// are attached, and their statuses say that they get nothing.
func TestOldestRoute(t *testing.T) {
	c := read(t, base, edge, `
{kind: TCPRoute, metadata: {namespace: shop, name: a, creationTimestamp: "2026-01-01T00:00:02Z"}, spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: canary, port: 80}]}]}}
---
{kind: TCPRoute, metadata: {namespace: shop, name: c, creationTimestamp: "2026-01-01T00:00:01Z"}, spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: web, port: 80}]}]}}
---
{kind: TCPRoute, metadata: {namespace: shop, name: b, creationTimestamp: "2026-01-01T00:00:02Z"}, spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: canary, port: 80}]}]}}`)
	v := gateway.Read(&c.Cluster)
	status := v.Gateways[0].Status(gatewayv1.GatewayStatus{}, gateway.Outcome{}, at)
	if n := status.Listeners[0].AttachedRoutes; n != 3 {
		t.Errorf("%d routes are attached, want 3", n)
	}
	for _, r := range v.Routes {
		said := v.RouteStatus(r, gatewayv1.RouteStatus{}, at).Parents[0].Conditions[0]
		if got := strings.Contains(said.Message, "TCPRoute shop/c is older"); said.Status != metav1.ConditionTrue || got != (r.Of.GetName() != "c") {
			t.Errorf("%s is told: %s %s", r, said.Status, said.Message)
		}
	}
	c.slices["shop/web"], c.slices["shop/canary"] = pods("http", 8080, "w=10.1.0.1"), pods("http", 8080, "x=10.1.0.2")
	if got := c.forwarded(t, v, toPods); got != "gateway/shop/edge/80-tcp 203.0.113.1:80 nat\n  web/w 10.1.0.1:8080 65535 active" {
		t.Errorf("forwards\n%s", got)
	}
}

// Events of Gateways and routes say what is wrong with them, once for all Gateways that a route is
// attached to, and nothing if all is well.
func TestProblems(t *testing.T) {
	c := read(t, base, edge, strings.Replace(edge, "name: edge", "name: inner", 1), `
{kind: Gateway, metadata: {namespace: shop, name: secure}, spec: {gatewayClassName: weir, listeners: [{name: web, port: 443, protocol: HTTPS}]}}
---
{kind: TCPRoute, metadata: {namespace: shop, name: good}, spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: web, port: 80}]}]}}
---
{kind: TCPRoute, metadata: {namespace: shop, name: lost}, spec: {parentRefs: [{name: edge}, {name: inner}], rules: [{backendRefs: [{name: web, port: 80}, {name: gone, port: 80}]}]}}
---
{kind: TCPRoute, metadata: {namespace: bank, name: stray}, spec: {parentRefs: [{name: edge, namespace: shop}], rules: [{backendRefs: [{name: vault, port: 80}]}]}}`)
	v := gateway.Read(&c.Cluster)
	got := map[string][]translate.Problem{}
	for _, g := range v.Gateways {
		got[g.Of.Name] = g.Problems()
	}
	for _, r := range v.Routes {
		got[r.Of.GetName()] = v.Problems(r)
	}
	for name, want := range map[string][]translate.Problem{
		"edge": nil, "good": nil,
		"secure": {{Reason: "ListenersNotValid", Message: "none of its listeners can be served; their conditions say why"}, {Reason: "UnsupportedProtocol", Message: "listener web: protocol HTTPS is not served; TCP and UDP are"}},
		"lost":   {{Reason: "BackendNotFound", Message: "there is no Service shop/gone; connections meant for it go to the other backends, as far as there are any"}},
		"stray":  {{Reason: "NotAllowedByListeners", Message: "Gateway shop/edge: listener dns takes no TCPRoute"}},
	} {
		if !slices.Equal(got[name], want) {
			t.Errorf("of %s is told %q, want %q", name, got[name], want)
		}
	}
}
