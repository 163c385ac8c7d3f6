package kube

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	control "weir.io/weir/kube/test/cluster"
)

// conformanceReport is the report of Gateway API's tests about weir.
const conformanceReport = "../../docs/results/gateway-api-conformance.yaml"

// conformance is a lab in which Gateway API's own tests run on the client. Kubernetes' own
// controllers make pods of Deployments, and pods run the programs of the tests' images.
type conformance struct {
	*lab
	suite   string
	kubelet context.Context // ends when the kubelet ends
	version string
}

func newConformance(t *testing.T) *conformance {
	t.Helper()
	needsAPIServer(t)
	dir, controllers := os.Getenv("WEIR_GATEWAY_CONFORMANCE"), os.Getenv("WEIR_KUBE_CONTROLLER_MANAGER")
	if dir == "" || controllers == "" {
		t.Skip("needs Gateway API's tests in $WEIR_GATEWAY_CONFORMANCE and a kube-controller-manager in $WEIR_KUBE_CONTROLLER_MANAGER: make test-gateway-conformance builds them")
	}
	c := &conformance{lab: newLab(t), suite: filepath.Join(dir, "suite"), version: "development"}
	if text, err := exec.Command("git", "describe", "--always", "--dirty").Output(); err == nil {
		c.version = strings.TrimSpace(string(text))
	}
	c.host.Route("10.0.0.0/24", "10.2.0.11")
	for _, plural := range gatewayDefinitions {
		if err := c.gatewayList(plural); err != nil {
			t.Fatal(err)
		}
	}
	c.config = c.write("conformance.yaml", fmt.Sprintf("mode: nat\nbackends: pods\npools: [{name: public, addresses: [203.0.113.0/26]}]\ndirectors:\n- socket: %s\n", filepath.Join(c.director.Dir(), "director.sock")))
	c.controller("one")
	start(t, c.host, filepath.Join(c.dir, "kube-controller-manager.log"), controllers, "--kubeconfig", c.writeKubeconfig("controllers", control.ServerURL, adminToken),
		"--controllers", "deployment-controller,replicaset-controller,endpointslice-controller,serviceaccount-controller,garbage-collector-controller,namespace-controller",
		"--leader-elect=false", "--bind-address", "127.0.0.1", "--cert-dir", filepath.Join(c.dir, "controllers"), "--kube-api-qps", "200", "--kube-api-burst", "400")
	k := c.newKubelet(40, map[string]string{"echo-basic": filepath.Join(dir, "echo"), "coredns": filepath.Join(dir, "dns")})
	ctx, stop := context.WithCancel(context.Background())
	alive, end := context.WithCancelCause(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		end(fmt.Errorf("the kubelet has ended: %w", k.run(ctx)))
	}()
	t.Cleanup(func() { stop(); <-done })
	c.kubelet = alive
	c.apply(classText)
	return c
}

// run runs one of the tests on the client, and returns its output.
func (c *conformance) run(test, report string) (said string, err error) {
	c.t.Helper()
	log := filepath.Join(c.client.Dir(), test+".log")
	file, err := os.Create(log)
	if err != nil {
		c.t.Fatal(err)
	}
	defer file.Close()
	cmd := c.client.Command(c.kubelet, c.suite, "-test.v", "-test.timeout", "30m", "-test.run", "^"+test+"$")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.writeKubeconfig("suite", "https://"+controlAddress+":6443", adminToken), "WEIR_REPORT="+report, "WEIR_VERSION="+c.version)
	cmd.Stdout, cmd.Stderr = file, file
	err = cmd.Run()
	if c.kubelet.Err() != nil {
		c.t.Fatal(context.Cause(c.kubelet))
	}
	return c.read(log), err
}

var reportDates = regexp.MustCompile(`(?m)^(date|  version): .*\n`)

// Gateway API's own tests of TCPRoutes and UDPRoutes pass, and the committed report matches theirs.
func TestConformance(t *testing.T) {
	c := newConformance(t)
	report := filepath.Join(c.dir, "report.yaml")
	said, err := c.run("TestConformance", report)
	if err != nil {
		t.Fatalf("Gateway API's tests: %v\n%s", err, failures(said))
	}
	got := c.read(report)
	if *update {
		if err := os.WriteFile(conformanceReport, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want := c.read(conformanceReport); reportDates.ReplaceAllString(got, "") != reportDates.ReplaceAllString(want, "") {
		t.Errorf("the report is not as %s (-update writes it anew):\n%s", conformanceReport, got)
	}
}

// The tests that are left out of the report cannot pass: they need HTTP Gateways.
func TestConformanceLeavesOut(t *testing.T) {
	c := newConformance(t)
	said, err := c.run("TestUnsupported", "")
	if err == nil {
		t.Fatal("all of the tests that are left out pass")
	}
	skipped := regexp.MustCompile(`(?m)^    - (\w+)$`).FindAllStringSubmatch(c.read(conformanceReport), -1)
	if len(skipped) == 0 {
		t.Fatalf("%s leaves nothing out", conformanceReport)
	}
	for _, s := range skipped {
		if !strings.Contains(said, "--- FAIL: TestUnsupported/"+s[1]+" (") {
			t.Errorf("%s is left out, and does not fail:\n%s", s[1], said[max(0, len(said)-4000):])
		}
	}
}

// failures returns the output of failed tests.
func failures(said string) string {
	var lines []string
	for line := range strings.Lines(said) {
		if strings.Contains(line, "FAIL") || strings.Contains(line, "Error") || strings.Contains(line, "failed") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-80):], "")
}
