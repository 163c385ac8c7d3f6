package config

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"weir.io/weir/internal/model"
)

// Checked is what there is to say about a configuration without a host that it runs on.
type Checked struct {
	Config model.Config // unless something is wrong
	Roles  model.Roles  // that it was checked for
	Errors Errors       // and warnings, in the order of lines
}

// Check reads a configuration as Load does, and says all that is wrong with it for these roles, and what
// is likely a mistake. Without a role the file says what it is for: a director if it has
// director.interfaces, an agent if it has keys that only agents read, or is no director's.
func Check(name string, from io.Reader, roles model.Roles) (Checked, error) {
	text, err := readFrom(name, from)
	if err != nil {
		return Checked{}, err
	}
	doc, c, lost, errs := parse(text)
	if roles == (model.Roles{}) && doc != nil {
		_, agent := doc.line("agent")
		_, directors := doc.line("directors")
		_, interfaces := doc.line("director.interfaces")
		roles = model.Roles{Director: interfaces, Agent: agent || directors || !interfaces}
	}
	if doc != nil {
		for _, key := range doc.former {
			errs = append(errs, Error{Line: key.Line, Path: key.Field, Problem: key.Problem(), Fix: key.Now, Warning: true})
		}
	}
	if doc != nil {
		errs = append(errs, lost.without(doc.invalid(c.Needs(roles)))...)
		for _, warning := range lost.without(append(doc.invalid(c.Warnings(roles)), doc.invalid(Exposed(name, &c))...)) {
			warning.Warning = true
			errs = append(errs, warning)
		}
	}
	return Checked{c, roles, named(name, errs)}, nil
}

// Exposed returns the files with keys, passwords and tokens, the configuration's own among them, that
// everybody on this host can read. It passes over files that are not here: the configuration may be
// another host's.
func Exposed(file string, c *model.Config) (errs model.FieldErrors) {
	if c.HasKey() && readByAll(file) {
		errs = append(errs, model.FieldError{Problem: "has keys of services with quic, and everybody on this host can read it", Fix: "chmod o= " + file})
	}
	for _, secret := range c.SecretFiles() {
		if readByAll(secret.Path) {
			errs = append(errs, model.FieldError{Path: secret.Field, Problem: fmt.Sprintf("everybody on this host can read %s", secret.Path), Fix: "chmod o= " + secret.Path})
		}
	}
	return errs
}

// readByAll reports whether everybody on this host can read a file: it, and all directories above it.
func readByAll(file string) bool {
	file, err := filepath.Abs(file)
	if err == nil {
		file, err = filepath.EvalSymlinks(file)
	}
	if err != nil {
		return false
	}
	info, err := os.Stat(file)
	for open := othersRead; err == nil && info.Mode().Perm()&open != 0; open = othersEnter {
		above := filepath.Dir(file)
		if above == file {
			return true
		}
		file = above
		info, err = os.Stat(file)
	}
	return false
}

const (
	othersRead  fs.FileMode = 0o004 // a file
	othersEnter fs.FileMode = 0o001 // a directory
)
