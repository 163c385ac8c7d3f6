package kube

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"weir.io/weir/internal/config"
	"weir.io/weir/lab/netlab"
)

// Nodes that only have pods run an agent. The sidecar keeps its file: the services whose tunnels it
// undoes, and the directors from which it takes them. In ipip to nodes, with real kube-proxies,
// pods see the client, and changes of directors and pods reach the agents.
//
//	client --- router --- switch --- node-a node-b node-c  directors, of which two forward
//	                             --- pod1 (node1), pod2 (node2), pod3 (node3)  agents
//	                             --- control
func TestAgentsOfNodes(t *testing.T) {
	l := newGroupLab(t, groupOptions{values: "testdata/agents.values.yaml"})
	l.waitForFit()
	l.controller("first")
	l.waitForStatus("node-a node-b, 1 stand by")
	var files []string
	for i, host := range l.servers {
		host.Route("default", "10.2.0.1")
		l.node(host, i+1, podAddress(i+1))
		files = append(files, l.agentSidecar(host, i+1))
	}
	local := func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }
	l.podsOnNodes("web", 1, 2)
	l.service("web", local)
	l.waitForAddresses("web", vip)
	for i, host := range l.servers {
		waitFor(t, host.Name+" to have its agent's file", func() bool { _, err := os.Stat(files[i]); return err == nil })
		start(t, host, filepath.Join(host.Dir(), "agent.log"), weir, "agent", "-c", files[i], "--interface", "eth0", "--bpffs", host.BPFFS(), "--socket", filepath.Join(host.Dir(), "agent.sock"))
	}
	agents := func(want ...string) {
		t.Helper()
		for i, file := range files {
			waitFor(t, fmt.Sprintf("the agent of node%d to be told %q", i+1, want[i]), func() bool { return told(file) == want[i] })
		}
	}
	agents("10.2.0.11 10.2.0.12: default/web/80-tcp", "10.2.0.11 10.2.0.12: default/web/80-tcp", "10.2.0.11 10.2.0.12:")
	l.waitForHops("node-a node-b")
	l.reaches(vip, "pod1", "pod2")
	if pod, seen, err := l.askSeen(vip); err != nil || seen != "10.0.0.2" {
		t.Errorf("in ipip %s sees %s, error %v; the client is 10.0.0.2", pod, seen, err)
	}

	// The pods move to a node that had none: its agent is told, and the others' agents.
	l.podsOnNodes("web", 3)
	agents("10.2.0.11 10.2.0.12:", "10.2.0.11 10.2.0.12:", "10.2.0.11 10.2.0.12: default/web/80-tcp")
	l.reaches(vip, "pod3")

	// Another director: tunnels come from it, and for a while from the previous one.
	l.nodes[0].cordon(true)
	l.waitForStatus("node-b node-c, 0 stand by")
	waitFor(t, "the agent of node3 to take packets of node-c", func() bool { return strings.Contains(told(files[2]), "10.2.0.13") })
	l.waitForHops("node-b node-c")
	l.answered(20, "after node-a was cordoned")
	waitFor(t, "the agent of node3 to take no packets of node-a any more", func() bool { return told(files[2]) == "10.2.0.12 10.2.0.13: default/web/80-tcp" })
	l.answered(20, "after that")

	// Agents undo no tunnels of a deleted Service.
	l.deleteService("web")
	agents("10.2.0.12 10.2.0.13:", "10.2.0.12 10.2.0.13:", "10.2.0.12 10.2.0.13:")
}

// agentSidecar starts the sidecar of a node without a director, and returns its agent's file.
func (l *groupLab) agentSidecar(host *netlab.Host, i int) string {
	l.t.Helper()
	file := filepath.Join(host.Dir(), "etc", "agent.yaml")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		l.t.Fatal(err)
	}
	start(l.t, host, filepath.Join(host.Dir(), "node.log"), weirKube, "node", "--group", "edge", "--node", fmt.Sprintf("node%d", i), "--namespace", "weir-system",
		"--socket", "", "--agent-file", file, "--kubeconfig", l.reached("weir-system", "weir-kube-director", controlAddress))
	return file
}

// told is the directors whose tunnels an agent's file allows, and the services.
func told(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	c, err := config.Parse(file, text)
	if err != nil {
		return err.Error()
	}
	var from, services []string
	for _, p := range c.Directors {
		from = append(from, p.Addr().String())
	}
	for _, s := range c.Services {
		services = append(services, " "+s.Name)
	}
	return strings.Join(from, " ") + ":" + strings.Join(services, "")
}
