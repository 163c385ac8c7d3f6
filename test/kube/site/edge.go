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

	"weir.io/weir/bench/process"
	"weir.io/weir/test/kube/cluster"
)

const edgeNumber = 151

// Edge is a node without pods that may be a director of the site's DirectorGroup.
type Edge struct {
	*Node

	site          *Site
	weir, sidecar *process.Process
}

func (s *Site) addEdge(i int) {
	n := &Node{Name: named("edge", i), Address: address(edgeNumber + i), host: s.lab.Router(named("edge", i))}
	n.pods = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(200 + i), 0}), 24)
	s.plugIn(n.host, edgeNumber+i)
	for _, pods := range s.Nodes {
		n.host.Route(pods.pods.String(), pods.Address.String())
	}
	s.Edges = append(s.Edges, &Edge{Node: n, site: s})
}

// The DirectorGroup's, and what its nodes and Services have to have.
const (
	edgeGroup = "edge"
	edgeLabel = "example.org/edge"
)

// groupText is the DirectorGroup and its router. It does not forward what the other directors do.
const groupText = `
apiVersion: weir.io/v1alpha1
kind: BGPPeer
metadata: {name: router}
spec: {address: ROUTER, asn: 65000, groups: [edge]}
---
apiVersion: weir.io/v1alpha1
kind: DirectorGroup
metadata: {name: edge}
spec:
  nodeSelector: {LABEL: "true"}
  directors: NUMBER
  interfaces: [eth0]
  backends: pods
  notice: NOTICE
  drain: 1s
  bgp: {asn: 65001}
  serviceSelector: {matchLabels: {LABEL: "true"}}
`

// MakeGroup makes a DirectorGroup of as many directors as the site has edges. It forwards Services
// that [ByEdge] was applied to, once edges [Edge.Join].
func (s *Site) MakeGroup(ctx context.Context) error {
	text := strings.NewReplacer("LABEL", edgeLabel, "ROUTER", address(routerNumber).String(), "NUMBER", fmt.Sprint(len(s.Edges)), "NOTICE", s.options.Notice.String()).Replace(groupText)
	for one := range strings.SplitSeq(text, "\n---\n") {
		if kind, name, err := s.Make(ctx, one); err != nil {
			return fmt.Errorf("make %s %s: %w", kind, name, err)
		}
	}
	return nil
}

// ByEdge lets the site's DirectorGroup forward a Service.
func ByEdge(s *corev1.Service) { metav1.SetMetaDataLabel(&s.ObjectMeta, edgeLabel, "true") }

// Join labels the node, and does what the chart's DaemonSet and the node's kubelet do then, as far as
// it is running programs: first the file, then the director and what stands beside it. It returns when
// the label was begun to be written.
func (e *Edge) Join(ctx context.Context) (time.Time, error) {
	began, err := e.label(ctx, `"true"`)
	if err != nil {
		return began, err
	}
	s, host := e.site, e.host
	etc, socket := filepath.Join(host.Dir(), "etc"), e.Socket()
	if err := os.MkdirAll(etc, 0o755); err != nil {
		return began, fmt.Errorf("make the directory of %s: %w", e.Name, err)
	}
	kubeconfig, err := s.WriteKubeconfig(e.Name, fmt.Sprintf("https://%s:6443", address(controlNumber)), cluster.AdminToken)
	if err != nil {
		return began, err
	}
	file := filepath.Join(etc, "weir.yaml")
	args := []string{"node", "--group", edgeGroup, "--node", e.Name, "--namespace", "weir-system", "--socket", socket, "--file", file,
		"--state", filepath.Join(host.Dir(), "state"), "--kubeconfig", kubeconfig}
	first, err := process.Start(host, "weir-node-first", s.options.Programs.WeirKube, append(args, "--write-only")...)
	if err != nil {
		return began, err
	}
	if err := first.Gone(ctx); err != nil {
		return began, err
	}
	if _, err := os.Stat(file); err != nil {
		return began, fmt.Errorf("%s has no file for its director: %w; weir-kube node said:\n%s", e.Name, err, first.Log())
	}
	if e.weir, err = process.Start(host, "weir-run", s.options.Programs.Weir, "run", "-c", file, "--bpffs", host.BPFFS(), "--socket", socket); err != nil {
		return began, err
	}
	e.sidecar, err = process.Start(host, "weir-node", s.options.Programs.WeirKube, args...)
	return began, err
}

// Socket is that of its director.
func (e *Edge) Socket() string { return filepath.Join(e.host.Dir(), "director.sock") }

// Leave takes the label away, waits until the router sends a Service's packets elsewhere, and removes
// all that was there of the director: the node is as it was before [Edge.Join].
func (e *Edge) Leave(ctx context.Context, vip netip.Addr) error {
	if _, err := e.label(ctx, "null"); err != nil {
		return err
	}
	if err := cluster.Until(ctx, "the router to send nothing to "+e.Name, func() error {
		hops, err := e.site.NextHops(vip)
		if err == nil && slices.Contains(hops, e.Address) {
			err = fmt.Errorf("it sends to %v", hops)
		}
		return err
	}); err != nil {
		return err
	}
	return e.stop(ctx)
}

func (e *Edge) stop(ctx context.Context) error {
	if err := errors.Join(e.sidecar.Stop(), e.weir.Stop()); err != nil {
		return err
	}
	if _, err := process.Run(ctx, e.host, e.site.options.Programs.Weir, "detach", "--bpffs", e.host.BPFFS(), "--socket", e.Socket()); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(filepath.Join(e.host.Dir(), "etc")), os.RemoveAll(filepath.Join(e.host.Dir(), "state")))
}

func (e *Edge) label(ctx context.Context, value string) (time.Time, error) {
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, edgeLabel, value)
	began := time.Now()
	if _, err := e.site.Core.Nodes().Patch(ctx, e.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		return began, fmt.Errorf("label %s: %w", e.Name, err)
	}
	return began, nil
}
