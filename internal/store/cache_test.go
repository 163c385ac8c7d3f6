package store

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"weir.io/weir/internal/model"
)

// history returns the roots and segments of a group's history.
func history(t *testing.T, sets ...[]model.Service) (roots []root, segments map[string]segment) {
	t.Helper()
	segments = map[string]segment{}
	from, state := root{Format: Format, Sets: map[string][]string{}}, State{}
	for _, services := range sets {
		next := must(t, state, Replace("cli", services, count))
		to, fresh, err := from.follow(next, []string{"cli"})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range fresh {
			segments[s.name] = s
		}
		from, state = to, next
		roots = append(roots, to)
	}
	return roots, segments
}

func many(n int) []model.Service {
	var list []model.Service
	for i := range n {
		list = append(list, service(string(rune('a'+i)), byte(i+1), 2))
	}
	return list
}

func (c *cache) want(t *testing.T, r root, segments map[string]segment) {
	t.Helper()
	got, have, found, err := (&cache{dir: c.dir}).load("/weir")
	if err != nil || !found {
		t.Fatalf("the next process finds a state: %v, %v", found, err)
	}
	want, err := r.state(segments)
	if err != nil {
		t.Fatal(err)
	}
	state, err := got.state(have)
	if err != nil {
		t.Fatal(err)
	}
	if diff := difference(want, state); diff != "" {
		t.Error(diff)
	}
}

func TestCacheKnowsTheLastState(t *testing.T) {
	c := &cache{dir: filepath.Join(t.TempDir(), "group")}
	if _, _, found, err := c.load("/weir"); found || err != nil {
		t.Fatalf("an empty disk has a state: %v, %v", found, err)
	}
	roots, segments := history(t, many(20), many(19), many(25))
	for _, r := range roots {
		if err := c.save("/weir", r, segments); err != nil {
			t.Fatal(err)
		}
		c.want(t, r, segments)
	}
	if _, _, found, err := c.load("/other"); found || err != nil {
		t.Errorf("another group has this one's state: %v, %v", found, err)
	}
	files, err := os.ReadDir(filepath.Join(c.dir, "segments"))
	if err != nil || len(files) != len(roots[2].names()) {
		t.Errorf("there are %d segments, want %d (%v)", len(files), len(roots[2].names()), err)
	}
}

// A power cut leaves some of the new segments, the last of them in part.
func TestPowerCutLeavesTheCacheOld(t *testing.T) {
	c := &cache{dir: filepath.Join(t.TempDir(), "group")}
	roots, segments := history(t, many(12), many(16))
	if err := c.save("/weir", roots[0], segments); err != nil {
		t.Fatal(err)
	}
	before := readText(t, c.rootFile())
	names := slices.Collect(maps.Keys(roots[1].names()))
	for i, name := range names {
		if !roots[0].names()[name] {
			text := segments[name].text
			writeText(t, c.segmentFile(name), text[:len(text)*i/len(names)])
		}
		c.want(t, roots[0], segments)
	}
	// A later process does not take a half-written state for a whole one.
	later := &cache{dir: c.dir}
	if _, _, found, err := later.load("/weir"); !found || err != nil {
		t.Fatal(found, err)
	}
	if err := later.save("/weir", roots[1], segments); err != nil {
		t.Fatal(err)
	}
	c.want(t, roots[1], segments)
	after := readText(t, c.rootFile())
	for n := range len(after) {
		writeText(t, filepath.Join(c.dir, temporary+"root.json"), after[:n])
		c.want(t, roots[1], segments)
	}
	if slices.Equal(before, after) {
		t.Error("the history has one state only")
	}
}

func TestDamagedCacheIsMovedAside(t *testing.T) {
	for name, damage := range map[string]func(c *cache, r root) string{
		"root": func(c *cache, _ root) string { return c.rootFile() },
		"segment": func(c *cache, r root) string {
			for name := range r.names() {
				return c.segmentFile(name)
			}
			return ""
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := &cache{dir: filepath.Join(t.TempDir(), "group")}
			roots, segments := history(t, many(12))
			if err := c.save("/weir", roots[0], segments); err != nil {
				t.Fatal(err)
			}
			path := damage(c, roots[0])
			text := readText(t, path)
			writeText(t, path, text[:len(text)/2])
			_, _, found, err := c.load("/weir")
			var corrupt *CorruptError
			if found || !errors.As(err, &corrupt) || corrupt.File != path {
				t.Fatalf("loaded: %v, %v", found, err)
			}
			if kept := readText(t, corrupt.Aside); !slices.Equal(kept, text[:len(text)/2]) {
				t.Errorf("kept aside is %q", kept)
			}
			if _, _, found, err := c.load("/weir"); found || err != nil {
				t.Errorf("loaded again: %v, %v", found, err)
			}
			if err := c.save("/weir", roots[0], segments); err != nil {
				t.Fatal(err)
			}
			c.want(t, roots[0], segments)
			if kept := readText(t, corrupt.Aside); !slices.Equal(kept, text[:len(text)/2]) {
				t.Error("what was kept aside is lost")
			}
		})
	}
}

// A store that has lost everything does not take along what a director knows.
func TestCacheOutlivesALostStore(t *testing.T) {
	c := newCluster(t, 1, false)
	cache := filepath.Join(t.TempDir(), "group")
	e := c.openWith(c.options, cache)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	states := e.Watch(ctx)
	want := put(t, e, "cli", service("a", 1, 2))
	next(t, states, func(s State) bool { return s.Revision == 1 })
	if err := e.Ran(1); err != nil {
		t.Fatal(err)
	}
	if _, err := c.client().Delete(t.Context(), c.options.Prefix, clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	next(t, states, func(s State) bool { return s.Revision == 0 })
	if err := e.Ran(0); err != nil {
		t.Fatal(err)
	}
	cancel()
	got, found, err := c.openWith(c.options, cache).Cached()
	if err != nil || !found {
		t.Fatalf("the next process finds a state: %v, %v", found, err)
	}
	if diff := difference(want, got); diff != "" {
		t.Error(diff)
	}
}
