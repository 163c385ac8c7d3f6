package version

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// repository makes a repository with a commit before the file, one that adds it, one that removes
// it and one that adds it again, and returns the first commit's name.
func repository(t *testing.T) (dir, first string) {
	t.Helper()
	dir = t.TempDir()
	t.Chdir(dir)
	for _, name := range []string{"GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"} {
		t.Setenv(name, "test")
	}
	do(t, "git", "init", "-q")
	do(t, "git", "commit", "-q", "--allow-empty", "-m", "first")
	first = do(t, "git", "rev-parse", "--short", "HEAD")
	for range 2 {
		if err := os.WriteFile("flows.h", []byte("flows\n "), 0o644); err != nil {
			t.Fatal(err)
		}
		do(t, "git", "add", "flows.h")
		do(t, "git", "commit", "-q", "-m", "bring it")
		do(t, "git", "rm", "-q", "flows.h")
		do(t, "git", "commit", "-q", "-m", "take it away")
	}
	return dir, first
}

func do(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", program, args, err, out)
	}
	return string(out[:max(0, len(out)-1)])
}

func TestBefore(t *testing.T) {
	dir, first := repository(t)
	commit, err := Before(t.Context(), "flows.h")
	if err != nil || commit != first {
		t.Errorf("the commit before flows.h is %q (%v), want %s", commit, err, first)
	}
	if content, err := File(t.Context(), commit, "flows.h"); err == nil {
		t.Errorf("flows.h before it was brought is %q, want an error", content)
	}
	if content, err := File(t.Context(), "HEAD^", "flows.h"); err != nil || string(content) != "flows\n " {
		t.Errorf("flows.h is %q (%v), want it as it was written", content, err)
	}
	if _, err := Before(t.Context(), "never.h"); !errors.Is(err, ErrNoHistory) {
		t.Errorf("of a file that never was: %v", err)
	}
	if _, err := Commit(t.Context(), "nothing"); !errors.Is(err, ErrNoHistory) {
		t.Errorf("of a commit that never was: %v", err)
	}
	shallow := filepath.Join(t.TempDir(), "shallow")
	do(t, "git", "revert", "--no-edit", "HEAD")
	do(t, "git", "clone", "-q", "--depth", "1", "file://"+dir, shallow)
	t.Chdir(shallow)
	if _, err := Before(t.Context(), "flows.h"); !errors.Is(err, ErrNoHistory) {
		t.Errorf("in a shallow clone: %v", err)
	}
}
