package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var metricName = regexp.MustCompile(`^weir_[a-z0-9_]+$`)

// words are the texts of the product's sources for people and for other programs.
type words struct{ texts, keys, metrics map[string]bool }

// writeWords writes texts of two words and more, the keys of files and of answers, and the names of
// metrics: each once, without its place, so that code may move.
func writeWords(tree, out string) error {
	w := words{map[string]bool{}, map[string]bool{}, map[string]bool{}}
	err := eachFile(tree, func(path string) error {
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "_bpfel.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		ast.Inspect(file, w.see)
		return nil
	})
	if err != nil {
		return err
	}
	for name, list := range map[string]map[string]bool{"texts": w.texts, "keys": w.keys, "metrics": w.metrics} {
		text := strings.Join(slices.Sorted(maps.Keys(list)), "\n") + "\n"
		if err := os.WriteFile(filepath.Join(out, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (w words) see(node ast.Node) bool {
	switch node := node.(type) {
	case *ast.ImportSpec:
		return false
	case *ast.TypeSpec:
		if s, is := node.Type.(*ast.StructType); is {
			w.seeKeys(node.Name.Name, s)
		}
	case *ast.BasicLit:
		w.seeText(node)
	}
	return true
}

func (w words) seeKeys(name string, s *ast.StructType) {
	for _, field := range s.Fields.List {
		if field.Tag != nil {
			w.keys[name+" "+field.Tag.Value] = true
		}
	}
}

func (w words) seeText(literal *ast.BasicLit) {
	if literal.Kind != token.STRING {
		return
	}
	text, err := strconv.Unquote(literal.Value)
	switch {
	case err != nil:
	case metricName.MatchString(text):
		w.metrics[text] = true
	case strings.Contains(strings.TrimSpace(text), " "):
		w.texts[strconv.Quote(text)] = true
	}
}
