package kube

import (
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The directors' nodes are in another cluster than the Services. The Services' cluster has the
// DirectorGroup, the controller and Leases, and knows no Node; the nodes' own cluster has only the
// Nodes, which the sidecars may read. Each cluster has the chart's objects for it, with the
// documented values, and its containers run. Nodes are cordoned in their cluster, and either API
// server may be away.
func TestNodesOfAnotherCluster(t *testing.T) {
	needs(t, map[string]string{"kube-controller-manager in $WEIR_KUBE_CONTROLLER_MANAGER": controllers})
	l := newGroupLab(t, groupOptions{values: "testdata/elsewhere.values.yaml", elsewhere: true})
	a, b := l.nodes[0], l.nodes[1]
	l.waitForFit()
	l.controllerOfChart()
	l.waitForStatus("node-a node-b, 1 stand by")
	if known, err := l.core.Nodes().List(t.Context(), metav1.ListOptions{}); err != nil || len(known.Items) > 0 {
		t.Fatalf("the cluster of the Services has %d nodes, error %v", len(known.Items), err)
	}
	l.pods("web", 1, 2)
	l.service("web")
	l.waitForAddresses("web", vip)
	l.waitForHops("node-a node-b")
	l.reaches(vip, "pod1", "pod2")

	a.cordon(true)
	l.waitForStatus("node-b node-c, 0 stand by")
	l.waitForHops("node-b node-c")
	l.answered(10, "after node-a was cordoned")

	// Without the nodes' API server directors stay directors, and hear of changes of the Services.
	l.of.stopServer()
	l.pods("web", 3)
	waitFor(t, "only pod3 to answer", func() bool {
		for range 10 {
			if pod, err := l.ask(vip); err != nil || pod != "pod3" {
				return false
			}
		}
		return true
	})
	if hops := l.hops(); hops != "node-b node-c" {
		t.Errorf("without the nodes' API server the router sends to %q", hops)
	}
	l.of.startServer()
	waitFor(t, "the nodes' API server to be back", l.of.ready)
	a.cordon(false)
	l.waitForStatus("node-b node-c, 1 stand by")

	// Without the other API server, too.
	l.stopServer()
	l.answered(10, "without the API server of the Services")
	if hops := l.hops(); hops != "node-b node-c" {
		t.Errorf("without the API server of the Services the router sends to %q", hops)
	}
	l.startServer()
	waitFor(t, "the API server of the Services to be back", l.ready)
	b.cordon(true)
	l.waitForStatus("node-c node-a, 0 stand by")
	waitFor(t, "the router to send to both", func() bool { return strings.Contains(l.hops(), "node-a") && !strings.Contains(l.hops(), "node-b") })
	l.answered(10, "after node-b was cordoned")
}

// The controller may be in the nodes' cluster, too: everything runs there, and asks the API server
// of the Services.
func TestControllerOfAnotherCluster(t *testing.T) {
	needs(t, map[string]string{"kube-controller-manager in $WEIR_KUBE_CONTROLLER_MANAGER": controllers})
	l := newGroupLab(t, groupOptions{values: "testdata/elsewhere.values.yaml", elsewhere: true, controllerElsewhere: true})
	l.waitForFit()
	l.controllerOfChart()
	l.waitForStatus("node-a node-b, 1 stand by")
	l.pods("web", 1, 2)
	l.service("web")
	l.waitForAddresses("web", vip)
	l.waitForHops("node-a node-b")
	l.reaches(vip, "pod1", "pod2")
}

// helmInstalls returns, in order, the values that each helm install of a document's section sets in
// addition to its file.
func (d *document) helmInstalls() (all [][]string) {
	d.t.Helper()
	for _, command := range regexp.MustCompile(`(?m)^\$ helm .*install weir-kube kube/chart -n weir-system -f values.yaml(.*)$`).FindAllStringSubmatch(d.text, -1) {
		all = append(all, strings.Fields(command[1]))
	}
	return all
}

// installTwice does what the document says about two clusters, also with a controller in the second
// one, and returns the objects of the Services' cluster and of the nodes'.
func (l *groupLab) installTwice(values []string, controllerToo bool) (ofServices, ofNodes map[string]string) {
	l.t.Helper()
	d := newSection(l.t, "operate/kubernetes-groups.md", "Two clusters", strings.NewReplacer())
	installs := d.helmInstalls()
	if len(installs) != 2 {
		l.t.Fatalf("the document installs the chart %d times", len(installs))
	}
	if err := l.control.StartControllers(controllers, "serviceaccount-token-controller"); err != nil {
		l.t.Fatal(err)
	}
	tokens := map[string]string{"directors.kubeconfig": "weir-kube-director-token"}
	if text := d.block("console", "kubectl get secret"); !strings.Contains(text, "get secret weir-kube-director-token ") {
		l.t.Errorf("the document takes another token: %s", text)
	}
	if controllerToo {
		for _, said := range []string{"`elsewhere.controller=true`", "`weir-kube-token`", "`controller.kubeconfig`"} {
			if !strings.Contains(d.text, said) {
				l.t.Fatalf("the document does not say %s", said)
			}
		}
		tokens["controller.kubeconfig"] = "weir-kube-token"
		installs[0] = append(installs[0], "--set", "elsewhere.controller=true")
		for i := range installs[1] {
			installs[1][i] = strings.Replace(installs[1][i], "controller=false,", "", 1)
		}
	}
	ofServices = l.applyChart(append(values, installs[0]...)...)
	l.of.makeSystem()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "weir-services"}, StringData: map[string]string{}}
	for key, name := range tokens {
		secret.StringData[key] = l.read(l.writeKubeconfig(key, "https://"+controlAddress+":6443", l.tokenOf(name)))
	}
	if _, err := l.of.core.Secrets("weir-system").Create(l.t.Context(), secret, metav1.CreateOptions{}); err != nil {
		l.t.Fatal(err)
	}
	return ofServices, l.of.applyChart(append(values, installs[1]...)...)
}

// tokenOf waits until Kubernetes has written a token into a token Secret.
func (l *groupLab) tokenOf(name string) (token string) {
	l.t.Helper()
	waitFor(l.t, "the token of "+name, func() bool {
		secret, err := l.core.Secrets("weir-system").Get(l.t.Context(), name, metav1.GetOptions{})
		if err == nil {
			token = string(secret.Data["token"])
		}
		return token != ""
	})
	return token
}
