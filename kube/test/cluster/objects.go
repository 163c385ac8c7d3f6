package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
)

// patience bounds the wait for what the API server does by itself.
const patience = time.Minute

// paths are where objects of a kind are made; %s is their namespace.
var paths = map[string]string{
	"Namespace":           "/api/v1/namespaces",
	"ServiceAccount":      "/api/v1/namespaces/%s/serviceaccounts",
	"Secret":              "/api/v1/namespaces/%s/secrets",
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

	"ValidatingAdmissionPolicy":        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
	"ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",

	"CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
	"AddressPool":              "/apis/weir.io/v1alpha1/addresspools",
	"ServicePolicy":            "/apis/weir.io/v1alpha1/namespaces/%s/servicepolicies",
	"DirectorGroup":            "/apis/weir.io/v1alpha1/directorgroups",
	"BGPPeer":                  "/apis/weir.io/v1alpha1/bgppeers",
	"DirectorSet":              "/apis/weir.io/v1alpha1/directorsets",
	"LoadBalancer":             "/apis/weir.io/v1alpha1/namespaces/%s/loadbalancers",

	"GatewayClass":   "/apis/gateway.networking.k8s.io/v1/gatewayclasses",
	"Gateway":        "/apis/gateway.networking.k8s.io/v1/namespaces/%s/gateways",
	"TCPRoute":       "/apis/gateway.networking.k8s.io/v1/namespaces/%s/tcproutes",
	"UDPRoute":       "/apis/gateway.networking.k8s.io/v1/namespaces/%s/udproutes",
	"ReferenceGrant": "/apis/gateway.networking.k8s.io/v1/namespaces/%s/referencegrants",
}

// Path returns where objects of a kind are made.
func Path(kind, namespace string) (string, error) {
	path, known := paths[kind]
	if !known {
		return "", fmt.Errorf("there is a %s, which nobody here knows how to make", kind)
	}
	if strings.Contains(path, "%s") {
		path = fmt.Sprintf(path, namespace)
	}
	return path, nil
}

// Make makes the object of a YAML text, and returns its kind and name; both empty if the text is no
// object.
func (c *Cluster) Make(ctx context.Context, text string) (kind, name string, err error) {
	var object struct {
		Kind     string
		Metadata struct{ Name, Namespace string }
	}
	body, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		return "", "", fmt.Errorf("read an object: %w", err)
	}
	if err := json.Unmarshal(body, &object); err != nil || object.Kind == "" {
		return "", "", nil // another kind of file
	}
	path, err := Path(object.Kind, object.Metadata.Namespace)
	if err != nil {
		return object.Kind, object.Metadata.Name, err
	}
	// Strict: a misspelled field is an error, not ignored.
	return object.Kind, object.Metadata.Name, c.Core.RESTClient().Post().AbsPath(path).Param("fieldValidation", "Strict").
		SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
}

// MakeResources installs the custom resource definitions of a directory in the API server, and
// returns when it serves them.
func (c *Cluster) MakeResources(ctx context.Context, directory string) error {
	files, err := filepath.Glob(filepath.Join(directory, "*.yaml"))
	if err != nil || len(files) == 0 {
		return errors.Join(fmt.Errorf("%s has no definitions", directory), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read a definition: %w", err)
		}
		_, name, err := c.Make(ctx, strings.TrimPrefix(string(text), "---\n"))
		if err != nil {
			return fmt.Errorf("make %s: %w", file, err)
		}
		plural, _, _ := strings.Cut(name, ".")
		if err := Until(ctx, "the API server to serve "+name, func() error {
			return c.Core.RESTClient().Get().AbsPath("/apis/weir.io/v1alpha1", plural).Do(ctx).Error()
		}); err != nil {
			return err
		}
	}
	return nil
}

// Until asks until there is no error.
func Until(ctx context.Context, what string, wrong func() error) error {
	for deadline := time.Now().Add(patience); ; {
		err := wrong()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waited %v in vain for %s: %w", patience, what, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Millisecond): // between two looks
		}
	}
}
