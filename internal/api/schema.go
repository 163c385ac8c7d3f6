package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"weir.io/weir/internal/model"
)

const description = `What a running weir can be asked and told: see docs/reference/api.md.

Fields have the names of the configuration file, and mean what docs/reference/configuration.md says. ` +
	`An error is a problem document (RFC 9457) that names the fields it is about.`

// securitySchemes are how a client authenticates over TCP. On the unix socket and on the read-only
// listener it need not.
var securitySchemes = map[string]*huma.SecurityScheme{
	"token":       {Type: "http", Scheme: "bearer", Description: "a token of one of api.clients"},
	"name":        {Type: "http", Scheme: "basic", Description: "the name of one of api.clients, and its token: as a browser sends them"},
	"certificate": {Type: "mutualTLS", Description: "a certificate of one of api.clients"},
}

// schemaNames are the names of types that would else share one: model.Backend is what is
// configured, and Problem the document that an error is (RFC 9457).
var schemaNames = map[reflect.Type]string{reflect.TypeFor[Backend](): "ServiceBackend", reflect.TypeFor[model.Problem](): "RunningProblem"}

const schemaPrefix = "#/components/schemas/"

// NewSchemas returns a registry that knows how weir's own types are written in JSON and YAML. A reference
// to a type is its name behind the prefix.
func NewSchemas(prefix string) huma.Registry {
	r := huma.NewMapRegistry(prefix, func(t reflect.Type, hint string) string {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if name, own := schemaNames[t]; own {
			return name
		}
		return huma.DefaultSchemaNamer(t, hint)
	})
	writtenAs[enum[model.Protocol]](r, reflect.TypeFor[model.Protocol]())
	writtenAs[enum[model.Mode]](r, reflect.TypeFor[model.Mode]())
	writtenAs[enum[model.Policy]](r, reflect.TypeFor[model.Policy]())
	writtenAs[affinityText](r, reflect.TypeFor[model.Affinity]())
	writtenAs[lengthsText](r, reflect.TypeFor[model.AffinityPrefix]())
	writtenAs[enum[model.BackendState]](r, reflect.TypeFor[model.BackendState]())
	writtenAs[enum[model.CheckKind]](r, reflect.TypeFor[model.CheckKind]())
	writtenAs[enum[model.CheckTo]](r, reflect.TypeFor[model.CheckTo]())
	writtenAs[enum[model.Role]](r, reflect.TypeFor[model.Role]())
	writtenAs[enum[model.DNSType]](r, reflect.TypeFor[model.DNSType]())
	writtenAs[enumList[model.DNSCode]](r, reflect.TypeFor[[]model.DNSCode]()) // else it would be taken for bytes
	writtenAs[enum[model.XDPMode]](r, reflect.TypeFor[model.XDPMode]())
	writtenAs[enum[model.Announce]](r, reflect.TypeFor[model.Announce]())
	writtenAs[enum[model.BGPFamily]](r, reflect.TypeFor[model.BGPFamily]())
	writtenAs[enum[model.BFDAuthenticationType]](r, reflect.TypeFor[model.BFDAuthenticationType]())
	writtenAs[addressText](r, reflect.TypeFor[netip.Addr]())
	writtenAs[durationText](r, reflect.TypeFor[model.Duration]())
	writtenAs[portsText](r, reflect.TypeFor[model.PortRange]())
	writtenAs[statusText](r, reflect.TypeFor[model.StatusRange]())
	writtenAs[queuesText](r, reflect.TypeFor[model.QueueRange]())
	writtenAs[fanOutText](r, reflect.TypeFor[model.FanOut]())
	writtenAs[numbersText](r, reflect.TypeFor[model.RouteTarget]())
	writtenAs[numbersText](r, reflect.TypeFor[model.RouteDistinguisher]())
	writtenAs[segmentText](r, reflect.TypeFor[wantedSegment]())
	writtenAs[keyText](r, reflect.TypeFor[model.QUICKey]())
	writtenAs[serverIDs](r, reflect.TypeFor[model.ServerIDs]())
	service := r.SchemaFromRef(r.Schema(reflect.TypeFor[model.Service](), true, "").Ref)
	service.Properties["affinity"] = enum[model.Affinity]{}.Schema(r) // its prefix is a key of its own
	for before, now := range model.FormerServiceKeys {
		former := *service.Properties[now]
		former.Deprecated, former.Description = true, "the former name of "+now
		service.Properties[before] = &former
	}
	return r
}

func writtenAs[T huma.SchemaProvider](r huma.Registry, t reflect.Type) {
	r.RegisterTypeAlias(t, reflect.TypeFor[T]())
}

// enum is written as one of its names.
type enum[T interface{ Names() []string }] struct{}

// Schema lists the names.
func (enum[T]) Schema(huma.Registry) *huma.Schema {
	var v T
	s := &huma.Schema{Type: huma.TypeString}
	for _, name := range v.Names() {
		s.Enum = append(s.Enum, name)
	}
	return s
}

// enumList is a list of them.
type enumList[T interface{ Names() []string }] struct{}

// Schema lists the names.
func (enumList[T]) Schema(r huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeArray, Items: enum[T]{}.Schema(r)}
}

type (
	addressText  struct{}
	affinityText struct{}
	lengthsText  struct{}
	durationText struct{}
	portsText    struct{}
	statusText   struct{}
	queuesText   struct{}
	fanOutText   struct{}
	numbersText  struct{}
	keyText      struct{}
	serverIDs    struct{}
)

// Schema says what an address is written as; it is empty if there is none.
func (addressText) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Description: "IPv4 or IPv6 address", Examples: []any{"203.0.113.10"}}
}

// Schema says what an affinity is written as where its prefix is part of it.
func (affinityText) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Description: "affinity; source-ip with the lengths of a prefix, if it has one",
		Pattern: `^(flow|destination-port|source-ip(/[0-9]+/[0-9]+)?)$`, Examples: []any{"flow", "source-ip/24/64"}}
}

// Schema says what the lengths of a prefix are written as.
func (lengthsText) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Description: "bits of IPv4, and of IPv6", Pattern: `^[0-9]+/[0-9]+$`, Examples: []any{"24/64"}}
}

// Schema says what a duration is written as.
func (durationText) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Description: "number with a unit, or several", Examples: []any{"1m30s"},
		Pattern: `^([0-9]+(\.[0-9]*)?|\.[0-9]+|[+])+(ns|us|µs|μs|ms|s|m|h)`}
}

// Schema says what ports are written as.
func (portsText) Schema(huma.Registry) *huma.Schema {
	return textOrNumber("port, range of ports or all", `^(all|[0-9]+(-[0-9]+)?)$`, 1, 65535, "443", "8000-8100", "all")
}

// Schema says what HTTP status codes are written as.
func (statusText) Schema(huma.Registry) *huma.Schema {
	return textOrNumber("status code, or range of them", `^[0-9]+(-[0-9]+)?$`, 100, 599, "200", "200-299")
}

// Schema says what receive queues are written as.
func (queuesText) Schema(huma.Registry) *huma.Schema {
	return textOrNumber("receive queue, or range of them", `^[1-9][0-9]*(-[1-9][0-9]*)?$`, 1, model.MaxSteeredQueue, "8", "8-15")
}

// Schema says what a fan-out is written as.
func (fanOutText) Schema(huma.Registry) *huma.Schema {
	return textOrNumber("auto, or a number of CPUs", `^(auto|[0-9]+)$`, 0, model.MaxFanOut, "auto", "2")
}

// Schema says what route targets and distinguishers are written as.
func (numbersText) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Description: "two numbers, of which one fits into 16 bits, or an IPv4 address and a number",
		Examples: []any{"65001:5001", "10.0.0.2:1"}}
}

func textOrNumber(description, pattern string, least, most float64, examples ...any) *huma.Schema {
	return &huma.Schema{Description: description, Examples: examples, AnyOf: []*huma.Schema{
		{Type: huma.TypeString, Pattern: pattern}, {Type: huma.TypeInteger, Minimum: &least, Maximum: &most}}}
}

// Schema says what a key is written as.
func (keyText) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Pattern: `^([0-9a-fA-F]{32}|hidden)$`,
		Description: "hexadecimal digits; what is read is always hidden, and written it keeps the key that is there"}
}

// Schema says what server IDs are written as.
func (serverIDs) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Description: "hexadecimal digits, one for all configurations or one for each number", AnyOf: []*huma.Schema{
		{Type: huma.TypeString}, {Type: huma.TypeObject, AdditionalProperties: &huma.Schema{Type: huma.TypeString}}}}
}

// mayLack are the fields that requests may leave out, because they have defaults, though answers
// always have them.
var mayLack = map[reflect.Type][]string{
	reflect.TypeFor[model.Service](): {"backends"},
	reflect.TypeFor[model.Backend](): {"name", "weight", "state"},
}

// openAPI returns the document about all operations.
func (s *Server) openAPI() ([]byte, error) {
	schemas := s.api.OpenAPI().Components.Schemas
	for name, schema := range schemas.Map() {
		t := schemas.TypeFromRef(schemaPrefix + name)
		schema.Required = slices.DeleteFunc(schema.Required, func(field string) bool { return slices.Contains(mayLack[t], field) })
		BoundNumbers(t, schema)
		boundTexts(t, schema)
	}
	text, err := json.MarshalIndent(s.api.OpenAPI(), "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the API's document: %w", err)
	}
	return append(text, '\n'), nil
}

// BoundNumbers gives unsigned numbers the bounds that their types have.
func BoundNumbers(t reflect.Type, schema *huma.Schema) {
	for _, field := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		of, kind := schema.Properties[name], field.Type
		if kind.Kind() == reflect.Pointer {
			kind = kind.Elem()
		}
		if of == nil || of.Type != huma.TypeInteger {
			continue
		}
		switch kind.Kind() {
		case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
			of.Format = ""
		}
		switch kind.Kind() {
		case reflect.Uint8, reflect.Uint16, reflect.Uint32:
			most := float64(uint64(1)<<kind.Bits() - 1)
			of.Maximum = &most
		}
	}
}

// boundTexts says what names and addresses must be, if they are given.
func boundTexts(t reflect.Type, schema *huma.Schema) {
	if t != reflect.TypeFor[model.Service]() && t != reflect.TypeFor[model.Backend]() {
		return
	}
	least, most := 1, model.MaxNameLength
	schema.Properties["name"].MinLength, schema.Properties["name"].MaxLength = &least, &most
	for _, key := range []string{"vip", "address", "host"} {
		if of := schema.Properties[key]; of != nil {
			of.Type = ""
			of.AnyOf = []*huma.Schema{{Type: huma.TypeString, Format: "ipv4"}, {Type: huma.TypeString, Format: "ipv6"}}
		}
	}
}

// Document describes the API in OpenAPI 3.1. It is called after all operations have been added.
func (s *Server) Document() ([]byte, error) { return s.document() }

func (s *Server) sendDocument(w http.ResponseWriter, _ *http.Request) {
	text, err := s.document()
	if err != nil {
		writeProblem(w, NewProblem(http.StatusInternalServerError, err.Error()))
		return
	}
	w.Header().Set("Content-Type", "application/openapi+json")
	_, _ = w.Write(text)
}
