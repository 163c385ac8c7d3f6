package gateway_test

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"weir.io/weir/kube/gateway"
	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/translate"
)

// Which addresses a Gateway asks for, by its spec, its annotations and what it has.
func TestRequests(t *testing.T) {
	const two = `listeners: [{name: web, port: 80, protocol: TCP}, {name: dns, port: 53, protocol: UDP}, {name: http, port: 8080, protocol: HTTP}]`
	for _, test := range []struct{ name, metadata, spec, status, want string }{
		{"one of IPv4, for the ports of listeners that are served", "", two, "", "[IPv4] wanted [] had [] pool  key  ports 53/UDP,80/TCP"},
		{"of both families, a pool and a key", ", annotations: {weir.io/ip-families: 'IPv6,IPv4', weir.io/address-pool: gold, weir.io/sharing-key: k}", two, "", "[IPv6 IPv4] wanted [] had [] pool gold key k ports 53/UDP,80/TCP"},
		{"these very ones", "", two + ", addresses: [{value: '2001:db8::1'}, {type: IPAddress, value: 203.0.113.7}]", "", "[IPv6 IPv4] wanted [2001:db8::1 203.0.113.7] had [] pool  key  ports 53/UDP,80/TCP"},
		{"one, whichever it is", "", two + ", addresses: [{type: IPAddress}]", "", "[IPv4] wanted [] had [] pool  key  ports 53/UDP,80/TCP"},
		{"this one, and one of the other family", "", two + ", addresses: [{value: '2001:db8::1'}, {type: IPAddress}]", "", "[IPv6 IPv4] wanted [2001:db8::1] had [] pool  key  ports 53/UDP,80/TCP"},
		{"more than one of a family", "", two + ", addresses: [{value: 203.0.113.7}, {value: 203.0.113.8}]", "", "[IPv4] wanted [203.0.113.7] had [] pool  key  ports 53/UDP,80/TCP; NoAddress: spec.addresses[1]: 203.0.113.8 is one more of IPv4, and a Gateway has one address of each family"},
		{"what it had", "", two, "{addresses: [{type: IPAddress, value: 203.0.113.9}, {type: Hostname, value: x}]}", "[IPv4] wanted [] had [203.0.113.9] pool  key  ports 53/UDP,80/TCP"},
		{"one that nothing can be served of keeps what it has", "", "listeners: [{name: http, port: 80, protocol: HTTP}]", "{addresses: [{type: IPAddress, value: 203.0.113.9}]}", "[IPv4] wanted [] had [203.0.113.9] pool  key  ports "},
		{"and gets nothing new", "", "listeners: [{name: http, port: 80, protocol: HTTP}]", "", "[] wanted [] had [] pool  key  ports "},
	} {
		if test.status == "" {
			test.status = "{}"
		}
		c := read(t, base, fmt.Sprintf("{kind: Gateway, metadata: {namespace: shop, name: edge%s}, spec: {gatewayClassName: weir, %s}, status: %s}", test.metadata, test.spec, test.status))
		r, problems := gateway.Read(&c.Cluster).Gateways[0].Request()
		got := fmt.Sprintf("%v wanted %v had %v pool %s key %s ports %s", r.Families, r.Wanted, r.Had, r.Pool, r.Key, strings.Join(r.Ports, ","))
		for _, p := range problems {
			got += fmt.Sprintf("; %s: %s", p.Reason, p.Message)
		}
		if got != test.want {
			t.Errorf("%s: asks for %s, want %s", test.name, got, test.want)
		}
		if name := r.Service.String(); name != "Gateway shop/edge" {
			t.Errorf("it is for %s", name)
		}
	}
}

// Whatever keeps a Gateway from being reached is in its condition Programmed; while no director
// answers, the condition stays as it was.
func TestProgrammed(t *testing.T) {
	c := read(t, base, edge)
	g := gateway.Read(&c.Cluster).Gateways[0]
	static := read(t, base, strings.Replace(edge, "listeners:", "addresses: [{value: 203.0.113.7}], listeners:", 1))
	fixed := gateway.Read(&static.Cluster).Gateways[0]
	programmed := g.Status(gatewayv1.GatewayStatus{}, gateway.Outcome{}, at)
	lacks := func(reason, text string) gateway.Outcome {
		return gateway.Outcome{Problems: []translate.Problem{{Reason: translate.Reason(reason), Message: text}}}
	}
	for _, test := range []struct {
		name   string
		of     *gateway.Gateway
		before gatewayv1.GatewayStatus
		is     gateway.Outcome
		want   string
	}{
		{"no address is free", g, gatewayv1.GatewayStatus{}, lacks("NoAddress", "none is free"), "False AddressNotAssigned none is free, listener False Pending"},
		{"the one that it asks for is not", fixed, gatewayv1.GatewayStatus{}, lacks("NoAddress", "it is taken"), "False AddressNotUsable it is taken, listener False Pending"},
		{"directors refuse it", g, programmed, lacks("NotForwarded", "it clashes"), "False Invalid it clashes, listener False Pending"},
		{"directors do not answer, and have not", g, gatewayv1.GatewayStatus{}, gateway.Outcome{Unanswered: "nobody answers"}, "False Pending nobody answers, listener False Pending"},
		{"directors do not answer, and have", g, programmed, gateway.Outcome{Unanswered: "nobody answers"}, "True Programmed the directors have it, listener True Programmed"},
		{"all is well", g, gatewayv1.GatewayStatus{}, gateway.Outcome{}, "True Programmed the directors have it, listener True Programmed"},
	} {
		s := test.of.Status(test.before, test.is, at)
		p, l := find(t, s.Conditions, "Programmed"), find(t, s.Listeners[0].Conditions, "Programmed")
		if got := fmt.Sprintf("%s %s %s, listener %s %s", p.Status, p.Reason, p.Message, l.Status, l.Reason); got != test.want {
			t.Errorf("%s: says %s, want %s", test.name, got, test.want)
		}
		if p.ObservedGeneration != 3 {
			t.Errorf("%s: is of generation %d, want 3", test.name, p.ObservedGeneration)
		}
	}
}

// A route's status has what this controller has to say, and keeps what others say.
func TestRouteStatus(t *testing.T) {
	c := read(t, base, edge, webRoute)
	v := gateway.Read(&c.Cluster)
	other := gatewayv1.RouteParentStatus{ParentRef: gatewayv1.ParentReference{Name: "edge"}, ControllerName: "example.org/other"}
	gone := gatewayv1.RouteParentStatus{ParentRef: gatewayv1.ParentReference{Name: "gone"}, ControllerName: controller}
	first := v.RouteStatus(v.Routes[0], gatewayv1.RouteStatus{Parents: []gatewayv1.RouteParentStatus{gone, other}}, at)
	if len(first.Parents) != 2 || first.Parents[0].ControllerName != "example.org/other" || first.Parents[1].ParentRef.Name != "edge" || first.Parents[1].ControllerName != controller {
		t.Fatalf("says %+v", first.Parents)
	}
	later := at.DeepCopy()
	later.Time = later.Add(1)
	if again := v.RouteStatus(v.Routes[0], first, *later); again.Parents[1].Conditions[0].LastTransitionTime != at {
		t.Error("what has not changed has another time of change")
	}

	// A Service that comes or goes changes the route's status.
	web := pool.Service{Namespace: "shop", Name: "web"}
	service := c.services[web]
	delete(c.services, web)
	if routes, gateways := v.Touch(web); len(routes) != 1 || len(gateways) != 1 {
		t.Errorf("the Service concerns %d routes and %d Gateways", len(routes), len(gateways))
	}
	if got := find(t, v.RouteStatus(v.Routes[0], first, at).Parents[1].Conditions, "ResolvedRefs"); got.Reason != "BackendNotFound" {
		t.Errorf("without its Service: %s", got.Reason)
	}
	c.services[web] = service
	v.Touch(web)
	if got := find(t, v.RouteStatus(v.Routes[0], first, at).Parents[1].Conditions, "ResolvedRefs"); got.Reason != "ResolvedRefs" {
		t.Errorf("with it again: %s", got.Reason)
	}
}

// A class's status lists its features in order, and says whether Gateways of the class can be
// served.
func TestClassStatus(t *testing.T) {
	c := read(t, base, `{kind: GatewayClass, metadata: {name: tuned}, spec: {controllerName: weir.io/gateway, parametersRef: {group: x, kind: Kind, name: z}}}`)
	var got []string
	for _, class := range gateway.Read(&c.Cluster).Classes {
		s := gateway.ClassStatus(class, at)
		one := class.Name + " " + find(t, s.Conditions, "Accepted").Reason
		for _, f := range s.SupportedFeatures {
			one += " " + string(f.Name)
		}
		got = append(got, one)
	}
	const want = "weir Accepted Gateway ReferenceGrant TCPRoute UDPRoute, tuned InvalidParameters Gateway ReferenceGrant TCPRoute UDPRoute"
	if text := strings.Join(got, ", "); text != want {
		t.Errorf("says %s, want %s", text, want)
	}
}

func find(t *testing.T, conditions []metav1.Condition, kind string) metav1.Condition {
	t.Helper()
	c := meta.FindStatusCondition(conditions, kind)
	if c == nil {
		t.Fatalf("there is no condition %s in %v", kind, conditions)
	}
	return *c
}
