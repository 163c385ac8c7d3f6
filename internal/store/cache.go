package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// cache is the last known state of a group on a director's disk, for a start while
// etcd cannot be reached. It is kept as etcd has it: segments by their names, and a
// root, which is switched when they are written. So a change writes what it changes.
type cache struct {
	dir   string
	saved map[string]bool // segments that are on the disk
	stays *CorruptError   // a file that could not be moved aside
}

// cachedRoot says whose group's root it is: a director may be moved to another group.
type cachedRoot struct {
	Prefix string `json:"prefix"`
	Root   root   `json:"root"`
}

func (c *cache) rootFile() string               { return filepath.Join(c.dir, "root.json") }
func (c *cache) segmentFile(name string) string { return filepath.Join(c.dir, "segments", name) }

// load returns the root and the segments of the group with that prefix; false: there are none. A file
// that cannot be used gives a *CorruptError, and the root is moved aside: the next load finds nothing.
func (c *cache) load(prefix string) (r root, segments map[string]segment, found bool, err error) {
	c.saved = map[string]bool{}
	text, err := readState(c.rootFile())
	if errors.Is(err, fs.ErrNotExist) {
		return root{}, nil, false, nil
	}
	if err != nil {
		return root{}, nil, false, c.corrupt(c.rootFile(), nil, err)
	}
	var cached cachedRoot
	if err := json.Unmarshal(text, &cached); err != nil {
		return root{}, nil, false, c.corrupt(c.rootFile(), text, err)
	}
	if cached.Prefix != prefix {
		return root{}, nil, false, nil
	}
	if cached.Root.Format != Format {
		return root{}, nil, false, c.corrupt(c.rootFile(), text, &formatError{cached.Root.Format})
	}
	segments = map[string]segment{}
	for name := range cached.Root.names() {
		text, err := readState(c.segmentFile(name))
		if err != nil {
			return root{}, nil, false, c.corrupt(c.segmentFile(name), nil, err)
		}
		if segments[name], err = newSegment(name, text); err != nil {
			return root{}, nil, false, c.corrupt(c.segmentFile(name), text, err)
		}
		c.saved[name] = true
	}
	return cached.Root, segments, true, nil
}

// corrupt returns the error about a file, and keeps the file aside with the root.
func (c *cache) corrupt(path string, text []byte, problem error) error {
	c.saved = map[string]bool{}
	bad := &CorruptError{File: path, Line: 1, Column: 1, Problem: problem}
	if unread := (*CorruptError)(nil); errors.As(problem, &unread) {
		bad = unread
	}
	if syntax := (*json.SyntaxError)(nil); errors.As(problem, &syntax) {
		bad.Line, bad.Column = (&badText{offset: syntax.Offset - 1}).position(text)
	}
	if path != c.rootFile() {
		if aside := keepAside(c.rootFile()); aside != "" {
			os.Remove(c.rootFile())
		}
	}
	if !bad.moveAside() {
		c.stays = bad
	}
	return bad
}

// save writes a root, and those of its segments that are not on the disk. After a power cut there
// is the earlier root or this one, with all of its segments. What could not be used and is still in
// its place is not overwritten.
func (c *cache) save(prefix string, r root, segments map[string]segment) error {
	if c.stays != nil {
		if err := c.stays.giveWay(); err != nil {
			return err
		}
		c.stays = nil
	}
	if err := makeDirectory(filepath.Join(c.dir, "segments")); err != nil {
		return err
	}
	wanted := r.names()
	written := false
	for name := range wanted {
		if c.saved[name] {
			continue
		}
		if err := writeSynced(c.segmentFile(name), segments[name].text); err != nil {
			return fmt.Errorf("write the group's last known state: %w", err)
		}
		written = true
	}
	if written {
		if err := syncDirectory(filepath.Join(c.dir, "segments")); err != nil {
			return fmt.Errorf("write the group's last known state: %w", err)
		}
	}
	text, err := json.Marshal(cachedRoot{prefix, r})
	if err != nil {
		return fmt.Errorf("encode the root: %w", err)
	}
	if err := writeFile(c.rootFile(), append(text, '\n')); err != nil {
		return err
	}
	return c.collect(wanted)
}

// collect removes the segments that the root does not name, including those of earlier processes.
func (c *cache) collect(wanted map[string]bool) error {
	c.saved = wanted
	entries, err := os.ReadDir(filepath.Join(c.dir, "segments"))
	if err != nil {
		return fmt.Errorf("list the group's last known state: %w", err)
	}
	for _, entry := range entries {
		if wanted[entry.Name()] || len(entry.Name()) != len(nameOf(nil)) {
			continue // in use, or kept aside
		}
		if err := os.Remove(c.segmentFile(entry.Name())); err != nil {
			return fmt.Errorf("remove what is no longer the group's last known state: %w", err)
		}
	}
	return nil
}
