package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/logs"
	"weir.io/weir/kube/node"
)

func newNode() *cobra.Command {
	o := node.Options{Owner: defaultOwner}
	var kubeconfig, nodeKubeconfig string
	var pod podFlags
	var logging logs.Flags
	var nodeInCluster, writeOnly bool
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Keep a node's director, or agent, at what DirectorGroups say",
		Long: "node stands beside weir run on each node of a DirectorGroup. It writes the director's\n" +
			"file, tells the controller that the node is there, and, while that has the node among the\n" +
			"group's directors, gives the director what the group forwards, with the history that all\n" +
			"its directors have. A node that is one no more withdraws its routes, forwards for a\n" +
			"while, and then nothing. While the API server is away everything goes on as it is.\n" +
			"With --pod the director is a pod of an application's namespace, in the pods' network,\n" +
			"and the pod is what the node is otherwise. With --agent-file and --socket \"\" the node\n" +
			"has no director but pods: the file of its weir agent is written, for one group or,\n" +
			"without --group, for all.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := logger(&logging, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if o.Pod, err = pod.read(); err != nil {
				return err
			}
			if o.Group == "" && (o.Socket != "" || o.AgentFile == "") || o.Node == "" && o.Pod == nil {
				return errors.New("--group and --node or --pod are required: the DirectorGroup, and the name of this node, or pod; for an agent alone --agent-file, --socket \"\" and --node")
			}
			if _, err := os.Stat(o.File); writeOnly && o.Socket != "" && err == nil {
				log.Info("the director's file is there", "file", o.File)
				return detour(&o)
			}
			config, err := apiServer(kubeconfig)
			if err != nil {
				return err
			}
			nodes := config
			if nodeInCluster && nodeKubeconfig != "" {
				return errors.New("--node-in-cluster and --node-kubeconfig: the Node is in one cluster")
			}
			if nodeInCluster || nodeKubeconfig != "" {
				if nodes, err = apiServer(nodeKubeconfig); err != nil {
					return err
				}
			}
			n, err := node.New(config, nodes, o, log)
			if err != nil {
				return err
			}
			if writeOnly {
				if err := n.Write(cmd.Context()); err != nil {
					return err
				}
				return detour(&o)
			}
			return n.Run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Group, "group", "", "`name` of the DirectorGroup")
	f.StringVar(&o.Node, "node", os.Getenv("NODE_NAME"), "`name` of this node; else what NODE_NAME in the environment says")
	f.StringVar(&o.Namespace, "namespace", namespaceOr("weir-system"), "`name` of the namespace of Leases: the controller's, or the pod's own; else what POD_NAMESPACE in the environment says")
	f.StringVar(&o.Owner, "owner", o.Owner, "`name` that begins those of the owners of the director's sets")
	f.StringVar(&o.Socket, "socket", api.DefaultSocket, "unix `socket` of weir run; empty: the node has no director")
	f.StringVar(&o.File, "file", "/run/weir/weir.yaml", "`file` of weir run, which is written")
	f.StringVar(&o.AgentFile, "agent-file", "", "`file` of weir agent, which is written: the services that it has pods of; empty: none")
	f.StringVar(&o.AgentSocket, "agent-socket", "", "unix `socket` of weir agent: the controller is told whether it runs; empty: it is not, and sends it nothing")
	f.StringSliceVar(&o.AgentInterfaces, "agent-interface", nil, "`interfaces` that tunnels come in by, as names or patterns; none: those of the default routes and the node's addresses")
	f.StringSliceVar(&o.AgentReplies, "agent-reply-interface", nil, "other `interfaces`, as names or patterns, that pods' answers leave by")
	f.StringVar(&o.State, "state", "", "`directory` in which weir run keeps its state; else its default")
	f.StringVar(&kubeconfig, "kubeconfig", "", "`file` that says where the API server with the DirectorGroup is; else as a pod of the cluster")
	f.StringVar(&nodeKubeconfig, "node-kubeconfig", "", "`file` that says where the API server with the Node is; else the same one")
	f.BoolVar(&nodeInCluster, "node-in-cluster", false, "the Node is in the cluster that this is a pod of, whatever --kubeconfig says")
	pod.add(cmd)
	f.BoolVar(&writeOnly, "write-only", false, "write the director's file, if there is none, lead a pod's packets to its director, and end")
	logging.Add(cmd)
	return cmd
}

// detour sets up a pod's network as its director needs it.
func detour(o *node.Options) error {
	if o.Pod == nil {
		return nil
	}
	return o.Pod.Detour(o.File)
}

func namespaceOr(otherwise string) string {
	if n := os.Getenv("POD_NAMESPACE"); n != "" {
		return n
	}
	return otherwise
}

// apiServer returns how to ask an API server.
func apiServer(kubeconfig string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig) // in a pod without a file: the pod's own
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	config.UserAgent = "weir-kube/" + version
	return config, nil
}

// podFlags are what a director that is a pod knows about itself.
type podFlags struct {
	name, uid, addresses, bpffs string
}

func (p *podFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&p.name, "pod", "", "`name` of this pod, which is the director, wherever it runs")
	f.StringVar(&p.addresses, "pod-addresses", os.Getenv("POD_IPS"), "its `addresses`, one of a family, with commas; else what POD_IPS in the environment says")
	f.StringVar(&p.uid, "pod-uid", os.Getenv("POD_UID"), "its `UID`, with which its Lease goes; else what POD_UID in the environment says")
	f.StringVar(&p.bpffs, "pod-bpffs", "", "`directory` of a BPF file system in which each pod of the group has its own: those of pods that are gone are removed; empty: none is")
}

// read returns the pod; nil: the node is the director.
func (p *podFlags) read() (*node.Pod, error) {
	if p.name == "" {
		return nil, nil
	}
	pod := &node.Pod{Name: p.name, UID: types.UID(p.uid), BPFFS: p.bpffs}
	for text := range strings.SplitSeq(p.addresses, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("--pod-addresses: %w", err)
		}
		pod.Addresses = append(pod.Addresses, a.Unmap())
	}
	return pod, nil
}
