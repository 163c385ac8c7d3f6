package store

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.io/weir/internal/model"
)

// Files and directories that an operator leaves beside the sets do not keep a director from
// starting, are left alone, and are known as strays by the process that runs and by the next one.
func TestStraysDoNotStopAStart(t *testing.T) {
	dir := t.TempDir()
	f := openFile(t, dir)
	whole := update(t, f, Replace("cli", []model.Service{service("a", 1, 1)}, count))
	var strays []string
	for _, name := range []string{"cli (copy).json", "cli-old.json", "saved.json"} {
		path := filepath.Join(dir, name)
		if strays = append(strays, path); name == "saved.json" {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
			continue
		}
		writeText(t, path, readText(t, filepath.Join(dir, "cli.json")))
	}
	for _, when := range []string{"while the process runs", "after a start"} {
		if diff := cmp.Diff(strays, f.Strays()); diff != "" {
			t.Errorf("%s the strays are not (-want +got):\n%s", when, diff)
		}
		if diff := difference(whole, read(t, f)); diff != "" {
			t.Errorf("%s the state is another:\n%s", when, diff)
		}
		f.Close()
		f = openFile(t, dir)
	}
	if there, _ := filepath.Glob(filepath.Join(dir, "*.json*")); len(there) != 4 {
		t.Errorf("there are %q, want the set and the strays", there)
	}
	if err := os.Remove(filepath.Join(dir, "cli.json")); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, err := OpenFile(dir); err == nil {
		t.Error("a set whose file was renamed is passed over: its services are lost")
	}
}
