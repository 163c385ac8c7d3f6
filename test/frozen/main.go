// Command frozen writes down what users, and other versions of weir, rely on: the instructions of
// every function of the BPF programs, the maps and types that versions share, the API, the manual
// pages, keys of files and of answers, names of metrics, and all texts. Run it before and after a
// change that must keep behavior: the difference is empty, or the change explains it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
)

func main() {
	out := flag.String("out", "build/frozen", "write to this `directory`, which is emptied before")
	base := flag.String("base", "", "write the same of this `commit`, and show the difference")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *out, *base); err != nil {
		fmt.Fprintln(os.Stderr, "frozen:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out, base string) error {
	if base == "" {
		return write(ctx, ".", out)
	}
	now, before := filepath.Join(out, "now"), filepath.Join(out, "before")
	if err := write(ctx, ".", now); err != nil {
		return err
	}
	if err := writeCommit(ctx, base, before); err != nil {
		return fmt.Errorf("commit %s: %w", base, err)
	}
	return compare(before, now, filepath.Join(out, "difference"))
}

// compare writes how two directories differ, and names the files.
func compare(before, now, into string) error {
	text, err := exec.Command("diff", "-ruN", before, now).Output()
	var differs *exec.ExitError
	if errors.As(err, &differs) && differs.ExitCode() == 1 {
		err = nil
	}
	if err := errors.Join(err, os.WriteFile(into, text, 0o644)); err != nil {
		return fmt.Errorf("compare: %w", err)
	}
	if len(text) == 0 {
		fmt.Println("nothing differs")
		return nil
	}
	var less, more int
	file := ""
	say := func() {
		if file != "" {
			fmt.Printf("%-40s %6d lines gone, %6d added\n", file, less, more)
		}
	}
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.HasPrefix(line, "diff "):
			say()
			words := strings.Fields(line)
			file, less, more = strings.TrimPrefix(words[len(words)-1], now+"/"), 0, 0
		case strings.HasPrefix(line, "--- "), strings.HasPrefix(line, "+++ "):
		case strings.HasPrefix(line, "-"):
			less++
		case strings.HasPrefix(line, "+"):
			more++
		}
	}
	say()
	return fmt.Errorf("both differ: see %s", into)
}

// writeCommit is write for a commit, from a worktree of its own.
func writeCommit(ctx context.Context, commit, out string) (err error) {
	dir, err := os.MkdirTemp("", "weir-frozen-")
	if err != nil {
		return err
	}
	tree := filepath.Join(dir, "tree")
	defer func() {
		err = errors.Join(err, command(context.WithoutCancel(ctx), ".", "git", "worktree", "remove", "--force", tree), os.RemoveAll(dir))
	}()
	if err := command(ctx, ".", "git", "worktree", "add", "--quiet", "--detach", tree, commit); err != nil {
		return err
	}
	return write(ctx, tree, out)
}

func command(ctx context.Context, dir, name string, args ...string) error {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w: %s", name, args, err, out)
	}
	return nil
}

// write writes down a source tree, and the weir that is built from it.
func write(ctx context.Context, tree, out string) (err error) {
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	out, err = filepath.Abs(out)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(out, "man"), 0o755); err != nil {
		return err
	}
	// Without a version's name, which would be in the pages.
	if err := command(ctx, tree, "go", "run", "-buildvcs=false", "./cmd/weir", "man", filepath.Join(out, "man")); err != nil {
		return err
	}
	api, err := os.ReadFile(filepath.Join(tree, "docs/reference/openapi.json"))
	if errors.Is(err, fs.ErrNotExist) { // a commit of before docs had folders
		api, err = os.ReadFile(filepath.Join(tree, "docs/openapi.json"))
	}
	if err != nil {
		return fmt.Errorf("read the API: %w", err)
	}
	if err := os.WriteFile(filepath.Join(out, "openapi.json"), api, 0o644); err != nil {
		return err
	}
	return errors.Join(writePrograms(tree, out), writeWords(tree, out))
}
