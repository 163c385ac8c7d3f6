package desired

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
	"weir.io/weir/lab/etcdlab"
)

// remembering starts a director with a directory, of which the kernel has room for some services.
func remembering(t *testing.T, dir string, room int) *director {
	t.Helper()
	file, err := store.OpenFile(dir, store.OwnerFile)
	if err != nil {
		t.Fatal(err)
	}
	d := startWith(t, file.Close, Deps{Local: file, Past: file})
	t.Cleanup(d.stop)
	d.sink.makeRoom(room)
	return d
}

func (s *sink) makeRoom(services int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.room = services
}

func (d *director) forwards() string {
	d.sink.mu.Lock()
	defer d.sink.mu.Unlock()
	return kept(d.sink.last)
}

// apps are a set of so many services.
func apps(n int) []model.Service {
	var list []model.Service
	for i := range n {
		s := web(string(rune('a'+i)), 1)
		for range 1 + i {
			s.VIP = s.VIP.Next()
		}
		list = append(list, s)
	}
	return config(list...).Services
}

// A set that the kernel refuses is stored, and does not take the place of the one that ran: a start
// goes on with that, until the newer one runs.
func TestStartGoesOnWithTheSetThatRan(t *testing.T) {
	dir := t.TempDir()
	d := remembering(t, dir, 3)
	d.set(t, web("web", 1))
	if _, err := d.Put(t.Context(), "cli", apps(2), model.SetCondition{}); err != nil {
		t.Fatal(err)
	}
	before := filepath.Join(dir, "cli.before")
	gone := func() bool { _, err := os.Stat(before); return os.IsNotExist(err) }
	until(t, "what ran before the set is forgotten", gone)
	for range 2 { // the second one is no set that ran, either
		if _, err := d.Put(t.Context(), "cli", apps(4), model.SetCondition{}); !errors.As(err, new(*PendingError)) {
			t.Fatalf("a set that the kernel refuses is put with %v", err)
		}
		if _, err := d.Put(t.Context(), "cli", apps(3), model.SetCondition{}); !errors.As(err, new(*PendingError)) {
			t.Fatalf("a set that the kernel refuses is put with %v", err)
		}
	}
	if _, err := d.Put(t.Context(), "other", nil, model.SetCondition{}); !errors.As(err, new(*PendingError)) {
		t.Fatalf("another owner's set is put with %v", err)
	}
	d.stop()

	d = remembering(t, dir, 3)
	if err := d.Start(config(web("web", 1)), nil); !errors.As(err, new(*PendingError)) {
		t.Errorf("the set that the kernel refuses is said to be %v", err)
	}
	if got := d.forwards(); got != "web a b" {
		t.Errorf("after a start %q is forwarded, and \"web a b\" ran", got)
	}
	if n := len(d.Sets().Sets["cli"].Documents); n != 3 {
		t.Errorf("the stored set has %d services, want the 3 that were put", n)
	}
	if _, runs := d.Running(); runs || gone() {
		t.Errorf("the set is said to run: %v; what ran is forgotten: %v", runs, gone())
	}
	d.sink.makeRoom(4)
	d.KeepPast(true)
	until(t, "the newer set runs", func() bool { return d.forwards() == "web a b c" })
	if d.noteRuns(); gone() {
		t.Error("what ran before is forgotten before the start has succeeded")
	}
	d.KeepPast(false)
	until(t, "what ran before it is forgotten", gone)
}

// A state of the group's that the kernel refuses at a start is not kept as one that ran here: the
// next start goes on with the one that did.
func TestRefusedStateOfTheGroupIsNotKept(t *testing.T) {
	c := etcdlab.New(t, etcdlab.Options{Members: 1})
	group := newGroup(t, c, 2)
	group[0].must()
	m := group[1]
	m.must()
	put(t, m, "cli", apps(2)...)
	until(t, "the director keeps the group's state", func() bool {
		_, err := os.Stat(filepath.Join(m.dir, "group", "root.json"))
		m.noting.Lock()
		defer m.noting.Unlock()
		return err == nil && m.noted.shared == m.revision()
	})
	m.stop()
	put(t, group[0], "cli", apps(3)...)
	m.room = 2
	for range 2 {
		if err := m.run(); !errors.As(err, new(*PendingError)) {
			t.Fatalf("a start with a state that the kernel refuses: %v", err)
		}
		if got := m.forwards(); got != "a b" {
			t.Errorf("after a start %q is forwarded, and \"a b\" ran", got)
		}
		m.noteRuns()
		m.stop()
	}
	known := func() uint64 {
		s, _, err := openGroup(t, c, m.dir+"/group", slog.New(slog.DiscardHandler)).Cached()
		if err != nil {
			t.Fatal(err)
		}
		return uint64(s.Count())
	}
	if n := known(); n != 2 {
		t.Errorf("the last known state has %d services, and 2 ran", n)
	}
}
