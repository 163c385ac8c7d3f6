// Package cluster runs a real control plane of Kubernetes on a host of a lab: etcd, the API server
// and, on request, its controllers. Tests and benchmarks ask it by client-go.
package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	discoveryv1client "k8s.io/client-go/kubernetes/typed/discovery/v1"
	networkingv1client "k8s.io/client-go/kubernetes/typed/networking/v1"
	"k8s.io/client-go/rest"

	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
)

const (
	etcdURL = "http://127.0.0.1:2379"

	// ServerURL is where the API server answers on its host. It listens at the host's other
	// addresses, too.
	ServerURL = "https://127.0.0.1:6443"

	// AdminToken is the token of a user who may do everything.
	AdminToken = "of-the-tests"
)

// errNotReady says that the API server does not yet report that it is ready.
var errNotReady = errors.New("the API server is not ready")

// Cluster is a control plane that runs. Clients reach it through the host's network.
type Cluster struct {
	Host *netlab.Host
	Dir  string // of the cluster's files

	Core         corev1client.CoreV1Interface
	Discovery    discoveryv1client.DiscoveryV1Interface
	Networking   networkingv1client.NetworkingV1Interface
	Coordination coordinationv1client.CoordinationV1Interface

	apiserver string
	server    *process.Process
	store     *process.Process
	processes []*process.Process
}

// Start starts etcd and the API server, given its path, and returns when they answer.
func Start(ctx context.Context, h *netlab.Host, apiserver string) (*Cluster, error) {
	c := &Cluster{Host: h, Dir: filepath.Join(h.Dir(), "cluster"), apiserver: apiserver}
	if err := c.files(); err != nil {
		return nil, err
	}
	if err := errors.Join(c.StartStore(), c.StartServer()); err != nil {
		return nil, err
	}
	config := &rest.Config{Host: ServerURL, BearerToken: AdminToken, Dial: h.DialContext, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1}
	var errs [4]error
	c.Core, errs[0] = corev1client.NewForConfig(config)
	c.Discovery, errs[1] = discoveryv1client.NewForConfig(config)
	c.Networking, errs[2] = networkingv1client.NewForConfig(config)
	c.Coordination, errs[3] = coordinationv1client.NewForConfig(config)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("make clients of the API server: %w", err)
	}
	return c, c.server.Await(ctx, "be ready", c.Ready)
}

// files writes the files that the API server needs.
func (c *Cluster) files() error {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return fmt.Errorf("make the cluster's directory: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make a key for accounts: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("write the key for accounts: %w", err)
	}
	_, err1 := c.Write("accounts.key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))
	_, err2 := c.Write("tokens.csv", AdminToken+",admin,1,system:masters\n")
	return errors.Join(err1, err2)
}

// StartStore starts etcd again, after [Cluster.StopStore].
func (c *Cluster) StartStore() (err error) {
	c.store, err = process.Start(c.Host, "cluster-etcd", "etcd", "--data-dir", filepath.Join(c.Dir, "etcd"), "--listen-client-urls", etcdURL,
		"--advertise-client-urls", etcdURL, "--listen-peer-urls", "http://127.0.0.1:2380")
	return err
}

// StopStore ends etcd as if its host were lost. Its data stays.
func (c *Cluster) StopStore() error { return c.store.Kill() }

// StartServer starts the API server again, after [Cluster.StopServer].
func (c *Cluster) StartServer() (err error) {
	key := filepath.Join(c.Dir, "accounts.key")
	c.server, err = process.Start(c.Host, "kube-apiserver", c.apiserver,
		"--etcd-servers", etcdURL, "--bind-address", "0.0.0.0", "--secure-port", "6443", "--advertise-address", "10.255.255.1", "--endpoint-reconciler-type", "none",
		"--cert-dir", filepath.Join(c.Dir, "certificates"), "--token-auth-file", filepath.Join(c.Dir, "tokens.csv"), "--authorization-mode", "RBAC",
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", key,
		"--service-account-signing-key-file", key, "--service-cluster-ip-range", "10.96.0.0/16,fd00:96::/108")
	return err
}

// StopServer ends the API server as if its host were lost.
func (c *Cluster) StopServer() error { return c.server.Kill() }

// Ready asks over a new connection, which is independent of an earlier API server.
func (c *Cluster) Ready() error {
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DialContext: c.Host.DialContext, DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	answer, err := client.Get(ServerURL + "/readyz")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errNotReady
	}
	return nil
}

// StartControllers starts the cluster's own controllers of these names, given the path of
// kube-controller-manager.
func (c *Cluster) StartControllers(program string, names ...string) error {
	kubeconfig, err := c.WriteKubeconfig("controllers", ServerURL, AdminToken)
	if err != nil {
		return err
	}
	return c.run("kube-controller-manager", program, "--kubeconfig", kubeconfig, "--controllers", strings.Join(names, ","),
		"--service-account-private-key-file", filepath.Join(c.Dir, "accounts.key"), "--leader-elect=false", "--bind-address", "127.0.0.1", "--cert-dir", filepath.Join(c.Dir, "controllers"),
		"--kube-api-qps", "200", "--kube-api-burst", "400")
}

func (c *Cluster) run(name, program string, args ...string) error {
	p, err := process.Start(c.Host, name, program, args...)
	if err == nil {
		c.processes = append(c.processes, p)
	}
	return err
}

// Logs returns the ends of its processes' logs, for debugging.
func (c *Cluster) Logs() string {
	var all strings.Builder
	for _, p := range append(slices.Clone(c.processes), c.store, c.server) {
		if p != nil {
			text := p.Log()
			fmt.Fprintf(&all, "%s on %s said, in the end:\n%s\n", p.Name, p.Host.Name, text[max(0, len(text)-8000):])
		}
	}
	return all.String()
}

// Write writes a file into the cluster's directory. A concurrent reader gets the whole old or the
// whole new content.
func (c *Cluster) Write(name, text string) (path string, err error) {
	path = filepath.Join(c.Dir, name)
	err = os.WriteFile(path+".new", []byte(text), 0o600)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return "", fmt.Errorf("write a file of the cluster: %w", err)
	}
	return path, nil
}

// WriteKubeconfig writes a kubeconfig for the API server with a token.
func (c *Cluster) WriteKubeconfig(name, url, token string) (path string, err error) {
	return c.Write(name+".kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: it
contexts: [{name: it, context: {cluster: it, user: it}}]
clusters: [{name: it, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: it, user: {token: %q}}]
`, url, token))
}
