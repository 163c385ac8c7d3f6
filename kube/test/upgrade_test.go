package kube

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	control "weir.io/weir/kube/test/cluster"
	"weir.io/weir/lab/netlab"
)

// helm itself installs, upgrades and rolls back a release, each with a new controller: Services
// keep the addresses that they had, even if their pool came with the upgrade and goes with the
// rollback.
func TestHelmRollback(t *testing.T) {
	needsAPIServer(t)
	l := &lab{cluster: newCluster(t, netlab.ForTest(t).Host("control"))}
	l.applyResources()
	l.makeSystem()
	t.Cleanup(l.logEvents)

	const image = "image: {repository: registry.example.org/weir-kube, tag: %s}\naddressPools: {%s}\n"
	before, after := "public: {addresses: [203.0.113.1-203.0.113.2]}", "public: {addresses: [203.0.113.1-203.0.113.2]}, more: {addresses: [203.0.113.65], priority: 9}"
	l.helm("install", "--values", l.write("v1.yaml", fmt.Sprintf(image, "v1", before)))
	l.kubeconfigFile = l.kubeconfig("weir-system", "weir-kube")
	running := l.controllerOfRelease("v1")
	l.service("web")
	l.waitForClaims("203.0.113.1=web")

	stop(t, running)
	l.helm("upgrade", "--values", l.write("v2.yaml", fmt.Sprintf(image, "v2", after)+"logLevel: debug\n"))
	running = l.controllerOfRelease("v2")
	l.service("shop")
	l.waitForClaims("203.0.113.1=web 203.0.113.65=shop")

	stop(t, running)
	l.helm("rollback")
	l.controllerOfRelease("v1-again")
	l.service("last")
	l.waitForClaims("203.0.113.1=web 203.0.113.2=last 203.0.113.65=shop")
	if err := l.core.RESTClient().Get().AbsPath("/apis/weir.io/v1alpha1/addresspools/more").Do(t.Context()).Error(); err == nil {
		t.Error("the pool of the upgrade is there after the rollback")
	}
}

// helm runs a helm command on the release, as the cluster's administrator.
func (l *lab) helm(verb string, args ...string) {
	l.t.Helper()
	args = append([]string{verb, "weir-kube", "--namespace", "weir-system"}, args...)
	if verb != "rollback" {
		args = append(args, chart)
	}
	cmd := l.host.Command(l.t.Context(), helmProgram, args...)
	cmd.Env = append(os.Environ(), "HOME="+l.t.TempDir(), "KUBECONFIG="+filepath.Join(l.dir, "admin.kubeconfig"))
	if _, err := os.Stat(filepath.Join(l.dir, "admin.kubeconfig")); err != nil {
		l.writeKubeconfig("admin", control.ServerURL, adminToken)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		l.t.Fatalf("helm %s: %v\n%s", verb, err, out)
	}
}

// controllerOfRelease starts a controller with the current file of the release.
func (l *lab) controllerOfRelease(name string) *netlab.Command {
	l.t.Helper()
	file, err := l.core.ConfigMaps("weir-system").Get(l.t.Context(), "weir-kube", metav1.GetOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	l.config = l.write(name+".file.yaml", file.Data["weir-kube.yaml"])
	return l.controller(name)
}

// waitForClaims waits until these addresses are claimed, and no others.
func (l *lab) waitForClaims(want string) {
	l.t.Helper()
	waitFor(l.t, "the claims "+want, func() bool {
		all, err := l.networking.IPAddresses().List(l.t.Context(), metav1.ListOptions{LabelSelector: "ipaddress.kubernetes.io/managed-by=weir.io"})
		if err != nil {
			return false
		}
		var list bytes.Buffer
		for _, a := range all.Items {
			fmt.Fprintf(&list, " %s=%s", a.Name, a.Spec.ParentRef.Name)
		}
		return strings.TrimSpace(list.String()) == want
	})
}
