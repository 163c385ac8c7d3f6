package store

import (
	"testing"

	"weir.io/weir/internal/model"
)

// Segments of a writer whose change came too late are collected, too: also if the other writers
// have collected before they were written, and if others are faster again while the writer
// collects.
func TestEtcdCollectsWhatALateWriterLeft(t *testing.T) {
	c := newCluster(t, 1, false)
	late, quick := c.open(), c.open()
	a := service("a", 1, 1)
	put(t, late, "cli", a)
	put(t, quick, "cli", a) // both have collected what earlier processes left
	first := true
	replace := Replace("cli", []model.Service{a}, count)
	s, err := late.Update(t.Context(), func(from State) (State, error) {
		if first {
			first = false
			put(t, quick, "cli", a) // the same change: its segments have the same names
			put(t, quick, "cli", a) // which are collected here
		}
		return replace(from)
	})
	if err != nil {
		t.Fatal(err)
	}
	checkNoGarbage(t, c, s)

	from, err := late.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	next, err := replace(from.State)
	if err != nil {
		t.Fatal(err)
	}
	to, fresh, err := from.root.follow(next, changed(from.State, next))
	if err != nil {
		t.Fatal(err)
	}
	if err := late.upload(t.Context(), fresh); err != nil {
		t.Fatal(err)
	}
	done, switched, err := late.switchRoot(t.Context(), from, to)
	if err != nil || !done {
		t.Fatalf("the root is switched: %v, %v", done, err)
	}
	s = put(t, quick, "kube", service("b", 2, 1))
	late.collect(t.Context(), from.root, to, switched)
	checkNoGarbage(t, c, s)
}
