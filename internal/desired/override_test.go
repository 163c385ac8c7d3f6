package desired

import (
	"errors"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// startOverriding starts a director whose file's backends can be drained beside the file.
func startOverriding(t *testing.T, dir string) (*director, *full) {
	t.Helper()
	file, err := store.OpenFile(dir, store.OwnerFile)
	if err != nil {
		t.Fatal(err)
	}
	disk := &full{Store: file}
	d := startWith(t, file.Close, Deps{Local: disk, Overrides: file})
	t.Cleanup(d.stop)
	return d, disk
}

// drainFirst drains the first backend of web.
func (d *director) drainFirst(t *testing.T) {
	t.Helper()
	first := web("", 1).Backends[0].Address
	means := func(_ *model.Service, b *model.Backend) bool { return b.Address == first }
	if unkept, err := d.SetOverrides(means, &model.Override{State: model.Draining, By: "root"}); unkept != nil || err != nil {
		t.Fatalf("drained: %v, %v", unkept, err)
	}
}

// A drain beside the file outlives a start that has to refuse the file and goes on with what is
// stored: that has the state which the drain gave, and not the file.
func TestDrainOutlivesRefusedFile(t *testing.T) {
	dir := t.TempDir()
	d, _ := startOverriding(t, dir)
	d.set(t, web("old", 2))
	other := web("app", 1)
	other.VIP = other.VIP.Next()
	if _, err := d.Put(t.Context(), "cli", config(other).Services, model.SetCondition{}); err != nil {
		t.Fatal(err)
	}
	d.drainFirst(t)
	d.stop()
	d, _ = startOverriding(t, dir)
	if err := d.Start(config(web("old", 2), other), nil); err != nil {
		t.Fatalf("what ran before does not go on: %v", err)
	}
	if n := len(d.Overridden()); n != 1 {
		t.Errorf("%d backends are drained beside the file, want 1", n)
	}
	if state := d.File().Services[0].Backends[0].State; state != model.Active {
		t.Errorf("the file is said to have the backend %v", state)
	}
	if state := d.Sets().Sets[store.OwnerFile].Services()[0].Backends[0].State; state != model.Draining {
		t.Errorf("the backend is %v, and was drained", state)
	}
}

// A drain does not take the place of a version of the file that waits for room on the disk.
func TestDrainLeavesWaitingFile(t *testing.T) {
	d, disk := startOverriding(t, t.TempDir())
	d.set(t, web("a", 2))
	noRoom := errors.New("no room")
	disk.fill(noRoom)
	if err := d.SetFile(config(web("b", 3))); !errors.Is(err, noRoom) {
		t.Fatalf("the file is stored on a full disk: %v", err)
	}
	d.drainFirst(t)
	disk.fill(nil)
	until(t, "the file runs", func() bool { return d.File().Services[0].Name == "b" })
}
