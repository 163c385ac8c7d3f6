package kube

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/kube/v1alpha1"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/ovnlab"
)

// cloudLab is a group of directors beside a cloud with OVN, whose hypervisors have Open vSwitch and a real
// ovn-controller. Its database's server lets a client be the chassis alone that its certificate names:
//
//	a          --- hv1 --- switch --- node-a node-b
//	b, later a --- hv2 ---        --- client, control with the Southbound database
//
// The VMs are in a tenant's network, a logical switch, whose logical router has a gateway on hv1 to the nodes' link.
type cloudLab struct {
	*groupLab
	ca  *ovnlab.Authority
	ovn *ovnlab.OVN
	hv  []*ovnlab.Host
	on  []*netlab.Host
}

const cloudVIP = "10.2.0.200"

func newCloudLab(t *testing.T) *cloudLab {
	t.Helper()
	l := &cloudLab{groupLab: newGroupLab(t, groupOptions{values: "testdata/ovn.values.yaml", onLink: true, nodes: 2, pool: "10.2.0.200-10.2.0.210"}), ca: ovnlab.NewAuthority(t)}
	server := l.ca.Certificate("server", time.Hour)
	l.ovn = ovnlab.New(t, ovnlab.Options{CA: server.CA, Cert: server.Cert, Key: server.Key})
	l.relay(l.cluster.host, ":6642", strings.TrimPrefix(l.ovn.Roles(), "ssl:"))
	for i, name := range []string{"hv1", "hv2"} {
		h := l.net.Host(name)
		uplink := l.net.Link(h, l.lan, netlab.LinkOptions{XDP: true}).A
		h.Sysctl("net.ipv4.conf.all.arp_ignore", "1") // the bridge has the address, and the uplink is the switch's alone
		l.on, l.hv = append(l.on, h), append(l.hv, l.ovn.Hypervisor(h, name, uplink.Name, fmt.Sprintf("10.2.0.%d/24", 40+i), "geneve"))
	}
	l.ovn.NBctl("ls-add", "tenant", "--", "ls-add", "provider",
		"--", "lsp-add", "provider", "physical", "--", "lsp-set-type", "physical", "localnet", "--", "lsp-set-addresses", "physical", "unknown",
		"--", "lsp-set-options", "physical", "network_name="+ovnlab.Network,
		"--", "lr-add", "router",
		"--", "lrp-add", "router", "router-tenant", "fa:16:3e:00:00:01", "172.16.0.1/24",
		"--", "lsp-add", "tenant", "tenant-router", "--", "lsp-set-type", "tenant-router", "router", "--", "lsp-set-addresses", "tenant-router", "router",
		"--", "lsp-set-options", "tenant-router", "router-port=router-tenant",
		"--", "lrp-add", "router", "router-provider", "fa:16:3e:00:00:fe", "10.2.0.60/24",
		"--", "lrp-set-gateway-chassis", "router-provider", "hv1",
		"--", "lsp-add", "provider", "provider-router", "--", "lsp-set-type", "provider-router", "router", "--", "lsp-set-addresses", "provider-router", "router",
		"--", "lsp-set-options", "provider-router", "router-port=router-provider")
	for i, vm := range []string{"a", "b"} {
		l.ovn.NBctl("lsp-add", "tenant", vm, "--", "lsp-set-addresses", vm, fmt.Sprintf("%s 172.16.0.%d", cloudMAC(11+i), 11+i))
	}
	for i, node := range []string{"node-a", "node-b"} { // for answers to health checks
		l.ovn.NBctl("lsp-add", "tenant", "of-"+node, "--", "lsp-set-addresses", "of-"+node, fmt.Sprintf("02:00:00:00:02:0%d 172.16.0.%d", 1+i, 3+i),
			"--", "lsp-set-options", "of-"+node, "requested-chassis=weir-"+node)
	}
	l.start("a", 0, "a", 11)
	l.start("b", 1, "b", 12)
	return l
}

func cloudMAC(host int) string { return fmt.Sprintf("fa:16:3e:00:00:%02x", host) }

// start starts a VM of the tenant on a hypervisor, with a logical port: a server at the VIP, which answers with its name.
func (l *cloudLab) start(name string, hv int, port string, host int) {
	l.t.Helper()
	vm := &tenantServer{Host: l.net.Host(name)}
	l.net.Link(vm.Host, l.on[hv], netlab.LinkOptions{XDP: true, MTU: 1400, NameB: "tap-" + name})
	if err := l.net.Err(); err != nil {
		l.t.Fatal(err)
	}
	l.run(vm.Host, "ip", "link", "set", "eth0", "address", cloudMAC(host))
	vm.Address("eth0", fmt.Sprintf("172.16.0.%d/24", host))
	vm.Address("lo", cloudVIP+"/32")
	vm.Sysctl("net.ipv4.conf.all.arp_ignore", "1")
	vm.Sysctl("net.ipv4.conf.all.arp_announce", "2")
	vm.Route("default", "172.16.0.1")
	vm.begin(l.t)
	l.hv[hv].PlugAs("tap-"+name, port)
}

func (l *groupLab) run(h *netlab.Host, name string, args ...string) {
	l.t.Helper()
	if out, err := h.Command(l.t.Context(), name, args...).CombinedOutput(); err != nil {
		l.t.Fatalf("%s %s on %s: %v: %s", name, strings.Join(args, " "), h.Name, err, out)
	}
}

// relay lets hosts of the lab reach a server of the test's own network, at a host's port.
func (l *groupLab) relay(at *netlab.Host, port, to string) {
	l.t.Helper()
	listener, err := at.Listen("tcp", port)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return // it is closed
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				from.Close()
				continue
			}
			for _, way := range [][2]net.Conn{{from, server}, {server, from}} {
				go func() {
					_, _ = io.Copy(way[0], way[1]) // until either end closes
					way[0].Close()
				}()
			}
		}
	}()
}

// certificate puts a node's certificate into its Secret, without some of its keys.
func (l *cloudLab) certificate(node string, without ...string) {
	l.t.Helper()
	c := l.ca.Certificate("weir-"+node, time.Hour)
	data := map[string][]byte{}
	for key, file := range map[string]string{"ca.crt": c.CA, "tls.crt": c.Cert, "tls.key": c.Key} {
		text, err := os.ReadFile(file)
		if err != nil {
			l.t.Fatal(err)
		}
		if !slices.Contains(without, key) {
			data[key] = text
		}
	}
	l.secret("ovn-"+node, data)
}

// groupSays waits until a condition of the group has this status, and a text in its message.
func (l *groupLab) groupSays(kind string, status metav1.ConditionStatus, text string) {
	l.t.Helper()
	var last *metav1.Condition
	defer func() {
		if l.t.Failed() {
			said, _ := json.Marshal(last)
			l.t.Logf("the group says %s", said)
		}
	}()
	waitFor(l.t, fmt.Sprintf("the group's condition %s to be %s: %s", kind, status, text), func() bool {
		g := l.group("edge")
		last = meta.FindStatusCondition(g.Status.Conditions, kind)
		return last != nil && last.Status == status && strings.Contains(last.Message, text)
	})
}

// answers waits until each of the servers has answered the client, and nobody else has.
func (l *cloudLab) answers(servers ...string) {
	l.t.Helper()
	seen := map[string]bool{}
	waitFor(l.t, fmt.Sprintf("%v to answer", servers), func() bool {
		if name, _, err := askFrom(l.client, fmt.Sprintf("%s:%d", cloudVIP, tenantPort)); err == nil {
			if !slices.Contains(servers, name) {
				l.t.Fatalf("%s answers", name)
			}
			seen[name] = true
		}
		return len(seen) == len(servers)
	})
}

func (l *cloudLab) chassis() string {
	return l.ovn.SBctl("--bare", "--columns=name", "list", "Chassis")
}

// Members of a LoadBalancer are VMs in a network of OVN, of which it says the addresses alone: directors find the VMs
// in OVN's Southbound database, to which each shows its own certificate, follow a VM that moves, and probe it. The
// group says why directors do not follow OVN, and without ovn, or when it is deleted, they leave OVN's chassis.
func TestMembersInOVN(t *testing.T) {
	l := newCloudLab(t)
	l.waitForFit()
	l.controller("first")
	l.waitForStatus("node-a node-b, 0 stand by")
	if _, err := l.core.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "red"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	l.groupSays(v1alpha1.OVN, metav1.ConditionFalse, `2 of 2 directors do not follow OVN: node-a: read the certificate for OVN of DirectorGroup edge: secrets "ovn-node-a" not found`)
	l.certificate("node-b")
	l.certificate("node-a", "tls.key")
	l.groupSays(v1alpha1.OVN, metav1.ConditionFalse, `1 of 2 directors do not follow OVN: node-a: read the certificate for OVN of DirectorGroup edge: there is no key tls.key in Secret ovn-node-a`)
	l.certificate("node-a")
	l.groupSays(v1alpha1.OVN, metav1.ConditionTrue, "2 directors follow OVN's Southbound database")
	l.groupSays(v1alpha1.Problems, metav1.ConditionFalse, "no director reports a problem")
	for _, node := range []string{"weir-node-a", "weir-node-b"} {
		if names := l.chassis(); !strings.Contains(names, node) {
			t.Errorf("%s is none of OVN's chassis: %s", node, names)
		}
	}

	spec := fmt.Sprintf(`group: edge, addresses: [%s], listeners: [{name: http, protocol: tcp, ports: "%d", mode: l2dsr, health: {kind: tcp, interval: 200ms, fall: 2, rise: 1},
		members: [{name: a, address: 172.16.0.11, segment: "geneve:5001"}, {name: b, address: 172.16.0.12, segment: "geneve:5001"%%s}]}]`, cloudVIP, tenantPort)
	l.balance("red", "vni", fmt.Sprintf(spec, `, vtep: 10.2.0.41, mac: "02:00:00:00:00:01", vni: 5001`))
	l.waitForBalancer("red", "vni", "be refused", func(b *v1alpha1.LoadBalancer) bool {
		return says(b, v1alpha1.Accepted, metav1.ConditionFalse, v1alpha1.ReasonNotAllowed, "spec.listeners[0].members[1].vni: OVN says which VNI segment geneve:5001 has")
	})
	l.deleteResource("loadbalancers", "red", "vni")
	l.balance("red", "web", fmt.Sprintf(spec, ""))
	l.waitForBalancer("red", "web", "have healthy members", func(b *v1alpha1.LoadBalancer) bool { return memberStates(b) == "up a=up/2 b=up/2" })
	l.answers("a", "b")

	// The VM moves: the other hypervisor has its port.
	l.start("a-moved", 1, "a", 11)
	l.hv[0].Unplug("tap-a")
	l.answers("a-moved", "b")
	l.waitForBalancer("red", "web", "have healthy members", func(b *v1alpha1.LoadBalancer) bool { return memberStates(b) == "up a=up/2 b=up/2" })
	l.groupSays(v1alpha1.Problems, metav1.ConditionFalse, "no director reports a problem")

	inOVN := l.group("edge").Spec
	l.patchGroup("edge", `{"spec": {"ovn": null, "segments": null}}`)
	waitFor(t, "directors to leave OVN's chassis", func() bool { return !strings.Contains(l.chassis(), "weir-") })
	if g := l.group("edge"); meta.FindStatusCondition(g.Status.Conditions, v1alpha1.OVN) != nil {
		t.Errorf("without ovn the group says %+v", g.Status.Conditions)
	}
	before, err := json.Marshal(map[string]any{"spec": map[string]any{"ovn": inOVN.OVN, "segments": inOVN.Segments}})
	if err != nil {
		t.Fatal(err)
	}
	l.patchGroup("edge", string(before))
	l.groupSays(v1alpha1.OVN, metav1.ConditionTrue, "2 directors follow OVN's Southbound database")
	l.deleteResource("directorgroups", "", "edge")
	waitFor(t, "directors of a group that is no more to leave OVN's chassis", func() bool { return !strings.Contains(l.chassis(), "weir-") })
}
