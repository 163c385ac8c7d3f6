package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// File is the store of one director: a directory with a file for each owner. Only
// one process may have it open.
type File struct {
	dir     string
	lock    *os.File
	damaged []*CorruptError
	written []string // dispensable owners: their services are written elsewhere, too

	mu        sync.Mutex
	state     State
	before    map[string]Set           // sets that ran, of owners whose sets have not run since
	overrides []byte                   // as in their file
	files     map[string]keptFile      // what this process has in the directory, by name
	stay      map[string]*CorruptError // files that could not be moved aside, by name
	readers   broadcast
}

// ErrInUse is returned by OpenFile when another process has the directory open.
var ErrInUse = errors.New("another process has the store open")

// OpenFile opens the store in a directory, which it makes if there is none. A file that cannot be
// used gives a *CorruptError, and none of the files is touched: starting without it would forward
// without its services. A dispensable owner's services are written elsewhere, too, and only its logs
// are lost: its file is moved aside, and the start goes on without its set. Files that weir has not
// written, such as copies of a set, are left alone: see Strays.
func OpenFile(dir string, dispensable ...string) (*File, error) {
	if err := makeDirectory(dir); err != nil {
		return nil, err
	}
	lock, err := lockDirectory(dir)
	if err != nil {
		return nil, err
	}
	state, damaged, err := readDirectory(dir, dispensable)
	if err != nil {
		lock.Close()
		return nil, err
	}
	f := &File{dir: dir, lock: lock, state: state, written: dispensable, before: map[string]Set{}, files: map[string]keptFile{}, stay: map[string]*CorruptError{}}
	for _, bad := range damaged {
		f.goWithout(bad)
	}
	if err := f.readBefore(); err != nil {
		lock.Close()
		return nil, err
	}
	for owner := range state.Sets {
		f.note(owner+suffix, nil)
	}
	return f, nil
}

// Damaged returns what was wrong with files that were moved aside.
func (f *File) Damaged() []*CorruptError {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.damaged
}

// Close lets other processes open the directory.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lock.Close()
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

// Read returns the state.
func (f *File) Read(context.Context) (State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state, nil
}

// Watch sends the current state, and then every later one, except those that were replaced before
// they were taken. It ends with the context.
func (f *File) Watch(ctx context.Context) <-chan State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.readers.add(ctx, f.state)
}

// Update makes the change and returns the state that it led to. A change that
// changes nothing has no revision of its own. It may change the services of one owner,
// and logs of all: each owner's file is replaced as a whole, one after the other, and
// services that moved between owners could be in both or neither after a power cut.
func (f *File) Update(_ context.Context, change Change) (State, error) {
	return f.update(change, false)
}

// Hold is Update for a change that is made even if it cannot be written: it lasts as long as the
// process, and WriteAgain writes it when possible.
func (f *File) Hold(_ context.Context, change Change) (State, error) { return f.update(change, true) }

func (f *File) update(change Change, hold bool) (State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	next, err := change(f.state)
	if err != nil {
		return State{}, err
	}
	owners := changed(f.state, next)
	if err := f.oneOwner(owners, next); err != nil {
		return State{}, err
	}
	next.Revision = f.state.Revision
	var unsynced error
	for _, owner := range owners {
		set, has := next.Sets[owner]
		if !has {
			return State{}, fmt.Errorf("owner %q: a set can be empty, not gone", owner)
		}
		err := f.keepBefore(owner)
		if err == nil {
			err = f.write(owner, f.state.Revision+1, set)
		}
		if late := (*unsyncedError)(nil); errors.As(err, &late) {
			unsynced = err
		} else if err != nil && hold {
			f.note(owner+suffix, err)
		} else if err != nil {
			return State{}, errors.Join(err, unsynced)
		}
		f.state = f.state.with(owner, set)
		f.state.Revision++
		f.readers.send(f.state)
	}
	return f.state, unsynced
}

// oneOwner refuses a change of the services of several owners.
func (f *File) oneOwner(owners []string, next State) error {
	first := ""
	for _, owner := range owners {
		if sameServices(f.state.Sets[owner], next.Sets[owner]) {
			continue
		}
		if first != "" {
			return fmt.Errorf("change the services of owner %q and of owner %q: a change is of one owner", first, owner)
		}
		first = owner
	}
	return nil
}

func sameServices(a, b Set) bool {
	if len(a.Documents) != len(b.Documents) {
		return false
	}
	for i := range a.Documents {
		if !reflect.DeepEqual(a.Documents[i].Service, b.Documents[i].Service) {
			return false
		}
	}
	return true
}

func (f *File) write(owner string, revision uint64, set Set) error {
	text, err := written{format, owner, revision, set.Given, set.Documents}.encode()
	if err != nil {
		return err
	}
	if err := f.clear(owner + suffix); err != nil {
		return err
	}
	err = writeFile(filepath.Join(f.dir, owner+suffix), text)
	if err == nil || errors.As(err, new(*unsyncedError)) {
		f.note(owner+suffix, nil)
	}
	return err
}

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
		if !is || CheckOwner(owner) != nil || entry.IsDir() && !spare {
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
