package store

import (
	"fmt"
	"os"
	"path/filepath"
)

// temporary begins the names of files that are being written. A file that is found at the start is
// what a power cut left of a change that did not happen.
const temporary = ".new-"

// unsyncedError is returned when a file is in place but the directory could not be synced: the
// change is there, but a power cut may still undo it.
type unsyncedError struct{ cause error }

func (e *unsyncedError) Error() string { return "write the state's directory: " + e.cause.Error() }
func (e *unsyncedError) Unwrap() error { return e.cause }

// writeFile gives a file new contents so that a power cut at any moment leaves the old or the new
// ones: the new ones are first on the disk under another name.
func writeFile(path string, text []byte) error {
	dir, name := filepath.Split(path)
	aside := filepath.Join(dir, temporary+name)
	if err := writeSynced(aside, text); err != nil {
		os.Remove(aside)
		return fmt.Errorf("write the state: %w", err)
	}
	if err := os.Rename(aside, path); err != nil {
		os.Remove(aside)
		return fmt.Errorf("put the state in its place: %w", err)
	}
	if err := syncDirectory(dir); err != nil {
		return &unsyncedError{err}
	}
	return nil
}

func writeSynced(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

func syncDirectory(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
