package conformance

import (
	"bytes"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing/fstest"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"
)

// notToWaitFor is the tests' own annotation of Gateways that need not become ready.
const notToWaitFor = "gateway-api/skip-this-for-readiness"

// manifests are the tests' own, except that no test waits for Gateways without a TCP or UDP
// listener to become ready. Those are for tests of other profiles, or to be refused, and all tests
// would wait for all Gateways.
type manifests struct{ fs.FS }

// Open returns a file with the annotations added.
func (m manifests) Open(name string) (fs.File, error) {
	text, err := fs.ReadFile(m.FS, name)
	if err != nil || !strings.HasSuffix(name, ".yaml") {
		return m.FS.Open(name)
	}
	if text, err = excused(text); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return fstest.MapFS{name: {Data: text}}.Open(name)
}

// excused returns a file's objects with the annotation where needed.
func excused(text []byte) ([]byte, error) {
	objects := bytes.Split(text, []byte("\n---\n"))
	for i, one := range objects {
		var g gatewayv1.Gateway
		if err := yaml.Unmarshal(one, &g); err != nil {
			continue // the tests read the object themselves, and report what is wrong
		}
		served := func(l gatewayv1.Listener) bool {
			return l.Protocol == gatewayv1.TCPProtocolType || l.Protocol == gatewayv1.UDPProtocolType
		}
		if g.Kind != "Gateway" || slices.ContainsFunc(g.Spec.Listeners, served) {
			continue
		}
		var object map[string]any
		if err := yaml.Unmarshal(one, &object); err != nil {
			return nil, err
		}
		metadata, is := object["metadata"].(map[string]any)
		if !is {
			continue
		}
		annotations, is := metadata["annotations"].(map[string]any)
		if !is {
			annotations = map[string]any{}
			metadata["annotations"] = annotations
		}
		annotations[notToWaitFor] = "true"
		changed, err := yaml.Marshal(object)
		if err != nil {
			return nil, err
		}
		objects[i] = changed
	}
	return bytes.Join(objects, []byte("\n---\n")), nil
}
