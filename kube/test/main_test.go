// Package kube holds the tests of weir in a Kubernetes cluster: a real API server, etcd,
// kube-controller-manager and kube-proxy, real directors and controllers, and real connections to
// hosts that stand for pods. "make test-kubernetes" builds the API server, which takes minutes
// once, and runs them.
package kube

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The binaries that the tests run; empty where there is no API server to run them with.
var apiserver, controllers, proxy, helmProgram, weir, weirKube string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	helmProgram = os.Getenv("WEIR_HELM")
	if apiserver = os.Getenv("WEIR_KUBE_APISERVER"); apiserver == "" {
		return m.Run() // each test says why it is skipped
	}
	controllers, proxy = os.Getenv("WEIR_KUBE_CONTROLLER_MANAGER"), os.Getenv("WEIR_KUBE_PROXY")
	dir, err := os.MkdirTemp("", "weir-test-kube")
	if err != nil {
		fmt.Fprintln(os.Stderr, "make directory for the binaries:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	for to, from := range map[*string]string{&weir: "../../cmd/weir", &weirKube: "../cmd/weir-kube"} {
		*to = filepath.Join(dir, filepath.Base(from))
		if out, err := exec.Command("go", "build", "-o", *to, from).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", from, err, out)
			return 1
		}
	}
	return m.Run()
}

// needsAPIServer skips a test if the environment does not name the API server.
func needsAPIServer(t *testing.T) {
	t.Helper()
	needs(t, map[string]string{"kube-apiserver in $WEIR_KUBE_APISERVER": apiserver, "kube-proxy in $WEIR_KUBE_PROXY": proxy, "helm in $WEIR_HELM": helmProgram})
}

// needs skips a test if the environment does not name a program.
func needs(t *testing.T, programs map[string]string) {
	t.Helper()
	for what, path := range programs {
		if path == "" {
			t.Skipf("needs a %s: make test-kubernetes builds it", what)
		}
	}
}
