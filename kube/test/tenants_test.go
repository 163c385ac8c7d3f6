package kube

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"weir.io/weir/internal/api"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
	"weir.io/weir/lab/netlab"
)

// tenantsLab is a group of directors with three tenants, who all have the same addresses: red in
// vlan:7, blue in vlan:8, and green in vxlan:5001. Each has a client and two servers.
//
//	red-client   red-a   red-b   --- switch --- node-a node-b
//	blue-client  blue-a  blue-b  ---        --- control
//	green-client green-a green-b ---
type tenantsLab struct {
	*groupLab
	tenants map[string]*tenant
}

// tenant is one of them.
type tenant struct {
	name, segment string
	client        *netlab.Host
	servers       []*tenantServer
}

// tenantServer is a virtual machine with the VIP, which answers with its name.
type tenantServer struct {
	*netlab.Host
	mac  net.HardwareAddr
	vtep string // its host's; empty: it is in a VLAN
	web  *http.Server
}

const (
	tenantVIP  = "10.0.0.100"
	tenantPort = 8080
)

func tenantServerAddress(i int) string { return fmt.Sprintf("10.0.0.%d", 11+i) }

func newTenantsLab(t *testing.T) *tenantsLab {
	t.Helper()
	l := &tenantsLab{newGroupLab(t, groupOptions{values: "testdata/tenants.values.yaml", onLink: true, nodes: 2, tagged: true, pool: "10.2.0.200-10.2.0.210, 10.2.0.11"}), map[string]*tenant{}}
	for i, of := range []tenant{{name: "red", segment: "vlan:7"}, {name: "blue", segment: "vlan:8"}, {name: "green", segment: "vxlan:5001"}} {
		l.tenants[of.name] = &of
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: of.name, Labels: map[string]string{"tenant": of.name}}}
		if _, err := l.core.Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		of.client = l.net.Host(of.name + "-client")
		l.join(&of, of.client, "10.0.0.50", 40+10*i)
		for j, letter := range []string{"a", "b"} {
			s := &tenantServer{Host: l.net.Host(of.name + "-" + letter)}
			s.mac, s.vtep = l.join(&of, s.Host, tenantServerAddress(j), 41+j+10*i)
			s.Sysctl("net.ipv4.conf.all.arp_ignore", "1")
			s.Sysctl("net.ipv4.conf.all.arp_announce", "2")
			s.Address("lo", tenantVIP+"/32")
			s.begin(t)
			of.servers = append(of.servers, s)
		}
	}
	if err := l.net.Err(); err != nil {
		t.Fatal(err)
	}
	return l
}

// join connects a host to a tenant's network, and returns its MAC address there and, in VXLAN, its
// VTEP.
func (l *tenantsLab) join(of *tenant, h *netlab.Host, address string, number int) (net.HardwareAddr, string) {
	l.t.Helper()
	if strings.HasPrefix(of.segment, "vlan:") {
		port := l.net.Link(h, l.lan, netlab.LinkOptions{XDP: true, Tagged: true, A: []string{address + "/24"}}).A
		var id uint16
		if _, err := fmt.Sscanf(of.segment, "vlan:%d", &id); err != nil {
			l.t.Fatal(err)
		}
		leave, err := port.JoinVLAN(id, true)
		if err != nil {
			l.t.Fatal(err)
		}
		l.t.Cleanup(leave)
		return port.MAC, ""
	}
	vtep := fmt.Sprintf("10.2.0.%d", number)
	l.net.Link(h, l.lan, netlab.LinkOptions{XDP: true, A: []string{vtep + "/24"}})
	_, vni, _ := strings.Cut(of.segment, ":")
	mac := net.HardwareAddr{2, 0, 0, 0, 1, byte(number)}
	l.run(h, "ip", "link", "add", "vxlan0", "address", mac.String(), "type", "vxlan", "id", vni, "local", vtep, "dstport", "4789")
	l.run(h, "ip", "link", "set", "vxlan0", "up")
	h.Address("vxlan0", address+"/24")
	for _, other := range []int{11, 12, 60, 61, 62} { // what is for no known host goes to the directors and to the others
		if other != number {
			l.run(h, "bridge", "fdb", "append", "00:00:00:00:00:00", "dev", "vxlan0", "dst", fmt.Sprintf("10.2.0.%d", other))
		}
	}
	return mac, vtep
}

// begin answers requests, until end.
func (s *tenantServer) begin(t *testing.T) {
	t.Helper()
	listener, err := s.Listen("tcp", fmt.Sprintf(":%d", tenantPort))
	if err != nil {
		t.Fatal(err)
	}
	s.web = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, s.Name) })}
	web := s.web
	go func() { _ = web.Serve(listener) }() // until the server is closed
	t.Cleanup(func() { web.Close() })
}

func (s *tenantServer) end() { s.web.Close() }

// spec returns a LoadBalancer with the tenant's servers, behind more keys of it.
func (of *tenant) spec(more string) string {
	var members []string
	for i, s := range of.servers {
		m := fmt.Sprintf("name: %s, address: %s, mac: %q", s.Name, tenantServerAddress(i), s.mac)
		if s.vtep != "" {
			m += ", vtep: " + s.vtep
		}
		members = append(members, "{"+m+"}")
	}
	return fmt.Sprintf(`%ssegment: %q, addresses: [%s], listeners: [{name: http, protocol: tcp, ports: "%d", mode: l2dsr, drain: 1s, health: {kind: tcp, interval: 200ms, fall: 2, rise: 1}, members: [%s]}]`,
		more, of.segment, tenantVIP, tenantPort, strings.Join(members, ", "))
}

func balancerText(namespace, name, spec string) string {
	return fmt.Sprintf("{apiVersion: weir.io/v1alpha1, kind: LoadBalancer, metadata: {name: %s, namespace: %s}, spec: {%s}}", name, namespace, spec)
}

func (l *groupLab) balance(namespace, name, spec string) {
	l.t.Helper()
	if _, _, err := l.make(balancerText(namespace, name, spec)); err != nil {
		l.t.Fatal(err)
	}
}

func (l *groupLab) balancer(namespace, name string) *v1alpha1.LoadBalancer {
	l.t.Helper()
	text, err := l.core.RESTClient().Get().AbsPath(l.path("LoadBalancer", namespace), name).Do(l.t.Context()).Raw()
	if err != nil {
		l.t.Fatal(err)
	}
	var b v1alpha1.LoadBalancer
	if err := json.Unmarshal(text, &b); err != nil {
		l.t.Fatal(err)
	}
	return &b
}

// waitForBalancer waits until a LoadBalancer's status is as wanted.
func (l *groupLab) waitForBalancer(namespace, name, what string, is func(*v1alpha1.LoadBalancer) bool) *v1alpha1.LoadBalancer {
	l.t.Helper()
	var b *v1alpha1.LoadBalancer
	defer func() {
		if l.t.Failed() && b != nil {
			text, _ := json.MarshalIndent(b.Status, "", " ")
			l.t.Logf("LoadBalancer %s/%s is %s", namespace, name, text)
		}
	}()
	waitFor(l.t, fmt.Sprintf("LoadBalancer %s/%s to %s", namespace, name, what), func() bool {
		b = l.balancer(namespace, name)
		return is(b)
	})
	return b
}

// says reports whether a condition has a status and a reason, and a text in its message.
func says(b *v1alpha1.LoadBalancer, condition string, status metav1.ConditionStatus, reason, text string) bool {
	c := meta.FindStatusCondition(b.Status.Conditions, condition)
	return c != nil && c.Status == status && c.Reason == reason && c.ObservedGeneration == b.Generation && strings.Contains(c.Message, text)
}

// patch changes an object.
func (l *groupLab) patch(plural, namespace, name, change string) {
	l.t.Helper()
	path := "/apis/weir.io/v1alpha1/" + plural + "/" + name
	if namespace != "" {
		path = "/apis/weir.io/v1alpha1/namespaces/" + namespace + "/" + plural + "/" + name
	}
	if err := l.lab.core.RESTClient().Patch(types.MergePatchType).AbsPath(path).Body([]byte(change)).Do(l.t.Context()).Error(); err != nil {
		l.t.Fatal(err)
	}
}

func (l *groupLab) group(name string) (g v1alpha1.DirectorGroup) {
	l.t.Helper()
	text, err := l.lab.core.RESTClient().Get().AbsPath("/apis/weir.io/v1alpha1/directorgroups", name).Do(l.t.Context()).Raw()
	if err == nil {
		err = json.Unmarshal(text, &g)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	return g
}

// patchGroup changes a group, and waits until the controller has read the change.
func (l *groupLab) patchGroup(name, change string) {
	l.t.Helper()
	l.patch("directorgroups", "", name, change)
	waitFor(l.t, "the controller to read DirectorGroup "+name, func() bool {
		g := l.group(name)
		c := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.Ready)
		return c != nil && c.ObservedGeneration == g.Generation
	})
}

// memberStates returns the states of the members of the first listener, and the listener's own.
func memberStates(b *v1alpha1.LoadBalancer) string {
	if len(b.Status.Listeners) == 0 {
		return "none"
	}
	first := &b.Status.Listeners[0]
	list := []string{first.State}
	for _, m := range first.Members {
		list = append(list, fmt.Sprintf("%s=%s/%d", m.Name, m.State, m.Directors))
	}
	return strings.Join(list, " ")
}

// answers waits until each of the servers has answered the tenant's client, and nobody else has.
func (l *tenantsLab) answers(of *tenant, servers ...string) {
	l.t.Helper()
	seen := map[string]bool{}
	waitFor(l.t, fmt.Sprintf("%v to answer %s", servers, of.client.Name), func() bool {
		if name, _, err := askFrom(of.client, fmt.Sprintf("%s:%d", tenantVIP, tenantPort)); err == nil {
			if !slices.Contains(servers, name) {
				l.t.Fatalf("%s answers %s", name, of.client.Name)
			}
			seen[name] = true
		}
		return len(seen) == len(servers)
	})
}

// Three tenants have the same VIP and members with the same addresses, in two VLANs and in VXLAN. Each
// client reaches its own tenant's servers, and only its own. The status follows a server that dies
// and comes back. A LoadBalancer that its namespace has no right to, or whose VIP another one has, is
// not forwarded. A deleted one is forwarded no more.
func TestLoadBalancersOfTenants(t *testing.T) {
	l := newTenantsLab(t)
	l.waitForFit()
	l.controller("first")
	l.waitForStatus("node-a node-b, 0 stand by")
	for name, of := range l.tenants {
		l.balance(name, "web", of.spec("group: edge, "))
	}
	for name, of := range l.tenants {
		b := l.waitForBalancer(name, "web", "be forwarded by two directors", func(b *v1alpha1.LoadBalancer) bool {
			return says(b, v1alpha1.Accepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "edge") && b.Status.Directors == 2 &&
				says(b, v1alpha1.Programmed, metav1.ConditionTrue, v1alpha1.ReasonForwarded, "2 of 2")
		})
		if got := strings.Join(b.Status.Addresses, " "); got != tenantVIP || b.Status.Segment != of.segment || b.Status.Group != "edge" {
			t.Errorf("%s has %s in %s of %s", name, got, b.Status.Segment, b.Status.Group)
		}
	}
	for _, of := range l.tenants {
		l.answers(of, of.servers[0].Name, of.servers[1].Name)
	}
	for name := range l.tenants {
		l.waitForBalancer(name, "web", "have healthy members", func(b *v1alpha1.LoadBalancer) bool {
			return memberStates(b) == fmt.Sprintf("up %s-a=up/2 %s-b=up/2", name, name) && says(b, v1alpha1.Degraded, metav1.ConditionFalse, v1alpha1.ReasonHealthy, "")
		})
	}

	// A member dies, and is back: the other tenants' with the same address goes on.
	red, blue, green := l.tenants["red"], l.tenants["blue"], l.tenants["green"]
	red.servers[0].end()
	l.waitForBalancer("red", "web", "have a member less", func(b *v1alpha1.LoadBalancer) bool {
		return memberStates(b) == "degraded red-a=down/2 red-b=up/2" && says(b, v1alpha1.Degraded, metav1.ConditionTrue, v1alpha1.ReasonMembersDown, "red-a of listener http") &&
			b.Status.Listeners[0].Members[0].Reason != ""
	})
	l.answers(red, "red-b")
	if b := l.balancer("blue", "web"); memberStates(b) != "up blue-a=up/2 blue-b=up/2" {
		t.Errorf("of blue's members are known %s", memberStates(b))
	}
	red.servers[0].begin(t)
	l.waitForBalancer("red", "web", "have both members again", func(b *v1alpha1.LoadBalancer) bool {
		return memberStates(b) == "up red-a=up/2 red-b=up/2" && says(b, v1alpha1.Degraded, metav1.ConditionFalse, v1alpha1.ReasonHealthy, "")
	})
	l.answers(red, "red-a", "red-b")
	l.waitForBalancer("red", "web", "have counted connections", func(b *v1alpha1.LoadBalancer) bool {
		s := b.Status.Listeners[0].Statistics
		return s != nil && s.Connections > 0 && s.Packets > s.Connections && s.Bytes > s.Packets
	})

	// Others may not use a tenant's network, by VIPs or by members, nor reach hosts or name VTEPs that nobody has
	// given them, and no VIP is anybody's twice.
	for _, refused := range []struct{ namespace, name, spec, reason, text string }{
		{"blue", "in-red", red.spec("group: edge, "), v1alpha1.ReasonNotAllowed, "spec.segment: DirectorGroup edge does not let namespace blue use segment vlan:7"},
		{"blue", "to-red", `group: edge, listeners: [{name: http, protocol: tcp, ports: "80", mode: l2dsr}], members: [{name: x, address: 10.0.0.11, mac: "02:00:00:00:00:01", vlan: 7}]`,
			v1alpha1.ReasonNotAllowed, "spec.members[0].vlan: DirectorGroup edge does not let namespace blue use segment vlan:7"},
		{"blue", "to-node", `group: edge, listeners: [{name: http, protocol: tcp, ports: "80", mode: nat}], members: [{name: x, address: 10.2.0.11}]`,
			v1alpha1.ReasonNotAllowed, "spec.members[0].address: DirectorGroup edge does not let namespace blue have members at 10.2.0.11 outside of segments"},
		{"green", "vtep", strings.Replace(green.spec("group: edge, "), "vtep: "+green.servers[0].vtep, "vtep: 10.3.0.1", 1), v1alpha1.ReasonNotAllowed, "spec.listeners[0].members[0].vtep: 10.3.0.1 is in none of the peers"},
		{"green", "no-snat", `group: edge, listeners: [{name: http, protocol: tcp, ports: "80", mode: nat, snat: false}], members: [{name: x, address: 10.0.0.11, segment: "vxlan:5001"}]`,
			v1alpha1.ReasonNotAllowed, "spec.listeners[0].snat: without snat a member in segment vxlan:5001"},
		{"red", "again", red.spec("group: edge, "), v1alpha1.ReasonConflict, "spec.addresses[0]: 10.0.0.100 in segment vlan:7 belongs to LoadBalancer red/web"},
		{"red", "outside", strings.Replace(red.spec("group: edge, "), tenantVIP, "10.0.0.10", 1), v1alpha1.ReasonNotAllowed, "spec.addresses[0]: 10.0.0.10 is in none of the prefixes"},
		{"red", "nowhere", red.spec("group: none, "), v1alpha1.ReasonNoGroup, "spec.group: there is no DirectorGroup none"},
		{"red", "twice", strings.Replace(red.spec("group: edge, "), tenantServerAddress(1), tenantServerAddress(0), 1), v1alpha1.ReasonConflict, ""},
	} {
		l.balance(refused.namespace, refused.name, refused.spec)
		b := l.waitForBalancer(refused.namespace, refused.name, "be refused", func(b *v1alpha1.LoadBalancer) bool {
			return says(b, v1alpha1.Accepted, metav1.ConditionFalse, refused.reason, refused.text)
		})
		if !says(b, v1alpha1.Programmed, metav1.ConditionFalse, v1alpha1.ReasonNotForwarded, "") {
			t.Errorf("%s/%s is refused and %v", refused.namespace, refused.name, b.Status.Conditions)
		}
	}
	l.answers(red, "red-a", "red-b")

	// A deleted one goes, and the VIP is another's.
	l.deleteResource("loadbalancers", "blue", "web")
	waitFor(t, "nobody to answer blue", func() bool {
		_, _, err := askFrom(blue.client, fmt.Sprintf("%s:%d", tenantVIP, tenantPort))
		return err != nil
	})
	l.answers(red, "red-a", "red-b")
	l.deleteResource("loadbalancers", "red", "web")
	l.waitForBalancer("red", "again", "have the VIP", func(b *v1alpha1.LoadBalancer) bool {
		return says(b, v1alpha1.Programmed, metav1.ConditionTrue, v1alpha1.ReasonForwarded, "2 of 2")
	})
	l.answers(red, "red-a", "red-b")
}

// coreGroup is a second group.
const coreGroup = `{apiVersion: weir.io/v1alpha1, kind: DirectorGroup, metadata: {name: core}, spec: {nodeSelector: {example.org/core: "true"}, directors: 1, interfaces: [eth0], neighbor: {}, drain: 1s,
  segments: [{id: "vlan:7", namespaces: [red], directors: [{node: node-c, addresses: [10.0.0.4]}]}]}}`

// core adds a node of a second group, and waits until it is a director.
func (l *tenantsLab) addCore() *labNode {
	l.t.Helper()
	if _, _, err := l.make(coreGroup); err != nil {
		l.t.Fatal(err)
	}
	n := &labNode{Host: l.net.Router("node-c"), l: l.groupLab, address: "10.2.0.13", group: "core"}
	n.port = l.net.Link(n.Host, l.lan, netlab.LinkOptions{XDP: true, Tagged: true, A: []string{n.address + "/24"}}).A
	n.Route(serviceAddress+"/32", controlAddress)
	if err := l.net.Err(); err != nil {
		l.t.Fatal(err)
	}
	n.join()
	n.writeFile()
	n.startDirector()
	n.startSidecar()
	waitFor(l.t, "core to have a director", func() bool {
		text, err := l.lab.core.RESTClient().Get().AbsPath("/apis/weir.io/v1alpha1/directorgroups/core").Do(l.t.Context()).Raw()
		return err == nil && strings.Contains(string(text), `"active":1`)
	})
	return n
}

// logOf returns the log of a service at a node's director, as JSON.
func (n *labNode) logOf(set, service string) string {
	documents, err := n.api.Documents(n.l.t.Context(), set)
	if err != nil {
		return err.Error()
	}
	for i := range documents {
		if documents[i].Service.Name == service {
			text, err := json.Marshal(documents[i].Log)
			if err != nil {
				return err.Error()
			}
			return string(text)
		}
	}
	return "no such service"
}

// A LoadBalancer without a group gets the one with the least load, by what directors report, and
// stays there. Moved to another group by its owner, it brings its history along.
func TestLoadBalancersGroups(t *testing.T) {
	l := newTenantsLab(t)
	l.waitForFit()
	l.controller("first")
	l.waitForStatus("node-a node-b, 0 stand by")
	core := l.addCore()
	red := l.tenants["red"]
	spec := func(more, vip string) string { return strings.Replace(red.spec(more), tenantVIP, vip, 1) }
	forwardedBy := func(name, group string, directors int) {
		t.Helper()
		l.waitForBalancer("red", name, "be forwarded by "+group, func(b *v1alpha1.LoadBalancer) bool {
			return b.Status.Group == group && says(b, v1alpha1.Programmed, metav1.ConditionTrue, v1alpha1.ReasonForwarded, fmt.Sprintf("%d of %d", directors, directors))
		})
	}
	for _, s := range red.servers {
		s.Address("lo", "10.0.0.101/32", "10.0.0.102/32", "10.0.0.103/32")
	}
	l.balance("red", "web", red.spec("group: edge, "))
	forwardedBy("web", "edge", 2)
	// All hosts of the lab have the same CPUs, whose utilization changes all the time: limits decide.
	l.patchGroup("edge", `{"spec": {"limits": {"services": 4}}}`) // a quarter of it is used
	l.balance("red", "first", spec("", "10.0.0.101"))
	forwardedBy("first", "core", 1)
	l.patchGroup("core", `{"spec": {"limits": {"services": 2}}}`) // a half
	l.balance("red", "second", spec("", "10.0.0.102"))
	forwardedBy("second", "edge", 2)
	waitFor(t, "an event to say which group was chosen", func() bool {
		events, err := l.lab.core.Events("red").List(t.Context(), metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Name == "first" && e.Reason == "GroupChosen" && strings.Contains(e.Message, "DirectorGroup core was chosen")
		})
	})
	asks := func(vip string) {
		t.Helper()
		waitFor(t, "somebody to answer at "+vip, func() bool {
			_, _, err := askFrom(red.client, fmt.Sprintf("%s:%d", vip, tenantPort))
			return err == nil
		})
	}
	asks("10.0.0.101")
	asks("10.0.0.102")

	const service = "loadbalancer/red/first/http/10.0.0.101"
	before := core.logOf("kube.core.0", service)
	l.patch("loadbalancers", "red", "first", `{"spec": {"group": "edge"}}`)
	forwardedBy("first", "edge", 2)
	if after := l.nodes[0].logOf("kube.edge.0", service); after != before {
		t.Errorf("its log was %s, and in the other group is %s", before, after)
	}
	waitFor(t, "core to forward it no more", func() bool { return core.logOf("kube.core.0", service) == "no such service" })
	asks("10.0.0.101")
	l.patch("loadbalancers", "red", "first", `{"spec": {"group": null}}`)
	// The directors still have the limits of their start, and their group says so.
	waitFor(t, "the group to have its directors' problems", func() bool {
		c := meta.FindStatusCondition(l.group("edge").Status.Conditions, v1alpha1.Problems)
		return c != nil && c.Status == metav1.ConditionTrue && strings.Contains(c.Message, "node-a: ") && strings.Contains(c.Message, "limits")
	})
	l.waitForBalancer("red", "first", "stay where it is", func(b *v1alpha1.LoadBalancer) bool {
		return b.Status.Group == "edge" && says(b, v1alpha1.Programmed, metav1.ConditionTrue, v1alpha1.ReasonForwarded, "2 of 2")
	})
}

// Outside of segments LoadBalancers and Services have addresses of the same pools, each only once. What
// is wrong with a spec takes nothing away from clients, and neither does another controller.
func TestLoadBalancersAddresses(t *testing.T) {
	l := newTenantsLab(t)
	l.waitForFit()
	first := l.controller("first")
	l.waitForStatus("node-a node-b, 0 stand by")
	const address = "10.2.0.200"
	members := fmt.Sprintf(`members: [{name: pod1, address: %s, port: %d}]`, podAddress(1), podPort)
	l.balance(namespace, "pooled", `addressPool: public, listeners: [{name: http, protocol: tcp, ports: "80", mode: nat, snat: true}], `+members)
	l.waitForBalancer(namespace, "pooled", "have an address", func(b *v1alpha1.LoadBalancer) bool {
		return strings.Join(b.Status.Addresses, " ") == address && says(b, v1alpha1.Programmed, metav1.ConditionTrue, v1alpha1.ReasonForwarded, "2 of 2")
	})
	l.reaches(address, "pod1")
	if got := l.claims(); got != address+"=pooled" {
		t.Errorf("claims are %s", got)
	}
	wants := func(s *corev1.Service) { s.Annotations = map[string]string{translate.AnnotationAddresses: address} }
	l.service("web", wants)
	l.event("web", "NoAddress", "the address 10.2.0.200 that it asks for belongs to LoadBalancer default/pooled")
	l.balance(namespace, "same", fmt.Sprintf(`addresses: [%s], listeners: [{name: http, protocol: tcp, ports: "81", mode: nat}], `, address)+members)
	l.waitForBalancer(namespace, "same", "be refused", func(b *v1alpha1.LoadBalancer) bool {
		return says(b, v1alpha1.Accepted, metav1.ConditionFalse, v1alpha1.ReasonNoAddress, "belongs to LoadBalancer default/pooled")
	})

	// A wrong spec changes nothing, also for the next controller.
	l.patch("loadbalancers", namespace, "pooled", fmt.Sprintf(`{"spec": {"members": [{"name": "a", "address": %q, "port": 1}, {"name": "b", "address": %[1]q, "port": 1}]}}`, podAddress(1)))
	wrong := func(b *v1alpha1.LoadBalancer) bool {
		return says(b, v1alpha1.Accepted, metav1.ConditionFalse, "Unsupported", "spec.members[1].address: ") && says(b, v1alpha1.Programmed, metav1.ConditionFalse, v1alpha1.ReasonNotForwarded, "as it was before")
	}
	l.waitForBalancer(namespace, "pooled", "say what is wrong", wrong)
	l.answers80(address)
	stop(t, first)
	l.controller("second")
	l.waitForLease("second")
	l.patch("loadbalancers", namespace, "pooled", `{"spec": {"listeners": [{"name": "http", "protocol": "tcp", "ports": "80", "mode": "nat", "snat": true, "drain": "1s"}]}}`)
	l.waitForBalancer(namespace, "pooled", "still say what is wrong", wrong)
	l.answers80(address)
	l.patch("loadbalancers", namespace, "pooled", fmt.Sprintf(`{"spec": {"members": [{"name": "a", "address": %q, "port": %d}]}}`, podAddress(3), podPort))
	l.waitForBalancer(namespace, "pooled", "be forwarded", func(b *v1alpha1.LoadBalancer) bool {
		return says(b, v1alpha1.Accepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "") && says(b, v1alpha1.Programmed, metav1.ConditionTrue, v1alpha1.ReasonForwarded, "2 of 2")
	})
	l.reaches(address, "pod3")

	// Down keeps the address, and a deleted one gives it to the next.
	l.patch("loadbalancers", namespace, "pooled", `{"spec": {"adminState": "down"}}`)
	l.waitForBalancer(namespace, "pooled", "be down", func(b *v1alpha1.LoadBalancer) bool {
		return strings.Join(b.Status.Addresses, " ") == address && says(b, v1alpha1.Programmed, metav1.ConditionFalse, v1alpha1.ReasonAdminDown, "") && memberStates(b) == "down"
	})
	l.deleteResource("loadbalancers", namespace, "same")
	l.deleteResource("loadbalancers", namespace, "pooled")
	l.waitForAddresses("web", address)
}

// answers80 asks several times, and fails if nobody answers.
func (l *groupLab) answers80(address string) {
	l.t.Helper()
	for range 5 {
		if _, err := l.ask(address); err != nil {
			l.t.Errorf("nobody answers at %s: %v", address, err)
		}
	}
}

// What one director refuses keeps nothing of others from it: here a VIP that is its own address, at a
// port that its full NAT uses, which the controller does not know to be wrong.
func TestLoadBalancersBesideRefusedOne(t *testing.T) {
	l := newTenantsLab(t)
	l.waitForFit()
	l.controller("first")
	l.waitForStatus("node-a node-b, 0 stand by")
	// With so few healthy members nobody announces it.
	l.balance("red", "bad", `group: edge, addresses: [10.2.0.11], listeners: [{name: x, protocol: tcp, ports: "2000", mode: l2dsr, minHealthy: 5, members: [{name: a, address: 10.2.0.99, mac: "02:00:00:00:00:01"}]}]`)
	l.waitForBalancer("red", "bad", "be refused by a director", func(b *v1alpha1.LoadBalancer) bool {
		return says(b, v1alpha1.Programmed, metav1.ConditionTrue, v1alpha1.ReasonForwarded, "1 of 2") && says(b, v1alpha1.Degraded, metav1.ConditionTrue, v1alpha1.ReasonDirectors, "node-a ")
	})
	red := l.tenants["red"]
	l.balance("red", "web", red.spec("group: edge, "))
	l.waitForBalancer("red", "web", "be forwarded", func(b *v1alpha1.LoadBalancer) bool {
		return says(b, v1alpha1.Programmed, metav1.ConditionTrue, v1alpha1.ReasonForwarded, "2 of 2")
	})
	l.answers(red, "red-a", "red-b")
}

// What an administrator has put into the directors by their API is in the way of a LoadBalancer with
// the same VIP and ports, whose status says so; others are forwarded meanwhile. One that names the
// owner takes it over: with its history, and without breaking a connection.
func TestLoadBalancersAdopt(t *testing.T) {
	l := newTenantsLab(t)
	l.waitForFit()
	l.controller("first")
	l.waitForStatus("node-a node-b, 0 stand by")
	red, blue := l.tenants["red"], l.tenants["blue"]
	var backends []string
	for i, s := range red.servers {
		backends = append(backends, fmt.Sprintf(`{"name": %q, "address": %q, "mac": %q}`, s.Name, tenantServerAddress(i), s.mac))
	}
	set := fmt.Sprintf(`{"services": [{"name": "web", "segment": "vlan:7", "vip": %q, "protocol": "tcp", "port": %d, "mode": "l2dsr", "retention": "1s", "backends": [%s]},
		{"name": "other", "segment": "vlan:7", "vip": "10.0.0.99", "protocol": "tcp", "port": 80, "mode": "l2dsr", "backends": [%s]}]}`, tenantVIP, tenantPort, strings.Join(backends, ", "), backends[0])
	for _, n := range l.nodes {
		if _, err := n.api.PutSet(t.Context(), "ops", api.SetText{JSON: true, Text: []byte(set)}, api.Condition{}); err != nil {
			t.Fatal(err)
		}
	}
	spec := red.spec("group: edge, ")
	l.balance("red", "web", strings.Replace(spec, "health: {kind: tcp, interval: 200ms, fall: 2, rise: 1}, ", "", 1))
	l.waitForBalancer("red", "web", "say what is in its way", func(b *v1alpha1.LoadBalancer) bool {
		return says(b, v1alpha1.Accepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "") &&
			says(b, v1alpha1.Programmed, metav1.ConditionFalse, v1alpha1.ReasonNotForwarded, "vlan:7 10.0.0.100 tcp port 8080 is of service web of owner ops in director node-")
	})
	l.balance("blue", "web", blue.spec("group: edge, "))
	l.waitForBalancer("blue", "web", "be forwarded", func(b *v1alpha1.LoadBalancer) bool {
		return says(b, v1alpha1.Programmed, metav1.ConditionTrue, v1alpha1.ReasonForwarded, "2 of 2")
	})

	// No director answers ARP for what is not the group's: the client knows which one it asks.
	a := l.nodes[0]
	red.client.Neighbor("eth0", tenantVIP, a.port.MAC)
	connection, err := red.client.DialContext(t.Context(), "tcp", fmt.Sprintf("%s:%d", tenantVIP, tenantPort))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	answers := bufio.NewReader(connection)
	ask := func() string {
		t.Helper()
		if err := connection.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(connection, "GET / HTTP/1.1\r\nHost: web\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		answer, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	server, before := ask(), a.logOf("ops", "web")
	l.patch("loadbalancers", "red", "web", `{"spec": {"adopt": "ops"}}`)
	l.waitForBalancer("red", "web", "be forwarded", func(b *v1alpha1.LoadBalancer) bool {
		return says(b, v1alpha1.Programmed, metav1.ConditionTrue, v1alpha1.ReasonForwarded, "2 of 2")
	})
	if got := ask(); got != server {
		t.Errorf("the connection was with %s, and is with %s", server, got)
	}
	if after := a.logOf("kube.edge.0", "loadbalancer/red/web/http/10.0.0.100"); after != before {
		t.Errorf("its log was %s, and is %s", before, after)
	}
	for _, n := range l.nodes {
		left, err := n.api.Set(t.Context(), "ops")
		if err != nil || len(left.Services) != 1 || left.Services[0].Name != "other" {
			t.Errorf("of ops %s keeps %v, %v", n.Name, left.Services, err)
		}
	}
	l.answers(red, "red-a", "red-b")
}
