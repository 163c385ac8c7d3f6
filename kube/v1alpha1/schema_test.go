package v1alpha1_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"
)

var update = flag.Bool("update", false, "write into the chart's schema what the definitions say")

const valuesSchema = "../chart/values.schema.json"

// specs are the resources whose specs the chart's values have, by their names in the chart's
// schema.
var specs = map[string]string{"addressPoolSpec": "addresspools", "bgpPeerSpec": "bgppeers", "directorGroupSpec": "directorgroups"}

// The chart's values for custom resources are refused where the API server would refuse them, or
// would drop a key silently: the chart's schema has what the definitions have, and no other key.
// What only the definitions' rules refuse, the schema refuses by formats.
func TestChartSchemaHasTheDefinitions(t *testing.T) {
	text, err := os.ReadFile(valuesSchema)
	if err != nil {
		t.Fatal(err)
	}
	for name, resource := range specs {
		spec := specOf(t, resource)
		if name == "directorGroupSpec" {
			delete(spec, "required") // the chart adds what pods need, and asks for interfaces on nodes
		}
		want, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		line := fmt.Sprintf("    %q: %s", name, want)
		is := regexp.MustCompile(fmt.Sprintf(`(?m)^    "%s": .*[^,\n]`, name))
		if *update {
			text = is.ReplaceAllLiteral(text, []byte(line))
		}
		if got := is.Find(text); !bytes.Equal(got, []byte(line)) {
			t.Errorf("%s has not what the definition of %s says: go test ./kube/v1alpha1 -run TestChartSchema -update", valuesSchema, resource)
		}
	}
	if !json.Valid(text) {
		t.Fatal("the schema is not JSON")
	}
	if *update {
		if err := os.WriteFile(valuesSchema, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// specOf returns a resource's spec as JSON Schema.
func specOf(t *testing.T, resource string) map[string]any {
	text, err := os.ReadFile("../chart/crds/weir.io_" + resource + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	var definition struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPI struct {
						Properties struct {
							Spec map[string]any `json:"spec"`
						} `json:"properties"`
					} `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(text, &definition); err != nil {
		t.Fatal(err)
	}
	return strict(definition.Spec.Versions[0].Schema.OpenAPI.Properties.Spec)
}

// format returns a pattern for what a definition's rules check with functions that JSON Schema does
// not have; empty: they use none.
func format(rules string) string {
	prefixes, addresses := strings.Contains(rules, "isCIDR(self)"), strings.Contains(rules, "isIP(self)")
	switch {
	case prefixes && addresses:
		return either(address+prefix4, address6+prefix6, address, address6, address+"-"+address, address6+"-"+address6)
	case prefixes:
		return either(address+prefix4, address6+prefix6)
	case addresses:
		return either(address, address6)
	}
	return ""
}

const (
	byte0to255 = `(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])`
	address    = byte0to255 + `(\.` + byte0to255 + `){3}`
	address6   = `[0-9a-fA-F:]*:[0-9a-fA-F:.]*`
	prefix4    = `/(3[0-2]|[12]?[0-9])`
	prefix6    = `/(12[0-8]|1[01][0-9]|[1-9]?[0-9])`
)

func either(patterns ...string) string { return "^(" + strings.Join(patterns, "|") + ")$" }

// strict returns a part of a definition without what is meant for people and for the API server,
// and which allows no other key.
func strict(of map[string]any) map[string]any {
	out := map[string]any{}
	for key, value := range of {
		switch {
		case key == "description" || key == "default" || key == "format":
		case key == "x-kubernetes-int-or-string":
			out["type"] = []string{"integer", "string"}
		case key == "x-kubernetes-validations":
			if pattern := format(fmt.Sprint(value)); pattern != "" {
				out["pattern"] = pattern
			}
		case strings.HasPrefix(key, "x-kubernetes-"):
		case key == "properties":
			properties := map[string]any{}
			for name, p := range value.(map[string]any) {
				properties[name] = strict(p.(map[string]any))
			}
			out[key], out["additionalProperties"] = properties, false
		case key == "items" || key == "additionalProperties":
			out[key] = strict(value.(map[string]any))
		default:
			out[key] = value
		}
	}
	return out
}
