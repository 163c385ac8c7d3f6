package gateway_test

import (
	"slices"
	"strings"
	"testing"

	"weir.io/weir/kube/gateway"
	"weir.io/weir/kube/translate"
)

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
