package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// unusable are ways in which a file cannot be used, whoever reads it, and the marks of the second names.
var unusable = map[string]struct {
	mark string
	put  func(path string) error
}{
	"half a file":     {damagedFlaw.mark, func(path string) error { return os.WriteFile(path, []byte("{\"format\":"), 0o600) }},
	"another version": {formatFlaw.mark, func(path string) error { return os.WriteFile(path, []byte("{\"format\":9,\"owner\":\"file\"}"), 0o600) }},
	"a directory":     {unreadFlaw.mark, func(path string) error { return os.MkdirAll(filepath.Join(path, "somebody's"), 0o700) }},
	"a loop of links": {unreadFlaw.mark, func(path string) error { return os.Symlink(path, path) }},
}

// A start goes on without files that it can do without, whatever is wrong with them: they are kept
// aside, and their places are free again.
func TestStartGoesOnWithoutWhatItCannotUse(t *testing.T) {
	for name, row := range unusable {
		for _, file := range []string{"file.json", "cli.before", overridesFile, string(RunningDirector)} {
			if row.mark == formatFlaw.mark && !strings.Contains(file, ".") {
				continue // it has no format
			}
			t.Run(name+" as "+file, func(t *testing.T) {
				dir := t.TempDir()
				f := openFile(t, dir)
				whole := update(t, f, Replace("cli", []model.Service{service("b", 2, 1)}, count))
				f.Close()
				path := filepath.Join(dir, file)
				if err := errors.Join(os.RemoveAll(path), row.put(path)); err != nil {
					t.Fatal(err)
				}
				f, err := OpenFile(dir, OwnerFile)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				_, err = f.Overrides()
				_, _, notRead := LoadRunning(dir, RunningDirector)
				if err != nil {
					t.Error(err)
				}
				told := notRead
				for _, bad := range f.Damaged() {
					told = errors.Join(told, bad)
				}
				if aside := path + row.mark + "1"; told == nil || !strings.Contains(told.Error(), "it is now "+aside) {
					t.Errorf("it is told that %v, want that it is %s", told, aside)
				} else if kept := Aside(dir); len(kept) != 1 || kept[0].Path != aside || kept[0].Fix == "" {
					t.Errorf("kept aside is %+v, want %s", kept, aside)
				}
				if diff := difference(whole, read(t, f)); diff != "" {
					t.Error(diff)
				}
				update(t, f, Replace(OwnerFile, []model.Service{service("a", 1, 1)}, count))
				update(t, f, Replace("cli", []model.Service{service("b", 2, 2)}, count))
				if err := errors.Join(f.SaveOverrides(nil), SaveRunning(dir, RunningDirector, Running{})); err != nil {
					t.Error(err)
				}
				if _, err := os.ReadFile(path); err != nil {
					t.Errorf("its place is not free: %v", err)
				}
			})
		}
	}
}

// A file that could not be moved aside is not overwritten later.
func TestWhatStaysInPlaceIsNotOverwritten(t *testing.T) {
	dir := t.TempDir()
	f := openFile(t, dir)
	path := filepath.Join(dir, "file.json")
	stays := &CorruptError{File: path, Problem: &formatError{9}}
	if err := unusable["another version"].put(path); err != nil {
		t.Fatal(err)
	}
	for n := 1; n < 100; n++ { // no second name is free
		writeText(t, fmt.Sprintf("%s%s%d", path, formatFlaw.mark, n), nil)
	}
	before := readText(t, path)
	if f.goWithout(stays) || f.InPlace() == nil || !strings.Contains(f.InPlace().Error(), path) {
		t.Fatalf("the file is in its place, and it is told that %v", f.InPlace())
	}
	change := Replace(OwnerFile, []model.Service{service("a", 1, 1)}, count)
	if _, err := f.Update(t.Context(), change); err == nil || string(readText(t, path)) != string(before) {
		t.Errorf("it is overwritten: %v", err)
	}
	if err := os.Remove(path + formatFlaw.mark + "7"); err != nil {
		t.Fatal(err)
	}
	update(t, f, change)
	if kept := readText(t, path+formatFlaw.mark+"7"); string(kept) != string(before) || f.InPlace() != nil {
		t.Errorf("kept aside is %q, and it is told that %v", kept, f.InPlace())
	}
}

// So it is with the file that runs and the group's last known state, whatever is wrong with them.
func TestOtherStateInPlaceIsNotOverwritten(t *testing.T) {
	dir := t.TempDir()
	c := &cache{dir: filepath.Join(dir, "group")}
	roots, segments := history(t, many(12))
	if err := c.save("/weir", roots[0], segments); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := c.load("/weir"); err != nil {
		t.Fatal(err)
	}
	for path, save := range map[string]func() error{
		filepath.Join(dir, string(RunningDirector)): func() error { return SaveRunning(dir, RunningDirector, Running{File: "x"}) },
		c.rootFile(): func() error {
			if c.stays == nil {
				_, _, _, _ = c.load("/weir") // as the start does; the error is that of the file
			}
			return c.save("/weir", roots[0], segments)
		},
	} {
		before := "{half"
		writeText(t, path, []byte(before))
		for n := 1; n < 100; n++ { // no second name is free
			writeText(t, fmt.Sprintf("%s%s%d", path, damagedFlaw.mark, n), nil)
		}
		if err := save(); err == nil || !strings.Contains(err.Error(), "not overwritten") || string(readText(t, path)) != before {
			t.Errorf("%s is overwritten: %v", path, err)
		}
		aside := path + damagedFlaw.mark + "7"
		if err := os.Remove(aside); err != nil {
			t.Fatal(err)
		}
		if err := save(); err != nil || string(readText(t, path)) == before || string(readText(t, aside)) != before {
			t.Errorf("%s is not kept aside, or its place is not free: %v", path, err)
		}
	}
}

// A set that a start needs and cannot read stays, and the error says what to do.
func TestSetThatCannotBeReadIsRefused(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "cli.json")
	if err := os.Symlink(path, path); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err := OpenFile(dir)
		if err == nil || !strings.Contains(err.Error(), "the state file cannot be read: open "+path) || !strings.Contains(err.Error(), "make it readable") {
			t.Errorf("opened with %v", err)
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 2 {
		t.Errorf("there are %v, want the set and the lock", entries)
	}
}

// A last known state that another version wrote, or that cannot be read, is no state of another
// group: it is told, and kept aside.
func TestUnusableCacheIsMovedAside(t *testing.T) {
	for name, row := range unusable {
		t.Run(name, func(t *testing.T) {
			c := &cache{dir: filepath.Join(t.TempDir(), "group")}
			roots, segments := history(t, many(12))
			if err := c.save("/weir", roots[0], segments); err != nil {
				t.Fatal(err)
			}
			put := row.put
			if row.mark == formatFlaw.mark {
				later := roots[0]
				later.Format = 9
				put = func(string) error { return c.save("/weir", later, segments) }
			} else if err := os.Remove(c.rootFile()); err != nil {
				t.Fatal(err)
			}
			if err := put(c.rootFile()); err != nil {
				t.Fatal(err)
			}
			aside := c.rootFile() + row.mark + "1"
			if _, _, found, err := c.load("/weir"); found || err == nil || !strings.Contains(err.Error(), "it is now "+aside) {
				t.Errorf("loaded: %v, %v, want that it is %s", found, err, aside)
			}
			if err := c.save("/weir", roots[0], segments); err != nil {
				t.Fatal(err)
			}
			c.want(t, roots[0], segments)
			if _, err := os.Lstat(aside); err != nil {
				t.Error(err)
			}
		})
	}
}
