package kube

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	discoveryv1client "k8s.io/client-go/kubernetes/typed/discovery/v1"
	networkingv1client "k8s.io/client-go/kubernetes/typed/networking/v1"
	"k8s.io/client-go/rest"

	"weir.io/weir/internal/netlab"
)

const (
	etcdURL   = "http://127.0.0.1:2379"
	serverURL = "https://127.0.0.1:6443"
	patience  = 60 * time.Second

	adminToken = "of-the-tests"
)

// cluster is a real API server with its etcd, on a host of the lab. Who is asked there is
// found through the host's network.
type cluster struct {
	t      *testing.T
	host   *netlab.Host
	dir    string
	server *netlab.Command

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

// newCluster starts them and waits until they answer.
func newCluster(t *testing.T, h *netlab.Host) *cluster {
	t.Helper()
	c := &cluster{t: t, host: h, dir: filepath.Join(h.Dir(), "cluster")}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	c.write("accounts.key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))
	c.write("tokens.csv", adminToken+",admin,1,system:masters\n")
	start(t, h, filepath.Join(c.dir, "etcd.log"), "etcd", "--data-dir", filepath.Join(c.dir, "etcd"), "--listen-client-urls", etcdURL,
		"--advertise-client-urls", etcdURL, "--listen-peer-urls", "http://127.0.0.1:2380")
	c.startServer()
	config := &rest.Config{Host: serverURL, BearerToken: adminToken, Dial: h.DialContext, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1}
	c.coordination = coordinationv1client.NewForConfigOrDie(config)
	c.core, c.discovery, c.networking = corev1client.NewForConfigOrDie(config), discoveryv1client.NewForConfigOrDie(config), networkingv1client.NewForConfigOrDie(config)
	waitFor(t, "the API server to be ready", c.ready)
	return c
}

func (c *cluster) startServer() {
	c.server = start(c.t, c.host, filepath.Join(c.dir, "kube-apiserver.log"), apiserver,
		"--etcd-servers", etcdURL, "--bind-address", "0.0.0.0", "--secure-port", "6443", "--advertise-address", "10.255.255.1", "--endpoint-reconciler-type", "none",
		"--cert-dir", filepath.Join(c.dir, "certificates"), "--token-auth-file", filepath.Join(c.dir, "tokens.csv"), "--authorization-mode", "RBAC",
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", filepath.Join(c.dir, "accounts.key"),
		"--service-account-signing-key-file", filepath.Join(c.dir, "accounts.key"), "--service-cluster-ip-range", "10.96.0.0/16,fd00:96::/108")
}

// stopServer ends the API server as the loss of its host does.
func (c *cluster) stopServer() { stop(c.t, c.server) }

// ready asks by a request of its own, which knows nothing of an earlier API server.
func (c *cluster) ready() bool {
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DialContext: c.host.DialContext, DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	answer, err := client.Get(serverURL + "/readyz")
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

func (c *cluster) write(name, text string) string {
	c.t.Helper()
	path := filepath.Join(c.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return path
}

// start starts a process that ends with the test, and shows what it said if that fails.
func start(t *testing.T, h *netlab.Host, log, name string, args ...string) *netlab.Command {
	t.Helper()
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd := h.Command(context.Background(), name, args...)
	cmd.Stdout, cmd.Stderr = file, file
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

// stop ends a process by SIGKILL, if it is there yet.
func stop(t *testing.T, cmd *netlab.Command) {
	t.Helper()
	if cmd.ProcessState != nil {
		return
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // that it was killed
}

var fence = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

// paths are where objects of a kind are made; %s is their namespace.
var paths = map[string]string{
	"Namespace":           "/api/v1/namespaces",
	"ServiceAccount":      "/api/v1/namespaces/%s/serviceaccounts",
	"ConfigMap":           "/api/v1/namespaces/%s/configmaps",
	"Service":             "/api/v1/namespaces/%s/services",
	"Role":                "/apis/rbac.authorization.k8s.io/v1/namespaces/%s/roles",
	"RoleBinding":         "/apis/rbac.authorization.k8s.io/v1/namespaces/%s/rolebindings",
	"ClusterRole":         "/apis/rbac.authorization.k8s.io/v1/clusterroles",
	"ClusterRoleBinding":  "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
	"Deployment":          "/apis/apps/v1/namespaces/%s/deployments",
	"DaemonSet":           "/apis/apps/v1/namespaces/%s/daemonsets",
	"PodDisruptionBudget": "/apis/policy/v1/namespaces/%s/poddisruptionbudgets",
	"NetworkPolicy":       "/apis/networking.k8s.io/v1/namespaces/%s/networkpolicies",

	"CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
	"AddressPool":              "/apis/weir.io/v1alpha1/addresspools",
	"ServicePolicy":            "/apis/weir.io/v1alpha1/namespaces/%s/servicepolicies",
	"DirectorGroup":            "/apis/weir.io/v1alpha1/directorgroups",
	"BGPPeer":                  "/apis/weir.io/v1alpha1/bgppeers",
	"DirectorSet":              "/apis/weir.io/v1alpha1/directorsets",
}

// applyDocument makes what docs/kubernetes.md says is to be made, and returns the kinds.
func (c *cluster) applyDocument() (kinds map[string]int) {
	c.t.Helper()
	text, err := os.ReadFile("../../docs/kubernetes.md")
	if err != nil {
		c.t.Fatal(err)
	}
	kinds = map[string]int{}
	for _, block := range fence.FindAllStringSubmatch(string(text), -1) {
		for one := range strings.SplitSeq(block[1], "\n---\n") {
			kind, name, err := c.make(one)
			if err != nil {
				c.t.Fatalf("make the %s %s of docs/kubernetes.md: %v", kind, name, err)
			}
			kinds[kind]++
		}
	}
	return kinds
}

// make makes the object of a YAML text, and returns its kind and name; none, if it is no object.
func (c *cluster) make(text string) (kind, name string, err error) {
	c.t.Helper()
	var object struct {
		Kind     string
		Metadata struct{ Name, Namespace string }
	}
	body, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		c.t.Fatal(err)
	}
	if err := json.Unmarshal(body, &object); err != nil || object.Kind == "" {
		return "", "", nil // another kind of file
	}
	// Strict: a field that is written wrongly is an error, not ignored.
	return object.Kind, object.Metadata.Name, c.core.RESTClient().Post().AbsPath(c.path(object.Kind, object.Metadata.Namespace)).Param("fieldValidation", "Strict").
		SetHeader("Content-Type", "application/json").Body(body).Do(c.t.Context()).Error()
}

// path returns where objects of a kind are made.
func (c *cluster) path(kind, namespace string) string {
	c.t.Helper()
	path, known := paths[kind]
	if !known {
		c.t.Fatalf("there is a %s, which the tests do not know how to make", kind)
	}
	if strings.Contains(path, "%s") {
		path = fmt.Sprintf(path, namespace)
	}
	return path
}

// kubeconfig writes one for a service account, which then has the rights of the document.
func (c *cluster) kubeconfig(namespace, account string) string {
	c.t.Helper()
	token, err := c.core.ServiceAccounts(namespace).CreateToken(c.t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return c.writeKubeconfig(account, serverURL, token.Status.Token)
}

func (c *cluster) writeKubeconfig(name, url, token string) string {
	c.t.Helper()
	return c.write(name+".kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: it
contexts: [{name: it, context: {cluster: it, user: it}}]
clusters: [{name: it, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: it, user: {token: %q}}]
`, url, token))
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
