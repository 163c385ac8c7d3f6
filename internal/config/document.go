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
	former  []model.FormerKey // that were decoded
}

// newDocument parses the text, of a set or of something else, and checks that it is one mapping.
func newDocument(text []byte, set bool) (*document, Errors) {
	text = bytes.TrimPrefix(text, byteOrderMark)
	if wrong := checkText(text); wrong != nil {
		return nil, Errors{*wrong}
	}
	file, errs := parse(text, set)
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

// line returns the line of the field with this path, and whether there is one;
// else the line of the innermost field around it.
func (d *document) line(path string) (line int, found bool) {
	if path == "" || d.root == nil {
		return 0, false
	}
	var node ast.Node = d.root
	line = lineOf(d.root)
	for _, key := range strings.Split(path, ".") {
		key, indexes, _ := strings.Cut(key, "[")
		entry := child(d.follow(node), key)
		if entry == nil {
			return line, false
		}
		node, line = entry.Value, lineOf(entry.Key)
		for index := range strings.SplitSeq(strings.TrimSuffix(indexes, "]"), "][") {
			if index == "" {
				continue
			}
			list, ok := d.follow(node).(*ast.SequenceNode)
			i, err := strconv.Atoi(index)
			if !ok || err != nil || i >= len(list.Values) {
				return line, false
			}
			node, line = list.Values[i], lineOf(list.Values[i])
		}
	}
	return line, true
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
		return fmt.Sprintf("the text %q", shown(n.Value))
	case *ast.LiteralNode:
		return "text"
	case *ast.TagNode:
		return "a tag"
	}
	return "a " + strings.ToLower(n.Type().String())
}

// shown is as much of a text as an error repeats.
func shown(text string) string {
	const most = 100
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}
