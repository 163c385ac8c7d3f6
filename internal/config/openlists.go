package config

import (
	"reflect"

	"github.com/goccy/go-yaml/ast"

	"weir.io/weir/internal/model"
)

// openLists are the keys of lists that restrict something, and that an empty list would leave open, because without
// the key there is no restriction: what is named in them, and what there is without the key. A list that a program
// has written without an element grants nothing that nobody asked for.
var openLists = map[reflect.Type]map[string][2]string{
	reflect.TypeFor[model.Hook]():              {"about": {"subjects", "VIPs"}},
	reflect.TypeFor[model.APIClient]():         {"segments": {"segments", "all segments"}},
	reflect.TypeFor[model.Service]():           {"source-ranges": {"prefixes (for nobody 0.0.0.0/32 or ::/128)", "all sources"}},
	reflect.TypeFor[model.SegmentSettings]():   {"peers": {"prefixes", "all VTEPs that are known"}},
	reflect.TypeFor[model.NeighborInterface](): {"prefixes": {"prefixes", "the interface's own networks, and in a segment all"}},
	reflect.TypeFor[model.BGPNeighbor]():       {"families": {"families", "that of the neighbor's address"}},
	reflect.TypeFor[model.BGPNeighborBFD]():    {"interfaces": {"interfaces", "all of director.interfaces"}},
	reflect.TypeFor[model.BFDNeighbor]():       {"interfaces": {"interfaces", "all of director.interfaces"}},
	reflect.TypeFor[model.Steering]():          {"interfaces": {"interfaces", "all of director.interfaces"}},
}

// bounds are the mappings whose numbers bound something, each only if its key is there. A bound of 0 would read as
// "nothing", and be none.
var bounds = map[reflect.Type]bool{reflect.TypeFor[model.SegmentLimits](): true, reflect.TypeFor[model.OwnerLimits](): true}

// leavesOpen refuses an empty list, and a bound of 0, that would leave open what they restrict.
func (d *decoder) leavesOpen(n ast.Node, in reflect.Type, key string, at *path) {
	open, isList := openLists[in][key]
	if !isList && !bounds[in] {
		return
	}
	switch node := n.(type) {
	case *ast.AnchorNode:
		n = node.Value
	case *ast.AliasNode:
		n = d.anchors[nameOf(node.Value)]
	}
	switch node := n.(type) {
	case *ast.SequenceNode:
		if isList && len(node.Values) == 0 {
			d.refuse(n, at, "is an empty list: leave the key out for %s, or name %s", open[1], open[0])
		}
	case *ast.IntegerNode:
		if bounds[in] && nameOf(n) == "0" {
			d.refuse(n, at, "0 is out of range: leave the key out for no bound")
		}
	}
}

// IsBound reports whether a key of a type is a bound that may not be 0.
func IsBound(of reflect.Type, key string) bool { return bounds[of] && key != "owner" }

// IsOpenList reports whether a key of a type is a list that may not be empty.
func IsOpenList(of reflect.Type, key string) bool {
	_, is := openLists[of][key]
	return is
}
