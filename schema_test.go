package weir_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
)

var update = flag.Bool("update", false, "write docs/reference/weir.schema.json as it is now")

const (
	schemaFile = "docs/reference/weir.schema.json"
	schemaURL  = "https://weir.io/weir.schema.json"
)

// mosts are the largest numbers that a file may have in fields whose types have room for larger ones, and
// files with such a number.
var mosts = map[string]struct {
	most uint64
	file string
}{
	"Limits.Services":       {model.MaxServices, "director: {limits: {services: %d}}"},
	"Limits.Backends":       {model.MaxBackends, "director: {limits: {backends: %d}}"},
	"Limits.RingMemory":     {model.MaxRingMemory, "director: {limits: {ring-memory: %d}}"},
	"Limits.Fragments":      {model.MaxFragments, "director: {limits: {fragments: %d}}"},
	"Limits.Flows":          {model.MaxFlows, "director: {limits: {flows: %d}}"},
	"Limits.SourceRanges":   {model.MaxSourceRanges, "director: {limits: {source-ranges: %d}}"},
	"Steering.Flows":        {model.MaxSteeredFlows, "director: {interfaces: [eth0], steering: {queues: 8-15, flows: %d}}"},
	"Steering.Packets":      {model.MaxSteeredPackets, "director: {interfaces: [eth0], steering: {queues: 8-15, packets-per-second: %d}}"},
	"Agent.UDPFlows":        {model.MaxUDPFlows, "agent: {udp-flows: %d}"},
	"Service.RingSize":      {model.MaxRingSize, "services: [{name: a, vip: 203.0.113.1, protocol: tcp, port: 1, mode: ipip, backends: [], ring-size: %d}]"},
	"Backend.VLAN":          {4094, "services: [{name: a, vip: 203.0.113.1, protocol: tcp, port: 1, mode: l2dsr, backends: [{address: 10.0.0.1, vlan: %d}]}]"},
	"Backend.MTU":           {9216, "services: [{name: a, vip: 203.0.113.1, protocol: tcp, port: 1, mode: ipip, backends: [{address: 10.0.0.1, mtu: %d}]}]"},
	"HealthCheck.Rise":      {100, "services: [{name: a, vip: 203.0.113.1, protocol: tcp, port: 1, mode: ipip, backends: [], health: {kind: tcp, rise: %d}}]"},
	"HealthCheck.Fall":      {100, "services: [{name: a, vip: 203.0.113.1, protocol: tcp, port: 1, mode: ipip, backends: [], health: {kind: tcp, fall: %d}}]"},
	"HealthCheck.Panic":     {100, "services: [{name: a, vip: 203.0.113.1, protocol: tcp, port: 1, mode: ipip, backends: [], health: {kind: tcp, panic: %d}}]"},
	"Neighbor.Rate":         {100000, "director: {interfaces: [eth0], neighbor: {interfaces: [{name: eth0}], rate: %d}}"},
	"BGPAttributes.Prepend": {16, "bgp: {asn: 65001, router-id: 10.0.0.2, neighbors: [{address: 10.0.0.1, asn: 65000, attributes: {prepend: %d}}]}"},
	"QUICConfig.ID":         {model.QUICConfigs - 1, "services: [{name: a, vip: 203.0.113.1, protocol: udp, port: 1, mode: ipip, quic: [{id: %d, nonce-length: 8}], backends: []}]"},
}

// jsonObject is a part of the schema.
type jsonObject = map[string]any

// inFiles is how values are written in files, where digits alone are numbers for YAML.
var inFiles = map[reflect.Type]string{
	reflect.TypeFor[netip.Addr]():        `{"anyOf": [{"type": "string", "format": "ipv4"}, {"type": "string", "format": "ipv6"}, {"type": "string", "pattern": "^fe80:.*%."}]}`,
	reflect.TypeFor[netip.Prefix]():      `{"anyOf": [{"type": "string", "format": "ipv4"}, {"type": "string", "format": "ipv6"}, {"type": "string", "pattern": "^[0-9a-fA-F.:]+/[0-9]{1,3}$"}]}`,
	reflect.TypeFor[netip.AddrPort]():    `{"type": "string", "pattern": "^([0-9.]+|\\[[0-9a-fA-F.:]+\\]):[0-9]+$"}`,
	reflect.TypeFor[model.Segment]():     `{"type": "string", "pattern": "^(none|vlan:[0-9]+(\\.[0-9]+)?|(vxlan|geneve):[0-9]+)$"}`,
	reflect.TypeFor[model.MAC]():         `{"type": "string", "pattern": "^[0-9a-fA-F]{2}([:-]?[0-9a-fA-F]{2}){5}$|^[0-9a-fA-F]{4}(\\.[0-9a-fA-F]{4}){2}$"}`,
	reflect.TypeFor[model.QUICKey]():     `{"anyOf": [{"type": "string", "pattern": "^[0-9a-fA-F]{32}$"}, {"type": "number"}]}`,
	reflect.TypeFor[model.HTTPVersion](): `{"enum": ["1.0", "1.1", "2", 1.0, 1.1, 2]}`,
	reflect.TypeFor[model.Digest]():      `{"anyOf": [{"type": "string", "pattern": "^(md5:)?[0-9a-fA-F]{32}$|^(sha256:)?[0-9a-fA-F]{64}$"}, {"type": "number"}]}`,
	reflect.TypeFor[model.ServerIDs]():   `{"anyOf": [{"type": ["string", "number"]}, {"type": "object", "additionalProperties": {"type": ["string", "number"]}}]}`,
}

// makeSchema makes the schema of configuration files of the types of internal/model, by what the API says
// of them, with what the page of keys says about each key.
func makeSchema(t *testing.T) []byte {
	t.Helper()
	const prefix = "#/$defs/"
	registry := api.NewSchemas(prefix)
	registry.Schema(reflect.TypeFor[model.Config](), true, "")
	texts := keyTexts(t)
	defs := jsonObject{}
	for name, schema := range registry.Map() {
		of := registry.TypeFromRef(prefix + name)
		api.BoundNumbers(of, schema)
		def := plain(t, schema)
		required := config.Required(of)
		slices.Sort(required)
		if def["required"] = required; len(required) == 0 {
			delete(def, "required")
		}
		properties, _ := def["properties"].(jsonObject)
		switch of { // a check has a kind, or is one of checks
		case reflect.TypeFor[model.HealthCheck]():
			delete(def, "required")
			def["anyOf"] = []jsonObject{{"required": []string{"kind"}}, {"required": []string{"check"}}}
		case reflect.TypeFor[model.NamedCheck]():
			delete(properties, "check")
		}
		for _, field := range reflect.VisibleFields(of) {
			key, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			property, is := properties[key].(jsonObject)
			if !is {
				continue
			}
			written := field.Type
			if written.Kind() == reflect.Pointer || written.Kind() == reflect.Slice {
				written = written.Elem()
			}
			if as := inFiles[written]; as != "" && field.Type.Kind() == reflect.Slice {
				property["items"] = json.RawMessage(as)
			} else if as != "" {
				properties[key] = object(t, as)
				property = properties[key].(jsonObject)
			}
			if text := texts[of.String()+"."+field.Name]; text != "" {
				property["description"] = text
			}
			if config.IsBound(of, key) {
				property["minimum"] = 1
			}
			if config.IsOpenList(of, key) {
				property["minItems"] = 1
			}
			if bound, is := mosts[of.Name()+"."+field.Name]; is {
				property["maximum"] = bound.most
			}
		}
		defs[name] = def
	}
	text, err := json.MarshalIndent(struct {
		Schema string     `json:"$schema"`
		ID     string     `json:"$id"`
		Title  string     `json:"title"`
		Ref    string     `json:"$ref"`
		Defs   jsonObject `json:"$defs"`
	}{"https://json-schema.org/draft/2020-12/schema", schemaURL, "weir.yaml", prefix + "Config", defs}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(text, '\n')
}

// plain returns a schema as JSON objects, for files: no key has null for a value there, and nothing is only
// the state of something that runs.
func plain(t *testing.T, schema any) jsonObject {
	t.Helper()
	text, err := json.Marshal(schema)
	if err != nil {
		t.Fatal(err)
	}
	value := object(t, string(text))
	var walk func(value any)
	walk = func(value any) {
		switch value := value.(type) {
		case jsonObject:
			if kinds, is := value["type"].([]any); is {
				value["type"] = kinds[0]
			}
			if list, is := value["enum"].([]any); is {
				value["enum"] = slices.DeleteFunc(list, func(name any) bool { return name == model.Suspect.String() })
			}
			if pattern, is := value["pattern"].(string); is {
				value["pattern"] = strings.Replace(pattern, "|hidden", "", 1)
			}
			for _, of := range value {
				walk(of)
			}
		case []any:
			for _, of := range value {
				walk(of)
			}
		}
	}
	walk(value)
	return value
}

func object(t *testing.T, text string) (value jsonObject) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatal(err)
	}
	return value
}

var linkText = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)

// keyTexts returns what the page of keys says of each field, without links and marks. The same name may
// be in several tables of a section: the key with the shortest path comes first there.
func keyTexts(t *testing.T) map[string]string {
	t.Helper()
	known := map[string]string{}
	keys(reflect.TypeFor[model.Config](), "", known)
	plain := func(cell string) string { return strings.ReplaceAll(linkText.ReplaceAllString(cell, "$1"), "`", "") }
	texts := map[string]string{}
	for _, row := range keyRows(t) {
		if strings.HasPrefix(row.means, "|") || strings.HasPrefix(row.means, "```") {
			continue
		}
		for _, name := range row.names {
			paths := slices.DeleteFunc(row.paths(known, name), func(k string) bool { return texts[known[k]] != "" })
			slices.SortFunc(paths, func(a, b string) int {
				return cmp.Or(strings.Count(a, ".")-strings.Count(b, "."), strings.Compare(a, b))
			})
			if len(paths) == 0 {
				continue
			}
			text := plain(row.means)
			if absent := strings.TrimSpace(plain(row.absent)); absent != "" && len(row.names) == 1 && absent != "required" {
				text += "\nDefault: " + absent
			}
			texts[known[paths[0]]] = text
		}
	}
	for field, comment := range fieldComments(t) {
		texts[field] = cmp.Or(texts[field], comment)
	}
	return texts
}

// fieldComments returns what internal/model says of each field of its types, else of the field's type:
// the page of keys says nothing of keys that only have others below them.
func fieldComments(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("internal/model/*.go")
	if err != nil {
		t.Fatal(err)
	}
	types, comments, of := map[string]string{}, map[string]string{}, map[string]string{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, declared := range parsed.Decls {
			group, is := declared.(*ast.GenDecl)
			if !is || group.Tok != token.TYPE {
				continue
			}
			for _, spec := range group.Specs {
				named := spec.(*ast.TypeSpec)
				types[named.Name.Name] = strings.TrimPrefix(oneLine(cmp.Or(named.Doc.Text(), group.Doc.Text())), named.Name.Name+" is ")
				structure, is := named.Type.(*ast.StructType)
				if !is {
					continue
				}
				for _, field := range structure.Fields.List {
					for _, name := range field.Names {
						at := "model." + named.Name.Name + "." + name.Name
						comments[at] = oneLine(cmp.Or(field.Comment.Text(), field.Doc.Text()))
						of[at] = baseName(field.Type)
					}
				}
			}
		}
	}
	for at, name := range of {
		comments[at] = cmp.Or(comments[at], types[name])
	}
	return comments
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// baseName returns the name of a type, or of what it points to or is a list of.
func baseName(of ast.Expr) string {
	switch of := of.(type) {
	case *ast.StarExpr:
		return baseName(of.X)
	case *ast.ArrayType:
		return baseName(of.Elt)
	case *ast.Ident:
		return of.Name
	}
	return ""
}

// The schema is what the model and the page of keys give.
func TestSchema(t *testing.T) {
	got := makeSchema(t)
	if *update {
		if err := os.WriteFile(schemaFile, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what the model gives: go test . -run TestSchema -update", schemaFile)
	}
}

// schemaOf compiles the schema with a validator of JSON Schema that also checks formats.
func schemaOf(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	if err := compiler.AddResource(schemaURL, document); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile(schemaURL)
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// valid says what is wrong with a text by the schema.
func valid(t *testing.T, schema *jsonschema.Schema, text []byte) error {
	t.Helper()
	var value any
	if err := yaml.Unmarshal(bytes.TrimPrefix(text, []byte("\ufeff")), &value); err != nil {
		return err
	}
	asJSON, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if value, err = jsonschema.UnmarshalJSON(bytes.NewReader(asJSON)); err != nil {
		return err
	}
	return schema.Validate(value)
}

// unseen are the bad files that are right by the schema, which sees one value at a time: all that is wrong
// with them is what several values say together, how long a time is, which addresses and names are
// possible, and that a text has one document.
var unseen = []string{
	"agent-directors", "agent-flows", "agent-store", "api-agents", "api", "api-segments", "askredirect", "bfd", "bgp-alone", "bgp-evpn", "checks-unknown", "documents", "fan-out-steering", "former", "hooks", "limits", "loads-api", "loads-nowhere", "loads", "nat",
	"neighbor-alone", "overlap", "own-inside", "ovn-alone", "ovn-none", "p2c", "passive", "policies", "redirect", "segments", "slow-start-etcd", "slow-start", "snat-ports", "sockets-elsewhere",
	"source-ranges-limit", "source-ranges", "steering-none", "store-endpoints", "store-plain", "store",
}

// The schema accepts every file that weir accepts, and refuses the others for all that it can see.
func TestSchemaRefusesWhatWeirRefuses(t *testing.T) {
	schema := schemaOf(t)
	files, err := filepath.Glob("internal/config/testdata/*.*")
	if err != nil {
		t.Fatal(err)
	}
	good, bad := 0, 0
	for _, file := range files {
		name := filepath.Base(file)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		switch err := valid(t, schema, text); {
		case strings.HasSuffix(name, ".txt"):
		case strings.Contains(name, ".good."):
			good++
			if err != nil {
				t.Errorf("the schema refuses %s: %v", name, err)
			}
		default:
			if bad++; (err == nil) != slices.Contains(unseen, strings.TrimSuffix(name, ".bad.yaml")) {
				t.Errorf("the schema says of %s: %v", name, err)
			}
		}
	}
	if good == 0 || bad < 2*len(unseen) {
		t.Errorf("%d good files, and %d others of which the schema sees %d", good, bad, bad-len(unseen))
	}
}

// Every key has a text, which editors show.
func TestSchemaDescribesEveryKey(t *testing.T) {
	var schema struct {
		Defs map[string]struct {
			Properties map[string]struct{ Description string }
		} `json:"$defs"`
	}
	text, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	for of, def := range schema.Defs {
		for key, property := range def.Properties {
			if property.Description == "" {
				t.Errorf("nothing is said of %s.%s", of, key)
			}
		}
	}
}

// The bounds of the schema are those of weir, which refuses the next number.
func TestSchemaBoundsAreWeirs(t *testing.T) {
	schema := schemaOf(t)
	for field, bound := range mosts {
		for more, wrong := range []bool{false, true} {
			text := []byte(fmt.Sprintf(bound.file, bound.most+uint64(more)))
			_, err := config.Parse("weir.yaml", text)
			if bad := valid(t, schema, text); (err != nil) != wrong || (bad != nil) != wrong {
				t.Errorf("%s %d is refused by weir: %v; by the schema: %v", field, bound.most+uint64(more), err, bad)
			}
		}
	}
}
