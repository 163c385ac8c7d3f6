package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// The text of a version of the file that does not run is not kept as the one that ran, even if an
// earlier version is tried again meanwhile, and runs.
func TestTextThatDidNotRunIsNotKept(t *testing.T) {
	dir := t.TempDir()
	d := New(Deps{State: dir, Running: store.RunningDirector, Log: slog.New(slog.DiscardHandler)})
	kept := func() string {
		running, _, err := store.LoadRunning(dir, store.RunningDirector)
		if err != nil {
			t.Fatal(err)
		}
		return running.Text
	}
	version := func(name string) (c model.Config) {
		c.Services = []model.Service{{Name: name}}
		return c
	}
	d.Offer(version("ran"), []byte("ran"))
	d.NoteAgain(version("ran"), nil)
	d.Offer(version("refused"), []byte("refused"))
	d.NoteAgain(version("ran"), nil)
	if kept := kept(); kept != "ran" {
		t.Errorf("%q is kept, and the version that runs is another", kept)
	}
	d.NoteAgain(version("refused"), nil)
	if kept := kept(); kept != "refused" {
		t.Errorf("the version that runs in the end is not kept, but %q", kept)
	}
}

// The time at which a configuration was applied is that of a version of the file: what else changes what
// runs, a drain for example, has a time of its own.
func TestAppliedIsTheTimeOfTheFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(Deps{Running: store.RunningDirector, Log: slog.New(slog.DiscardHandler)})
		later := func(what func()) (applied, changed bool) {
			before := d.Info()
			time.Sleep(time.Second) // fake time
			what()
			now := d.Info()
			return !now.Applied.Equal(before.Applied), !now.Changed.Equal(before.Changed)
		}
		first, second := model.Config{}, model.Config{Services: []model.Service{{Name: "web"}}}
		for _, test := range []struct {
			name             string
			what             func()
			applied, changed bool
		}{
			{"a version is offered", func() { d.Offer(first, nil) }, false, false},
			{"the kernel takes it", func() { d.NoteSet(nil) }, false, true},
			{"it runs", func() { d.KeepOffered(first) }, true, false},
			{"it still runs", func() { d.KeepOffered(first) }, false, false},
			{"a backend is drained", func() { d.NoteSet(nil) }, false, true},
			{"the kernel refuses a change", func() { d.NoteSet(errors.New("no room")) }, false, false},
			{"another version does not run yet", func() { d.Offer(second, nil); d.KeepOffered(first) }, false, false},
			{"it is tried again, and runs", func() { d.NoteAgain(second, nil) }, true, true},
			{"the same version comes again", func() { d.Offer(second, nil); d.NoteAgain(second, nil) }, true, true},
		} {
			if applied, changed := later(test.what); applied != test.applied || changed != test.changed {
				t.Errorf("when %s, the time of the file changes: %t, that of what runs: %t", test.name, applied, changed)
			}
		}
	})
}

// The error of a process that cannot open its tables names the remedy, even if a library kept only
// the text of the kernel's error.
func TestNotOpenedNamesTheRemedy(t *testing.T) {
	for remedy, err := range map[string]error{
		"LimitNOFILE=":            fmt.Errorf("load director program: can't clone map: can't dup fd: %v", unix.EMFILE),
		"(LimitNOFILE=)":          fmt.Errorf("create map: %w", unix.EMFILE),
		"MemoryMax=":              fmt.Errorf("create map: %w", unix.ENOMEM),
		"remount,rw /sys/fs/bpf":  fmt.Errorf("pin: %w", unix.EROFS),
		"the file system is full": fmt.Errorf("pin: %w", unix.ENOSPC),
		"goes on":                 errors.New("something else"),
	} {
		if got := NotOpened("/sys/fs/bpf/weir", err).Error(); !strings.Contains(got, remedy) {
			t.Errorf("%v is said as %q, which does not name %q", err, got, remedy)
		}
	}
}

// A service whose flows have no room is named, with what that means, for each of the tables.
func TestCrowdedTablesAreExplained(t *testing.T) {
	for _, table := range []string{model.FlowMemoryTable, model.NATTable, model.UDPFlowsTable, model.PodsTable, model.RedirectTable} {
		found := CrowdProblems([]model.CrowdedService{{Service: "web", Table: table, Flows: 7}})
		if len(found) != 1 || found[0].Part != "web" || !strings.HasPrefix(found[0].Text, "service web: ") || len(found[0].Text) < 40 || found[0].Fix == "" {
			t.Errorf("of %s it is said: %+v", table, found)
		}
	}
}

// Some code tells every kind of problem: what fails there is not only in the log.
func TestEveryKindOfProblemIsTold(t *testing.T) {
	var code strings.Builder
	files, err := filepath.Glob("../*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		code.Write(text)
	}
	for _, row := range model.ProblemKinds {
		name := "Problem" + strings.ToUpper(string(row.Kind[:1])) + string(row.Kind[1:])
		if row.Kind == model.ProblemBGP || row.Kind == model.ProblemBFD || row.Kind == model.ProblemAPI {
			name = "Problem" + strings.ToUpper(string(row.Kind))
		}
		if !strings.Contains(code.String(), "model."+name+",") {
			t.Errorf("nobody tells problems of kind %s", row.Kind)
		}
	}
}

// The warning of former names says each field once, and a line only of the text that the file has: not
// if the version that was kept runs instead, and nothing when a bad version has come.
func TestFormerNamesAreWarnedOfByTheFileThatIs(t *testing.T) {
	d := New(Deps{File: "weir.yaml", State: t.TempDir(), Running: store.RunningDirector, Log: slog.New(slog.DiscardHandler)})
	version := model.Config{FormerKeys: []model.FormerKey{{Line: 7, Field: "services[0].drain", Now: "retention"}}}
	const says = "services[0].drain: is called retention now; the former name is still read"
	for _, step := range []struct {
		what string
		do   func()
		want string
	}{
		{"it is offered", func() { d.Offer(version, []byte("text")) }, "weir.yaml:7: " + says},
		{"the kept version runs", func() { d.Offer(version, nil) }, "weir.yaml: " + says},
		{"a bad version comes", func() { d.change(config.Change{Err: errors.New("bad")}, nil) }, ""},
	} {
		step.do()
		got := ""
		for _, p := range d.Problems.Of(model.ProblemFile) {
			if p.Part == "former names" {
				got = p.Text
			}
		}
		if got != step.want {
			t.Errorf("when %s, the warning is %q, want %q", step.what, got, step.want)
		}
	}
	if version.FormerKeys[0].Line != 7 {
		t.Error("the version itself has lost its lines")
	}
}

// Versions that come within the first one's coalesce are one change. A bad one among them is listed, and
// keeps none of the others from being applied.
func TestVersionsThatComeTogetherAreOneChange(t *testing.T) {
	const coalesce = model.Duration(50 * time.Millisecond)
	good := func(name string) config.Change {
		return config.Change{Config: model.Config{Coalesce: coalesce, Services: []model.Service{{Name: name}}}}
	}
	bad := config.Change{Err: errors.New("bad")}
	for _, test := range []struct {
		name    string
		come    []config.Change
		applied []string
		problem bool
	}{
		{"one", []config.Change{good("a")}, []string{"a"}, false},
		{"several", []config.Change{good("a"), good("b"), good("c")}, []string{"c"}, false},
		{"a bad one last", []config.Change{good("a"), good("b"), bad}, []string{"b"}, true},
		{"a bad one between", []config.Change{good("a"), bad, good("b")}, []string{"b"}, false},
		{"only a bad one", []config.Change{bad}, nil, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := New(Deps{File: "weir.yaml", State: t.TempDir(), Running: store.RunningDirector, Log: slog.New(slog.DiscardHandler)})
				changes := make(chan config.Change)
				var applied []string
				go d.Follow(t.Context(), changes, func(c model.Config) error {
					applied = append(applied, c.Services[0].Name)
					time.Sleep(time.Second) // in fake time: the engine is busy
					return nil
				})
				for _, c := range test.come {
					changes <- c
				}
				time.Sleep(time.Minute) // in fake time: all is applied by then
				synctest.Wait()
				if !slices.Equal(applied, test.applied) {
					t.Errorf("applied %q, want %q", applied, test.applied)
				}
				if got := len(d.Problems.Of(model.ProblemFile)) > 0; got != test.problem {
					t.Errorf("a problem is listed: %v, want %v", got, test.problem)
				}
				close(changes)
			})
		})
	}
}

// TestIsMissing: only the configuration itself is missing, not a file that it names.
func TestIsMissing(t *testing.T) {
	const file = "/etc/weir/weir.yaml"
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"the file":              {fmt.Errorf("read: %w", &fs.PathError{Op: "open", Path: file, Err: fs.ErrNotExist}), true},
		"the file, at a start":  {missingFile{file}, true},
		"a file that it names":  {fmt.Errorf("%s:3: password: %w", file, &fs.PathError{Op: "open", Path: "/etc/weir/keys/bgp", Err: fs.ErrNotExist}), false},
		"the file, not allowed": {&fs.PathError{Op: "open", Path: file, Err: fs.ErrPermission}, false},
		"nothing":               {nil, false},
	} {
		if is := isMissing(test.err, file); is != test.want {
			t.Errorf("%s: %v", name, is)
		}
	}
}
