package store

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// obstruct lets a file of a directory not be written, whoever writes it, until the function that it
// returns is called.
func obstruct(t *testing.T, dir, name string) (clear func()) {
	t.Helper()
	at := filepath.Join(dir, temporary+name)
	if err := os.MkdirAll(filepath.Join(at, "obstacle"), 0o700); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.RemoveAll(at); err != nil {
			t.Fatal(err)
		}
	}
}

// Changes that somebody makes in the directory of a running process are found, and put right
// from the process's memory.
func TestDirectoryIsWrittenAgain(t *testing.T) {
	for name, row := range map[string]struct {
		hand func(dir string) error
		want []string
	}{
		"a set removed": {func(dir string) error { return os.Remove(filepath.Join(dir, "cli.json")) }, []string{"cli.json is gone"}},
		"a set changed": {func(dir string) error { return os.WriteFile(filepath.Join(dir, "cli.json"), []byte("{}"), 0o600) }, []string{"cli.json was changed by somebody else"}},
		"a set emptied": {func(dir string) error { return os.Truncate(filepath.Join(dir, "cli.json"), 0) }, []string{"cli.json was changed by somebody else"}},
		"another's set": {func(dir string) error {
			return os.Rename(filepath.Join(dir, "app.json"), filepath.Join(dir, "cli.json"))
		}, []string{"app.json is gone", "cli.json was changed"}},
		"the lock":        {func(dir string) error { return os.Remove(filepath.Join(dir, lockFile)) }, []string{"lock is gone"}},
		"the overrides":   {func(dir string) error { return os.Remove(filepath.Join(dir, overridesFile)) }, []string{"overrides is gone"}},
		"all of it":       {os.RemoveAll, []string{"lock is gone", "app.json is gone", "cli.json is gone", "overrides is gone"}},
		"moved elsewhere": {func(dir string) error { return os.Rename(dir, dir+".old") }, []string{"lock is gone", "app.json is gone", "cli.json is gone", "overrides is gone"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "state")
			f := openFile(t, dir)
			update(t, f, Replace("app", []model.Service{service("a", 1, 1)}, count))
			want := update(t, f, Replace("cli", []model.Service{service("b", 2, 1)}, count))
			overrides := []model.BackendOverride{{Service: "a", Backend: "x", Override: model.Override{State: model.Draining, By: "ops"}}}
			if err := f.SaveOverrides(overrides); err != nil {
				t.Fatal(err)
			}
			if amiss := f.Amiss(); amiss != "" {
				t.Fatalf("as it was written, it says %q", amiss)
			}
			if err := row.hand(dir); err != nil {
				t.Fatal(err)
			}
			for _, words := range row.want {
				if amiss := f.Amiss(); !strings.Contains(amiss, words) {
					t.Errorf("it says %q, want %q", amiss, words)
				}
			}
			if err := f.WriteAgain(); err != nil {
				t.Fatal(err)
			}
			if amiss := f.Amiss(); amiss != "" {
				t.Errorf("written again, it says %q", amiss)
			}
			if _, err := OpenFile(dir); !errors.Is(err, ErrInUse) {
				t.Errorf("another process may have it: %v", err)
			}
			f.Close()
			again := openFile(t, dir)
			if d := difference(want, read(t, again)); d != "" {
				t.Errorf("it comes back otherwise:\n%s", d)
			}
			if list, err := again.Overrides(); err != nil || len(list) != 1 || list[0].By != "ops" {
				t.Errorf("the overrides are %+v (%v)", list, err)
			}
		})
	}
}

// A directory that another process has taken after somebody removed it is that one's.
func TestDirectoryOfAnotherIsLeft(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	f := openFile(t, dir)
	update(t, f, Replace("cli", []model.Service{service("a", 1, 1)}, count))
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	openFile(t, dir)
	if err := f.WriteAgain(); !errors.Is(err, ErrInUse) {
		t.Errorf("it says %v, want %v", err, ErrInUse)
	}
	if _, err := os.Stat(filepath.Join(dir, "cli.json")); err == nil {
		t.Error("it has written there")
	}
}

// A change that is held is there while nothing can be written, and written when that can be.
func TestHeldChange(t *testing.T) {
	dir := t.TempDir()
	f := openFile(t, dir)
	update(t, f, Replace("cli", []model.Service{service("a", 1, 1)}, count))
	clearSet, clearOverrides := obstruct(t, dir, "cli.json"), obstruct(t, dir, overridesFile)
	next := Replace("cli", []model.Service{service("a", 1, 2)}, count)
	if _, err := f.Update(t.Context(), next); err == nil {
		t.Fatal("the file could be written")
	}
	held, err := f.Hold(t.Context(), next)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.SaveOverrides([]model.BackendOverride{{Service: "a"}}); err == nil {
		t.Fatal("the overrides could be written")
	}
	if amiss := f.Amiss(); !strings.Contains(amiss, "cli.json is not written") || !strings.Contains(amiss, "overrides is not written") {
		t.Errorf("it says %q", amiss)
	}
	if err := f.WriteAgain(); err == nil {
		t.Error("it says that it has written what it cannot")
	}
	clearSet()
	clearOverrides()
	if err := f.WriteAgain(); err != nil || f.Amiss() != "" {
		t.Errorf("with room it says %v, %q", err, f.Amiss())
	}
	f.Close()
	if d := difference(held, read(t, openFile(t, dir))); d != "" {
		t.Errorf("it comes back otherwise:\n%s", d)
	}
}

// A file that cannot be written does not keep the others from being written again.
func TestOneFileDoesNotHinderOthers(t *testing.T) {
	dir := t.TempDir()
	f := openFile(t, dir)
	for i, owner := range []string{"app", "cli"} {
		update(t, f, Replace(owner, []model.Service{service(owner, byte(i+1), 1)}, count))
		if err := os.Remove(filepath.Join(dir, owner+suffix)); err != nil {
			t.Fatal(err)
		}
	}
	clear := obstruct(t, dir, "app.json")
	if err := f.WriteAgain(); err == nil || f.Amiss() != "app.json is gone" {
		t.Errorf("it says %v, and %q", err, f.Amiss())
	}
	clear()
	if err := f.WriteAgain(); err != nil || f.Amiss() != "" {
		t.Errorf("with room it says %v, %q", err, f.Amiss())
	}
}
