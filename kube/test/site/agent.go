package site

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/kube/group"
	"weir.io/weir/kube/test/cluster"
	"weir.io/weir/lab/process"
)

// Container is how one of the chart's containers is started.
type Container struct {
	Args         []string
	Capabilities []string
}

// Capabilities that the chart's containers have.
var (
	agentCapabilities    = []string{"BPF", "NET_ADMIN", "PERFMON"}
	directorCapabilities = []string{"BPF", "NET_ADMIN", "PERFMON", "NET_RAW", "SYS_NICE", "IPC_LOCK"}
)

// Agent is the containers of the chart's DaemonSet for nodes with pods.
type Agent struct {
	First, Agent, Sidecar Container
}

// AgentOfChart is the chart's result, as a test checks, with the interfaces by which answers leave
// to pods of the same node.
var AgentOfChart = Agent{
	First: Container{Args: []string{"node", "--agent-file=/var/lib/weir/agent.yaml", "--agent-socket=/run/weir/agent.sock", "--agent-reply-interface=veth*",
		"--socket=", "--log-level=info", "--log-format=json", "--write-only"}},
	Agent: Container{Args: []string{"agent", "--config=/var/lib/weir/agent.yaml", "--socket=/run/weir/agent.sock", "--bpffs=/sys/fs/bpf", "--attach=tc",
		"--log-level=info", "--log-format=json"}, Capabilities: agentCapabilities},
	Sidecar: Container{Args: []string{"node", "--agent-file=/var/lib/weir/agent.yaml", "--agent-socket=/run/weir/agent.sock", "--agent-reply-interface=veth*",
		"--socket=", "--log-level=info", "--log-format=json"}},
}

// StartAgent starts the agent of a node and its sidecar, as the node's kubelet starts the
// containers of the chart's DaemonSet, and returns when the controller can know of the agent.
func (s *Site) StartAgent(ctx context.Context, n *Node) error {
	token := cluster.AdminToken
	if s.AgentToken != nil {
		var err error
		if token, err = s.AgentToken(n.Name); err != nil {
			return fmt.Errorf("token of %s's agent: %w", n.Name, err)
		}
	}
	kubeconfig, err := s.WriteKubeconfig("agent-"+n.Name, fmt.Sprintf("https://%s:6443", address(controlNumber)), token)
	if err != nil {
		return err
	}
	for _, dir := range []string{"agent", "run"} {
		if err := os.MkdirAll(filepath.Join(n.host.Dir(), dir), 0o755); err != nil {
			return fmt.Errorf("make the directories of %s's agent: %w", n.Name, err)
		}
	}
	first, err := s.startContainer(n, "agent", "agent-file", s.options.Programs.WeirKube, AgentOfChart.First, "--kubeconfig", kubeconfig)
	if err != nil {
		return err
	}
	if err := first.Gone(ctx); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(n.host.Dir(), "agent", "agent.yaml")); err != nil {
		return fmt.Errorf("%s has no file for its agent: %w; weir-kube node said:\n%s", n.Name, err, first.Log())
	}
	agent, err := s.startContainer(n, "agent", "weir-agent", s.options.Programs.Weir, AgentOfChart.Agent)
	if err != nil {
		return err
	}
	n.agent = append(n.agent, agent)
	sidecar, err := s.startContainer(n, "agent", "agent-node", s.options.Programs.WeirKube, AgentOfChart.Sidecar, "--kubeconfig", kubeconfig)
	if err != nil {
		return err
	}
	n.agent = append(n.agent, sidecar)
	return cluster.Until(ctx, n.Name+" to say that its agent runs", func() error {
		_, err := s.Coordination.Leases("weir-system").Get(ctx, group.AgentLeaseName(n.Name), metav1.GetOptions{})
		return err
	})
}

// startContainer starts a container with its arguments, as root with only its capabilities. Its
// /var/lib/weir is a directory of the node.
func (s *Site) startContainer(n *Node, state, name, program string, c Container, more ...string) (*process.Process, error) {
	here := strings.NewReplacer("/var/lib/weir", filepath.Join(n.host.Dir(), state), "/run/weir", filepath.Join(n.host.Dir(), "run"), "/sys/fs/bpf", n.host.BPFFS())
	capabilities := "-all"
	for _, c := range c.Capabilities {
		capabilities += ",+" + strings.ToLower(c)
	}
	args := []string{"--inh-caps=-all", "--bounding-set=" + capabilities, "--no-new-privs", "env", "NODE_NAME=" + n.Name, "POD_NAMESPACE=weir-system", program}
	for _, a := range c.Args {
		args = append(args, here.Replace(a))
	}
	return process.Start(n.host, name, "setpriv", append(args, more...)...)
}

// KillAgent ends a node's agent and its sidecar at once. The agent's programs and addresses keep
// working.
func (n *Node) KillAgent() error {
	for _, p := range n.agent {
		if err := p.Kill(); err != nil {
			return err
		}
	}
	n.agent = nil
	return nil
}
