package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/kube/test/site"
)

// inMode lets the DirectorGroup forward a Service in the mode, unless directors of their own do.
func (m *measuring) inMode(s *corev1.Service) {
	if m.mode == own {
		return
	}
	site.ByEdge(s)
	metav1.SetMetaDataAnnotation(&s.ObjectMeta, "weir.io/mode", m.mode)
}

// ways is how many directors pods can tell apart: in full NAT they see the directors.
func (m *measuring) ways() int {
	switch m.mode {
	case own:
		return len(m.Directors)
	case "nat":
		return len(m.Edges) - 1
	}
	return 1
}

// notes records what is measured, with the waits that the directors themselves report.
func (m *measuring) notes(ctx context.Context) error {
	group, err := m.Edges[0].Waits(ctx)
	if err != nil {
		return err
	}
	directors := fmt.Sprintf("the directors are those of a DirectorGroup, on nodes, with the arguments and rights of the chart's containers, and its defaults: `notice` is %s, and `coalesce` %s in the file that weir-kube node writes for them. Its `drain` is 1 s", group.Notice, group.Coalesce)
	switch m.mode {
	case own:
		w, err := m.Directors[0].Waits(ctx)
		if err != nil {
			return err
		}
		directors = fmt.Sprintf("the directors are hosts of their own, a group that shares its services in an etcd of one member, with `notice: %s` and `coalesce: %s`, as docs/operate/kubernetes-directors.md tells such directors to have; node-labelled is about a DirectorGroup beside them, with its defaults: `notice` is %s, and `coalesce` %s", w.Notice, w.Coalesce, group.Notice, group.Coalesce)
	case "gue", "ipip":
		directors += ". Each node with pods has an agent and its sidecar, as from the chart, too. Pods see the client, so `request-by-all` is `request`. The Service of node-labelled is in `nat`"
	}
	mode := m.mode
	if mode == own {
		mode = "nat"
	}
	m.into.Notes = append([]string{
		"a kube-apiserver, its etcd and a kube-controller-manager (v1.36.3), whose EndpointSlice controller makes slices of Pods; `weir-kube controller` with `backends: pods`, Services in mode " + mode + "; an FRR router with the kernel's ECMP, and 2 directors that speak BGP with it; 3 nodes, behind which pods are network namespaces with an nginx each, in addresses that nodes route. What kubelets write of Pods the lab writes. 4 pods are there all the while",
		directors,
	}, notes...)
	return nil
}

var notes = []string{
	"node-labelled: the DirectorGroup has directors on its other nodes, and one more node gets the group's label; from then until the first answer that it has brought (`request`), and until the router sends to it (`route`). What a DaemonSet's controller and a kubelet take to start containers is not in it: the lab starts the programs of the chart's DaemonSet at once, one after the other where the first is an init container. failed: requests to that Service, also while the node leaves the group again",
	"a client outside makes 500 requests per second, over a connection each, through the router",
	"pod-ready: a pod is there for 300 ms before it is ready; from when the status that says Ready is begun to be written until the first answer of the pod (`request`), and until each director has brought it one (`request-by-all`): 500 requests per second are 50 for each of 2 directors and 5 pods. slice: until the EndpointSlice says so, as another watcher sees it; set: until the directors have the set, the last of them",
	"pod-terminating: from when the Pod is begun to be deleted until the last request began that it answered",
	"service-made: from when a Service, of pods that are there, is begun to be made until the router has a route to its address (`route`), and until the first answer from outside: claimed, given to the directors, announced by BGP, forwarded",
	"rolling-update: 4 pods are replaced one after the other, as a Deployment does by default; a pod that is told to end goes on for 3 s (preStop) and then ends what it was asked. Besides the 500 requests per second, 20 a second are made whose answers take 2 s; `broken` are those of them without the whole answer, `failed` the others",
	"all of it shares the machine's cores",
	"every change is a value of its own, so a cell is the median of the changes, not of rounds",
}
