package kube

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	discoveryv1client "k8s.io/client-go/kubernetes/typed/discovery/v1"
	networkingv1client "k8s.io/client-go/kubernetes/typed/networking/v1"

	control "weir.io/weir/kube/test/cluster"
	"weir.io/weir/lab/netlab"
)

const (
	patience   = 60 * time.Second
	adminToken = control.AdminToken
)

// cluster is a real API server with its etcd, on a host of the lab.
type cluster struct {
	t       *testing.T
	host    *netlab.Host
	dir     string
	control *control.Cluster

	core         corev1client.CoreV1Interface
	discovery    discoveryv1client.DiscoveryV1Interface
	networking   networkingv1client.NetworkingV1Interface
	coordination coordinationv1client.CoordinationV1Interface
}

func waitFor(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(20 * time.Millisecond) { // between two looks
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// newCluster starts the API server and etcd and waits until they answer.
func newCluster(t *testing.T, h *netlab.Host) *cluster {
	t.Helper()
	c, err := control.Start(t.Context(), h, apiserver)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.Logs())
		}
	})
	return &cluster{t: t, host: h, dir: c.Dir, control: c, core: c.Core, discovery: c.Discovery, networking: c.Networking, coordination: c.Coordination}
}

func (c *cluster) startServer() {
	c.t.Helper()
	if err := c.control.StartServer(); err != nil {
		c.t.Fatal(err)
	}
}

// stopServer ends the API server as if its host were lost.
func (c *cluster) stopServer() {
	c.t.Helper()
	if err := c.control.StopServer(); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) ready() bool { return c.control.Ready() == nil }

func (c *cluster) write(name, text string) string {
	c.t.Helper()
	path, err := c.control.Write(name, text)
	if err != nil {
		c.t.Fatal(err)
	}
	return path
}

// start starts a process that ends with the test, and shows its log if the test fails.
func start(t *testing.T, h *netlab.Host, log, name string, args ...string) *netlab.Command {
	t.Helper()
	return startWith(t, h, log, nil, name, args...)
}

// startWith is start with more environment variables.
func startWith(t *testing.T, h *netlab.Host, log string, environment []string, name string, args ...string) *netlab.Command {
	t.Helper()
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd := h.Command(context.Background(), name, args...)
	cmd.Stdout, cmd.Stderr = file, file
	cmd.Env = append(cmd.Env, environment...)
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s on %s: %v", name, h.Name, err)
	}
	t.Cleanup(func() {
		stop(t, cmd)
		if text, err := os.ReadFile(log); err == nil && t.Failed() {
			t.Logf("%s on %s said, in the end:\n%s", filepath.Base(name), h.Name, text[max(0, len(text)-8000):])
		}
	})
	return cmd
}

// stop ends a process by SIGKILL, if it still runs.
func stop(t *testing.T, cmd *netlab.Command) {
	t.Helper()
	if cmd.ProcessState != nil {
		return
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // the error is that it was killed
}

var fence = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

// applyDocument creates the objects that docs/*/kubernetes*.md tell the reader to create, and returns
// the kinds.
func (c *cluster) applyDocument() (kinds map[string]int) {
	c.t.Helper()
	pages, err := filepath.Glob("../../docs/*/kubernetes*.md")
	if err != nil {
		c.t.Fatal(err)
	}
	var text []byte
	for _, page := range pages {
		one, err := os.ReadFile(page)
		if err != nil {
			c.t.Fatal(err)
		}
		text = append(text, one...)
	}
	kinds = map[string]int{}
	for _, block := range fence.FindAllStringSubmatch(string(text), -1) {
		for one := range strings.SplitSeq(block[1], "\n---\n") {
			kind, name, err := c.make(one)
			if err != nil {
				c.t.Fatalf("make the %s %s of docs: %v", kind, name, err)
			}
			kinds[kind]++
		}
	}
	return kinds
}

// make makes the object of a YAML text, and returns its kind and name; both empty if the text is no
// object.
func (c *cluster) make(text string) (kind, name string, err error) {
	c.t.Helper()
	return c.control.Make(c.t.Context(), text)
}

// path returns where objects of a kind are made.
func (c *cluster) path(kind, namespace string) string {
	c.t.Helper()
	path, err := control.Path(kind, namespace)
	if err != nil {
		c.t.Fatal(err)
	}
	return path
}

// kubeconfig writes a kubeconfig for a service account, which has the documented rights.
func (c *cluster) kubeconfig(namespace, account string) string {
	c.t.Helper()
	token, err := c.core.ServiceAccounts(namespace).CreateToken(c.t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return c.writeKubeconfig(account, control.ServerURL, token.Status.Token)
}

// podKubeconfig writes a kubeconfig for a Pod's service account, with a token of that Pod as from a
// kubelet.
func (c *cluster) podKubeconfig(p *corev1.Pod) string {
	c.t.Helper()
	token, err := podToken(c.t.Context(), c.core, p)
	if err != nil {
		c.t.Fatal(err)
	}
	return c.writeKubeconfig(p.Namespace+"-"+p.Name, control.ServerURL, token)
}

// podToken returns a token of a Pod's service account that is bound to the Pod.
func podToken(ctx context.Context, core corev1client.CoreV1Interface, p *corev1.Pod) (string, error) {
	of := &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.Name, UID: p.UID}
	token, err := core.ServiceAccounts(p.Namespace).CreateToken(ctx, p.Spec.ServiceAccountName, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: of}}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return token.Status.Token, nil
}

// podOn makes a Pod that is bound to a node, and runs nothing.
func (c *cluster) podOn(node, namespace, account, name string) *corev1.Pod {
	c.t.Helper()
	made, err := podOn(c.t.Context(), c.core, node, namespace, account, name)
	if err != nil {
		c.t.Fatal(err)
	}
	return made
}

func podOn(ctx context.Context, core corev1client.CoreV1Interface, node, namespace, account, name string) (*corev1.Pod, error) {
	yes, no := true, false
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: account, AutomountServiceAccountToken: &no,
		SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: &yes, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		Containers: []corev1.Container{{Name: "none", Image: "none.example.org/none", SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: &no,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}}}}}
	return core.Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
}

func (c *cluster) writeKubeconfig(name, url, token string) string {
	c.t.Helper()
	path, err := c.control.WriteKubeconfig(name, url, token)
	if err != nil {
		c.t.Fatal(err)
	}
	return path
}

func (c *cluster) read(path string) string {
	c.t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(text)
}

func fromYAML(t *testing.T, text []byte, into any) {
	t.Helper()
	body, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(body, into); err != nil {
		t.Fatal(err)
	}
}
