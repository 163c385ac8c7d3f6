package version

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// ErrNoHistory says that the repository does not have the commit that was asked for.
var ErrNoHistory = errors.New("the repository's history does not reach back to it (a shallow clone? git fetch --unshallow)")

// Before returns the commit before the one that first added a file.
func Before(ctx context.Context, file string) (string, error) {
	brought, err := git(ctx, "log", "--reverse", "--diff-filter=A", "--format=%H", "--", file)
	if err != nil {
		return "", fmt.Errorf("find the commit that brought %s: %w", file, err)
	}
	first, _, _ := strings.Cut(brought, "\n")
	if first == "" {
		return "", fmt.Errorf("find the commit that brought %s: %w", file, ErrNoHistory)
	}
	return Commit(ctx, first+"^")
}

// Commit returns the short name of a commit.
func Commit(ctx context.Context, name string) (string, error) {
	short, err := git(ctx, "rev-parse", "--verify", "--quiet", "--short", name+"^{commit}")
	if err != nil {
		return "", fmt.Errorf("find commit %s: %w", name, ErrNoHistory)
	}
	return short, nil
}

// File returns a file of the repository as it was at a commit.
func File(ctx context.Context, commit, path string) ([]byte, error) {
	content, err := output(ctx, "show", commit+":"+path)
	if err != nil {
		return nil, fmt.Errorf("read %s of %s: %w", path, commit, err)
	}
	return content, nil
}

// Older returns the path of weir as it was at a commit. It is built once, and kept beside the weir
// that is measured.
func Older(ctx context.Context, commit string) (string, error) {
	path, err := filepath.Abs(filepath.Join("bin", "weir-"+commit))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	// It is renamed when it is complete: the remains of an interrupted build must not be measured.
	dir, err := os.MkdirTemp(filepath.Dir(path), "weir-"+commit+"-")
	if err != nil {
		return "", fmt.Errorf("build weir of %s: %w", commit, err)
	}
	built, err := BuildCommit(ctx, ".", dir, commit)
	if err == nil {
		err = os.Rename(built, path)
	}
	return path, errors.Join(err, os.RemoveAll(dir))
}

func git(ctx context.Context, args ...string) (string, error) {
	out, err := output(ctx, args...)
	return strings.TrimSpace(string(out)), err
}

// output returns what git printed, unchanged.
func output(ctx context.Context, args ...string) ([]byte, error) {
	out, err := exec.CommandContext(ctx, "git", args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(string(exit.Stderr)))
	}
	return out, err
}
