package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"

	"weir.io/weir/internal/model"
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
	text, err := written{Format, owner, revision, set.Given, set.Documents}.encode()
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

// beforeSuffix ends the names of files that have an owner's set that ran, as long as its
// replacement has not run. Such a file is a second name of the set's former file: it costs no room.
const beforeSuffix = ".before"

// Before returns, by owner, the sets that ran last and whose replacements have not run yet. A start
// goes on with them if the kernel refuses the newer ones.
func (f *File) Before() map[string]Set {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.before)
}

// Ran says that the state runs: earlier sets need no longer be kept.
func (f *File) Ran() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for owner := range f.before {
		if err := os.Remove(f.beforeFile(owner)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove what ran before: %w", err))
			continue
		}
		delete(f.before, owner)
	}
	return errors.Join(errs...)
}

func (f *File) beforeFile(owner string) string { return filepath.Join(f.dir, owner+beforeSuffix) }

// keepBefore keeps an owner's set, which is about to be replaced, until its successor runs. If one
// is kept already, that is the one that ran. Sets that are also written elsewhere are kept there.
// The lock is held.
func (f *File) keepBefore(owner string) error {
	if _, kept := f.before[owner]; kept || slices.Contains(f.written, owner) {
		return nil
	}
	path := f.beforeFile(owner)
	if err := f.clear(owner + beforeSuffix); err != nil {
		return err
	}
	err := os.Link(filepath.Join(f.dir, owner+suffix), path)
	if errors.Is(err, fs.ErrExist) { // an older process has left it
		if err = os.Remove(path); err == nil {
			err = os.Link(filepath.Join(f.dir, owner+suffix), path)
		}
	}
	if err != nil { // there was no set, its file was removed, or the file system has no links
		set := f.state.Sets[owner]
		text, wrong := written{Format, owner, f.state.Revision, set.Given, set.Documents}.encode()
		if wrong != nil {
			return wrong
		}
		if err := writeFile(path, text); err != nil && !errors.As(err, new(*unsyncedError)) {
			return fmt.Errorf("keep what runs: %w", err)
		}
	}
	f.before[owner] = f.state.Sets[owner]
	return nil
}

// readBefore reads the sets that ran before. One that cannot be used is moved aside: the newer set is
// there.
func (f *File) readBefore() error {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return fmt.Errorf("find what ran before: %w", err)
	}
	for _, entry := range entries {
		owner, is := strings.CutSuffix(entry.Name(), beforeSuffix)
		if !is {
			continue
		}
		path := filepath.Join(f.dir, entry.Name())
		w, err := readSet(path, owner)
		if bad := (*CorruptError)(nil); errors.As(err, &bad) {
			f.goWithout(bad)
			continue
		}
		if err != nil {
			return err
		}
		f.before[owner] = Set{Documents: w.Documents, Given: w.Given}
	}
	return nil
}

// overridesFile has no suffix of sets.
const overridesFile = "overrides"

// Overrides returns what SaveOverrides has written. A file that cannot be used is moved aside: see
// Damaged. If that is not possible, it gives a *CorruptError.
func (f *File) Overrides() (list []model.BackendOverride, err error) {
	text, err := readValue(filepath.Join(f.dir, overridesFile), &list)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
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

// broadcast sends states to watchers. A slow watcher misses states, never the last.
type broadcast struct {
	mu       sync.Mutex
	channels map[chan State]bool
}

// add returns a channel that already has the first state. It is closed when the context ends.
func (b *broadcast) add(ctx context.Context, first State) <-chan State {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.channels == nil {
		b.channels = map[chan State]bool{}
	}
	c := make(chan State, 1)
	c <- first
	b.channels[c] = true
	context.AfterFunc(ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.channels, c)
		close(c)
	})
	return c
}

func (b *broadcast) send(s State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.channels {
		replace(c, s)
	}
}

// replace puts a state in a channel that holds one, in place of an earlier one that was not taken. Only
// the channel's one sender calls it.
func replace(states chan State, s State) {
	select {
	case <-states:
	default:
	}
	states <- s
}
