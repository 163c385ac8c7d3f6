package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

// Running is the last version of a process's file that ran: a start goes on with it if the file is
// refused or missing.
type Running struct {
	File string `json:"file"` // its name
	Text string `json:"text"`
}

// RunningName is the name of the file that stores Running. A director and an agent of one host may
// have the same directory.
type RunningName string

// The names have no suffix of sets. The files may have keys: only the process's user may read them.
const (
	RunningDirector RunningName = "running"
	RunningAgent    RunningName = "running-agent"
)

// SaveRunning writes Running into the directory of a process's state, which it makes if there is
// none. A file there that cannot be used is moved aside; if that is not possible, nothing is written.
func SaveRunning(dir string, name RunningName, r Running) error {
	if err := makeDirectory(dir); err != nil {
		return fmt.Errorf("keep the file that runs: %w", err)
	}
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the file that runs: %w", err)
	}
	if _, _, err := LoadRunning(dir, name); err != nil && !wasMoved(err) {
		return fmt.Errorf("keep the file that runs: it is not overwritten: %w", err)
	}
	if err := writeFile(filepath.Join(dir, string(name)), append(text, '\n')); err != nil {
		return fmt.Errorf("keep the file that runs: %w", err)
	}
	return nil
}

// LoadRunning returns what SaveRunning has written; false: nothing. A file that cannot be used gives a
// *CorruptError, and is moved aside.
func LoadRunning(dir string, name RunningName) (r Running, found bool, err error) {
	path := filepath.Join(dir, string(name))
	_, err = readValue(path, &r)
	if errors.Is(err, fs.ErrNotExist) {
		return r, false, nil
	}
	if bad := (*CorruptError)(nil); errors.As(err, &bad) {
		bad.moveAside()
	}
	if err != nil {
		return Running{}, false, err
	}
	return r, true, nil
}
