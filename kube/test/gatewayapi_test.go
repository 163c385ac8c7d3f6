package kube

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// gatewayDefinitions are the names of Gateway API's definitions that the controller watches.
var gatewayDefinitions = []string{"gatewayclasses", "gateways", "tcproutes", "udproutes", "referencegrants"}

// applyGatewayAPI installs Gateway API's standard resources from its module in the API server, and
// waits until it serves them.
func (c *cluster) applyGatewayAPI() {
	c.t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	if err != nil {
		c.t.Fatalf("find the module of Gateway API: %v", err)
	}
	for _, plural := range gatewayDefinitions {
		text := c.read(filepath.Join(strings.TrimSpace(string(dir)), "config/crd/standard", "gateway.networking.k8s.io_"+plural+".yaml"))
		if _, _, err := c.make(text); err != nil {
			c.t.Fatalf("make the definition of %s: %v", plural, err)
		}
	}
	for _, plural := range gatewayDefinitions {
		waitFor(c.t, "the API server to serve "+plural, func() bool { return c.gatewayList(plural) == nil })
	}
}

func (c *cluster) gatewayList(plural string) error {
	return c.core.RESTClient().Get().AbsPath("/apis/gateway.networking.k8s.io/v1", plural).Do(c.t.Context()).Error()
}

// removeGatewayAPI removes every trace of Gateway API from the cluster.
func (c *cluster) removeGatewayAPI() {
	c.t.Helper()
	for _, plural := range gatewayDefinitions {
		err := c.core.RESTClient().Delete().AbsPath(c.path("CustomResourceDefinition", ""), plural+".gateway.networking.k8s.io").Do(c.t.Context()).Error()
		if err != nil {
			c.t.Fatal(err)
		}
	}
	for _, plural := range gatewayDefinitions {
		waitFor(c.t, "the API server not to serve "+plural, func() bool { return c.gatewayList(plural) != nil })
	}
}

// apply creates an object from its text.
func (c *cluster) apply(text string) {
	c.t.Helper()
	if kind, name, err := c.make(text); err != nil {
		c.t.Fatalf("make %s %s: %v", kind, name, err)
	}
}

// patchGateway changes an object of Gateway API, in the namespace of the tests.
func (c *cluster) patchGateway(plural, name, patch string) {
	c.t.Helper()
	err := c.core.RESTClient().Patch(types.JSONPatchType).AbsPath("/apis/gateway.networking.k8s.io/v1/namespaces", namespace, plural, name).
		Body([]byte(patch)).Do(c.t.Context()).Error()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) deleteGateway(plural, namespace, name string) {
	c.t.Helper()
	path := []string{"/apis/gateway.networking.k8s.io/v1", plural, name}
	if namespace != "" {
		path = []string{"/apis/gateway.networking.k8s.io/v1/namespaces", namespace, plural, name}
	}
	if err := c.core.RESTClient().Delete().AbsPath(path...).Do(c.t.Context()).Error(); err != nil {
		c.t.Fatal(err)
	}
}

// said returns the status of a Gateway: its addresses, its conditions, and how many routes each of
// its listeners has; or of a route: its conditions for each of its Gateways.
func (c *cluster) said(plural, name string) string {
	text, err := c.core.RESTClient().Get().AbsPath("/apis/gateway.networking.k8s.io/v1/namespaces", namespace, plural, name).Do(c.t.Context()).Raw()
	if err != nil {
		return err.Error()
	}
	var g gatewayv1.Gateway
	var r gatewayv1.TCPRoute // a UDPRoute's status is the same
	if err := json.Unmarshal(text, &g); err != nil {
		return err.Error()
	}
	if plural == "gateways" {
		var words []string
		for _, a := range g.Status.Addresses {
			words = append(words, a.Value)
		}
		words = append(words, conditionsText(g.Generation, g.Status.Conditions))
		for _, l := range g.Status.Listeners {
			words = append(words, fmt.Sprintf("%s:%d", l.Name, l.AttachedRoutes))
		}
		return strings.Join(words, " ")
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return err.Error()
	}
	var words []string
	for _, p := range r.Status.Parents {
		words = append(words, string(p.ParentRef.Name)+" "+conditionsText(r.Generation, p.Conditions))
	}
	return strings.Join(words, " ")
}

// conditionsText writes conditions as TYPE=REASON, with ! before false ones and ? after those of an
// older generation.
func conditionsText(generation int64, list []metav1.Condition) string {
	var words []string
	for _, c := range list {
		word := c.Type + "=" + c.Reason
		if c.Status != metav1.ConditionTrue {
			word = "!" + word
		}
		if c.ObservedGeneration != generation {
			word += "?"
		}
		words = append(words, word)
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

func (c *cluster) waitForSaid(plural, name, want string) {
	c.t.Helper()
	last := ""
	c.t.Cleanup(func() {
		if c.t.Failed() && last != want {
			c.t.Logf("%s %s said at last: %s", plural, name, last)
		}
	})
	waitFor(c.t, fmt.Sprintf("%s %s to say %q", plural, name, want), func() bool { last = c.said(plural, name); return last == want })
}
