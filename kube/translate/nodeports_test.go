package translate_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

func groupWithPorts(t *testing.T, change ...func(*v1alpha1.DirectorGroupSpec)) *translate.DirectorGroup {
	t.Helper()
	g := &v1alpha1.DirectorGroup{Spec: v1alpha1.DirectorGroupSpec{Notice: "100ms", SNATPorts: "1024-29999", NodePorts: &v1alpha1.DirectorNodePorts{PodCIDRs: []string{"10.244.0.0/16"}}}}
	g.Name = "edge"
	for _, f := range change {
		f(&g.Spec)
	}
	read, err := translate.ReadDirectorGroup(g, translate.Options{Mode: model.GUE, Backends: translate.Pods})
	if err != nil {
		t.Fatal(err)
	}
	return read
}

// Which node ports directors take, and what is said about those that they do not take.
func TestNodePorts(t *testing.T) {
	two := func(s *corev1.ServiceSpec) {
		s.Ports = append(s.Ports, corev1.ServicePort{Name: "dns", Port: 53, NodePort: 30053, Protocol: corev1.ProtocolUDP}, corev1.ServicePort{Name: "sctp", Port: 9, NodePort: 30009, Protocol: corev1.ProtocolSCTP})
	}
	numbered := func(port int32, protocol corev1.Protocol) func(*corev1.ServiceSpec) {
		return func(s *corev1.ServiceSpec) { s.Ports[0].NodePort, s.Ports[0].Protocol = port, protocol }
	}
	for name, test := range map[string]struct {
		group   *translate.DirectorGroup
		service *corev1.Service
		mode    string // by annotation
		want    string
		said    string
	}{
		"all of its ports":          {groupWithPorts(t), web(two), "", "[{tcp 80 30080} {udp 53 30053}]", ""},
		"in ipip to pods":           {groupWithPorts(t), web(), "ipip", "[{tcp 80 30080}]", ""},
		"in nat":                    {groupWithPorts(t), web(), "nat", "[]", "stay kube-proxy's, which hides the client where a node has no pod: it is forwarded in mode nat to pods"},
		"in nat, without any":       {groupWithPorts(t), web(numbered(0, "")), "nat", "[]", ""},
		"the group takes none":      {groupWithPorts(t, func(g *v1alpha1.DirectorGroupSpec) { g.NodePorts = nil }), web(), "", "[]", ""},
		"no group's":                {nil, web(), "", "[]", ""},
		"of a Gateway":              {groupWithPorts(t), nil, "", "[]", ""},
		"externalTrafficPolicy":     {groupWithPorts(t), web(local), "", "[]", ""},
		"none were allocated":       {groupWithPorts(t), web(numbered(0, "")), "", "[]", ""},
		"where tunnels end":         {groupWithPorts(t, func(g *v1alpha1.DirectorGroupSpec) { g.SNATPorts = "1024-2000" }), web(numbered(6080, corev1.ProtocolUDP)), "", "[]", "node port 6080 stays kube-proxy's: tunnels of mode gue end there"},
		"beside tunnels":            {groupWithPorts(t, func(g *v1alpha1.DirectorGroupSpec) { g.SNATPorts = "1024-2000" }), web(numbered(6080, corev1.ProtocolTCP)), "", "[{tcp 80 6080}]", ""},
		"where full NAT has a port": {groupWithPorts(t), web(numbered(29999, "")), "", "[]", "node port 29999 stays kube-proxy's: it is among spec.snatPorts of DirectorGroup edge, 1024-29999"},
	} {
		if test.mode != "" {
			test.service.Annotations = map[string]string{translate.AnnotationMode: test.mode}
		}
		ports, problems := test.group.NodePorts(translate.Options{Mode: model.GUE, Backends: translate.Pods}, test.service)
		said := ""
		for _, p := range problems {
			said += p.Message
		}
		if got := fmt.Sprint(ports); got != test.want || !strings.Contains(said, test.said) || (said == "") != (test.said == "") {
			t.Errorf("%s: %s and %q, want %s and %q", name, got, said, test.want, test.said)
		}
	}
}

// Packets from nodes and pods are left to kube-proxy, by the nodes' objects and by what the group
// adds.
func TestKernelSources(t *testing.T) {
	some := []translate.Node{{Name: "a", Sources: "10.0.0.1/32 fd00::1/128 10.245.1.0/24"}, {Name: "b", Sources: "10.0.0.2/32 10.0.0.1/32"}, {Name: "c"}}
	if got, want := fmt.Sprint(groupWithPorts(t).KernelSources(some)), "[10.0.0.1/32 10.0.0.2/32 10.244.0.0/16 10.245.1.0/24 fd00::1/128]"; got != want {
		t.Errorf("they are %s, want %s", got, want)
	}
	if got := groupWithPorts(t, func(g *v1alpha1.DirectorGroupSpec) { g.NodePorts = nil }).KernelSources(some); got != nil {
		t.Errorf("of a group without node ports they are %v", got)
	}
}
