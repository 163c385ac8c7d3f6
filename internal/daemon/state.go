package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/config"
	"weir.io/weir/internal/etcdclient"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/problems"
	"weir.io/weir/internal/store"
	"weir.io/weir/internal/upkeep"
)

// defaultState is where state is kept if neither the configuration nor a service manager says
// where.
const defaultState = "/var/lib/weir"

// StateDirectory returns where a process keeps its state: where its configuration says, or where a
// service manager does (systemd.exec, StateDirectory=).
func StateDirectory(s model.Store) string {
	if s.Directory != "" {
		return s.Directory
	}
	if first, _, _ := strings.Cut(os.Getenv("STATE_DIRECTORY"), ":"); first != "" {
		return first
	}
	return defaultState
}

// EtcdOptions are the options of a store for what a configuration says of it.
func EtcdOptions(e model.Etcd) etcdclient.Options {
	return etcdclient.Options{Endpoints: e.Endpoints, Prefix: e.Prefix, CA: e.CA, Cert: e.Cert, Key: e.Key, Username: e.User, PasswordFile: e.PasswordFile}
}

// Parts of problems with the state.
const (
	partRunning = "running"
	// These last until an operator acts.
	partDamaged = "damaged"
	partStrays  = "strays"
	partInPlace = "in place"
)

// ranFile is the version of the file that runs, as it is kept.
type ranFile struct {
	text    []byte // nil: none is kept
	written bool
}

// saveRunning keeps the text of the version of the file that runs, for a start that finds a version
// that it has to refuse. A failure is listed.
func (d *Daemon) saveRunning(text []byte) {
	err := store.SaveRunning(d.state, d.running, store.Running{File: absolute(d.info.File), Text: string(text)})
	d.Problems.Warn(model.ProblemStore, partRunning, err)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ran = ranFile{text, err == nil}
}

// lookAtRan says whether the version of the file that runs is gone from where it is kept. Failed
// writes are tried again.
func (d *Daemon) lookAtRan() (gone string) {
	d.mu.Lock()
	ran := d.ran
	d.mu.Unlock()
	switch _, err := os.Lstat(filepath.Join(d.state, string(d.running))); {
	case ran.text == nil:
	case !ran.written:
		d.saveRunning(ran.text)
	case os.IsNotExist(err):
		return string(d.running) + " is gone"
	}
	return ""
}

// writeAgain writes the state again as the process has it.
func (d *Daemon) writeAgain() (err error) {
	if d.store != nil {
		if err = d.store.WriteAgain(); errors.Is(err, store.ErrInUse) {
			return err // the directory is another process's: nothing is written there
		}
	}
	d.mu.Lock()
	ran := d.ran
	d.mu.Unlock()
	if ran.text != nil {
		d.saveRunning(ran.text) // lists a failure
	}
	return err
}

// StatePart is the part of the host that keeps the directory of the state as the process has it.
func (d *Daemon) StatePart() upkeep.Part {
	return upkeep.Part{Name: "state", Look: func() ([]upkeep.Difference, error) {
		d.lookAtDamaged()
		amiss := ""
		if d.store != nil {
			d.Problems.Warn(model.ProblemStore, partInPlace, d.store.InPlace())
			d.lookAtStrays()
			amiss = d.store.Amiss()
		}
		gone := d.lookAtRan()
		if amiss == "" && gone == "" {
			return d.unwritable(), nil
		}
		return []upkeep.Difference{{What: d.state, Found: "is not as it was written: " + strings.Trim(amiss+", "+gone, ", "), Repair: d.writeAgain}}, nil
	}}
}

// lostBy says what is lost with a file of the state that cannot be used, by the beginning of its name.
var lostBy = []struct{ file, lost string }{
	{"file.json", "the logs of the file's services begin again, and connections that an earlier change has left on other backends may break"},
	{string(store.RunningAgent), "the version of the file that ran last is not known"},
	{string(store.RunningDirector), "the version of the file that ran last is not known"},
	{"overrides", "backends that were drained beside the file get connections again"},
	{"root.json", "the group's last known state is read from etcd alone"},
}

// lookAtDamaged lists the files that could not be used and are kept aside in the directory of the
// state, until an operator has looked at them and removed them.
func (d *Daemon) lookAtDamaged() {
	known := map[string]error{} // by the name under which the file is kept aside
	if d.store != nil {
		for _, bad := range d.store.Damaged() {
			known[bad.Aside] = bad
		}
	}
	var errs []error
	for _, kept := range store.Aside(d.state) {
		err := known[kept.Path]
		if err == nil {
			err = fmt.Errorf("a state file %s, and is now %s", kept.Was, kept.Path)
		}
		name := filepath.Base(kept.Path)
		for _, row := range lostBy {
			if strings.HasPrefix(name, row.file) {
				err = fmt.Errorf("%w: %s", err, row.lost)
				break
			}
		}
		errs = append(errs, problems.Fixed(err, kept.Fix))
	}
	d.Problems.Warn(model.ProblemStore, partDamaged, errors.Join(errs...))
}

// lookAtStrays lists files that look like sets of this director and that it has not written.
func (d *Daemon) lookAtStrays() {
	var errs []error
	for _, path := range d.store.Strays() {
		err := fmt.Errorf("%s is none of the sets of this director: somebody else has put it there, and its services do not run", path)
		errs = append(errs, problems.Fixed(err, "move it out of the directory: a start may take it for a set"))
	}
	d.Problems.Warn(model.ProblemStore, partStrays, errors.Join(errs...))
}

// unwritable says whether the next change could not be written, while nothing is to be written now.
// A write that has failed is listed as such. Problems that only an operator can end are about no
// write, and do not count.
func (d *Daemon) unwritable() []upkeep.Difference {
	at, err := CheckDirectory(d.state)
	if err == nil || slices.ContainsFunc(d.Problems.Of(model.ProblemStore), func(p model.Problem) bool {
		return !slices.Contains([]string{partDamaged, partStrays, partInPlace}, p.Part)
	}) {
		return nil
	}
	return []upkeep.Difference{{What: at, Found: fmt.Sprintf("cannot be written: %v", err)}}
}

// CheckDirectory returns why no file can be written in a directory: its rights, or a file system that
// is full. A process makes a missing directory, so for one it checks the directory that exists, which
// it returns. A file system without inodes says that there is no space, though df shows some; one
// that makes inodes as needed counts none.
func CheckDirectory(dir string) (at string, err error) {
	for unix.Access(dir, unix.F_OK) == unix.ENOENT && dir != "/" {
		dir = filepath.Dir(dir)
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return dir, err
	}
	var on unix.Statfs_t
	if err := unix.Statfs(dir, &on); err != nil {
		return dir, err
	}
	free := on.Bavail
	if os.Geteuid() == 0 {
		free = on.Bfree
	}
	switch {
	case on.Files > 0 && on.Ffree == 0:
		return dir, errors.New("its file system has no inode left (df -i)")
	case on.Blocks > 0 && free == 0:
		return dir, errors.New("its file system is full")
	}
	return dir, nil
}

func absolute(file string) string {
	if abs, err := filepath.Abs(file); err == nil {
		return abs
	}
	return file
}

// directories finds where the state may be in a file that cannot be read as YAML.
var directories = regexp.MustCompile(`\bdirectory:[ \t]*["']?([^"',}\s]+)`)

// LastRan returns the version of a file that ran last, from the state's directory; nil: none is
// known, and lost says why if there was one. The file's text says where the directory is, even if
// the file is wrong otherwise.
func LastRan(file string, name store.RunningName, text []byte) (ran *model.Config, lost error) {
	var candidates []string
	for _, match := range directories.FindAllSubmatch(text, -1) {
		candidates = append(candidates, string(match[1]))
	}
	for _, dir := range append(candidates, StateDirectory(model.Store{})) {
		r, found, err := store.LoadRunning(dir, name)
		if err != nil {
			lost = errors.Join(lost, fmt.Errorf("the version of the file that ran last is lost: %w", err))
			continue
		}
		if !found || r.File != absolute(file) {
			continue
		}
		c, err := config.Parse(file, []byte(r.Text))
		if err == nil {
			return &c, nil
		}
		lost = errors.Join(lost, fmt.Errorf("the version of the file that ran last is wrong for this version of weir: %w", err))
	}
	return nil, lost
}
