package kube

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/internal/api"
)

// One Service's life, and what becomes of others beside it.
func TestServices(t *testing.T) {
	l := newLab(t)
	l.removeGatewayAPI() // of which the controller needs nothing
	first := l.controller("first")

	// A Service gets the first address, and its pods answer there.
	l.pods("web", 1, 2)
	l.service("web")
	l.waitForAddresses("web", "203.0.113.1")
	l.reaches("203.0.113.1", "pod1", "pod2")
	l.event("web", "AddressAssigned", "203.0.113.1")

	// A pod that terminates gets no new connections, one that comes does.
	l.pods("web", 1, -2, 3)
	l.waitForSet("default/web/80-tcp=pod1,pod3")
	l.reaches("203.0.113.1", "pod1", "pod3")
	waitFor(t, "twenty answers in a row without pod2", func() bool {
		for range 20 {
			if pod, err := l.ask("203.0.113.1"); err != nil || pod == "pod2" {
				return false
			}
		}
		return true
	})

	// What another one's set has is refused: that Service hears why, and others are forwarded.
	const taken = `{"services": [{"name": "own", "vip": "203.0.113.2", "protocol": "tcp", "port": "80", "mode": "nat", "snat": true, "backends": [{"address": "10.2.0.21", "port": 8080}]}]}`
	if _, err := l.api.PutSet(t.Context(), "team", api.SetText{JSON: true, Text: []byte(taken)}, api.Condition{}); err != nil {
		t.Fatal(err)
	}
	l.pods("shop", 2)
	l.service("shop")
	l.event("shop", "NotForwarded", "team")
	l.pods("web", 3)
	l.waitForSet("default/web/80-tcp=pod3")
	if got := l.addresses("shop"); got != "" {
		t.Errorf("a Service that is not forwarded has %s in its status", got)
	}
	if _, err := l.api.PutSet(t.Context(), "team", api.SetText{JSON: true, Text: []byte(`{"services": []}`)}, api.Condition{}); err != nil {
		t.Fatal(err)
	}
	l.waitForAddresses("shop", "203.0.113.2")
	l.reaches("203.0.113.2", "pod2")

	// No address is left, until one is.
	l.pods("late", 1)
	l.service("late")
	l.event("late", "NoAddress", "no IPv4 address is free in the pools that it may use: public")
	l.deleteService("web")
	l.waitForAddresses("late", "203.0.113.1")
	l.reaches("203.0.113.1", "pod1")

	// What happens while no controller is there is made true by the next one; what is wanted
	// still stays as it is.
	stop(t, first)
	l.deleteService("shop")
	l.pods("late", 2)
	second := l.controller("second")
	l.waitForSet("default/late/80-tcp=pod2")
	waitFor(t, "the address of the Service that is gone to be released", func() bool { return l.claims() == "203.0.113.1=late" })
	l.waitForAddresses("late", "203.0.113.1")

	// Another one waits for the Lease, and goes on when its holder is lost.
	l.controller("third")
	stop(t, second)
	l.pods("late", 3)
	l.waitForSet("default/late/80-tcp=pod3")
	l.reaches("203.0.113.1", "pod3")

	// Without an API server everything goes on; with it again, so does the controller.
	l.stopServer()
	for range 20 {
		if pod, err := l.ask("203.0.113.1"); err != nil || pod != "pod3" {
			t.Fatalf("without an API server %q answers, error %v", pod, err)
		}
	}
	l.startServer()
	waitFor(t, "the API server to be ready again", l.ready)
	l.pods("late", 1, 3)
	l.waitForSet("default/late/80-tcp=pod1,pod3")

	// What is no load balancer any more gives its address back.
	_, err := l.core.Services(namespace).Patch(t.Context(), "late", types.MergePatchType, []byte(`{"spec": {"type": "ClusterIP", "loadBalancerClass": null}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l.waitForSet("")
	waitFor(t, "all addresses to be released", func() bool { return l.claims() == "" })
	l.waitForAddresses("late", "")
}

// Controllers are killed at random moments while Services come, go and change: no address is
// ever two Services', and in the end everything is as if nothing had happened.
func TestKilledControllers(t *testing.T) {
	l := newLab(t)
	l.config = l.write("many.yaml", strings.ReplaceAll(strings.ReplaceAll(l.read(l.config), "203.0.113.1-203.0.113.2", "203.0.113.0/27"), "4s", "2s"))
	const seed = 8
	random := rand.New(rand.NewPCG(seed, seed))
	there := map[string]bool{}
	leader := "c0"
	running := l.controller(leader)
	had := map[string]string{}
	for i := range 150 {
		name := fmt.Sprintf("s%d", random.IntN(20))
		switch {
		case !there[name]:
			l.service(name)
			l.pods(name, 1+random.IntN(3))
			there[name] = true
		case random.IntN(3) == 0:
			l.deleteService(name)
			delete(there, name)
			delete(had, name)
		default:
			l.pods(name, 1+random.IntN(3))
		}
		if i%15 == 7 {
			// It has just begun to make true what has changed since the last one, or has done
			// some of it, or all.
			l.waitForLease(leader)
			waitFor(t, "a moment to kill the controller in", func() bool { return random.IntN(6) == 0 })
			stop(t, running)
			leader = fmt.Sprintf("c%d", i)
			running = l.controller(leader)
		}
		owners := map[string]string{}
		for name := range there {
			address := l.addresses(name)
			if other, twice := owners[address]; twice && address != "" {
				t.Fatalf("change %d: %s and %s both have %s", i, name, other, address)
			}
			owners[address] = name
			if before := had[name]; before != "" && before != address {
				t.Fatalf("change %d: %s had %s and has %q", i, name, before, address)
			}
			had[name] = address
		}
	}
	var claims []string
	for name := range there {
		waitFor(t, "an address for "+name, func() bool { return l.addresses(name) != "" })
		claims = append(claims, l.addresses(name)+"="+name)
	}
	slices.Sort(claims)
	want := strings.Join(claims, " ")
	waitFor(t, "claims to be "+want, func() bool { return l.claims() == want })
	var set []string
	for name := range there {
		set = append(set, fmt.Sprintf("default/%s/80-tcp=%s", name, strings.Join(l.serving(name), ",")))
	}
	slices.Sort(set)
	l.waitForSet(strings.Join(set, " "))
}

// serving returns the pods of a Service's EndpointSlice.
func (l *lab) serving(service string) (pods []string) {
	l.t.Helper()
	slice, err := l.discovery.EndpointSlices(namespace).Get(l.t.Context(), service+"-1", metav1.GetOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	for _, e := range slice.Endpoints {
		pods = append(pods, e.TargetRef.Name)
	}
	return pods
}
