package tune

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// RecordName is the name of the record in the directory of weir's state. It has no suffix of sets.
const RecordName = "tuned"

// recordFormat is the number of the record's format.
const recordFormat = 1

// Record is what weir tune has set, and what there was before.
type Record struct {
	Format   int        `json:"format"`
	Boot     string     `json:"boot"`    // nothing of it holds after the next one
	Settled  bool       `json:"settled"` // it has what drivers have set when they began anew
	Settings []Recorded `json:"settings"`
}

// Recorded is one setting that has been changed, or that drivers may change with others that have been.
type Recorded struct {
	Name      string `json:"name"`
	Kind      Kind   `json:"kind"`
	Interface string `json:"interface,omitempty"`
	Identity  string `json:"identity,omitempty"`
	Was       string `json:"was"` // before the first change
	Set       string `json:"set"`
}

// Store keeps the record.
type Store struct {
	Path string // of its file
	// Write writes the file, so that a power cut leaves the old or the new contents.
	Write func(text []byte) error
}

// load reads the record; nil: there is none, or it is of another boot of the host, as before says.
func (s Store) load(boot string) (r *Record, before bool, err error) {
	text, err := os.ReadFile(s.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read what was set before: %w", err)
	}
	r = &Record{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, false, fmt.Errorf("%s is no record of weir tune: %w; look at it, and remove it if its values are not needed", s.Path, err)
	}
	if r.Format != recordFormat {
		return nil, false, fmt.Errorf("%s is a record of another version of weir, of format %d: let that one undo it", s.Path, r.Format)
	}
	if r.Boot != boot {
		return nil, true, nil
	}
	return r, false, nil
}

func (s Store) save(r *Record) error {
	if len(r.Settings) == 0 {
		return s.remove()
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = s.Write(append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("record what was set before in %s: %w", s.Path, err)
	}
	return nil
}

func (s Store) remove() error {
	if err := os.Remove(s.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record: %w", err)
	}
	return nil
}

// boot names this boot of the host.
func (h *Host) boot() string { return readText(filepath.Join(h.Proc, "sys/kernel/random/boot_id")) }

func (r *Record) find(name string) *Recorded {
	at := slices.IndexFunc(r.Settings, func(s Recorded) bool { return s.Name == name })
	if at < 0 {
		return nil
	}
	return &r.Settings[at]
}

// note records what a setting is, before it gets what it wants. The first value that there was is kept, unless
// it was another thing's.
func (r *Record) note(s *Setting) {
	known := r.find(s.Name())
	if known == nil {
		r.Settings = append(r.Settings, Recorded{})
		known = &r.Settings[len(r.Settings)-1]
	}
	if known.Name == "" || known.Identity != s.Identity {
		*known = Recorded{Name: s.Name(), Kind: s.Kind, Interface: s.Interface, Identity: s.Identity, Was: s.Now}
	}
	known.Set = s.Want
}

// noteSet records what a setting is after it was written: what undo finds if nobody has changed it since.
func (r *Record) noteSet(name, now string) {
	if known := r.find(name); known != nil {
		known.Set = now
	}
}

// begins says whether drivers begin anew when a setting of this kind changes, and change others with it.
func (k Kind) begins() bool { return k == Queues || k == Rings }

// prune drops what is as it was, and will be after undo.
func (r *Record) prune() {
	all := slices.Clone(r.Settings)
	r.Settings = slices.DeleteFunc(r.Settings, func(s Recorded) bool {
		return s.Was == s.Set && !slices.ContainsFunc(all, func(with Recorded) bool {
			return with.Kind.begins() && with.Interface == s.Interface && with.Was != with.Set
		})
	})
}

func (r *Record) drop(name string) {
	r.Settings = slices.DeleteFunc(r.Settings, func(s Recorded) bool { return s.Name == name })
}
