package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// module is a kernel module's file, decompressed.
type module struct {
	name string
	data []byte
}

// loadOrder returns the wanted modules and what they depend on, dependencies first. Modules that
// are built into the kernel are left out. The package has no modules.dep (depmod makes it on
// installation), but each module names its dependencies.
func loadOrder(k kernel, wanted []string) ([]module, error) {
	tree, err := k.tree()
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	err = filepath.WalkDir(tree, func(path string, _ fs.DirEntry, err error) error {
		if name, suffix, found := strings.Cut(filepath.Base(path), ".ko"); found && !strings.Contains(suffix, "/") {
			files[canonical(name)] = path
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	builtin, err := os.ReadFile(filepath.Join(tree, "modules.builtin"))
	if err != nil {
		return nil, err
	}

	var order []module
	var visit func(name string) error
	visit = func(name string) error {
		name = canonical(name)
		if slices.ContainsFunc(order, func(m module) bool { return m.name == name }) {
			return nil
		}
		path, found := files[name]
		if !found {
			if strings.Contains(canonical(string(builtin)), "/"+name+".ko") {
				return nil
			}
			return fmt.Errorf("kernel %s has no module %s", k.release, name)
		}
		data, err := readModule(path)
		if err != nil {
			return err
		}
		depends, err := dependencies(data)
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		for _, d := range depends {
			if err := visit(d); err != nil {
				return err
			}
		}
		order = append(order, module{name, data})
		return nil
	}
	for _, name := range wanted {
		if err := visit(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// canonical spells a module's name as the kernel does: files may have dashes.
func canonical(name string) string { return strings.ReplaceAll(name, "-", "_") }

func readModule(path string) ([]byte, error) {
	if !strings.HasSuffix(path, ".xz") {
		return os.ReadFile(path)
	}
	data, err := exec.Command("xz", "-dc", path).Output()
	if err != nil {
		return nil, fmt.Errorf("decompress %s: %w", path, err)
	}
	return data, nil
}

// dependencies reads "depends=a,b" from a module's .modinfo section.
func dependencies(data []byte) ([]string, error) {
	file, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	section := file.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("no .modinfo section")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	for _, entry := range strings.Split(string(info), "\x00") {
		if list, found := strings.CutPrefix(entry, "depends="); found && list != "" {
			return strings.Split(list, ","), nil
		}
	}
	return nil, nil
}
