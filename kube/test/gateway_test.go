package kube

import (
	"context"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/lab/netlab"
)

const (
	classText = `{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: weir}, spec: {controllerName: weir.io/gateway}}`
	edgeText  = `{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: edge, namespace: default}, spec: {gatewayClassName: weir, listeners: [{name: web, port: 80, protocol: TCP}, {name: dns, port: 53, protocol: UDP}]}}`
	webText   = `{apiVersion: gateway.networking.k8s.io/v1, kind: TCPRoute, metadata: {name: web, namespace: default}, spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: web, port: 80, weight: 75}, {name: canary, port: 80, weight: 25}]}]}}`
	dnsText   = `{apiVersion: gateway.networking.k8s.io/v1, kind: UDPRoute, metadata: {name: dns, namespace: default}, spec: {parentRefs: [{name: edge, sectionName: dns}], rules: [{backendRefs: [{name: names, port: 53}]}]}}`

	datagramPort = 5353
)

// A Gateway's life: addresses like those of Services, shares by weights, and which namespaces may
// refer to which.
func TestGateways(t *testing.T) {
	l := newLab(t)
	first := l.controller("first")
	l.apply(classText)
	waitFor(t, "the class to be accepted", func() bool {
		text, err := l.core.RESTClient().Get().AbsPath("/apis/gateway.networking.k8s.io/v1/gatewayclasses/weir").Do(t.Context()).Raw()
		var class struct {
			Metadata metav1.ObjectMeta
			Status   struct{ Conditions []metav1.Condition }
		}
		fromYAML(t, text, &class)
		return err == nil && conditionsText(class.Metadata.Generation, class.Status.Conditions) == "Accepted=Accepted"
	})

	// A Gateway has an address of its own before it has a route.
	l.apply(edgeText)
	l.waitForSaid("gateways", "edge", "203.0.113.1 Accepted=Accepted Programmed=Programmed web:0 dns:0")
	if got := l.claims(); got != "203.0.113.1=edge" {
		t.Errorf("addresses are %s", got)
	}

	// A route's status says what is missing, and the route works once it is there.
	l.apply(webText)
	l.waitForSaid("tcproutes", "web", "edge !ResolvedRefs=BackendNotFound Accepted=Accepted")
	l.pods("web", 1)
	l.pods("canary", 2, 3)
	l.plainService("web", corev1.ProtocolTCP, 80)
	l.plainService("canary", corev1.ProtocolTCP, 80)
	l.waitForSaid("tcproutes", "web", "edge Accepted=Accepted ResolvedRefs=ResolvedRefs")
	l.waitForSaid("gateways", "edge", "203.0.113.1 Accepted=Accepted Programmed=Programmed web:1 dns:0")
	l.waitForSet("gateway/default/edge/80-tcp=canary/pod2,canary/pod3,web/pod1")
	l.reaches("203.0.113.1", "pod1", "pod2", "pod3")

	// Its Services have the shares that the route gives them, not one for each pod.
	const connections = 600
	share := l.share(connections, "pod1")
	// Four standard deviations of this many draws, and some for the ring.
	if bound := 4*math.Sqrt(0.75*0.25/connections) + 0.01; math.Abs(share-0.75) > bound {
		t.Errorf("the Service with 3/4 of the weight got %.3f of %d connections, and may differ by %.3f", share, connections, bound)
	}
	l.patchGateway("tcproutes", "web", `[{"op": "replace", "path": "/spec/rules/0/backendRefs/1/weight", "value": 0}]`)
	waitFor(t, "a hundred answers in a row of the Service that has all of the weight", func() bool { return l.share(100, "pod1") == 1 })

	// UDP on the same address.
	for _, pod := range l.servers {
		answerDatagrams(t, pod)
	}
	l.plainService("names", corev1.ProtocolUDP, 53)
	l.putSlice(l.datagramSlice("names", 1, 2))
	l.apply(dnsText)
	l.waitForSaid("udproutes", "dns", "edge Accepted=Accepted ResolvedRefs=ResolvedRefs")
	l.waitForSaid("gateways", "edge", "203.0.113.1 Accepted=Accepted Programmed=Programmed web:1 dns:1")
	l.datagramsReach("203.0.113.1:53", "pod1", "pod2")

	// Another namespace's Service is used only while that namespace grants it.
	l.apply(`{apiVersion: v1, kind: Namespace, metadata: {name: bank}}`)
	l.inNamespace("bank", 3)
	l.patchGateway("tcproutes", "web", `[{"op": "replace", "path": "/spec/rules/0/backendRefs", "value": [{"name": "vault", "namespace": "bank", "port": 80}]}]`)
	l.waitForSaid("tcproutes", "web", "edge !ResolvedRefs=RefNotPermitted Accepted=Accepted")
	l.waitForSet("gateway/default/edge/53-udp=names/pod1,names/pod2")
	l.apply(`{apiVersion: gateway.networking.k8s.io/v1, kind: ReferenceGrant, metadata: {name: x, namespace: bank}, spec: {from: [{group: gateway.networking.k8s.io, kind: TCPRoute, namespace: default}], to: [{group: "", kind: Service, name: vault}]}}`)
	l.waitForSaid("tcproutes", "web", "edge Accepted=Accepted ResolvedRefs=ResolvedRefs")
	l.waitForSet("gateway/default/edge/53-udp=names/pod1,names/pod2 gateway/default/edge/80-tcp=bank/vault/pod3")
	l.reaches("203.0.113.1", "pod3")
	l.deleteGateway("referencegrants", "bank", "x")
	l.waitForSaid("tcproutes", "web", "edge !ResolvedRefs=RefNotPermitted Accepted=Accepted")
	l.waitForSet("gateway/default/edge/53-udp=names/pod1,names/pod2")

	// The next controller catches up with changes while none ran, and the Gateway keeps its
	// address.
	stop(t, first)
	l.patchGateway("tcproutes", "web", `[{"op": "replace", "path": "/spec/rules/0/backendRefs", "value": [{"name": "web", "port": 80}]}]`)
	second := l.controller("second")
	l.waitForSet("gateway/default/edge/53-udp=names/pod1,names/pod2 gateway/default/edge/80-tcp=web/pod1")
	l.waitForSaid("gateways", "edge", "203.0.113.1 Accepted=Accepted Programmed=Programmed web:1 dns:1")
	l.reaches("203.0.113.1", "pod1")
	stop(t, second)
	l.deleteGateway("gateways", "default", "edge")
	l.controller("third")
	waitFor(t, "all addresses to be released", func() bool { return l.claims() == "" })
	l.waitForSaid("tcproutes", "web", "")
	l.waitForSet("")
}

// Gateways and Services want the same addresses and ports: none gets what another one has, and the
// status of each says why.
func TestGatewayAddresses(t *testing.T) {
	l := newLab(t)
	l.controller("one")
	l.apply(classText)
	l.pods("web", 1)
	l.service("web", sharing("shop", 80))
	l.waitForAddresses("web", "203.0.113.1")
	gateway := func(name, spec, annotations string) {
		t.Helper()
		l.apply(fmt.Sprintf(`{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: %s, namespace: default, annotations: {%s}}, spec: {gatewayClassName: weir, %s}}`, name, annotations, spec))
	}

	// A Gateway does not get a Service's address, an address of no pool, or an address of another
	// type. Their status says so, and the first gets its address when it is free.
	gateway("static", `addresses: [{value: 203.0.113.1}], listeners: [{name: a, port: 81, protocol: TCP}]`, "")
	l.waitForSaid("gateways", "static", "!Programmed=AddressNotUsable Accepted=Accepted a:0")
	gateway("stranger", `addresses: [{value: 198.51.100.1}], listeners: [{name: a, port: 81, protocol: TCP}]`, "")
	l.waitForSaid("gateways", "stranger", "!Programmed=AddressNotUsable Accepted=Accepted a:0")
	gateway("named", `addresses: [{type: Hostname, value: example.org}], listeners: [{name: a, port: 81, protocol: TCP}]`, "")
	l.waitForSaid("gateways", "named", "!Accepted=UnsupportedAddress !Programmed=Invalid a:0")

	// With the Service's key and another port it shares the address.
	gateway("friend", `listeners: [{name: a, port: 82, protocol: TCP}, {name: b, port: 80, protocol: UDP}]`, "weir.io/sharing-key: shop")
	l.waitForSaid("gateways", "friend", "203.0.113.1 Accepted=Accepted Programmed=Programmed a:0 b:0")
	// With the same port it does not.
	gateway("rival", `listeners: [{name: a, port: 80, protocol: TCP}]`, "weir.io/sharing-key: shop")
	l.waitForSaid("gateways", "rival", "203.0.113.2 Accepted=Accepted Programmed=Programmed a:0")
	gateway("late", `listeners: [{name: a, port: 80, protocol: TCP}]`, "")
	l.waitForSaid("gateways", "late", "!Programmed=AddressNotAssigned Accepted=Accepted a:0")
	l.apply(`{apiVersion: gateway.networking.k8s.io/v1, kind: TCPRoute, metadata: {name: friend, namespace: default}, spec: {parentRefs: [{name: friend}], rules: [{backendRefs: [{name: inner, port: 80}]}]}}`)
	l.pods("inner", 2)
	l.plainService("inner", corev1.ProtocolTCP, 80)
	l.reaches("203.0.113.1", "pod1")
	l.reaches("203.0.113.1:82", "pod2")

	// A Gateway whose listeners become unsupported keeps its address, and serves again when they
	// are fixed.
	l.patchGateway("gateways", "friend", `[{"op": "replace", "path": "/spec/listeners", "value": [{"name": "a", "port": 82, "protocol": "HTTP"}]}]`)
	l.waitForSaid("gateways", "friend", "203.0.113.1 !Accepted=ListenersNotValid !Programmed=Invalid a:0")
	l.waitForSaid("tcproutes", "friend", "friend !Accepted=NotAllowedByListeners ResolvedRefs=ResolvedRefs")
	l.waitForSet("default/web/80-tcp=pod1")
	l.patchGateway("gateways", "friend", `[{"op": "replace", "path": "/spec/listeners", "value": [{"name": "a", "port": 82, "protocol": "TCP"}]}]`)
	l.waitForSaid("gateways", "friend", "203.0.113.1 Accepted=Accepted Programmed=Programmed a:1")
	l.reaches("203.0.113.1:82", "pod2")

	l.deleteService("web")
	l.deleteGateway("gateways", "default", "friend")
	l.waitForSaid("gateways", "static", "203.0.113.1 Accepted=Accepted Programmed=Programmed a:0")

	// Without its class a Gateway belongs to no controller.
	l.deleteGateway("gatewayclasses", "", "weir")
	waitFor(t, "all addresses to be released", func() bool { return l.claims() == "" })
}

// plainService makes a Service that is no load balancer.
func (l *lab) plainService(name string, protocol corev1.Protocol, port int32) {
	l.t.Helper()
	l.makePlain(namespace, name, protocol, port)
}

func (l *lab) makePlain(namespace, name string, protocol corev1.Protocol, port int32) {
	l.t.Helper()
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: portName(protocol), Port: port, Protocol: protocol}}}}
	if _, err := l.core.Services(namespace).Create(l.t.Context(), s, metav1.CreateOptions{}); err != nil {
		l.t.Fatal(err)
	}
}

func portName(p corev1.Protocol) string {
	if p == corev1.ProtocolUDP {
		return "datagrams"
	}
	return "http"
}

// inNamespace makes the Service vault in a namespace, with one pod.
func (l *lab) inNamespace(namespace string, pod int) {
	l.t.Helper()
	l.makePlain(namespace, "vault", corev1.ProtocolTCP, 80)
	slice := l.newSlice("vault")
	slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{podAddress(pod)}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: fmt.Sprintf("pod%d", pod)}}}
	if _, err := l.discovery.EndpointSlices(namespace).Create(l.t.Context(), slice, metav1.CreateOptions{}); err != nil {
		l.t.Fatal(err)
	}
}

// datagramSlice returns the EndpointSlice of a UDP Service.
func (l *lab) datagramSlice(service string, pods ...int) *discoveryv1.EndpointSlice {
	slice := l.newSlice(service)
	port, name, protocol := int32(datagramPort), portName(corev1.ProtocolUDP), corev1.ProtocolUDP
	slice.Ports = []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}}
	for _, i := range pods {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{podAddress(i)}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: fmt.Sprintf("pod%d", i)}})
	}
	return slice
}

// answerDatagrams answers each datagram on a pod with its name.
func answerDatagrams(t *testing.T, pod *netlab.Host) {
	t.Helper()
	conn, err := pod.ListenPacket("udp", fmt.Sprintf(":%d", datagramPort))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buffer := make([]byte, 1500)
		for {
			_, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return // the socket is closed
			}
			_, _ = conn.WriteTo([]byte(pod.Name), from)
		}
	}()
}

// datagramsReach waits until each of the pods has answered one of the client's datagrams.
func (l *lab) datagramsReach(address string, pods ...string) {
	l.t.Helper()
	left := map[string]bool{}
	for _, p := range pods {
		left[p] = true
	}
	waitFor(l.t, fmt.Sprintf("%v to answer datagrams at %s", pods, address), func() bool {
		if pod, err := l.askDatagram(address); err == nil {
			delete(left, pod)
		}
		return len(left) == 0
	})
}

func (l *lab) askDatagram(address string) (pod string, err error) {
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Second)
	defer cancel()
	conn, err := l.client.DialContext(ctx, "udp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return datagram(conn)
}

func datagram(conn net.Conn) (answer string, err error) {
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte("who")); err != nil {
		return "", err
	}
	buffer := make([]byte, 1500)
	n, err := conn.Read(buffer)
	return string(buffer[:n]), err
}

// share returns the share of connections that a pod answers at the Gateway's address.
func (l *lab) share(connections int, pod string) float64 {
	l.t.Helper()
	its := 0
	for i := range connections {
		answered, err := l.ask("203.0.113.1")
		if err != nil {
			l.t.Fatalf("connection %d of %d: %v", i, connections, err)
		}
		if answered == pod {
			its++
		}
	}
	return float64(its) / float64(connections)
}

// waitForEvent waits for an event on an object of any kind with a reason and a text.
func (l *lab) waitForEvent(kind, name, reason, text string) {
	l.t.Helper()
	waitFor(l.t, fmt.Sprintf("an event %s of %s %s that says %q", reason, kind, name, text), func() bool {
		events, err := l.core.Events(namespace).List(l.t.Context(), metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Kind == kind && e.InvolvedObject.Name == name && e.Reason == reason && strings.Contains(e.Message, text)
		})
	})
}

// Gateway API works as soon as it is installed, without a restart of the controller, and events on
// Gateways and routes tell what is wrong with them. Services go on meanwhile, also when it is
// removed again.
func TestGatewayAPIComesLater(t *testing.T) {
	l := newLab(t)
	l.removeGatewayAPI()
	l.controller("first")
	l.pods("shop", 3)
	l.service("shop")
	l.waitForAddresses("shop", "203.0.113.1")

	l.applyGatewayAPI()
	l.apply(classText)
	l.apply(edgeText)
	l.apply(webText)
	l.waitForEvent("Gateway", "edge", "AddressAssigned", "it is reached at 203.0.113.2")
	l.waitForEvent("TCPRoute", "web", "BackendNotFound", "there is no Service default/web; there is no Service default/canary; connections meant for it go to the other backends")
	l.pods("web", 1)
	l.plainService("web", corev1.ProtocolTCP, 80)
	l.reaches("203.0.113.2", "pod1")
	l.apply(strings.NewReplacer("name: edge", "name: secure", "name: web, port: 80, protocol: TCP", "name: web, port: 443, protocol: HTTPS").Replace(edgeText))
	l.waitForEvent("Gateway", "secure", "UnsupportedProtocol", "listener web: protocol HTTPS is not served")
	l.waitForEvent("Gateway", "secure", "NoAddress", "no IPv4 address is free")

	l.removeGatewayAPI()
	l.waitForSet("default/shop/80-tcp=pod3")
	l.reaches("203.0.113.1", "pod3")
}
