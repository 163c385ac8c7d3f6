package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// product are the folders of what users run: programs and texts of other folders are not frozen.
var product = []string{"cmd", "internal", "kube", "quiclb"}

// writePrograms writes, for each object of BPF programs, its functions, and its maps and enums.
func writePrograms(tree, out string) error {
	return eachFile(tree, func(path string) error {
		name, is := strings.CutSuffix(filepath.Base(path), "_bpfel.o")
		if !is {
			return nil
		}
		spec, err := ebpf.LoadCollectionSpec(path)
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		return errors.Join(
			os.WriteFile(filepath.Join(out, name+".functions"), functionsOf(spec), 0o644),
			os.WriteFile(filepath.Join(out, name+".maps"), mapsOf(spec), 0o644))
	})
}

// labs are folders of laboratories beside the product: Kubernetes', and those of older trees that lab/
// has now.
var labs = []string{"kube/test", "internal/netlab", "internal/routerlab", "internal/etcdlab", "internal/memlab", "internal/packet", "internal/twin"}

// eachFile visits the files of the product.
func eachFile(tree string, visit func(path string) error) error {
	for _, folder := range product {
		err := filepath.WalkDir(filepath.Join(tree, folder), func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if !entry.IsDir() {
				return visit(path)
			}
			if slices.Contains(labs, strings.TrimPrefix(path, tree+string(filepath.Separator))) {
				return fs.SkipDir
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// functionsOf returns each function's instructions and their number, without their place in the
// sources.
func functionsOf(spec *ebpf.CollectionSpec) []byte {
	functions := map[string][]string{}
	for _, program := range spec.Programs {
		name := ""
		for i := range program.Instructions {
			instruction := &program.Instructions[i]
			if f := btf.FuncMetadata(instruction); f != nil { // a function begins here
				name = f.Name
				if functions[name] != nil {
					name = "" // another program has the function, too
				} else {
					functions[name] = []string{}
				}
			}
			if name != "" {
				functions[name] = append(functions[name], strings.TrimSpace(fmt.Sprintf("%v", *instruction)))
			}
		}
	}
	var text bytes.Buffer
	names := slices.Sorted(maps.Keys(functions))
	for _, name := range names {
		fmt.Fprintf(&text, "%s: %d instructions\n", name, len(functions[name]))
	}
	for _, name := range names {
		fmt.Fprintf(&text, "\n%s:\n\t%s\n", name, strings.Join(functions[name], "\n\t"))
	}
	return text.Bytes()
}

// mapsOf returns the maps with the layout of their content, and the enums.
func mapsOf(spec *ebpf.CollectionSpec) []byte {
	var text bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(spec.Maps)) {
		m := spec.Maps[name]
		fmt.Fprintf(&text, "map %s: %v, keys of %d bytes, values of %d, %d entries, flags %#x, pinned %v\n\t%9v\n\t%9v\n", name, m.Type, m.KeySize, m.ValueSize, m.MaxEntries, m.Flags, m.Pinning, m.Key, m.Value)
	}
	var enums []string
	for one, err := range spec.Types.All() {
		if enum, is := one.(*btf.Enum); is && err == nil {
			enums = append(enums, enumText(enum))
		}
	}
	slices.Sort(enums)
	for _, enum := range slices.Compact(enums) {
		fmt.Fprintf(&text, "%s\n", enum)
	}
	return text.Bytes()
}

func enumText(enum *btf.Enum) string {
	var text strings.Builder
	fmt.Fprintf(&text, "enum %s of %d bytes", enum.Name, enum.Size)
	for _, value := range enum.Values {
		fmt.Fprintf(&text, "\n\t%s = %d", value.Name, value.Value)
	}
	return text.String()
}
