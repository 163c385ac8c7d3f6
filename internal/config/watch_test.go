package config_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weir.io/weir/internal/config"
)

const deadline = time.Minute

func text(service string) []byte {
	return []byte("services:\n- {name: " + service + ", vip: 203.0.113.1, protocol: tcp, port: 80, mode: ipip, backends: [{address: 10.0.0.1}]}\n")
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func watch(t *testing.T, path string, hangup <-chan os.Signal) <-chan config.Change {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	changes, err := config.Watch(ctx, path, hangup)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		for range changes {
		}
	})
	return changes
}

// unfinished says that the watcher has looked while the writer had not come further than an
// empty file, or none: on a busy machine it may.
func unfinished(err error) bool {
	return err != nil && (errors.Is(err, fs.ErrNotExist) || strings.HasSuffix(err.Error(), ": is empty"))
}

// wantService waits for a valid version of the file with this service.
func wantService(t *testing.T, changes <-chan config.Change, name string) {
	t.Helper()
	late := time.After(deadline)
	for {
		select {
		case c := <-changes:
			if unfinished(c.Err) {
				continue
			}
			if c.Err != nil {
				t.Fatalf("instead of service %s: %v", name, c.Err)
			}
			if got := c.Config.Services[0].Name; got != name {
				t.Fatalf("service %s, want %s", got, name)
			}
			return
		case <-late:
			t.Fatalf("service %s was not seen", name)
		}
	}
}

// wantGone waits for the report that there is no file.
func wantGone(t *testing.T, changes <-chan config.Change) {
	t.Helper()
	select {
	case c := <-changes:
		if !errors.Is(c.Err, fs.ErrNotExist) {
			t.Fatalf("error %v, want one about the missing file", c.Err)
		}
	case <-time.After(deadline):
		t.Fatal("the missing file was not reported")
	}
}

func TestWatchSeesWhatWritersDo(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "weir.yaml")
	write(t, file, text("first"))
	hangup := make(chan os.Signal, 1)
	changes := watch(t, file, hangup)

	t.Run("written in place", func(t *testing.T) {
		write(t, file, text("written"))
		wantService(t, changes, "written")
	})
	t.Run("renamed over", func(t *testing.T) {
		write(t, filepath.Join(dir, ".weir.yaml.swp"), text("renamed"))
		rename(t, filepath.Join(dir, ".weir.yaml.swp"), file)
		wantService(t, changes, "renamed")
	})
	t.Run("moved away and made anew", func(t *testing.T) {
		rename(t, file, file+"~")
		write(t, file, text("anew"))
		wantService(t, changes, "anew")
	})
	t.Run("bad, then good", func(t *testing.T) {
		write(t, file, []byte("services: 7\n"))
		var err error
		for late := time.After(deadline); err == nil || unfinished(err); {
			select {
			case c := <-changes:
				if err = c.Err; err == nil {
					t.Fatal("a bad file is taken for a good one")
				}
			case <-late:
				t.Fatal("the bad file was not seen")
			}
		}
		if want := file + ":1: services: is the number 7, not a list"; err.Error() != want {
			t.Fatalf("error %v, want %s", err, want)
		}
		write(t, file, text("good"))
		wantService(t, changes, "good")
	})
	t.Run("SIGHUP reports an unchanged file", func(t *testing.T) {
		hangup <- syscall.SIGHUP
		wantService(t, changes, "good")
	})
	t.Run("removed, then made again", func(t *testing.T) {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		wantGone(t, changes)
		write(t, file, text("good"))
		wantService(t, changes, "good")
	})
	t.Run("moved away", func(t *testing.T) {
		away := filepath.Join(t.TempDir(), "weir.yaml")
		rename(t, file, away)
		wantGone(t, changes)
		rename(t, away, file)
		wantService(t, changes, "good")
	})
	t.Run("other files are nothing new", func(t *testing.T) {
		write(t, filepath.Join(dir, "hosts"), []byte("x"))
		write(t, file, text("good")) // touched, but the same
		write(t, filepath.Join(dir, "last"), []byte("x"))
		write(t, file, text("different"))
		wantService(t, changes, "different")
	})
}

// TestWatchSeesKubernetes does what kubelet does to a mounted ConfigMap.
func TestWatchSeesKubernetes(t *testing.T) {
	dir := t.TempDir()
	publish := func(version, service string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, version), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, version, "weir.yaml"), text(service))
		if err := os.Symlink(version, filepath.Join(dir, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		rename(t, filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data"))
	}
	publish("..2026_01", "first")
	file := filepath.Join(dir, "weir.yaml")
	if err := os.Symlink("..data/weir.yaml", file); err != nil {
		t.Fatal(err)
	}
	changes := watch(t, file, nil)
	publish("..2026_02", "second")
	wantService(t, changes, "second")
	publish("..2026_03", "third")
	wantService(t, changes, "third")
}

func TestWatchFindsDirectoryAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "weir")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "weir.yaml")
	write(t, file, text("first"))
	changes := watch(t, file, nil)
	rename(t, dir, dir+".old")
	wantGone(t, changes)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, file, text("again"))
	wantService(t, changes, "again")
}

func TestWatchNamesMissingDirectory(t *testing.T) {
	_, err := config.Watch(t.Context(), filepath.Join(t.TempDir(), "none", "weir.yaml"), nil)
	if err == nil || !strings.Contains(err.Error(), "none: no such file") {
		t.Errorf("error %v does not name the missing directory", err)
	}
}

// A neighbor in the same directory that writes all the time does not keep the file from being read.
func TestWatchBesideABusyFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "weir.yaml")
	write(t, file, text("first"))
	changes := watch(t, file, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	busy.Go(func() {
		for ctx.Err() == nil {
			os.WriteFile(filepath.Join(dir, "busy.log"), nil, 0o644)
			time.Sleep(time.Millisecond) // less than the directory must be quiet
		}
	})
	defer busy.Wait()
	defer cancel()
	write(t, file, text("second"))
	wantService(t, changes, "second")
}

// A user namespace has its own limit of inotify instances: none here, until the test gives it one.
func TestWatchWithoutInotify(t *testing.T) {
	const instances = "/proc/sys/user/max_inotify_instances"
	if os.Getenv("WEIR_WITHOUT_INOTIFY") == "" {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run", "^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), "WEIR_WITHOUT_INOTIFY=1")
		ids := []syscall.SysProcIDMap{{HostID: 0, Size: 1}}
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v:\n%s", err, out)
		}
		return
	}
	if err := os.WriteFile(instances, []byte("0"), 0o644); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "weir.yaml")
	write(t, file, text("first"))
	changes := watch(t, file, nil)
	if c := <-changes; c.Unwatched == nil || c.Err != nil {
		t.Fatalf("Unwatched %v, error %v; want a reason and none", c.Unwatched, c.Err)
	}
	write(t, file, text("second"))
	wantService(t, changes, "second")
	if err := os.WriteFile(instances, []byte("8"), 0o644); err != nil {
		t.Fatal(err)
	}
	if c := <-changes; c.Unwatched != nil || c.Err != nil {
		t.Fatalf("Unwatched %v, error %v; want neither", c.Unwatched, c.Err)
	}
	write(t, file, text("third"))
	wantService(t, changes, "third")
}

// More changes than inotify keeps hide no version of the file: the last one is read in any case.
func TestWatchWithMoreEventsThanAreKept(t *testing.T) {
	most, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Fatal(err)
	}
	kept, err := strconv.Atoi(strings.TrimSpace(string(most)))
	if err != nil {
		t.Fatal(err)
	}
	if kept > 100_000 {
		t.Skipf("this host keeps %d events", kept)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "weir.yaml")
	write(t, file, text("first"))
	changes := watch(t, file, nil)
	write(t, file, text("second")) // nobody receives: the watcher waits, and events are kept, until there is no room
	for i := range kept {
		link := filepath.Join(dir, "link"+strconv.Itoa(i%2)) // another name than before: the same event twice would be one
		if err := os.Symlink("nowhere", link); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
	}
	write(t, file, text("last")) // its events are lost
	late := time.After(deadline)
	for {
		select {
		case c := <-changes:
			if unfinished(c.Err) {
				continue
			}
			if c.Err != nil {
				t.Fatal(c.Err)
			}
			if c.Config.Services[0].Name == "last" {
				return
			}
		case <-late:
			t.Fatal("the last version of the file was not seen")
		}
	}
}

// A pipe in the file's place is something wrong, and the next version of the file is seen.
func TestWatchOfAPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.yaml")
	write(t, path, text("first"))
	changes := watch(t, path, nil)
	pipe := path + ".pipe"
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	rename(t, pipe, path)
	select {
	case c := <-changes:
		if c.Err == nil || !strings.HasSuffix(c.Err.Error(), ": is not a regular file") {
			t.Errorf("a pipe is reported as %v", c.Err)
		}
	case <-time.After(deadline):
		t.Fatal("a pipe is not reported")
	}
	write(t, path+".new", text("second"))
	rename(t, path+".new", path)
	wantService(t, changes, "second")
}
