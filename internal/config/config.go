// Package config reads weir's configuration file, strictly: everything wrong in it is an error that
// names file, line and field.
package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/goccy/go-yaml"

	"weir.io/weir/internal/model"
)

// MaxSize bounds a configuration file, in bytes. 65,536 services of 16 backends
// take about a hundred MiB.
const MaxSize = 256 << 20

// Error is one problem of a file.
type Error struct {
	File    string
	Line    int    // 0: the file as a whole
	Path    string // of the field, such as services[1].backends[0].weight; empty: no field
	Problem string
	Fix     string // the value or the key to write in place of what is there, or a command; empty: it is not that simple
	Warning bool   // it can run, and is likely a mistake
	other   string // the path of a field that it is in conflict with
}

// Error returns "weir.yaml:12: services[1].backends[0].weight: what is wrong", and what to do about it if
// the problem does not say so itself.
func (e Error) Error() string {
	text := e.File + ": "
	if e.Line > 0 {
		text = fmt.Sprintf("%s:%d: ", e.File, e.Line)
	}
	if e.Warning {
		text += "warning: "
	}
	if e.Path != "" {
		text += e.Path + ": "
	}
	text += e.Problem
	if !strings.Contains(e.Problem, e.Fix) {
		text += "; fix: " + e.Fix
	}
	return text
}

// Place returns where in the file the problem is.
func (e Error) Place() model.Place {
	return model.Place{File: e.File, Line: e.Line, Field: e.Path}
}

// Errors is everything that is wrong with a file, in the order of its lines.
type Errors []Error

// Error returns one line per problem.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, one := range e {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.As find an Error.
func (e Errors) Unwrap() []error {
	list := make([]error, len(e))
	for i, one := range e {
		list[i] = one
	}
	return list
}

// Load reads a configuration from a file. An invalid one gives Errors.
func Load(path string) (model.Config, error) {
	text, err := ReadFile(path)
	if err != nil {
		return model.Config{}, err
	}
	return Parse(path, text)
}

// LoadText also returns the text, even of an invalid file.
func LoadText(path string) (model.Config, []byte, error) {
	text, err := ReadFile(path)
	if err != nil {
		return model.Config{}, nil, err
	}
	c, err := Parse(path, text)
	return c, text, err
}

// Line returns the line of a field, such as services[1].vip, in a file's text; 0: it is not there.
func Line(text []byte, field string) int {
	doc, errs := newDocument(text, false)
	if len(errs) > 0 {
		return 0
	}
	line, found := doc.line(field)
	if !found {
		return 0
	}
	return line
}

// ReadFile reads a file that a process follows. It refuses what is no regular file: a process that
// waits for the other end of a pipe does not follow the file any more, and does not end.
func ReadFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, Errors{{File: path, Problem: "is not a regular file"}}
	}
	return readFrom(path, f)
}

// read reads what may be anything.
func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	defer f.Close()
	return readFrom(path, f)
}

func readFrom(name string, from io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(from, MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	if len(text) > MaxSize {
		return nil, Errors{{File: name, Problem: fmt.Sprintf("is larger than %d bytes", MaxSize)}}
	}
	return text, nil
}

// Parse reads a configuration from YAML text (JSON is YAML too). The name stands
// for the file in errors. The result has its defaults set and is valid.
func Parse(name string, text []byte) (model.Config, error) {
	_, c, _, errs := parse(text)
	if len(errs) == 0 {
		return c, nil
	}
	return model.Config{}, named(name, errs)
}

// parse also returns the document, if the text is one, and the fields whose values could not be read.
func parse(text []byte) (doc *document, c model.Config, lost lostPaths, errs Errors) {
	if doc, errs = newDocument(text, false); len(errs) > 0 {
		return nil, c, nil, errs
	}
	c, lost, errs = doc.config()
	return doc, c, lost, append(errs, doc.hiddenKeys(c.Services)...)
}

// hiddenKeys refuses what the API writes in place of keys: for a file there is no earlier key.
func (d *document) hiddenKeys(services []model.Service) (errs Errors) {
	for i := range services {
		for n, q := range services[i].QUIC {
			if q.Key.Hidden() {
				path := fmt.Sprintf("services[%d].quic[%d].key", i, n)
				line, _ := d.line(path)
				errs = append(errs, Error{Line: line, Path: path, Problem: "stands for a key that may not be seen; write the key"})
			}
		}
	}
	return errs
}

// invalid adds lines to what the model's validation found.
func (d *document) invalid(err error) Errors {
	if err == nil {
		return nil
	}
	var fields model.FieldErrors
	if !errors.As(err, &fields) {
		return Errors{{Problem: err.Error()}}
	}
	full := len(fields) > mostErrors
	fields = fields[:min(len(fields), mostErrors)]
	errs := make(Errors, len(fields))
	for i, f := range fields {
		at, _ := d.find(f.Path)
		other, found := d.find(f.Other)
		errs[i] = Error{Line: at.line, Path: at.path, Problem: f.Problem, Fix: f.Fix, other: other.path}
		if found && other.line != at.line {
			errs[i].Problem += fmt.Sprintf(" (line %d)", other.line)
		}
	}
	if full {
		errs = andMore(errs)
	}
	return errs
}

// Decode reads YAML text into a structure, by its json names, as strictly as Parse reads the
// configuration: for the files of programs other than weir. validate says what is wrong with the
// values, when all of them could be read. Wrong text gives Errors.
func Decode(name string, text []byte, to any, validate func() model.FieldErrors) error {
	doc, errs := newDocument(text, false)
	if len(errs) == 0 {
		errs = doc.decode(to).errs
	}
	if len(errs) == 0 {
		if wrong := validate(); len(wrong) > 0 {
			errs = doc.invalid(wrong)
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return named(name, errs)
}

// named adds the file's name to errors, and puts them in the order of lines.
func named(name string, errs Errors) Errors {
	for i := range errs {
		errs[i].File = name
	}
	slices.SortStableFunc(errs, func(a, b Error) int { return a.Line - b.Line })
	return errs
}

// Marshal writes a value as YAML under its json names. Parse reads what it writes of a
// model.Config. It writes JSON first, because the YAML package leaves out addresses that are set:
// it does not look at private fields to find out what is zero.
func Marshal(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("write JSON: %w", err)
	}
	var ordered any
	if err := yaml.UnmarshalWithOptions(text, &ordered, yaml.UseOrderedMap()); err != nil {
		return nil, fmt.Errorf("read JSON: %w", err)
	}
	if text, err = yaml.Marshal(ordered); err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}
	return text, nil
}
