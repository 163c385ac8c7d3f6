package kube

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The quick start, as it is written: its values, from which the chart makes a controller and two
// directors on nodes with the document's labels, and their containers run; a Service, and the
// document's request to it, by a client on the nodes' link. All nodes have a kube-proxy and nothing
// else that serving takes; pods are on two nodes without directors.
//
//	client --- switch --- node-a node-b      directors, and kube-proxy
//	                  --- pod1 pod2          node1 and node2, with a pod each, and kube-proxy
//	                  --- control
func TestQuickStart(t *testing.T) {
	needs(t, map[string]string{"kube-proxy in $WEIR_KUBE_PROXY": proxy})
	d := newSection(t, "start/kubernetes.md", "Quick start", strings.NewReplacer())
	d.labelsNodes("example.org/edge=true", "node-a", "node-b")
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, []byte(d.block("yaml", "image:")), 0o600); err != nil {
		t.Fatal(err)
	}
	l := newGroupLab(t, groupOptions{values: values, onLink: true, nodes: 2})
	runOn(t, l.client, "ip", "route", "add", "203.0.113.0/26", "dev", "eth0") // as for every host on that link
	l.withProxies()
	l.controllerOfChart()
	l.waitForStatus("node-a node-b, 0 stand by")
	l.podsOnNodes("web", 1, 2)
	l.service("web") // of type LoadBalancer, with loadBalancerClass: weir.io/weir
	asked := d.asked()
	l.waitForAddresses("web", asked)
	l.reaches(asked, "pod1", "pod2")
	l.learns(asked, l.owner(asked, l.nodes...))
}

// labelsNodes checks that the document gives these nodes a label, and gives the namespace the label
// that allows directors' pods.
func (d *document) labelsNodes(label string, nodes ...string) {
	d.t.Helper()
	commands := d.block("console", "kubectl create namespace")
	for _, want := range []string{"pod-security.kubernetes.io/enforce=privileged", "kubectl label node " + strings.Join(nodes, " ") + " " + label} {
		if !regexp.MustCompile(regexp.QuoteMeta(want) + `(\s|$)`).MatchString(commands) {
			d.t.Fatalf("the document does not say %q: %s", want, commands)
		}
	}
}

// withProxies makes the pods' hosts nodes, and gives all nodes a kube-proxy, and routes to pods
// like a network plugin's.
func (l *groupLab) withProxies() {
	l.t.Helper()
	for i := range l.servers[:2] {
		l.node(l.servers[i], i+1, podAddress(i+1))
	}
	for _, n := range l.nodes {
		l.startProxy(n.Host, n.Name)
	}
	for i := range l.servers[:2] {
		for _, n := range l.nodes {
			runOn(l.t, n.Host, "ip", "route", "add", nodePod(i+1)+"/32", "via", podAddress(i+1))
		}
		other := 2 - i
		runOn(l.t, l.servers[i], "ip", "route", "add", fmt.Sprintf("%s/32", nodePod(other)), "via", podAddress(other))
		runOn(l.t, l.servers[i], "sysctl", "-qw", "net.ipv4.ip_forward=1")
	}
}
