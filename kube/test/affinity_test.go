package kube

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// With sessionAffinity ClientIP all connections of a client go to one pod, whatever the port of the
// Service, and clients are spread over all pods. Without it one client's connections are spread.
func TestSessionAffinity(t *testing.T) {
	l := newLab(t)
	const clients = 24
	for i := range clients {
		l.client.Address("eth0", clientAddress(i)+"/24")
	}
	if err := l.net.Err(); err != nil {
		t.Fatal(err)
	}
	l.controller("one")
	l.pods("web", 1, 2, 3)
	seconds := int32(60)
	l.service("web", func(s *corev1.Service) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	})
	l.waitForAddresses("web", "203.0.113.1")
	l.event("web", "Unsupported", "clientIP.timeoutSeconds: 60 s are not counted")
	pods := map[string]int{}
	for i := range clients {
		first := ""
		for k := range 12 {
			pod, err := l.askAs(clientAddress(i), "203.0.113.1")
			if err != nil {
				t.Fatalf("client %s: %v", clientAddress(i), err)
			}
			if k == 0 {
				first = pod
				pods[pod]++
			} else if pod != first {
				t.Fatalf("client %s is answered by %s, and before by %s", clientAddress(i), pod, first)
			}
		}
	}
	if len(pods) != 3 {
		t.Errorf("of %d clients so many are with each pod: %v; some with each of 3 are wanted", clients, pods)
	}

	patch := []byte(`{"spec": {"sessionAffinity": "None", "sessionAffinityConfig": null}}`)
	if _, err := l.core.Services(namespace).Patch(t.Context(), "web", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	waitFor(t, "each pod to answer one client", func() bool {
		if pod, err := l.askAs(clientAddress(0), "203.0.113.1"); err == nil {
			seen[pod] = true
		}
		return len(seen) == 3
	})
}

func clientAddress(i int) string { return fmt.Sprintf("10.0.0.%d", 100+i) }

// askAs asks from one of the client's addresses.
func (l *lab) askAs(from, address string) (pod string, err error) {
	dial := func(ctx context.Context, network, to string) (conn net.Conn, err error) {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		err = l.client.Do(func() (err error) {
			conn, err = dialer.DialContext(ctx, network, to)
			return err
		})
		return conn, err
	}
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	answer, err := client.Get("http://" + address + "/")
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return string(body), err
}

// With without-class, Services of type LoadBalancer that name no class are weir's, too; those that
// name another class are not. Without it neither are.
func TestWithoutClass(t *testing.T) {
	l := newLab(t)
	of := func(class *string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.LoadBalancerClass = class }
	}
	foreign := "example.org/other"
	first := l.controller("first")
	for i, name := range []string{"none", "foreign", "ours"} {
		l.pods(name, i+1)
	}
	l.service("none", of(nil))
	l.service("foreign", of(&foreign))
	l.service("ours")
	l.waitForAddresses("ours", "203.0.113.1")
	l.waitForSet("default/ours/80-tcp=pod3")
	if got := l.claims(); got != "203.0.113.1=ours" {
		t.Errorf("without without-class addresses are %s", got)
	}

	stop(t, first)
	l.config = l.write("all.yaml", strings.Replace(l.read(l.config), "mode: nat\n", "mode: nat\nwithout-class: true\n", 1))
	l.controller("second")
	l.waitForAddresses("none", "203.0.113.2")
	l.waitForSet("default/none/80-tcp=pod1 default/ours/80-tcp=pod3")
	l.reaches("203.0.113.2", "pod1")
	l.reaches("203.0.113.1", "pod3")
	if got := l.addresses("foreign"); got != "" {
		t.Errorf("a Service of another class has %s", got)
	}
	if got := l.claims(); got != "203.0.113.1=ours 203.0.113.2=none" {
		t.Errorf("with without-class addresses are %s", got)
	}

	// An earlier Service may go, and another one gets its address.
	l.deleteService("none")
	l.pods("later", 2)
	l.service("later", of(nil))
	l.waitForAddresses("later", "203.0.113.2")
	l.reaches("203.0.113.2", "pod2")
}
