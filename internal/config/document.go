package config

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"weir.io/weir/internal/model"
)

// document is the one YAML document of a file, and where its anchors are.
type document struct {
	root    *ast.MappingNode
	anchors map[string]ast.Node
	former  []model.FormerKey // that were decoded: the first ones
}

// newDocument parses the text, of a set or of something else, and checks that it is one mapping.
func newDocument(text []byte, set bool) (*document, Errors) {
	text = bytes.TrimPrefix(text, byteOrderMark)
	if wrong := checkText(text); wrong != nil {
		return nil, Errors{*wrong}
	}
	file, errs := parseTree(text, set)
	if len(errs) > 0 {
		return nil, errs
	}
	var body ast.Node
	for _, doc := range file.Docs {
		switch {
		case doc.Body == nil:
		case body != nil:
			return nil, Errors{{Line: lineOf(doc.Body), Problem: "begins a second document; a configuration is one"}}
		default:
			body = doc.Body
		}
	}
	if body == nil {
		return nil, Errors{{Problem: "is empty"}}
	}
	d := &document{anchors: make(map[string]ast.Node)}
	root, ok := body.(*ast.MappingNode)
	if !ok {
		return nil, Errors{{Line: lineOf(body), Problem: "is " + kindOf(body) + ", not a mapping of keys such as director and services"}}
	}
	d.root = root
	return d, nil
}

// lineOf returns the line at which a node begins.
func lineOf(n ast.Node) int {
	switch n := n.(type) {
	case *ast.MappingNode: // its own token is the colon after its first key
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return lineOf(n.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return lineOf(n.Key)
	case *ast.AnchorNode:
		return n.Start.Position.Line
	}
	if token := n.GetToken(); token != nil && token.Position != nil {
		return token.Position.Line
	}
	return 0
}

// follow returns the node that an anchor or alias stands for.
func (d *document) follow(n ast.Node) ast.Node {
	for {
		switch node := n.(type) {
		case *ast.AnchorNode:
			n = node.Value
		case *ast.AliasNode:
			n = d.anchors[nameOf(node.Value)]
		default:
			return n
		}
	}
}

func nameOf(n ast.Node) string {
	if n == nil || n.GetToken() == nil {
		return ""
	}
	return n.GetToken().Value
}

// place is where a field is: its line, and its path with the keys as the document writes them.
type place struct {
	line int
	path string
}

// line returns the line of the field with this path, and whether there is one; else the line of the
// innermost field around it.
func (d *document) line(path string) (line int, found bool) {
	at, found := d.find(path)
	return at.line, found
}

// find does the same for a field's place.
func (d *document) find(path string) (at place, found bool) {
	at.path = path
	if path == "" || d.root == nil {
		return at, false
	}
	var node ast.Node = d.root
	at.line = lineOf(d.root)
	keys := strings.Split(path, ".")
	for i, part := range keys {
		key, indexes, _ := strings.Cut(part, "[")
		entry := child(d.follow(node), key)
		if entry == nil {
			return at, false
		}
		if written := nameOf(entry.Key); written != key {
			keys[i] = written + part[len(key):]
			at.path = strings.Join(keys, ".")
		}
		node, at.line = entry.Value, lineOf(entry.Key)
		for index := range strings.SplitSeq(strings.TrimSuffix(indexes, "]"), "][") {
			if index == "" {
				continue
			}
			list, ok := d.follow(node).(*ast.SequenceNode)
			i, err := strconv.Atoi(index)
			if !ok || err != nil || i >= len(list.Values) {
				return at, false
			}
			node, at.line = list.Values[i], lineOf(list.Values[i])
		}
	}
	return at, true
}

func child(n ast.Node, key string) *ast.MappingValueNode {
	mapping, ok := n.(*ast.MappingNode)
	if !ok {
		return nil
	}
	for _, entry := range mapping.Values {
		if name := nameOf(entry.Key); name == key || model.FormerServiceKeys[name] == key {
			return entry
		}
	}
	return nil
}

// kindOf names what a node is in the user's words.
func kindOf(n ast.Node) string {
	switch n := n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "nothing"
	case *ast.BoolNode:
		return fmt.Sprintf("the truth value %s", nameOf(n))
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return fmt.Sprintf("the number %s", nameOf(n))
	case *ast.StringNode:
		return fmt.Sprintf("the text %q", model.Shown(n.Value))
	case *ast.LiteralNode:
		return "text"
	case *ast.TagNode:
		return "a tag"
	}
	return "a " + strings.ToLower(n.Type().String())
}
