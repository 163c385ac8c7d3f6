package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// Encode writes the record as one JSON object.
func (r *Record) Encode(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(r); err != nil {
		return fmt.Errorf("write the record as JSON: %w", err)
	}
	return nil
}

// Decode reads what Encode wrote and refuses everything else: another format, unknown keys,
// anything behind the object.
func Decode(data []byte) (*Record, error) {
	// The format is read first: a later one must be reported by its number, not by one of its keys.
	var version struct {
		Format *int `json:"format"`
	}
	if err := json.Unmarshal(data, &version); err != nil {
		return nil, fmt.Errorf("not a record of a benchmark: %w", err)
	}
	switch {
	case version.Format == nil:
		return nil, errors.New("not a record of a benchmark: it has no format")
	case *version.Format != Format:
		return nil, fmt.Errorf("a record of format %d; this program reads format %d", *version.Format, Format)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var r Record
	if err := decoder.Decode(&r); err != nil {
		return nil, fmt.Errorf("not a record of a benchmark: %w", err)
	}
	return &r, r.validate()
}

// validate refuses records that readers could not use.
func (r *Record) validate() error {
	var names []string
	for _, s := range r.Scenarios {
		if s.Name == "" || slices.Contains(names, s.Name) {
			return fmt.Errorf("scenario %q has no name of its own", s.Name)
		}
		names = append(names, s.Name)
		for i, m := range s.Measurements {
			switch {
			case m == nil:
				return fmt.Errorf("scenario %s: measurement %d is null", s.Name, i)
			case m.Subject == "" || m.Quantity.Name == "":
				return fmt.Errorf("scenario %s: measurement %d has no subject or no quantity", s.Name, i)
			case s.Find(m.Subject, m.Conditions, m.Quantity.Name) != m:
				return fmt.Errorf("scenario %s: %s of %s (%s) is there twice", s.Name, m.Quantity.Name, m.Subject, m.Conditions)
			}
		}
	}
	return nil
}

// Read reads a record from a file.
func Read(path string) (*Record, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read a record: %w", err)
	}
	r, err := Decode(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// Write writes the record to a file, under another name first, so that the file is either complete
// or missing. It makes the directory.
func (r *Record) Write(path string) error {
	var text bytes.Buffer
	if err := r.Encode(&text); err != nil {
		return err
	}
	return WriteFile(path, text.Bytes())
}

// WriteFile replaces a file in one step, and makes its directory.
func WriteFile(path string, data []byte) error {
	directory := filepath.Dir(path)
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return fmt.Errorf("make the directory of %s: %w", path, err)
	}
	file, err := os.CreateTemp(directory, "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("begin %s: %w", path, err)
	}
	_, err = file.Write(data)
	err = errors.Join(err, file.Chmod(0o644), file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(file.Name()))
	}
	return nil
}

// FileName is where a complete run belongs, below bench/results.
func (r *Record) FileName() string {
	return r.Started.UTC().Format("2006-01-02") + "-" + r.Commit + ".json"
}
