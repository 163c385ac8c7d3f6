package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"weir.io/weir/internal/model"
)

// overridesFile has no suffix of sets.
const overridesFile = "overrides"

// Overrides returns what SaveOverrides has written. A file that cannot be used is moved aside: see
// Damaged. If that is not possible, it gives a *CorruptError.
func (f *File) Overrides() (list []model.BackendOverride, err error) {
	path := filepath.Join(f.dir, overridesFile)
	text, err := readState(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		if wrong := json.Unmarshal(text, &list); wrong != nil {
			err = &CorruptError{File: path, Line: 1, Column: 1, Problem: wrong}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if bad := (*CorruptError)(nil); errors.As(err, &bad) && f.goWithout(bad) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	f.overrides = text
	f.note(overridesFile, nil)
	return list, nil
}

// SaveOverrides replaces the overrides of backends of the director's file. If they cannot be
// written they are remembered, and WriteAgain writes them.
func (f *File) SaveOverrides(list []model.BackendOverride) error {
	text, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("encode the overrides: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.overrides = append(text, '\n')
	return f.writeOverrides()
}

// writeOverrides writes the overrides. The lock is held.
func (f *File) writeOverrides() error {
	err := f.clear(overridesFile)
	if err == nil {
		err = writeFile(filepath.Join(f.dir, overridesFile), f.overrides)
	}
	f.note(overridesFile, err)
	if err != nil {
		return fmt.Errorf("keep the overrides: %w", err)
	}
	return nil
}
