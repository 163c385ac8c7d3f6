package kube

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// lab is
//
//	client --- director --- switch --- pod1 pod2 pod3
//	                               --- control
//
// where control has the API server, its etcd and the controllers, which reach the director
// by its socket.
type lab struct {
	*cluster
	net              *netlab.Lab
	client, director *netlab.Host
	lan              *netlab.Host   // the switch
	servers          []*netlab.Host // the pods
	api              *api.Client    // of the director
	config           string         // of controllers
	kubeconfigFile   string
}

const (
	namespace = "default"
	podPort   = 8080

	controlAddress = "10.2.0.5"
	class          = "weir.io/weir"
)

func podAddress(i int) string { return fmt.Sprintf("10.2.0.%d", 20+i) }

// newLab takes more of the director's configuration; its snat comes first, if it differs.
func newLab(t *testing.T, director ...string) *lab {
	t.Helper()
	needsAPIServer(t)
	n := netlab.ForTest(t)
	l := &lab{net: n, client: n.Host("client"), director: n.Router("director")}
	l.lan = n.Switch("switch")
	lan := l.lan
	n.Link(l.client, l.director, netlab.LinkOptions{XDP: true, A: []string{"10.0.0.2/24"}, B: []string{"10.0.0.1/24"}})
	n.Link(l.director, lan, netlab.LinkOptions{XDP: true, A: []string{"10.2.0.11/24", "10.2.0.16/24"}})
	l.client.Route("default", "10.0.0.1")
	for i := 1; i <= 3; i++ {
		pod := n.Host(fmt.Sprintf("pod%d", i))
		n.Link(pod, lan, netlab.LinkOptions{XDP: true, A: []string{podAddress(i) + "/24"}})
		serve(t, pod)
		l.servers = append(l.servers, pod)
	}
	l.startDirector(t, director)
	control := n.Host("control")
	n.Link(control, lan, netlab.LinkOptions{XDP: true, A: []string{controlAddress + "/24"}})
	l.cluster = newCluster(t, control)
	l.applyResources()
	l.applyGatewayAPI()
	l.makeSystem()
	l.applyChart("--values", "testdata/chart/small.values.yaml")
	kinds := l.applyDocument()
	for _, kind := range []string{"Service", "AddressPool", "ServicePolicy", "DirectorGroup", "BGPPeer", "LoadBalancer", "GatewayClass", "Gateway", "TCPRoute"} {
		if kinds[kind] == 0 {
			t.Fatalf("docs/*/kubernetes*.md have no %s: %v", kind, kinds)
		}
	}
	// The tests do not use the document's examples.
	l.deleteService("web")
	l.deleteResource("addresspools", "", "public")
	l.deleteResource("servicepolicies", namespace, "web")
	l.deleteResource("directorgroups", "", "edge")
	l.deleteResource("bgppeers", "", "rack")
	l.deleteResource("loadbalancers", namespace, "shop")
	l.deleteResource("directorgroups", "", "cloud")
	l.deleteResource("loadbalancers", namespace, "vms")
	l.deleteResource("directorgroups", "", "vms")
	l.deleteService("web-canary")
	l.deleteGateway("tcproutes", namespace, "web")
	l.deleteGateway("gateways", namespace, "edge")
	l.deleteGateway("gatewayclasses", "", "weir")
	l.kubeconfigFile = l.kubeconfig("weir-system", "weir-kube")
	t.Cleanup(l.logEvents)
	l.config = l.write("weir-kube.yaml", fmt.Sprintf(`mode: nat
backends: pods
lease: {namespace: weir-system, name: weir-kube, duration: 4s}
pools:
- name: public
  addresses: [203.0.113.1-203.0.113.2]
directors:
- socket: %s
`, filepath.Join(l.director.Dir(), "director.sock")))
	return l
}

// clientHeader is the header of answers with the client that the pod has seen.
const clientHeader = "Seen-Client"

// serve answers requests on a pod with its name.
func serve(t *testing.T, pod *netlab.Host) {
	t.Helper()
	listener, err := pod.Listen("tcp", fmt.Sprintf(":%d", podPort))
	if err != nil {
		t.Fatal(err)
	}
	server := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, _, _ := net.SplitHostPort(r.RemoteAddr)
		w.Header().Set(clientHeader, client)
		fmt.Fprint(w, pod.Name)
	})}
	go func() { _ = server.Serve(listener) }() // until the server is closed
	t.Cleanup(func() { server.Close() })
}

func (l *lab) startDirector(t *testing.T, more []string) {
	t.Helper()
	dir := filepath.Join(l.director.Dir(), "etc")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file, socket := filepath.Join(dir, "weir.yaml"), filepath.Join(l.director.Dir(), "director.sock")
	text := strings.Join(more, "")
	if !strings.HasPrefix(text, "  snat:") {
		text = "  snat: {addresses: [10.2.0.16], ports: 20000-29999}\n" + text
	}
	text = "director:\n  interfaces: [eth0, eth1]\n" + text + "services: []\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, l.director, filepath.Join(l.director.Dir(), "run.log"), weir, "run", "-c", file, "--bpffs", l.director.BPFFS(), "--socket", socket)
	l.api = api.NewClient(socket)
	waitFor(t, "the director to answer", func() bool { _, err := l.api.Status(t.Context()); return err == nil })
}

// controller starts a controller under a name, its identity in the Lease.
func (l *lab) controller(name string) *netlab.Command {
	l.t.Helper()
	return start(l.t, l.host, filepath.Join(l.dir, name+".log"), weirKube, "controller", "-c", l.config, "--kubeconfig", l.kubeconfigFile, "--identity", name)
}

// waitForLease waits until a controller has the lease.
func (l *lab) waitForLease(name string) {
	l.t.Helper()
	waitFor(l.t, name+" to have the lease", func() bool {
		lease, err := l.coordination.Leases("weir-system").Get(l.t.Context(), "weir-kube", metav1.GetOptions{})
		return err == nil && lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity == name
	})
}

// service makes a Service with one port, 80.
func (l *lab) service(name string, change ...func(*corev1.Service)) {
	l.t.Helper()
	ours := class
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &ours, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}
	for _, f := range change {
		f(s)
	}
	if _, err := l.core.Services(namespace).Create(l.t.Context(), s, metav1.CreateOptions{}); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) deleteService(name string) {
	l.t.Helper()
	if err := l.core.Services(namespace).Delete(l.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		l.t.Fatal(err)
	}
}

// pods makes these pods the only ones that serve a Service: its EndpointSlice, as the endpoint
// slice controller writes it. 2 is pod2; -2 is pod2 while it terminates.
func (l *lab) pods(service string, pods ...int) {
	l.t.Helper()
	slice := l.newSlice(service)
	for _, i := range pods {
		ready, terminating, serving := i > 0, i < 0, true
		i = max(i, -i)
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{podAddress(i)},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: fmt.Sprintf("pod%d", i)},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}})
	}
	l.putSlice(slice)
}

// newSlice returns a Service's EndpointSlice without endpoints, as the endpoint slice
// controller writes it.
func (l *lab) newSlice(service string) *discoveryv1.EndpointSlice {
	port, name, protocol := int32(podPort), "http", corev1.ProtocolTCP
	return &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4,
		ObjectMeta: metav1.ObjectMeta{Name: service + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		Ports:      []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}}}
}

func (l *lab) putSlice(slice *discoveryv1.EndpointSlice) {
	l.t.Helper()
	slices := l.discovery.EndpointSlices(namespace)
	_, err := slices.Update(l.t.Context(), slice, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = slices.Create(l.t.Context(), slice, metav1.CreateOptions{})
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

// addresses returns the addresses in a Service's status.
func (l *lab) addresses(name string) string {
	s, err := l.core.Services(namespace).Get(l.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	var list []string
	for _, i := range s.Status.LoadBalancer.Ingress {
		list = append(list, i.IP)
	}
	return strings.Join(list, " ")
}

func (l *lab) waitForAddresses(name, want string) {
	l.t.Helper()
	waitFor(l.t, fmt.Sprintf("Service %s to have %q in its status", name, want), func() bool { return l.addresses(name) == want })
}

// claims returns which Service has which address, by weir's claims.
func (l *lab) claims() string {
	all, err := l.networking.IPAddresses().List(l.t.Context(), metav1.ListOptions{LabelSelector: "ipaddress.kubernetes.io/managed-by=weir.io"})
	if err != nil {
		return err.Error()
	}
	var list []string
	for _, a := range all.Items {
		list = append(list, a.Name+"="+a.Spec.ParentRef.Name)
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// forwards returns the director's set of the cluster: each service with its active backends.
func (l *lab) forwards() string {
	set, err := l.api.Set(l.t.Context(), "kube")
	if err != nil {
		return err.Error()
	}
	var list []string
	for _, s := range set.Services {
		var backends []string
		for _, b := range s.Backends {
			if b.State == model.Active {
				backends = append(backends, b.Name)
			}
		}
		list = append(list, fmt.Sprintf("%s=%s", s.Name, strings.Join(backends, ",")))
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

func (l *lab) waitForSet(want string) {
	l.t.Helper()
	waitFor(l.t, fmt.Sprintf("the director to forward %q", want), func() bool { return l.forwards() == want })
}

// event waits for an event on a Service with a reason and a text.
func (l *lab) event(service, reason, text string) {
	l.t.Helper()
	waitFor(l.t, fmt.Sprintf("an event %s of Service %s that says %q", reason, service, text), func() bool {
		events, err := l.core.Events(namespace).List(l.t.Context(), metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Kind == "Service" && e.InvolvedObject.Name == service && e.Reason == reason && strings.Contains(e.Message, text)
		})
	})
}

// logEvents shows the events for users.
func (l *lab) logEvents() {
	events, err := l.core.Events(namespace).List(context.Background(), metav1.ListOptions{}) // the test's context has ended
	if err != nil || !l.t.Failed() && !testing.Verbose() {
		return
	}
	said := map[string]bool{}
	for _, e := range events.Items {
		if text := fmt.Sprintf("%s %s: %s", e.Type, e.Reason, e.Message); !said[text] && len(said) < 50 {
			said[text] = true
			l.t.Logf("event on %s: %s", e.InvolvedObject.Name, text)
		}
	}
}

// ask returns the name of the pod that answers the client at an address.
func (l *lab) ask(address string) (string, error) {
	pod, _, err := l.askSeen(address)
	return pod, err
}

// askSeen is ask that also returns the client that the pod has seen.
func (l *lab) askSeen(address string) (pod, seen string, err error) {
	return askFrom(l.client, address)
}

// askFrom is askSeen from any host.
func askFrom(h *netlab.Host, address string) (pod, seen string, err error) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: h.DialContext}}
	answer, err := client.Get("http://" + address + "/")
	if err != nil {
		return "", "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return string(body), answer.Header.Get(clientHeader), err
}

// reaches waits until each of the pods has answered the client.
func (l *lab) reaches(address string, pods ...string) {
	l.t.Helper()
	seen := map[string]bool{}
	waitFor(l.t, fmt.Sprintf("%v to answer at %s", pods, address), func() bool {
		if pod, err := l.ask(address); err == nil {
			seen[pod] = true
		}
		return !slices.ContainsFunc(pods, func(p string) bool { return !seen[p] })
	})
}
