package kube

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/kube/test/site"
	"weir.io/weir/lab/netlab"
)

var update = flag.Bool("update", false, "write what the chart renders to testdata/chart, to be looked at")

const chart = "../chart"

// helm runs the real helm, without a cluster or the user's configuration.
func helm(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	if helmProgram == "" {
		t.Skip("needs helm in $WEIR_HELM: make test-kubernetes builds it")
	}
	home := t.TempDir()
	cmd := exec.Command(helmProgram, args...)
	cmd.Env = append(os.Environ(), "HOME="+home, "KUBECONFIG="+filepath.Join(home, "none"))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("helm %s: %w: %s%s", args[0], err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

// render returns the objects of a release named weir-kube in weir-system.
func render(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return helm(t, append([]string{"template", "weir-kube", chart, "--namespace", "weir-system", "--kube-version", "1.33.0"}, args...)...)
}

// The chart's output for some values matches golden files, and helm lint finds no fault in the
// chart.
func TestChart(t *testing.T) {
	files, err := filepath.Glob("testdata/chart/*.values.yaml")
	if err != nil || len(files) < 2 {
		t.Fatalf("testdata/chart has %d files, error %v", len(files), err)
	}
	for _, values := range files {
		if _, err := helm(t, "lint", "--strict", "--quiet", chart, "--values", values); err != nil {
			t.Error(err)
		}
		got, err := render(t, "--values", values)
		if err != nil {
			t.Error(err)
			continue
		}
		golden := strings.TrimSuffix(values, ".values.yaml") + ".golden.yaml"
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s is rendered not as %s says (-update writes it anew):\n%s", values, golden, got)
		}
	}
}

// The schema refuses invalid values before anything is rendered.
func TestChartRefuses(t *testing.T) {
	good := []string{"--set", "image.repository=registry.example.org/weir-kube", "--set", "directors[0].server=https://10.0.0.2:6083"}
	if _, err := render(t, good...); err != nil {
		t.Fatal(err)
	}
	for values, want := range map[string]string{
		"image.repository=":                    "/image/repository",
		"directors=":                           "/directors",
		"directors[0].server=10.0.0.2":         "/directors/0/server",
		"directors[0].token=x":                 "token",
		"mode=redirect":                        "/mode",
		"backends=hosts":                       "/backends",
		"mtu=1200":                             "/mtu",
		"replicas=-1":                          "/replicas",
		"owner=file":                           "/owner",
		"gatewayController=weir":               "/gatewayController",
		"gatewayClass=Weir":                    "/gatewayClass",
		"leaseDuration=soon":                   "/leaseDuration",
		"logLevel=trace":                       "/logLevel",
		"imagee.repository=x":                  "imagee",
		"addressPools.public.addresses=all":    "/addressPools/public/addresses",
		"mode=l2dsr,backends=pods":             "/mode",
		"networkPolicy.enabled=perhaps":        "/networkPolicy/enabled",
		"podWeights=perhaps":                   "/podWeights",
		"networkPolicy.apiServer.ports=443":    "/networkPolicy/apiServer/ports",
		"networkPolicy.apiServer.cidrs[0]=any": "/networkPolicy/apiServer/cidrs/0",

		"groups.Edge.spec.interfaces[0]=eth0,directorImage.repository=x":                                 "'Edge' does not match pattern",
		"groups.edge.spec.directors=2,directorImage.repository=x":                                        "/groups/edge/spec",
		"groups.edge.spec.interfaces[0]=eth0":                                                            "/directorImage",
		"groups.shop.deployment.replicas=0,directorImage.repository=x":                                   "/groups/shop/deployment/replicas",
		"groups.shop.deployment.replicas=2":                                                              "/directorImage",
		"groups.shop.deployment.drainSeconds=0,directorImage.repository=x":                               "/groups/shop/deployment/drainSeconds",
		"groups.shop.deployment.replicas=2,groups.shop.spec.nodeSelector.a=b,directorImage.repository=x": "/groups/shop/spec",
		"groups.shop.deployment.replicas=2,groups.shop.spec.namespace=other,directorImage.repository=x":  "/groups/shop/spec",
		"groups.shop.deployment.hostNetwork=true,directorImage.repository=x":                             "hostNetwork",
		"agent.enabled=true": "/directorImage",
		"agent.enabled=true,agent.interfaces[0]=eth0/1,directorImage.repository=x": "/agent/interfaces/0",
		"agent.enabled=true,agent.replyInterfaces=veth,directorImage.repository=x": "/agent/replyInterfaces",
		"agent.enabled=true,agent.hostNetwork=true,directorImage.repository=x":     "hostNetwork",
		"elsewhere.agents=true":                                  "agents",
		"elsewhere.directors=perhaps":                            "/elsewhere/directors",
		"servicesCluster.secret=No":                              "/servicesCluster/secret",
		"servicesCluster.directors=":                             "/servicesCluster/directors",
		"servicesCluster.secret=x,servicesCluster.directors=a/b": "/servicesCluster/directors",
		"servicesCluster.secret=x,elsewhere.controller=true":     "/elsewhere/controller",
		"servicesCluster.secret=x,groups.shop.deployment.replicas=2,directorImage.repository=x":                             "/groups/shop",
		"elsewhere.directors=true,groups.shop.deployment.replicas=2,directorImage.repository=x":                             "/groups/shop",
		"networkPolicy.apiServer.cidrs[0]=10.0.0.0/33":                                                                      "/networkPolicy/apiServer/cidrs/0",
		"groups.edge.spec.interfaces[0]=eth0,groups.edge.spec.neighbour.interfaces[0]=eth0,directorImage.repository=x":      "neighbour",
		"groups.edge.spec.interfaces[0]=eth0,groups.edge.spec.limits.service=1,directorImage.repository=x":                  "service",
		"groups.edge.spec.interfaces[0]=eth0,groups.edge.spec.nodePorts.podCIDRs[0]=10.0.0.0/33,directorImage.repository=x": "/groups/edge/spec/nodePorts/podCIDRs/0",
		"groups.edge.spec.interfaces[0]=eth0,groups.edge.spec.mtu=1,directorImage.repository=x":                             "/groups/edge/spec/mtu",
		"addressPools.public.addresses[0]=203.0.113.0/33":                                                                   "/addressPools/public/addresses/0",
		"addressPools.public.addresses[0]=2001:db8::/129":                                                                   "/addressPools/public/addresses/0",
		"addressPools.public.addresses[0]=203.0.113.256":                                                                    "/addressPools/public/addresses/0",
		"addressPools.public.addresses[0]=203.0.113.1,addressPools.public.onrequest=true":                                   "onrequest",
		"bgpPeers.tor.address=10.0.0.1,bgpPeers.tor.asn=65000,bgpPeers.tor.keepalive=1s":                                    "keepalive",
		"bgpPeers.tor.address=10.0.0,bgpPeers.tor.asn=65000":                                                                "/bgpPeers/tor/address",
		"quota.service=1":                   "service",
		"quotas.shop.services=-1":           "/quotas/shop/services",
		"quotas.Shop.services=1":            "'Shop' does not match pattern",
		"bgpPeers.tor.address=10.0.0.1":     "/bgpPeers/tor",
		"director.ownLeases=perhaps":        "/director/ownLeases",
		"director.seccompProfile.type=none": "/director/seccompProfile/type",
	} {
		_, err := render(t, append(good[:len(good):len(good)], "--set", values)...)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "values don't meet the specifications of the schema") {
			t.Errorf("--set %s is answered by %v, want something of %s", values, err, want)
		}
	}
}

// agentValues are the lab's values; only the agent's part is rendered.
var agentValues = []string{"--set", "image.repository=x,directorImage.repository=x,agent.enabled=true,agent.replyInterfaces={veth*}", "--show-only", "templates/agents.yaml"}

// directorValues are the values of the lab's group; only the DaemonSet is rendered.
var directorValues = []string{"--set", "image.repository=x,directorImage.repository=x,groups.edge.spec.interfaces={eth0}", "--show-only", "templates/directors.yaml"}

// The lab's nodes run the chart's containers.
func TestSiteHasTheChartsContainers(t *testing.T) {
	agent, director := site.AgentOfChart, site.DirectorOfChart
	sameContainers(t, agentValues, agent.First, agent.Agent, agent.Sidecar)
	sameContainers(t, directorValues, director.First, director.Director, director.Sidecar)
}

// sameContainers compares the containers of the only DaemonSet that is rendered.
func sameContainers(t *testing.T, values []string, ours ...site.Container) {
	t.Helper()
	text, err := render(t, values...)
	if err != nil {
		t.Fatal(err)
	}
	var set appsv1.DaemonSet
	for one := range strings.SplitSeq("\n"+text, "\n---\n") {
		if strings.Contains(one, "\nkind: DaemonSet\n") {
			fromYAML(t, []byte(one), &set)
		}
	}
	containers := append(slices.Clone(set.Spec.Template.Spec.InitContainers), set.Spec.Template.Spec.Containers...)
	if len(containers) != len(ours) {
		t.Fatalf("%v has %d containers in the chart, and %d in the lab", values, len(containers), len(ours))
	}
	for i, c := range containers {
		var capabilities []string
		for _, c := range c.SecurityContext.Capabilities.Add {
			capabilities = append(capabilities, string(c))
		}
		if !slices.Equal(c.Args, ours[i].Args) || !slices.Equal(capabilities, ours[i].Capabilities) {
			t.Errorf("container %s is %q with %v in the chart, and %q with %v in the lab", c.Name, c.Args, capabilities, ours[i].Args, ours[i].Capabilities)
		}
	}
}

// applyChart creates the chart's objects by server-side apply, as kubectl apply --server-side does,
// and returns the objects' texts by their kinds.
func (c *cluster) applyChart(args ...string) map[string]string {
	c.t.Helper()
	text, err := render(c.t, args...)
	if err != nil {
		c.t.Fatal(err)
	}
	objects := map[string]string{}
	for one := range strings.SplitSeq("\n"+text, "\n---\n") {
		var object struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
		}
		fromYAML(c.t, []byte(one), &object)
		if object.Kind == "" {
			continue // only a comment
		}
		body, err := yaml.YAMLToJSON([]byte(one))
		if err != nil {
			c.t.Fatal(err)
		}
		err = c.core.RESTClient().Patch("application/apply-patch+yaml").AbsPath(c.path(object.Kind, object.Metadata.Namespace), object.Metadata.Name).
			Param("fieldManager", "helm").Param("fieldValidation", "Strict").Body(body).Do(c.t.Context()).Error()
		if err != nil {
			c.t.Fatalf("apply the %s %s of the chart: %v", object.Kind, object.Metadata.Name, err)
		}
		objects[object.Kind] = one
	}
	return objects
}

// makeSystem makes the namespace of the controller, which enforces the restricted Pod Security
// Standard.
func (c *cluster) makeSystem() {
	c.t.Helper()
	if _, _, err := c.make("{apiVersion: v1, kind: Namespace, metadata: {name: weir-system, labels: {pod-security.kubernetes.io/enforce: restricted}}}"); err != nil {
		c.t.Fatal(err)
	}
}

// A real API server accepts what the chart renders, also a second time with other values, and its
// Pods in a namespace that enforces the restricted Pod Security Standard.
func TestChartIsApplied(t *testing.T) {
	needsAPIServer(t)
	c := newCluster(t, netlab.ForTest(t).Host("control"))
	c.applyResources()
	c.applyGatewayAPI()
	c.makeSystem()
	for _, values := range []string{"small", "all", "narrow"} {
		objects := c.applyChart("--values", "testdata/chart/"+values+".values.yaml")
		for _, kind := range []string{"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ConfigMap", "Deployment", "PodDisruptionBudget", "NetworkPolicy"} {
			if objects[kind] == "" {
				t.Errorf("with %s the chart has no %s", values, kind)
			}
		}
		// The controller can read the file: it then lacks only what is in the Secret.
		var file corev1.ConfigMap
		fromYAML(t, []byte(objects["ConfigMap"]), &file)
		path := c.write(values+".yaml", file.Data["weir-kube.yaml"])
		if out, err := exec.Command(weirKube, "controller", "--config", path, "--kubeconfig", c.dir+"/none").CombinedOutput(); err == nil || !strings.HasPrefix(string(out), "weir-kube: directors[0]: ") {
			t.Errorf("with %s the controller says %s, error %v; want what it lacks of directors[0]", values, out, err)
		}
		var deployment appsv1.Deployment
		fromYAML(t, []byte(objects["Deployment"]), &deployment)
		pod := &corev1.Pod{ObjectMeta: deployment.Spec.Template.ObjectMeta, Spec: deployment.Spec.Template.Spec}
		pod.Name, pod.Spec.PriorityClassName = values, ""
		if _, err := c.core.Pods("weir-system").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Errorf("a Pod as with %s is refused: %v", values, err)
		}
		pod.Name, pod.Spec.HostNetwork = values+"-on-host", true
		if _, err := c.core.Pods("weir-system").Create(t.Context(), pod, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), `violates PodSecurity "restricted`) {
			t.Errorf("a Pod in its host's network is answered by %v: Pods are not restricted here", err)
		}
	}
}
