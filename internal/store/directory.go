package store

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"weir.io/weir/internal/model"
)

// suffix ends the names of the owners' files.
const suffix = ".json"

// makeDirectory makes the directory, accessible only to its owner, and syncs it.
func makeDirectory(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the store's directory: %w", err)
	}
	if err := syncDirectory(filepath.Dir(filepath.Clean(dir))); err != nil {
		return fmt.Errorf("make the store's directory: %w", err)
	}
	return nil
}

// lockFile has no suffix of sets.
const lockFile = "lock"

// lockDirectory takes the lock that the kernel drops with the process, however it ends.
func lockDirectory(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockFile)
	lock, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, syscall.EROFS) {
		lock, err = os.Open(path) // the files can be read: a start goes on with them
	}
	if err != nil {
		return nil, fmt.Errorf("open the store's lock: %w (it is an empty file, which weir makes: while no weir runs with this directory it may be removed)", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s", ErrInUse, dir)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return lock, nil
}

// readDirectory reads every owner's file and removes what a power cut left. Files of dispensable owners
// that cannot be used are damaged. A copy of a set under another name is no set, as long as the set
// itself is there.
func readDirectory(dir string, dispensable []string) (State, []*CorruptError, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return State{}, nil, fmt.Errorf("read the store's directory: %w", err)
	}
	state := State{Sets: map[string]Set{}}
	var damaged, copies []*CorruptError
	for _, entry := range entries {
		name := entry.Name()
		if strings.HasPrefix(name, temporary) {
			_ = os.Remove(filepath.Join(dir, name)) // a later write of it says why it cannot be made
			continue
		}
		owner, is := strings.CutSuffix(name, suffix)
		spare := slices.Contains(dispensable, owner)
		if !is || model.CheckOwner(owner) != nil || entry.IsDir() && !spare {
			continue // weir has not written it
		}
		w, err := readSet(filepath.Join(dir, name), owner)
		if bad := (*CorruptError)(nil); errors.As(err, &bad) {
			switch {
			case spare:
				damaged = append(damaged, bad)
				continue
			case bad.copied != "":
				copies = append(copies, bad)
				continue
			}
			bad.keepAside()
		}
		if err != nil {
			return State{}, nil, err
		}
		state.Sets[owner] = Set{Documents: w.Documents, Given: w.Given}
		state.Revision = max(state.Revision, w.Revision)
	}
	for _, copied := range copies {
		if _, has := state.Sets[copied.copied]; !has { // the set has lost its name
			copied.keepAside()
			return State{}, nil, copied
		}
	}
	if err := state.check(); err != nil {
		return State{}, nil, fmt.Errorf("the files of %s contradict each other: %w", dir, err)
	}
	return state, damaged, nil
}

// temporary begins the names of files that are being written. A file that is found at the start is
// what a power cut left of a change that did not happen.
const temporary = ".new-"

// unsyncedError says that a file is in place and its directory could not be synced. The change is
// there; a power cut may undo it.
type unsyncedError struct{ cause error }

func (e *unsyncedError) Error() string { return "write the state's directory: " + e.cause.Error() }
func (e *unsyncedError) Unwrap() error { return e.cause }

// WriteFile writes a file of another kind into the directory of a process's state, which it makes if there is
// none, so that a power cut at any moment leaves the old or the new contents.
func WriteFile(dir, name string, text []byte) error {
	if err := makeDirectory(dir); err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, name), text)
}

// Lock keeps other processes from a file in the directory of the state, until unlock is called. The error says that
// one has it, by what that is.
func Lock(dir, name, what string) (unlock func(), err error) {
	if err := makeDirectory(dir); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, name+".lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("another %s is at work, and holds %s: %w", what, path, err)
	}
	return func() { f.Close() }, nil
}

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

// keptFile is a file of the directory, as this process last read or wrote it.
type keptFile struct {
	info    os.FileInfo // nil: the file does not exist yet
	problem error       // why it is not written
}

// note remembers a file's current state, or why it does not exist. The lock is held.
func (f *File) note(name string, problem error) {
	info, err := os.Lstat(filepath.Join(f.dir, name))
	if err != nil {
		info = nil
	}
	f.files[name] = keptFile{info, problem}
}

// Amiss says what in the directory is not as this process has it: files that were removed or
// changed, and those that could not be written. Empty: all is there.
func (f *File) Amiss() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var amiss []string
	if !f.locks() {
		amiss = append(amiss, "lock is gone")
	}
	for _, name := range f.amiss() {
		what := " was changed by somebody else"
		if f.files[name].problem != nil {
			what = " is not written"
		} else if _, err := os.Lstat(filepath.Join(f.dir, name)); errors.Is(err, fs.ErrNotExist) {
			what = " is gone"
		}
		amiss = append(amiss, name+what)
	}
	return strings.Join(amiss, ", ")
}

// locks reports whether this process's lock is still the directory's.
func (f *File) locks() bool {
	there, err := os.Lstat(filepath.Join(f.dir, lockFile))
	ours, other := f.lock.Stat()
	return err == nil && other == nil && os.SameFile(there, ours)
}

// amiss returns the names of files that are not as they should be, in order.
func (f *File) amiss() (names []string) {
	for _, name := range slices.Sorted(maps.Keys(f.files)) {
		kept := f.files[name]
		now, err := os.Lstat(filepath.Join(f.dir, name))
		if kept.problem != nil || err != nil || kept.info == nil || !os.SameFile(now, kept.info) || now.Size() != kept.info.Size() || !now.ModTime().Equal(kept.info.ModTime()) {
			names = append(names, name)
		}
	}
	return names
}

// WriteAgain writes the files that are amiss. A directory that another process has taken meanwhile
// is left to that process: ErrInUse.
func (f *File) WriteAgain() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := makeDirectory(f.dir); err != nil {
		return err
	}
	if !f.locks() {
		lock, err := lockDirectory(f.dir)
		if err != nil {
			return err
		}
		_ = f.lock.Close() // no process can find it any more
		f.lock = lock
	}
	var errs []error
	for _, name := range f.amiss() {
		if err := f.writeAgain(name); err != nil && !errors.As(err, new(*unsyncedError)) {
			errs = append(errs, err) // the other files can still be written
		}
	}
	return errors.Join(errs...)
}

func (f *File) writeAgain(name string) error {
	owner, isSet := strings.CutSuffix(name, suffix)
	if !isSet {
		return f.writeOverrides()
	}
	set, has := f.state.Sets[owner]
	if !has {
		return fmt.Errorf("owner %q has no set to write", owner)
	}
	return f.write(owner, f.state.Revision, set)
}

// Strays returns, in order, what is in the directory under a name like that of a set, and is none
// of this process's sets: somebody else has put it there.
func (f *File) Strays() (paths []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	entries, _ := os.ReadDir(f.dir) // a missing directory is reported elsewhere
	for _, entry := range entries {
		name := entry.Name()
		_, known := f.files[name]
		if strings.HasSuffix(name, suffix) && !strings.HasPrefix(name, temporary) && !known {
			paths = append(paths, filepath.Join(f.dir, name))
		}
	}
	return paths
}
