package site

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"weir.io/weir/kube/test/cluster"
	"weir.io/weir/lab/process"
)

const edgeNumber = 151

// Edge is a node that may be a director of the site's DirectorGroup.
type Edge struct {
	*Node

	site          *Site
	weir, sidecar *process.Process
	joined        bool
}

// DirectorPod is the containers of the chart's DaemonSet of a group.
type DirectorPod struct {
	First, Director, Sidecar Container
}

// DirectorOfChart is the chart's result for the site's group, as a test checks.
var DirectorOfChart = DirectorPod{
	First: Container{Args: []string{"node", "--group=edge", "--owner=kube", "--file=/var/lib/weir/weir.yaml", "--state=/var/lib/weir/state",
		"--socket=/run/weir/director.sock", "--log-level=info", "--log-format=json", "--write-only"}},
	Director: Container{Args: []string{"run", "--config=/var/lib/weir/weir.yaml", "--socket=/run/weir/director.sock", "--bpffs=/sys/fs/bpf",
		"--log-level=info", "--log-format=json"}, Capabilities: directorCapabilities},
	Sidecar: Container{Args: []string{"node", "--group=edge", "--owner=kube", "--file=/var/lib/weir/weir.yaml", "--state=/var/lib/weir/state",
		"--socket=/run/weir/director.sock", "--log-level=info", "--log-format=json"}},
}

func (s *Site) addEdge(i int) {
	s.Edges = append(s.Edges, &Edge{Node: s.newNode(named("edge", i), edgeNumber+i, 200+i, s.options.EdgeSlots), site: s})
}

// The DirectorGroup's name, and the label that its nodes and Services must have.
const (
	edgeGroup = "edge"
	edgeLabel = "example.org/edge"
)

// groupText is the DirectorGroup and its router. It does not forward the other directors' Services.
const groupText = `
apiVersion: weir.io/v1alpha1
kind: BGPPeer
metadata: {name: router}
spec: {address: ROUTER, asn: 65000, groups: [edge]}
---
apiVersion: weir.io/v1alpha1
kind: BGPPeer
metadata: {name: router-ipv6}
spec: {address: "SIX", asn: 65000, groups: [edge]}
---
apiVersion: weir.io/v1alpha1
kind: DirectorGroup
metadata: {name: edge}
spec:
  nodeSelector: {LABEL: "true"}
  directors: NUMBER
  interfaces: [eth0]
  backends: pods
NOTICEREPLIES  drain: 1s
  bgp: {asn: 65001}
  serviceSelector: {matchLabels: {LABEL: "true"}}
`

// MakeGroup makes a DirectorGroup of as many directors as the site has edges. It forwards Services
// to which [ByEdge] was applied, once edges [Edge.Join].
func (s *Site) MakeGroup(ctx context.Context) error {
	notice := "" // the API server's default
	if s.options.Notice > 0 {
		notice = fmt.Sprintf("  notice: %s\n", s.options.Notice)
	}
	replies := ""
	if s.options.OverlayBack {
		replies = fmt.Sprintf("  replyInterfaces: [%s]\n", overlay)
	}
	text := strings.NewReplacer("REPLIES", replies, "LABEL", edgeLabel, "ROUTER", address(routerNumber).String(), "SIX", address6(routerNumber).String(), "NUMBER", fmt.Sprint(len(s.Edges)), "NOTICE", notice).Replace(groupText)
	for one := range strings.SplitSeq(text, "\n---\n") {
		if kind, name, err := s.Make(ctx, one); err != nil {
			return fmt.Errorf("make %s %s: %w", kind, name, err)
		}
	}
	return nil
}

// ByEdge lets the site's DirectorGroup forward a Service.
func ByEdge(s *corev1.Service) { metav1.SetMetaDataLabel(&s.ObjectMeta, edgeLabel, "true") }

// Join labels the node, and then runs the programs as the chart's DaemonSet and the node's kubelet
// do: first the one that writes the file, then the director and its sidecar. It returns when
// writing the label began.
func (e *Edge) Join(ctx context.Context) (time.Time, error) {
	began, err := e.label(ctx, `"true"`)
	if err != nil {
		return began, err
	}
	s := e.site
	for _, dir := range []string{e.state(), filepath.Dir(e.Socket())} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return began, fmt.Errorf("make the directories of %s's director: %w", e.Name, err)
		}
	}
	kubeconfig, err := s.WriteKubeconfig(e.Name, fmt.Sprintf("https://%s:6443", address(controlNumber)), cluster.AdminToken)
	if err != nil {
		return began, err
	}
	first, err := s.startContainer(e.Node, edgeState, "weir-node-first", s.options.Programs.WeirKube, DirectorOfChart.First, "--kubeconfig", kubeconfig)
	if err != nil {
		return began, err
	}
	if err := first.Gone(ctx); err != nil {
		return began, err
	}
	if _, err := os.Stat(e.file()); err != nil {
		return began, fmt.Errorf("%s has no file for its director: %w; weir-kube node said:\n%s", e.Name, err, first.Log())
	}
	if e.weir, err = s.startContainer(e.Node, edgeState, "weir-run", s.options.Programs.Weir, DirectorOfChart.Director); err != nil {
		return began, err
	}
	e.sidecar, err = s.startContainer(e.Node, edgeState, "weir-node", s.options.Programs.WeirKube, DirectorOfChart.Sidecar, "--kubeconfig", kubeconfig)
	e.joined = err == nil
	return began, err
}

// edgeState is a director's directory on its node.
const edgeState = "director"

func (e *Edge) state() string { return filepath.Join(e.host.Dir(), edgeState) }

func (e *Edge) file() string { return filepath.Join(e.state(), "weir.yaml") }

// Socket is the socket of the edge's director.
func (e *Edge) Socket() string { return filepath.Join(e.host.Dir(), "run", "director.sock") }

// Leave removes the label, waits until the router sends a Service's packets elsewhere, and removes
// all of the director: the node is as it was before [Edge.Join].
func (e *Edge) Leave(ctx context.Context, vip netip.Addr) error {
	if err := e.Withdraw(ctx, vip); err != nil {
		return err
	}
	return e.stop(ctx)
}

// Withdraw removes the label, and waits until the router sends a Service's packets elsewhere.
func (e *Edge) Withdraw(ctx context.Context, vip netip.Addr) error {
	if _, err := e.label(ctx, "null"); err != nil {
		return err
	}
	return cluster.Until(ctx, "the router to send nothing to "+e.Name, func() error {
		hops, err := e.site.NextHops(vip)
		if err == nil && slices.Contains(hops, e.Address) {
			err = fmt.Errorf("it sends to %v", hops)
		}
		return err
	})
}

func (e *Edge) stop(ctx context.Context) error {
	e.joined = false
	if err := errors.Join(e.sidecar.Stop(), e.weir.Stop()); err != nil {
		return err
	}
	if _, err := process.Run(ctx, e.host, e.site.options.Programs.Weir, "detach", "--bpffs", e.host.BPFFS(), "--socket", e.Socket()); err != nil {
		return err
	}
	if err := os.RemoveAll(e.state()); err != nil {
		return fmt.Errorf("remove what %s's director has left: %w", e.Name, err)
	}
	return nil
}

func (e *Edge) label(ctx context.Context, value string) (time.Time, error) {
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, edgeLabel, value)
	began := time.Now()
	if _, err := e.site.Core.Nodes().Patch(ctx, e.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		return began, fmt.Errorf("label %s: %w", e.Name, err)
	}
	return began, nil
}
