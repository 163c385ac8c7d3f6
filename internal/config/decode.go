package config

import (
	"encoding"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"weir.io/weir/internal/model"
)

// Bounds on what a file or a set may expand to: aliases make large configurations out of small files.
// The YAML package leaves aliases to its callers. The most that a director has, 65,536 services, a million
// backends and a million source ranges, takes 283 million bytes. Four values for each backend can come
// from aliases.
const (
	mostExpanded = 320 << 20 // bytes
	mostRepeated = 4 << 20   // values, mappings and lists that aliases stand for
)

// mostErrors bounds how many errors of a text are listed.
const mostErrors = 100

// andMore ends a list of errors that is not complete.
func andMore(errs Errors) Errors {
	if len(errs) < mostErrors {
		return errs
	}
	last := errs[mostErrors-1].Line
	return append(errs[:mostErrors:mostErrors], Error{Line: last, Problem: "there are more problems than these"})
}

// required lists the keys that a mapping must have, each with its possible values: a guessed port
// or mode would send traffic to the wrong place.
var required = map[reflect.Type][][2]string{
	reflect.TypeFor[model.Service](): {
		{"name", "any text"},
		{"vip", "an IP address"},
		{"protocol", "tcp, udp or sctp"},
		{"port", "443, 8000-8100 or all"},
		{"mode", "l2dsr, ipip, gue, nat or redirect"},
		{"backends", "a list; an empty one is []"},
	},
	reflect.TypeFor[model.Backend]():           {{"address", "an IP address"}},
	reflect.TypeFor[model.Hook]():              {{"name", "of your choice"}},
	reflect.TypeFor[model.OwnerLimits]():       {{"owner", "of a set"}},
	reflect.TypeFor[model.BFDNeighbor]():       {{"address", "an IP address"}},
	reflect.TypeFor[model.BFDAuthentication](): {{"password-file", "a file whose first line is the key"}},
	reflect.TypeFor[model.NeighborInterface](): {{"name", "an interface of the director's"}},
	reflect.TypeFor[model.QUICConfig]():        {{"id", "0 to 6"}, {"nonce-length", "4 to 18"}},
	reflect.TypeFor[model.BGP](): {
		{"asn", "the number of this director's AS"},
		{"router-id", "an IPv4 address of this director's"},
		{"neighbors", "the routers to tell"},
	},
	reflect.TypeFor[model.BGPNeighbor](): {{"asn", "the number of its AS"}},
	reflect.TypeFor[model.BGPPrefix]():   {{"prefix", "203.0.113.0/24, say"}},
	reflect.TypeFor[model.HealthCheck](): {{"kind", kinds}},
	reflect.TypeFor[model.NamedCheck]():  {{"name", "of your choice"}, {"kind", kinds}},
	reflect.TypeFor[model.HealthDNS]():   {{"name", "a domain name"}},
	reflect.TypeFor[model.APIClient]():   {{"name", "of your choice"}, {"role", "read, write or admin"}},
}

const kinds = "tcp, syn, http, https, tls, grpc, udp, dns, icmp, sctp, smtp, exec or none"

// Required returns the keys that a mapping of a type must have.
func Required(t reflect.Type) (keys []string) {
	for _, key := range required[t] {
		keys = append(keys, key[0])
	}
	return keys
}

// formerKeys are keys by the names that they had before, and their names today.
var formerKeys = map[reflect.Type]map[string]string{
	reflect.TypeFor[model.Service](): model.FormerServiceKeys,
}

// config decodes the document, sets defaults, and checks what could be decoded.
func (d *document) config() (model.Config, lostPaths, Errors) {
	var c model.Config
	dec := d.decode(&c)
	c.FormerKeys = dec.former
	// The zero range means the default there, so "all" would silently become the default.
	if line, given := d.line("director.snat.ports"); given && c.Director.SNAT.Ports.All() && !dec.lost.has("director.snat.ports") {
		dec.errs = append(dec.errs, Error{Line: line, Path: "director.snat.ports", Problem: "all is not a range; write 1024-65535, say"})
	}
	if dec.full {
		return c, lostPaths{""}, dec.errs // most of it may be missing
	}
	c.SetDefaults()
	return c, dec.lost, append(dec.errs, dec.lost.without(d.invalid(c.Validate()))...)
}

// decode turns the document into a value. The decoder's errors have all that is wrong with it.
func (d *document) decode(to any) *decoder {
	dec := &decoder{document: d, open: make(map[string]bool), fields: make(map[reflect.Type]map[string][]int)}
	dec.value(d.root, reflect.ValueOf(to).Elem(), nil)
	if dec.full {
		dec.errs = andMore(dec.errs)
	}
	return dec
}

// decoder turns nodes into values and collects what is wrong with them.
type decoder struct {
	*document
	errs     Errors
	lost     lostPaths
	full     bool            // no more errors are collected, and nothing is decoded
	expanded int             // bytes
	repeated int             // values that aliases stand for
	alias    *ast.AliasNode  // that is in the text, and stands for what is decoded now
	open     map[string]bool // anchors whose value is being decoded
	fields   map[reflect.Type]map[string][]int
}

// path is a field's place in the document, written out only for an error.
type path struct {
	parent *path
	key    string
	index  int // of a list's element, if key is empty
}

func (p *path) String() string {
	switch {
	case p == nil:
		return ""
	case p.key == "":
		return fmt.Sprintf("%s[%d]", p.parent, p.index)
	case p.parent == nil:
		return p.key
	}
	return p.parent.String() + "." + p.key
}

// fail notes what is wrong with a value, which is then not decoded.
func (d *decoder) fail(n ast.Node, at *path, format string, args ...any) {
	if d.refuse(n, at, format, args...); !d.full {
		d.lost = append(d.lost, at.String())
	}
}

// refuse notes an error by which no value is lost, such as a superfluous key.
func (d *decoder) refuse(n ast.Node, at *path, format string, args ...any) {
	if d.full = d.full || len(d.errs) >= mostErrors; d.full {
		return
	}
	d.errs = append(d.errs, Error{Line: lineOf(n), Path: at.String(), Problem: fmt.Sprintf(format, args...)})
}

// fix says what to write in the place of what the last error is about.
func (d *decoder) fix(text string) {
	if !d.full {
		d.errs[len(d.errs)-1].Fix = text
	}
}

// value decodes a node into v.
func (d *decoder) value(n ast.Node, v reflect.Value, at *path) {
	if d.full || !d.repeat(at) {
		return
	}
	switch node := n.(type) {
	case *ast.AnchorNode:
		name := nameOf(node.Name)
		if _, alias := node.Value.(*ast.AliasNode); alias { // YAML does not allow it; it might stand for itself
			d.fail(n, at, "has the anchor &%s before an alias, which has none", name)
			return
		}
		d.open[name] = true
		d.anchors[name] = node.Value
		d.value(node.Value, v, at)
		delete(d.open, name)
		return
	case *ast.AliasNode:
		d.expandAlias(node, v, at)
		return
	case *ast.TagNode:
		d.fail(n, at, "tags are not supported: %s", node.Start.Value)
		return
	case nil, *ast.NullNode:
		d.fail(n, at, "has no value")
		return
	}
	if v.Kind() == reflect.Pointer {
		if !d.expand(n, at, 1, v.Type().Elem()) {
			return
		}
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	switch to := v.Addr().Interface().(type) {
	case *model.ServerIDs:
		d.serverIDs(n, to, at)
		return
	case encoding.TextUnmarshaler:
		d.text(n, to, at)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.mapping(n, v, at)
	case reflect.Slice:
		d.list(n, v, at)
	default:
		d.scalar(n, v, at)
	}
}

func (d *decoder) expandAlias(node *ast.AliasNode, v reflect.Value, at *path) {
	name := nameOf(node.Value)
	target := d.anchors[name]
	switch {
	case target == nil:
		d.fail(node, at, "there is no anchor &%s before this alias", name)
	case d.open[name]:
		d.fail(node, at, "*%s is inside its own anchor", name)
	default:
		outermost := d.alias == nil
		if outermost {
			d.alias = node
		}
		d.open[name] = true
		d.value(target, v, at)
		delete(d.open, name)
		if outermost {
			d.alias = nil
		}
	}
}

// repeat counts a value if an alias stands for it, and reports whether there may be another one.
func (d *decoder) repeat(at *path) bool {
	if d.alias == nil {
		return true
	}
	if d.repeated++; d.repeated > mostRepeated {
		d.fail(d.alias, at, "aliases up to this one repeat more than %d values, mappings and lists", mostRepeated)
		d.full = true
	}
	return !d.full
}

// expand takes room for values of a type, and reports whether there was room.
func (d *decoder) expand(n ast.Node, at *path, count int, t reflect.Type) bool {
	if d.expanded += count * int(t.Size()); d.expanded > mostExpanded {
		if d.alias != nil {
			n = d.alias // it is the one too many, and not what it repeats
		}
		d.fail(n, at, "all that is written, and aliases repeat, takes more than %d bytes", mostExpanded)
		d.full = true
	}
	return d.expanded <= mostExpanded
}

// list decodes a sequence.
func (d *decoder) list(n ast.Node, v reflect.Value, at *path) {
	sequence, ok := n.(*ast.SequenceNode)
	if !ok {
		d.fail(n, at, "is %s, not a list%s", kindOf(n), asList(n, v.Type().Elem()))
		return
	}
	if !d.expand(n, at, len(sequence.Values), v.Type().Elem()) {
		return
	}
	if len(sequence.Values) == 0 {
		return // as if it were missing: SetDefaults knows which lists are then empty
	}
	list := reflect.MakeSlice(v.Type(), len(sequence.Values), len(sequence.Values))
	for i, element := range sequence.Values {
		d.value(element, list.Index(i), &path{parent: at, index: i})
	}
	v.Set(list)
}

// asMapping says how a mapping is written of which only the main value is there.
func asMapping(n ast.Node, v reflect.Value) string {
	text, is := n.(*ast.StringNode)
	if !is {
		return ""
	}
	switch v.Addr().Interface().(type) {
	case *model.Backend:
		return fmt.Sprintf("; write {address: %s}", inFlow(text.Value))
	case *model.HealthCheck:
		var kind model.CheckKind
		unknown := (*model.UnknownName)(nil)
		switch err := kind.UnmarshalText([]byte(text.Value)); {
		case err == nil:
			return fmt.Sprintf("; write {kind: %s}", text.Value)
		case errors.As(err, &unknown) && unknown.Meant != "":
			return fmt.Sprintf("; write {kind: %s}", unknown.Meant)
		case errors.As(err, &unknown) && model.Instead(unknown.Kind, unknown.Name) != "":
			return ": " + model.Instead(unknown.Kind, unknown.Name)
		}
	}
	return ""
}

// asList says how a list is written of which the only element is there, if elements are scalars.
func asList(n ast.Node, element reflect.Type) string {
	one, is := n.(ast.ScalarNode)
	if !is || n.Type() == ast.NullType {
		return ""
	}
	if element.Kind() == reflect.Struct && !reflect.PointerTo(element).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return ""
	}
	if text, is := n.(*ast.StringNode); is {
		return fmt.Sprintf("; write [%s]", inFlow(text.Value))
	}
	return fmt.Sprintf("; write [%v]", one.GetValue())
}

// inFlow writes a text as it can be an element of a list in brackets, wherever that list is: the YAML package takes
// vxlan:5001 for a mapping where the list is inside of braces.
func inFlow(text string) string {
	plain := false
	if doc, errs := newDocument([]byte("a: {b: ["+text+"]}"), false); len(errs) == 0 && !strings.ContainsAny(text, "\n#") {
		within, _ := doc.root.Values[0].Value.(*ast.MappingNode)
		if within != nil && len(within.Values) == 1 {
			list, _ := within.Values[0].Value.(*ast.SequenceNode)
			if list != nil && len(list.Values) == 1 {
				element, _ := list.Values[0].(*ast.StringNode)
				plain = element != nil && element.Value == text
			}
		}
	}
	if plain {
		return text
	}
	return strconv.Quote(text)
}

// asText says how a text is written that the YAML package has taken for a mapping, because it has a colon and stands
// in a list in brackets inside of braces.
func asText(n ast.Node, at *path) string {
	mapping, is := n.(*ast.MappingNode)
	if !is || len(mapping.Values) != 1 || at == nil || at.key != "" {
		return "" // what is meant as a mapping may have a key to keep
	}
	key, isKey := mapping.Values[0].Key.(ast.ScalarNode)
	value, isValue := mapping.Values[0].Value.(ast.ScalarNode)
	if !isKey || !isValue || isNull(mapping.Values[0].Value) {
		return ""
	}
	return fmt.Sprintf("; for text write %q", model.Shown(key.GetToken().Value+":"+value.GetToken().Value))
}

// mapping decodes a mapping into a struct by its json names.
func (d *decoder) mapping(n ast.Node, v reflect.Value, at *path) {
	mapping, ok := n.(*ast.MappingNode)
	if !ok {
		d.fail(n, at, "is %s, not a mapping%s", kindOf(n), asMapping(n, v))
		return
	}
	if backend, ok := v.Addr().Interface().(*model.Backend); ok {
		*backend = model.NewBackend()
	}
	fields := d.fieldsOf(v.Type())
	seen := make(map[string]int, len(mapping.Values))
	meant := make(map[string]bool) // keys meant by misspelled ones, whose errors are enough
	for _, entry := range mapping.Values {
		key := nameOf(entry.Key)
		here := &path{parent: at, key: key}
		if _, scalar := entry.Key.(ast.ScalarNode); !scalar || entry.Key.IsMergeKey() {
			d.fail(entry.Key, at, "%s is not a key that weir reads", entry.Key)
			continue
		}
		if first, dup := seen[key]; dup {
			d.refuse(entry.Key, here, "is already given on line %d", first)
			continue
		}
		seen[key] = lineOf(entry.Key)
		if now, is := formerKeys[v.Type()][key]; is {
			if slices.ContainsFunc(mapping.Values, func(e *ast.MappingValueNode) bool { return nameOf(e.Key) == now }) {
				d.refuse(entry.Key, here, "is what %s was called before: give only %s", now, now)
				continue
			}
			if len(d.former) < mostErrors {
				d.former = append(d.former, model.FormerKey{Line: lineOf(entry.Key), Field: here.String(), Now: now})
			}
			key = now
		}
		index, known := fields[key]
		if !known {
			meant[d.unknown(entry.Key, here, v.Type())] = true
			continue
		}
		if isNull(entry.Value) {
			d.fail(entry.Key, here, "has no value%s", hint(v.FieldByIndex(index)))
			continue
		}
		d.leavesOpen(entry.Value, v.Type(), key, here)
		d.value(entry.Value, v.FieldByIndex(index), here)
	}
	for _, key := range required[v.Type()] {
		if v.Type() == reflect.TypeFor[model.HealthCheck]() && (seen["check"] > 0 || meant["check"]) {
			continue // the named check has it
		}
		if _, given := seen[key[0]]; !given && !meant[key[0]] {
			d.fail(n, &path{parent: at, key: key[0]}, "is required (%s)", key[1])
		}
	}
}

// serverIDs decodes one server ID for all configurations, or a mapping from their numbers.
func (d *decoder) serverIDs(n ast.Node, ids *model.ServerIDs, at *path) {
	mapping, ok := n.(*ast.MappingNode)
	if !ok {
		var one model.ServerID
		d.text(n, &one, at)
		*ids = model.SameServerID(one)
		return
	}
	seen := make(map[string]int, len(mapping.Values))
	for _, entry := range mapping.Values {
		number := nameOf(entry.Key)
		here := &path{parent: at, key: number}
		if first, dup := seen[number]; dup {
			d.fail(entry.Key, here, "is already given on line %d", first)
			continue
		}
		seen[number] = lineOf(entry.Key)
		var id model.ServerID
		d.value(entry.Value, reflect.ValueOf(&id).Elem(), here)
		if err := ids.Put(number, id); err != nil {
			d.fail(entry.Key, here, "%v", err)
		}
	}
}

// unknown refuses a key, and returns the one that it must have meant, if any.
func (d *decoder) unknown(key ast.Node, at *path, t reflect.Type) (meant string) {
	names := slices.Sorted(maps.Keys(d.fieldsOf(t)))
	known := strings.Join(names, ", ")
	if meant = model.Meant(t.Name(), at.key, slices.Values(names)); meant != "" {
		d.refuse(key, at, "unknown key; did you mean %s? (known here: %s)", meant, known)
		d.fix(meant)
		if !d.full {
			d.lost = append(d.lost, (&path{parent: at.parent, key: meant}).String())
		}
		return meant
	}
	if instead := model.Instead(t.Name(), at.key); instead != "" {
		d.refuse(key, at, "unknown key: %s (known here: %s)", instead, known)
		return ""
	}
	d.refuse(key, at, "unknown key (known here: %s)", known)
	return ""
}

// hint says what to write if a list is left out on purpose.
func hint(v reflect.Value) string {
	if v.Kind() == reflect.Slice {
		return " (an empty list is [])"
	}
	return ""
}

func isNull(n ast.Node) bool {
	_, null := n.(*ast.NullNode)
	return n == nil || null
}

// fieldsOf maps the json names of a struct to the indexes of its fields, and of those of embedded structs.
func (d *decoder) fieldsOf(t reflect.Type) map[string][]int {
	if known, ok := d.fields[t]; ok {
		return known
	}
	fields := make(map[string][]int, t.NumField())
	for _, field := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name != "-" && !field.Anonymous {
			fields[name] = field.Index
		}
	}
	d.fields[t] = fields
	return fields
}

// lostPaths are the fields whose value could not be decoded. The model's problems with the values
// in their place, and the consequences of these, are no problems of the file.
type lostPaths []string

func (l lostPaths) has(path string) bool { return slices.Contains(l, path) }

// without keeps the errors that do not depend on the lost values. A value may decide about all that is
// around it: about the rest of its backend or health check, of its service, of its host or segment, of its neighbor, of its
// key of the file. An error that depends on what is elsewhere names that, too.
func (l lostPaths) without(errs Errors) Errors {
	return slices.DeleteFunc(errs, func(e Error) bool { return slices.ContainsFunc(l, e.dependsOn) })
}

// dependsOn reports whether an error may be due to a value that was lost.
func (e Error) dependsOn(lost string) bool {
	if e.Path == "services" && inside(lost, "services") {
		return counted.MatchString(lost)
	}
	for _, at := range []string{e.Path, e.other} {
		if inside(at, lost) || at != "" && inside(lost, at) {
			return true
		}
	}
	if alone.MatchString(lost) && !identifies.MatchString(lost) {
		return false // else the error would name it
	}
	if alone.MatchString(e.Path) && (e.other == "" || pairs.MatchString(e.Path) && pairs.MatchString(e.other)) {
		return false
	}
	around := surroundings.FindString(lost)
	if of := listsHost.FindStringSubmatch(lost); of != nil && inside(e.Path, of[1]) && !inside(e.Path, of[1]+".hosts") {
		return true // which hosts a segment has decides about its gateway
	}
	if service, _, is := strings.Cut(around, ".backends"); is && strings.Contains(lost, ".server-id") {
		around = service // all server IDs of a service are compared
	}
	return inside(e.Path, around) || e.other != "" && inside(e.other, around)
}

// alone are the fields whose own problems depend on no other field that they do not name, and on which
// no other problem depends, unless they tell services and backends apart; pairs are those whose
// problems with each other depend on nothing else, either.
var alone = regexp.MustCompile(`^services\[\d+\](\.backends\[\d+\])?\.(name|vip|segment|ring-size|retention|max-retention|drain|max-drain|address|mac|weight|state|source-ranges\[\d+\])$` +
	`|^services\[\d+\]\.health\.(interval|timeout|rise|fall|panic)$` +
	`|^segments\[\d+\]\.(mac|mtu|hosts\[\d+\]\.(mac|vtep|vni))$` +
	`|^director\.(xdp|icmp-rate|kernel-sources\[\d+\])$`)

var (
	pairs      = regexp.MustCompile(`\.(name|retention|max-retention|drain|max-drain)$`)
	identifies = regexp.MustCompile(`\.(vip|segment|address)$`)
)

// counted are values by which all services together may exceed a limit.
var counted = regexp.MustCompile(`^services(\[\d+\](\.(backends|ring-size|source-ranges))?)?$`)

// listsHost are values that say which hosts a segment has.
var listsHost = regexp.MustCompile(`^(segments\[\d+\])\.hosts(\[\d+\](\.address)?)?$`)

// surroundings are what a field may decide about.
var surroundings = regexp.MustCompile(`^segments\[\d+\](\.hosts\[\d+\])?|^services\[\d+\](\.backends\[\d+\]|\.health)?` +
	`|^(checks|bgp\.neighbors|bfd\.neighbors|hooks|api\.clients)\[\d+\]|^director\.(limits|store|snat|neighbor)|^agent\.store|^[^.\[]*`)

func inside(path, around string) bool {
	rest, found := strings.CutPrefix(path, around)
	return found && (around == "" || rest == "" || rest[0] == '.' || rest[0] == '[')
}
