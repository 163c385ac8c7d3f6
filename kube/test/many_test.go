package kube

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/internal/api"
	"weir.io/weir/lab/netlab"
)

var (
	many      = flag.Int("services", 100, "how many Services TestManyServices makes at once; its log says how long all took")
	endpoints = flag.Int("endpoints", 10, "how many endpoints each of them has")
)

// each calls f for the numbers below n, several at a time.
func each(n int, f func(i int)) {
	var all sync.WaitGroup
	next := make(chan int)
	for range 16 {
		all.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	all.Wait()
}

// manyService is one of many Services, without node ports: there are not enough for all of them.
func manyService(i int) *corev1.Service {
	ours, no := class, false
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s%d", i)}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer,
		LoadBalancerClass: &ours, AllocateLoadBalancerNodePorts: &no, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}
}

// waitLonger is waitFor with patience for many Services.
func waitLonger(t *testing.T, between time.Duration, what string, condition func() bool) {
	t.Helper()
	patience := patience + time.Duration(*many)*50*time.Millisecond
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(between) { // between two looks
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// manySlice is the EndpointSlice of a Service, with this many endpoints.
func (l *lab) manySlice(i, endpoints int) *discoveryv1.EndpointSlice {
	slice := l.newSlice(fmt.Sprintf("s%d", i))
	for j := range endpoints {
		a := netip.AddrFrom4([4]byte{10, byte(128 + i>>8), byte(i), byte(j + 1)})
		ready := true
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	return slice
}

// createMany creates many Services and their EndpointSlices, and returns when it created the
// Services.
func (c *cluster) createMany(slice func(i int) *discoveryv1.EndpointSlice) (began, made time.Time) {
	c.t.Helper()
	each(*many, func(i int) {
		if _, err := c.discovery.EndpointSlices(namespace).Create(c.t.Context(), slice(i), metav1.CreateOptions{}); err != nil {
			c.t.Error(err)
		}
	})
	began = time.Now()
	each(*many, func(i int) {
		if _, err := c.core.Services(namespace).Create(c.t.Context(), manyService(i), metav1.CreateOptions{}); err != nil {
			c.t.Error(err)
		}
	})
	if made = time.Now(); c.t.Failed() {
		c.t.FailNow()
	}
	return began, made
}

// Many Services that come at once each get their own address, and later changes reach the director;
// a new controller takes over everything as it is.
func TestManyServices(t *testing.T) {
	l := newLab(t, "  limits: {services: 16384, backends: 262144, ring-memory: 1073741824}\n")
	l.director.Route("10.128.0.0/9", podAddress(1))
	l.config = l.write("many.yaml", strings.ReplaceAll(l.read(l.config), "203.0.113.1-203.0.113.2", "203.0.0.0/16"))
	controller := l.controller("first")
	l.waitForLease("first")
	began, made := l.createMany(func(i int) *discoveryv1.EndpointSlice { return l.manySlice(i, *endpoints) })
	waitLonger(t, 500*time.Millisecond, "all Services to have an address", func() bool { return len(l.allAddresses()) == *many })
	t.Logf("%d Services were made in %s, and all had an address %s later", *many, made.Sub(began), time.Since(made))
	had := l.allAddresses()
	owners := map[string]string{}
	for name, address := range had {
		if other, twice := owners[address]; twice {
			t.Fatalf("%s and %s both have %s", name, other, address)
		}
		owners[address] = name
	}
	l.logMemory("the controller", controller)

	var took []time.Duration
	cpu := cpuTime(t, controller)
	const changes = 20
	for n := range changes {
		i := n * 37 % *many
		tag := l.setTag()
		began := time.Now()
		l.putSlice(l.manySlice(i, *endpoints-1))
		waitLonger(t, 5*time.Millisecond, "the director to have another set", func() bool { return l.setTag() != tag })
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	t.Logf("one EndpointSlice that changes is at the director after %s (median of %d), %s at most; the controller takes %s of a CPU for it",
		took[len(took)/2], changes, took[len(took)-1], (cpuTime(t, controller)-cpu)/changes)

	stop(t, controller)
	tag := l.setTag()
	began = time.Now()
	next := l.controller("next")
	l.waitForLease("next")
	leads := time.Now()
	l.putSlice(l.manySlice(1, 1))
	waitLonger(t, 20*time.Millisecond, "the next controller to follow", func() bool { return l.setTag() != tag })
	t.Logf("the next controller has the Lease after %s, and follows %s later", leads.Sub(began), time.Since(leads))
	l.logMemory("the next controller", next)
	for name, address := range l.allAddresses() {
		if address != had[name] {
			t.Errorf("%s had %s and has %q", name, had[name], address)
		}
	}
}

// allAddresses returns the Services' addresses, by their names.
func (l *lab) allAddresses() map[string]string {
	of := map[string]string{}
	list, err := l.core.Services(namespace).List(l.t.Context(), metav1.ListOptions{})
	if err != nil {
		return of
	}
	for i := range list.Items {
		if s := &list.Items[i]; s.Spec.Type == corev1.ServiceTypeLoadBalancer && len(s.Status.LoadBalancer.Ingress) == 1 {
			of[s.Name] = s.Status.LoadBalancer.Ingress[0].IP
		}
	}
	return of
}

// setTag returns the version of the director's set of the cluster.
func (l *lab) setTag() string {
	sets, err := l.api.Sets(l.t.Context())
	if i := slices.IndexFunc(sets, func(s api.SetInfo) bool { return s.Owner == "kube" }); err == nil && i >= 0 {
		return sets[i].ETag
	}
	return ""
}

func (l *lab) logMemory(of string, cmd *netlab.Command) {
	for _, line := range strings.Split(l.read(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid)), "\n") {
		if memory, is := strings.CutPrefix(line, "VmRSS:"); is {
			l.t.Logf("%s has %s of memory", of, strings.TrimSpace(memory))
		}
	}
}

// cpuTime returns how long a process has been on a CPU (proc_pid_stat(5), in the 100ths of a
// second that Linux always counts in there).
func cpuTime(t *testing.T, cmd *netlab.Command) time.Duration {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "stat"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	var all time.Duration
	for _, field := range fields[11:13] { // utime and stime
		ticks, err := strconv.Atoi(field)
		if err != nil {
			t.Fatalf("read /proc/PID/stat: %v", err)
		}
		all += time.Duration(ticks) * 10 * time.Millisecond
	}
	return all
}
