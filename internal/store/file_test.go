package store

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"weir.io/weir/internal/model"
)

func openFile(t *testing.T, dir string) *File {
	t.Helper()
	f, err := OpenFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func update(t *testing.T, f *File, change Change) State {
	t.Helper()
	s, err := f.Update(t.Context(), change)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func read(t *testing.T, f *File) State {
	t.Helper()
	s, err := f.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// difference compares states by value; addresses have no exported fields.
func difference(want, got State) string {
	return cmp.Diff(want, got, cmpopts.EquateComparable(model.Service{}.VIP, model.Member{}.Backend), cmpopts.EquateEmpty())
}

// Another process reads all of what was written.
func TestFileComesBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "weir")
	f := openFile(t, dir)
	if s := read(t, f); s.Revision != 0 || len(s.Sets) != 0 {
		t.Errorf("a new store has %v", s)
	}
	update(t, f, Replace("cli", []model.Service{service("a", 1, 2), service("b", 2, 0)}, count))
	update(t, f, Replace("kube", []model.Service{service("c", 3, 300)}, count))
	update(t, f, Replace("cli", []model.Service{service("a", 1, 3)}, count))
	want := update(t, f, Replace("octavia", nil, count))
	if want.Revision != 4 || len(want.Documents()) != 2 {
		t.Errorf("after four changes there are revision %d and %d services, want 4 and 2", want.Revision, len(want.Documents()))
	}
	f.Close()
	if diff := difference(want, read(t, openFile(t, dir))); diff != "" {
		t.Errorf("the state differs after opening the store again (-want +got):\n%s", diff)
	}
}

func TestFileIsPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "weir")
	update(t, openFile(t, dir), Replace("cli", []model.Service{service("a", 1, 1)}, count))
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		info, statErr := e.Info()
		if statErr == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("others may use %s: %v", path, info.Mode())
		}
		return errors.Join(err, statErr)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A change that changes nothing writes nothing; one that is refused neither.
func TestFileKeepsWhatIsNotChanged(t *testing.T) {
	dir := t.TempDir()
	f := openFile(t, dir)
	before := update(t, f, Replace("cli", []model.Service{service("a", 1, 1)}, count))
	file, _ := os.Stat(filepath.Join(dir, "cli.json"))
	keep := func(log model.Log, _ model.Service) model.Log { return log }
	for name, change := range map[string]Change{
		"the same set":    Replace("cli", []model.Service{service("a", 1, 1)}, keep),
		"nothing to trim": Trim(newestOnly),
		"a conflict":      Replace("kube", []model.Service{service("a", 1, 1)}, count),
		"its own error":   func(State) (State, error) { return State{}, errors.New("no") },
		"two owners": func(s State) (State, error) {
			return s.with("x", Set{Documents: before.Sets["cli"].Documents}).with("cli", Set{}), nil
		},
		"a set that goes": func(State) (State, error) { return State{}, nil },
	} {
		_, err := f.Update(t.Context(), change)
		if want := name == "the same set" || name == "nothing to trim"; want != (err == nil) {
			t.Errorf("%s: error %v", name, err)
		}
		if diff := difference(before, read(t, f)); diff != "" {
			t.Errorf("%s: the state changed:\n%s", name, diff)
		}
		now, err := os.Stat(filepath.Join(dir, "cli.json"))
		if err != nil || !os.SameFile(file, now) {
			t.Errorf("%s: the file was written again", name)
		}
	}
}

// Trimming is a change of the logs of all owners.
func TestFileTrimsAllOwners(t *testing.T) {
	dir := t.TempDir()
	f := openFile(t, dir)
	for range 3 {
		update(t, f, Replace("cli", []model.Service{service("a", 1, 1)}, count))
		update(t, f, Replace("kube", []model.Service{service("b", 2, 1)}, count))
	}
	update(t, f, Trim(newestOnly))
	f.Close()
	for _, d := range read(t, openFile(t, dir)).Documents() {
		if len(d.Log.Generations) != 1 || d.Log.Generations[0].Number != 3 {
			t.Errorf("%s has the log %v, want generation 3 alone", d.Service.Name, d.Log)
		}
	}
}

// A power cut leaves some bytes of the new file under its other name, or all under its
// own: whichever byte was the last, the store opens with the old state or the new.
func TestPowerCutLeavesOldOrNew(t *testing.T) {
	dir := t.TempDir()
	f := openFile(t, dir)
	old := update(t, f, Replace("cli", []model.Service{service("a", 1, 1)}, count))
	before := readText(t, filepath.Join(dir, "cli.json"))
	latest := update(t, f, Replace("cli", []model.Service{service("a", 1, 2), service("b", 2, 1)}, count))
	after := readText(t, filepath.Join(dir, "cli.json"))
	f.Close()
	for n := range len(after) + 1 {
		writeText(t, filepath.Join(dir, "cli.json"), before)
		writeText(t, filepath.Join(dir, temporary+"cli.json"), after[:n])
		f := openFile(t, dir)
		if diff := difference(old, read(t, f)); diff != "" {
			t.Fatalf("cut at byte %d the state is not the old one:\n%s", n, diff)
		}
		f.Close()
	}
	writeText(t, filepath.Join(dir, "cli.json"), after)
	if diff := difference(latest, read(t, openFile(t, dir))); diff != "" {
		t.Errorf("after the rename the state is not the new one:\n%s", diff)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, temporary+"*")); len(left) > 0 {
		t.Errorf("unfinished files are left: %q", left)
	}
}

// A file that lost its end (a disk that lied about fsync) is never taken for a
// smaller state.
func TestTruncatedFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	f := openFile(t, dir)
	whole := update(t, f, Replace("cli", []model.Service{service("a", 1, 1), service("b", 2, 1)}, count))
	text := readText(t, filepath.Join(dir, "cli.json"))
	f.Close()
	for n := range len(text) {
		writeText(t, filepath.Join(dir, "cli.json"), text[:n])
		f, err := OpenFile(dir)
		if err == nil {
			if diff := difference(whole, read(t, f)); diff != "" {
				t.Fatalf("cut at byte %d the file is read as another state:\n%s", n, diff)
			}
			f.Close()
			continue
		}
		var corrupt *CorruptError
		if !errors.As(err, &corrupt) || corrupt.File != filepath.Join(dir, "cli.json") {
			t.Fatalf("cut at byte %d: %v", n, err)
		}
		line, column := 1+bytes.Count(text[:n], []byte("\n")), n-bytes.LastIndexByte(text[:n], '\n')
		if corrupt.Line != line || corrupt.Column != column {
			t.Errorf("cut at byte %d, line %d column %d: %v", n, line, column, err)
		}
		os.Remove(corrupt.Aside)
	}
}

func TestDamagedFileIsRefusedWithItsPosition(t *testing.T) {
	const a = `{"format":1,"owner":"cli","revision":3,"documents":[` + "\n"
	const good = `{"service":{"name":"a","vip":"192.0.2.1","protocol":"tcp","port":"80","mode":"nat","backends":[]},"log":{"generations":[]}}`
	for name, test := range map[string]struct{ text, want string }{
		"zeros":          {strings.Repeat("\x00", 100), "cli.json:1:1: "},
		"nothing":        {"", "cli.json:1:1: the state file is damaged: the file ends too early"},
		"bad JSON":       {a + good + ",\n" + strings.Replace(good, `"name"`, `"name`, 1) + "\n]}", "cli.json:3:20: "},
		"bad value":      {a + good + ",\n  " + strings.Replace(good, "tcp", "tpc", 1) + "\n]}", "cli.json:3:3: "},
		"unknown key":    {a + strings.Replace(good, "mode", "node", 1) + "\n]}", "cli.json:2:1: "},
		"something else": {`[]`, "cli.json:1:1: "},
		"other owner":    {strings.Replace(a, "cli", "kube", 1) + good + "\n]}", `it is the set of owner "kube"`},
		"newer format":   {strings.Replace(a, "1", "2", 1) + good + "\n]}", "cli.json: the state file cannot be used: it has format 2, which another version of weir has written; this version reads format 1; start the version"},
		"twice":          {a + good + "\n]}\n" + a + good + "\n]}", "cli.json:4:1: the state file is damaged: something follows the end"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "cli.json")
			writeText(t, path, []byte(test.text))
			for range 2 { // a supervisor that starts it again gets the same
				_, err := OpenFile(dir)
				var corrupt *CorruptError
				if !errors.As(err, &corrupt) || !strings.Contains(err.Error(), test.want) {
					t.Fatalf("opened with %v, want %s", err, test.want)
				}
				if name == "newer format" {
					if kept := readText(t, path); string(kept) != test.text || corrupt.Aside != "" {
						t.Errorf("of another version's file %q is left, and its second name is %q", kept, corrupt.Aside)
					}
					continue
				}
				if kept := readText(t, corrupt.Aside); string(kept) != test.text {
					t.Errorf("kept aside is %q, want what was there", kept)
				}
			}
			if name == "newer format" {
				return
			}
			if names, _ := filepath.Glob(filepath.Join(dir, "cli.json*")); len(names) != 2 {
				t.Errorf("there are %q, want the file and its second name", names)
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			update(t, openFile(t, dir), Replace("cli", nil, count))
			if kept := readText(t, path+".corrupt-1"); string(kept) != test.text {
				t.Error("the damaged file is lost once its owner has another")
			}
		})
	}
}

// If the services are also written elsewhere, a damaged file costs only the logs: it is
// moved aside, and the directory opens.
func TestDamagedFileOfDispensableSetIsMovedAside(t *testing.T) {
	dir := t.TempDir()
	f := openFile(t, dir)
	update(t, f, Replace(OwnerFile, []model.Service{service("a", 1, 1)}, count))
	whole := update(t, f, Replace("cli", []model.Service{service("b", 2, 1)}, count))
	f.Close()
	path := filepath.Join(dir, "file.json")
	text := readText(t, path)
	writeText(t, path, text[:len(text)/2])
	f, err := OpenFile(dir, OwnerFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if bad := f.Damaged(); len(bad) != 1 || !strings.Contains(bad[0].Error(), "file.json:2:") || !strings.Contains(bad[0].Error(), "it is now "+bad[0].Aside) {
		t.Errorf("what was moved aside is told as %v", bad)
	} else if kept := readText(t, bad[0].Aside); string(kept) != string(text[:len(text)/2]) {
		t.Errorf("kept aside is %q", kept)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the damaged file is still in its place: %v", err)
	}
	want := State{Revision: whole.Revision, Sets: map[string]Set{"cli": whole.Sets["cli"]}}
	if diff := difference(want, read(t, f)); diff != "" {
		t.Error(diff)
	}
	writeText(t, filepath.Join(dir, "cli.json"), text[:10])
	f.Close()
	if _, err := OpenFile(dir, OwnerFile); err == nil {
		t.Error("a damaged file whose services are nowhere else is passed over")
	}
}

// A directory has one process: a second director would overwrite the first one's.
func TestFileIsOfOneProcess(t *testing.T) {
	dir := t.TempDir()
	if os.Getenv("WEIR_STORE_TEST") != "" {
		_, err := OpenFile(os.Getenv("WEIR_STORE_TEST"))
		if errors.Is(err, ErrInUse) {
			os.Exit(7)
		}
		return
	}
	other := func() int {
		cmd := exec.Command(os.Args[0], "-test.run=^TestFileIsOfOneProcess$")
		cmd.Env = append(os.Environ(), "WEIR_STORE_TEST="+dir)
		_ = cmd.Run()
		return cmd.ProcessState.ExitCode()
	}
	f := openFile(t, dir)
	if code := other(); code != 7 {
		t.Errorf("a second process ends with %d, want its refusal", code)
	}
	f.Close()
	if code := other(); code != 0 {
		t.Errorf("after the first has closed the store, another ends with %d", code)
	}
}

func TestFileThatCannotBeWrittenChangesNothing(t *testing.T) {
	dir := t.TempDir()
	f := openFile(t, dir)
	before := update(t, f, Replace("cli", []model.Service{service("a", 1, 1)}, count))
	// Something that is in the way stops root, too.
	if err := os.Mkdir(filepath.Join(dir, temporary+"cli.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, temporary+"cli.json", "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Update(t.Context(), Replace("cli", nil, count)); err == nil {
		t.Error("a change that could not be written is no error")
	}
	if diff := difference(before, read(t, f)); diff != "" {
		t.Errorf("a change that could not be written is in the state:\n%s", diff)
	}
}

func TestWatchEndsWithTheLastState(t *testing.T) {
	f := openFile(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	states := f.Watch(ctx)
	if s := <-states; s.Revision != 0 {
		t.Errorf("the first state has revision %d, want 0", s.Revision)
	}
	const last = 100
	go func() {
		for range last {
			_, _ = f.Update(context.Background(), Replace("cli", []model.Service{service("a", 1, 1)}, count))
		}
	}()
	deadline := time.After(patience)
	for revision := uint64(0); revision < last; {
		select {
		case s := <-states:
			if s.Revision <= revision {
				t.Fatalf("revision %d after %d", s.Revision, revision)
			}
			revision = s.Revision
		case <-deadline:
			t.Fatalf("revision %d is the last that came, want %d", revision, last)
		}
	}
	cancel()
	for range states { // it ends, once the channel is closed
	}
}

func readText(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func writeText(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// That a set's logs are given is part of it: the next process leaves them alone, too.
func TestGivenSetComesBack(t *testing.T) {
	dir := t.TempDir()
	f := openFile(t, dir)
	update(t, f, Replace("cli", nil, nil))
	want := update(t, f, Give("kube.edge.0", []Document{{Service: service("a", 1, 2), Log: model.Log{Generations: []model.Generation{{Number: 7, Slots: 1021, Affinity: model.AffinitySourceIP}}}}}))
	trimmed := update(t, f, Trim(func(model.Log, model.Service) model.Log { return model.Log{} }))
	if trimmed.Revision != want.Revision || len(trimmed.Tended().Sets) != 1 {
		t.Errorf("trimming makes of it %+v", trimmed)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	got := read(t, openFile(t, dir))
	if diff := difference(want, got); diff != "" || !got.Sets["kube.edge.0"].Given || got.Sets["cli"].Given {
		t.Errorf("the next process reads %s", diff)
	}
	if taken := update(t, openFile(t, t.TempDir()), Replace("kube.edge.0", nil, nil)); taken.Sets["kube.edge.0"].Given {
		t.Error("a set that is put without logs has given ones")
	}
}
