package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
