package kube

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/v1alpha1"
	"weir.io/weir/lab/netlab"
)

// A user who may do everything writes into objects of the controller and the nodes. Directors keep
// forwarding by what they have, and the damage is repaired.
func TestHandsOnObjects(t *testing.T) {
	l := newGroupLab(t, groupOptions{})
	a, b := l.nodes[0], l.nodes[1]
	l.waitForFit()
	first := l.controller("first")
	l.waitForStatus("node-a node-b, 1 stand by")
	l.pods("web", 1, 2)
	l.service("web")
	l.waitForAddresses("web", vip)
	l.waitForHops("node-a node-b")
	l.pods("web", 1, 2, 3)
	l.waitForSame(a, b, 2)
	before := a.documents()

	// Unreadable data: it is written again, with the history that it had.
	l.writeIntoSet(`[{"op": "replace", "path": "/spec/services/0/documents", "value": "` + base64.StdEncoding.EncodeToString([]byte("none")) + `"}]`)
	l.answered(10, "after a DirectorSet was damaged")
	l.groupEvent("Repaired", "decompress the documents of default/web")
	l.waitForReadable()
	l.waitForSame(a, b, 2)
	if after := a.documents(); after != before {
		t.Errorf("node-a forwards by %s, and before by %s", after, before)
	}

	// Readable but false data: no services, other numbers, another DirectorSet beside it.
	for what, patch := range map[string]string{
		"its services are taken out": `[{"op": "replace", "path": "/spec/services", "value": []}]`,
		"it is of an old revision":   `[{"op": "replace", "path": "/spec/services/0/revision", "value": 1}]`,
		"its label is taken off":     `[{"op": "replace", "path": "/metadata/labels", "value": {}}]`,
	} {
		l.writeIntoSet(patch)
		l.pods("web", 2, 3)
		waitFor(t, "pods to be followed after "+what, func() bool { return !strings.Contains(a.documents(), podAddress(1)+`"`) })
		l.pods("web", 1, 2, 3)
		l.waitForBackend(a, podAddress(1))
		l.waitForBackend(b, podAddress(1))
		l.answered(10, "after "+what)
	}
	l.otherSets(t)

	// Without a controller the directors keep what they have, and say why; the next controller,
	// which knows no history, begins a new one.
	stop(t, first)
	l.writeIntoSet(`[{"op": "replace", "path": "/spec/services/0/documents", "value": "AAAA"}]`)
	waitFor(t, "the sidecar of node-a to say what it cannot read", func() bool {
		text, err := os.ReadFile(a.at("node.log"))
		return err == nil && strings.Contains(string(text), "DirectorSet edge-0: decompress the documents of default/web")
	})
	l.answered(20, "after a DirectorSet was damaged without a controller")
	second := l.controller("second")
	l.waitForReadable()
	l.pods("web", 3)
	waitFor(t, "only pod3 to answer", func() bool {
		for range 10 {
			if pod, err := l.ask(vip); err != nil || pod != "pod3" {
				return false
			}
		}
		return true
	})
	l.waitForSame(a, b, 1)
	stop(t, second)
	l.newerDocuments(t)
	l.nonsenseInLeases(t)
	l.nonsenseInClaims(t)
}

// newerDocuments writes what a later version of weir would, while no controller runs. A controller
// that was rolled back leaves it as it is, directors keep forwarding, and removing the DirectorSet
// begins new histories.
func (l *groupLab) newerDocuments(t *testing.T) {
	t.Helper()
	var text bytes.Buffer
	w, err := flate.NewWriter(&text, flate.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(`{"format": 2, "documents": "and more"}`)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	l.writeIntoSet(`[{"op": "replace", "path": "/spec/services/0/documents", "value": "` + base64.StdEncoding.EncodeToString(text.Bytes()) + `"}]`)
	before, err := l.readSet("edge-0")
	if err != nil {
		t.Fatal(err)
	}
	l.controller("third")
	l.groupEvent("Newer", "was written by a newer version of weir: format 2, and this one reads 1")
	l.pods("web", 1, 2, 3)
	l.event("web", "NotForwarded", "was written by a newer version of weir")
	l.answered(10, "while a newer version's documents are there")
	after, err := l.readSet("edge-0")
	if err != nil || after.ResourceVersion != before.ResourceVersion {
		t.Errorf("the DirectorSet of a newer version is written anew: version %s, and before %s, error %v", after.ResourceVersion, before.ResourceVersion, err)
	}
	l.deleteResource("directorsets", "", "edge-0")
	l.waitForReadable()
	l.reaches(vip, "pod1", "pod2", "pod3")
}

// writeIntoSet patches the group's DirectorSet.
func (l *groupLab) writeIntoSet(patch string) {
	l.t.Helper()
	err := l.core.RESTClient().Patch(types.JSONPatchType).AbsPath("/apis/weir.io/v1alpha1/directorsets/edge-0").Body([]byte(patch)).Do(l.t.Context()).Error()
	if err != nil {
		l.t.Fatalf("patch the DirectorSet by %s: %v", patch, err)
	}
}

func (l *groupLab) readSet(name string) (*v1alpha1.DirectorSet, error) {
	text, err := l.core.RESTClient().Get().AbsPath("/apis/weir.io/v1alpha1/directorsets", name).Do(l.t.Context()).Raw()
	if err != nil {
		return nil, err
	}
	var o v1alpha1.DirectorSet
	return &o, json.Unmarshal(text, &o)
}

// waitForReadable waits until the DirectorSet has the Service, readable for directors.
func (l *groupLab) waitForReadable() {
	l.t.Helper()
	waitFor(l.t, "the DirectorSet to be written again", func() bool {
		o, err := l.readSet("edge-0")
		if err != nil || len(o.Spec.Services) != 1 {
			return false
		}
		_, err = group.Decode(&o.Spec.Services[0])
		return err == nil
	})
}

func (l *groupLab) waitForBackend(n *labNode, address string) {
	l.t.Helper()
	waitFor(l.t, fmt.Sprintf("%s to have the backend %s", n.Name, address), func() bool {
		documents, err := n.api.Documents(l.t.Context(), edgeSet)
		return err == nil && len(documents) == 1 && slices.ContainsFunc(documents[0].Service.Backends, func(b model.Backend) bool { return b.Address.String() == address })
	})
}

// otherSets makes DirectorSets that the controller does not know: with the Service, at a later
// revision, and another backend, which does not exist.
func (l *groupLab) otherSets(t *testing.T) {
	t.Helper()
	real, err := l.readSet("edge-0")
	if err != nil {
		t.Fatal(err)
	}
	documents, err := group.Decode(&real.Spec.Services[0])
	if err != nil {
		t.Fatal(err)
	}
	forged := documents[0].Service.Backends[:1]
	documents[0].Service.Backends = forged
	c, err := group.Encode("default/web", 0, 1000, documents)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"mine", "edge-7"} {
		o := v1alpha1.DirectorSet{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "DirectorSet"},
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelGroup: "edge"}},
			Spec:       v1alpha1.DirectorSetSpec{Group: "edge", Set: 7, Services: []v1alpha1.CompiledService{c}}}
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.core.RESTClient().Post().AbsPath("/apis/weir.io/v1alpha1/directorsets").Body(text).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
		l.reaches(vip, "pod1", "pod2", "pod3")
		for _, n := range l.nodes[:2] {
			for i := 1; i <= 3; i++ {
				l.waitForBackend(n, podAddress(i))
			}
		}
		l.deleteResource("directorsets", "", name)
		l.reaches(vip, "pod1", "pod2", "pod3")
	}
	l.waitForReadable()
}

// groupEvent waits for an event on the DirectorGroup.
func (l *groupLab) groupEvent(reason, text string) {
	l.t.Helper()
	waitFor(l.t, fmt.Sprintf("an event %s of the group that says %q", reason, text), func() bool {
		events, err := l.core.Events(namespace).List(l.t.Context(), metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Kind == "DirectorGroup" && e.InvolvedObject.Name == "edge" && e.Reason == reason && strings.Contains(e.Message, text)
		})
	})
}

// nonsenseInLeases writes Leases of nodes that do not exist, and overwrites those of nodes that do.
// No node becomes a director by it, and none stops being one.
func (l *groupLab) nonsenseInLeases(t *testing.T) {
	t.Helper()
	leases := l.coordination.Leases("weir-system")
	for i, said := range []string{
		"", "{", "[]", "null", `{"node": 1}`, `{"node": ""}`, `{"node": "Aaa"}`,
		`{"node": "node-a", "unfit": "somebody says so"}`,
		`{"node": "aaa", "addresses": ["10.9.9.9"]}`, // in a Lease of another name
		`{"node": "node-b", "addresses": ["10.9.9.9", "10.9.9.9"]}`,
	} {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("weir.edge.a%d", i), Labels: map[string]string{v1alpha1.LabelGroup: "edge"},
			Annotations: map[string]string{group.AnnotationDirector: said}}}
		if _, err := leases.Create(t.Context(), lease, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	addresses := `{"node": "a-bad", "addresses": ["10.9.9.9", "10.9.9.9"]}` // in its own Lease, with what no status may have
	bad := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "weir.edge.a-bad", Labels: map[string]string{v1alpha1.LabelGroup: "edge"}, Annotations: map[string]string{group.AnnotationDirector: addresses}}}
	if _, err := leases.Create(t.Context(), bad, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, said := range []string{"nonsense", `{"node": "node-c"}`, `{"node": "node-b", "addresses": ["here"]}`} {
		text, err := json.Marshal(said)
		if err != nil {
			t.Fatal(err)
		}
		patch := fmt.Sprintf(`{"metadata": {"annotations": {%q: %s}}}`, group.AnnotationDirector, text)
		if _, err := leases.Patch(t.Context(), group.LeaseName("edge", "node-b"), types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "node-b to write its Lease again", func() bool {
			lease, err := leases.Get(t.Context(), group.LeaseName("edge", "node-b"), metav1.GetOptions{})
			if err != nil {
				return false
			}
			_, err = group.ReadPresence("edge", lease.Name, lease.Annotations[group.AnnotationDirector])
			return err == nil
		})
	}
	// The controller has read all Leases when it follows a later change.
	l.pods("web", 1, 2)
	waitFor(t, "pods to be followed beside nonsense in Leases", func() bool { return !strings.Contains(l.nodes[0].documents(), podAddress(3)+`"`) })
	if status, hops := l.status(), l.hops(); status != "node-a node-b, 1 stand by" || hops != "node-a node-b" {
		t.Errorf("with nonsense in Leases the group is %q, and the router sends to %q", status, hops)
	}
	l.answered(10, "with nonsense in Leases")
}

// nonsenseInClaims writes into the object that claims the Service's address.
func (l *groupLab) nonsenseInClaims(t *testing.T) {
	t.Helper()
	for what, patch := range map[string]string{
		"holders that nobody can read": `{"metadata": {"annotations": {"weir.io/holders": "nonsense"}}}`,
		"no holders":                   `{"metadata": {"annotations": {"weir.io/holders": "[]"}}}`,
		"holders that are a number":    `{"metadata": {"annotations": {"weir.io/holders": "7"}}}`,
		"no label":                     `{"metadata": {"labels": {"ipaddress.kubernetes.io/managed-by": null}}}`,
	} {
		if _, err := l.networking.IPAddresses().Patch(t.Context(), vip, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		l.pods("web", 3)
		waitFor(t, "pods to be followed with "+what, func() bool { return strings.Contains(l.nodes[0].documents(), podAddress(3)+`"`) })
		l.pods("web", 1, 2)
		waitFor(t, "pods to be followed with "+what, func() bool { return !strings.Contains(l.nodes[0].documents(), podAddress(3)+`"`) })
		waitFor(t, "the claim to be the Service's, with "+what, func() bool { return l.claims() == vip+"=web" })
		if got := l.addresses("web"); got != vip {
			t.Errorf("with %s the Service has %q", what, got)
		}
	}
	l.answered(10, "with nonsense in claims")
}

// EndpointSlices by hand: nonsense that the API server accepts is left out, and the pods beside it
// serve.
func TestNonsenseInEndpointSlices(t *testing.T) {
	l := newLab(t)
	l.controller("one")
	l.pods("web", 1)
	l.service("web")
	l.waitForAddresses("web", "203.0.113.1")
	l.reaches("203.0.113.1", "pod1")
	yes := true
	taken := 0
	for i, addresses := range [][]string{{"239.1.1.1"}, {"255.255.255.255"}, {"240.0.0.1"}, {"0.1.2.3"}, {"127.0.0.1"}, {"169.254.1.1"}, {"224.0.0.1"}, {"0.0.0.0"}, {"here"}, {podAddress(1)}, {"10.2.0.16"}} {
		slice := l.newSlice("web")
		slice.Name = fmt.Sprintf("web-nonsense-%d", i)
		slice.Endpoints = []discoveryv1.Endpoint{{Addresses: addresses, Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "no pod's\nname"}}}
		if addresses[0] == "10.2.0.16" { // the director's own address, with port 0
			zero := int32(0)
			slice.Ports = []discoveryv1.EndpointPort{{Port: &zero}}
		}
		if _, err := l.discovery.EndpointSlices(namespace).Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
			t.Logf("the API server refuses %v: %.200v", addresses, err)
			continue
		}
		taken++
	}
	if taken == 0 {
		t.Fatal("the API server has refused all of it")
	}
	portless := l.newSlice("web")
	portless.Name, portless.Ports = "web-portless", nil
	portless.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{podAddress(3)}, Conditions: discoveryv1.EndpointConditions{Ready: &yes}}}
	l.putSlice(portless)
	l.event("web", "Unsupported", "EndpointSlice web-nonsense-0: 239.1.1.1 is a multicast address; the endpoint is left out")
	l.pods("web", 1, 2)
	l.waitForSet("default/web/80-tcp=pod1,pod2")
	l.reaches("203.0.113.1", "pod1", "pod2")
}

// Two controllers with the same file, and even the same name, so that each believes to have the
// lease: no address belongs to two Services, and directors end up with the wanted state.
func TestTwoControllersOfOneName(t *testing.T) {
	l := newLab(t)
	l.config = l.write("two.yaml", strings.ReplaceAll(l.read(l.config), "203.0.113.1-203.0.113.2", "203.0.113.0/28"))
	var running []*netlab.Command
	for i := range 2 {
		running = append(running, start(t, l.host, filepath.Join(l.dir, fmt.Sprintf("same-%d.log", i)), weirKube, "controller", "-c", l.config, "--kubeconfig", l.kubeconfigFile, "--identity", "same"))
	}
	for i := range 10 {
		name := fmt.Sprintf("s%d", i)
		l.service(name)
		l.pods(name, 1+i%3)
	}
	owners := map[string]string{}
	for i := range 10 {
		name := fmt.Sprintf("s%d", i)
		waitFor(t, "an address for "+name, func() bool { return l.addresses(name) != "" })
		address := l.addresses(name)
		if other, twice := owners[address]; twice {
			t.Errorf("%s and %s both have %s", name, other, address)
		}
		owners[address] = name
	}
	var want []string
	for i := range 10 {
		name := fmt.Sprintf("s%d", i)
		l.pods(name, 1+(i+1)%3)
		want = append(want, fmt.Sprintf("default/%s/80-tcp=pod%d", name, 1+(i+1)%3))
	}
	l.waitForSet(strings.Join(want, " "))
	for address, name := range owners {
		if got := l.addresses(name); got != address {
			t.Errorf("%s had %s and has %q", name, address, got)
		}
	}
	// One of them ends, and the other one works on.
	stop(t, running[0])
	l.deleteService("s0")
	l.waitForSet(strings.Join(want[1:], " "))
}
