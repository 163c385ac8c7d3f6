package desired

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// web is a service with n backends, whose log is short.
func web(name string, n int) model.Service {
	s := model.Service{
		Name: name, VIP: netip.MustParseAddr("192.0.2.1"), Protocol: model.TCP,
		Port: model.PortRange{First: 80, Last: 80}, Mode: model.GUE,
	}
	for i := range n {
		b := model.NewBackend()
		b.Address = netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(1 + i)})
		s.Backends = append(s.Backends, b)
	}
	return s
}

// config is a valid configuration of these services.
func config(services ...model.Service) model.Config {
	c := model.Config{Services: services}
	c.Director.Interfaces = []string{"eth0"}
	c.SetDefaults()
	c.Notice = model.Duration(50 * time.Millisecond)
	for i := range c.Services {
		c.Services[i].Retention = model.Duration(10 * time.Second)
	}
	return c
}

// sink is what forwards, or fails on demand.
type sink struct {
	mu   sync.Mutex
	fail error
	room int      // of services; 0: enough
	sets []string // names of the services of each table
	last model.Table
}

func (s *sink) Set(table model.Table) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, service := range table.Services {
		names = append(names, service.Name)
	}
	s.sets = append(s.sets, strings.Join(names, " "))
	if s.room > 0 && len(names) > s.room {
		return errors.New("no room")
	}
	s.last = table
	return s.fail
}

func (s *sink) failWith(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = err
}

func (s *sink) want(t *testing.T, sets ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.sets, sets) {
		t.Errorf("the sink was set to %q, want %q", s.sets, sets)
	}
}

// director is the part of weir run that is tested here, on a directory.
type director struct {
	*Controller
	sink   *sink
	engine *engine.Engine
	stop   func()
}

func start(t *testing.T, dir string, local Store) *director {
	t.Helper()
	if local != nil {
		return startWith(t, func() error { return nil }, Deps{Local: local})
	}
	file, err := store.OpenFile(dir, store.OwnerFile)
	if err != nil {
		t.Fatal(err)
	}
	return startWith(t, file.Close, Deps{Local: file})
}

// startWith starts a director with an engine of its own, and no log.
func startWith(t *testing.T, closed func() error, deps Deps) *director {
	d := &director{sink: &sink{}}
	log := slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(t.Context())
	d.engine = engine.New(engine.Deps{Forwarder: d.sink, Log: log})
	deps.Engine, deps.Log = d.engine, log
	d.Controller = New(deps)
	var running sync.WaitGroup
	running.Go(func() { d.engine.Run(ctx) })
	running.Go(func() { d.Controller.Run(ctx) })
	d.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		if err := closed(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// inBubble runs a test with a director in fake time.
func inBubble(t *testing.T, test func(t *testing.T, d *director, dir string)) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		d := start(t, dir, nil)
		defer d.stop()
		test(t, d, dir)
	})
}

func pass(d time.Duration) {
	time.Sleep(d) // fake time: it passes at once when nobody has anything to do
}

func (d *director) set(t *testing.T, services ...model.Service) {
	t.Helper()
	if err := d.SetFile(config(services...)); err != nil {
		t.Fatal(err)
	}
}

func (d *director) wantLog(t *testing.T, generations int) {
	t.Helper()
	s := web("", 0)
	if got := d.engine.Report().LogStatus()[s.ID()]; got.Generations != generations || got.Waits {
		t.Errorf("%d generations, waits: %v; want %d", got.Generations, got.Waits, generations)
	}
}

// Changes of one owner's set that come together are one. Versions of the file that come together are:
// see daemon.Follow.
func TestChangesAreCoalesced(t *testing.T) {
	inBubble(t, func(t *testing.T, d *director, _ string) {
		begin := time.Now()
		d.set(t)
		var callers sync.WaitGroup
		for i, name := range []string{"b", "c", "d"} {
			callers.Go(func() {
				pass(time.Duration(i) * 20 * time.Millisecond)
				if _, err := d.Put(t.Context(), "cli", config(web(name, 3+i)).Services, model.SetCondition{}); err != nil {
					t.Error(err)
				}
				if time.Since(begin) != 50*time.Millisecond {
					t.Errorf("%s was set after %v", name, time.Since(begin))
				}
			})
		}
		callers.Wait()
		d.sink.want(t, "", "d")
		d.wantLog(t, 1)
	})
}

func TestLogsAreTrimmedInTime(t *testing.T) {
	inBubble(t, func(t *testing.T, d *director, _ string) {
		for n := 2; n < 5; n++ {
			d.set(t, web("a", n))
			pass(time.Second)
		}
		d.wantLog(t, 3)
		pass(7 * time.Second)
		d.wantLog(t, 3)
		d.sink.want(t, "a", "a", "a")
		pass(4 * time.Second)
		d.wantLog(t, 1)
		pass(time.Hour)
		d.sink.want(t, "a", "a", "a", "a", "a") // one for each that left, and then none
		if left := d.Left(); left[history.Drained] != 2 || len(left) != 1 {
			t.Errorf("%v have left, want 2, drained", left)
		}
	})
}

// A configuration that no sink took may have placed connections.
func TestFailedSetStaysInTheLog(t *testing.T) {
	inBubble(t, func(t *testing.T, d *director, _ string) {
		d.set(t, web("a", 2))
		d.sink.failWith(errors.New("map is full"))
		if err := d.SetFile(config(web("a", 3))); err == nil {
			t.Error("the sink's error is lost")
		}
		d.sink.failWith(nil)
		d.set(t, web("a", 4))
		d.wantLog(t, 3)
	})
}

func TestAnotherPortIsAnotherService(t *testing.T) {
	inBubble(t, func(t *testing.T, d *director, _ string) {
		d.set(t, web("a", 2))
		d.set(t, web("b", 3))
		d.wantLog(t, 2)
		other := web("b", 4)
		other.Port = model.PortRange{First: 81, Last: 81}
		d.set(t, other)
		if got := d.engine.Report().Services[0].Generations; got != 1 {
			t.Errorf("at another port the log has %d generations, want 1", got)
		}
	})
}

// The next process continues the logs, wherever the one before ended.
func TestLogsOutliveTheProcess(t *testing.T) {
	inBubble(t, func(t *testing.T, d *director, dir string) {
		d.set(t, web("a", 2))
		pass(time.Second)
		d.set(t, web("a", 3))
		oldest := d.engine.Report().Services[0].Oldest
		d.stop()
		pass(time.Second)
		d = start(t, dir, nil)
		d.set(t, web("a", 3))
		d.wantLog(t, 2)
		if got := d.engine.Report().Services[0].Oldest; !got.Equal(oldest) {
			t.Errorf("the oldest generation is of %v, it was of %v", got, oldest)
		}
		d.stop()
		pass(time.Second)
		d = start(t, dir, nil)
		defer d.stop()
		d.set(t, web("a", 4)) // the file was edited meanwhile
		d.wantLog(t, 3)
		pass(8500 * time.Millisecond)
		d.wantLog(t, 2)
		pass(time.Minute)
		d.wantLog(t, 1)
	})
}

// A generation that holds slots goes on placing connections while no process runs.
func TestHeldGenerationsOutliveTheProcess(t *testing.T) {
	inBubble(t, func(t *testing.T, d *director, dir string) {
		crowded := func(turn int) model.Service { // each turn has owners of its own
			s := web("a", 24)
			for i := range s.Backends {
				if i/2 != turn {
					s.Backends[i].State = model.Draining
				}
			}
			return s
		}
		for turn := range 10 {
			d.set(t, crowded(turn))
		}
		before := d.engine.Report().Services[0]
		if before.Held == 0 || len(before.HeldAt) == 0 {
			t.Fatalf("no slot is held: %+v", before)
		}
		d.stop()
		pass(time.Minute) // six times drain
		d = start(t, dir, nil)
		defer d.stop()
		d.set(t, crowded(9))
		if got := d.engine.Report().Services[0]; got.Generations != 1+len(before.HeldAt) {
			t.Errorf("the log has %d generations, want the newest and %v", got.Generations, before.HeldAt)
		}
		pass(9 * time.Second)
		if got := d.engine.Report().Services[0]; got.Generations == 1 {
			t.Error("a generation left that placed connections until the process was back")
		}
		pass(time.Minute)
		d.wantLog(t, 1)
	})
}

func TestSetsGoTogether(t *testing.T) {
	inBubble(t, func(t *testing.T, d *director, dir string) {
		d.set(t, web("a", 2))
		if _, err := d.Put(t.Context(), "cli", config(web("b", 2)).Services, model.SetCondition{}); err == nil || !strings.Contains(err.Error(), `owner "file"`) {
			t.Errorf("a set with the file's service: %v", err)
		}
		b := web("b", 2)
		b.VIP = netip.MustParseAddr("192.0.2.2")
		change, err := d.Put(t.Context(), "cli", config(b).Services, model.SetCondition{})
		if err != nil || !slices.Equal(change.Added, []string{"b"}) {
			t.Fatalf("put: %+v, %v", change, err)
		}
		d.sink.want(t, "a", "a b")
		if err := d.SetFile(config(web("a", 2), b)); err == nil || !strings.Contains(err.Error(), `owner "cli"`) {
			t.Errorf("a file with a set's service: %v", err)
		}
		d.sink.want(t, "a", "a b")
		if _, err := d.Put(t.Context(), store.OwnerFile, nil, model.SetCondition{}); err == nil {
			t.Error("somebody may take the file's place")
		}
		d.stop()
		d = start(t, dir, nil)
		defer d.stop()
		d.set(t, web("a", 2))
		d.sink.want(t, "a b")
	})
}

// full is a store on a disk that is full for a while.
type full struct {
	Store
	mu  sync.Mutex
	err error
}

func (f *full) Update(ctx context.Context, change store.Change) (store.State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return store.State{}, f.err
	}
	return f.Store.Update(ctx, change)
}

func (f *full) fill(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func TestFileIsStoredWhenTheDiskHasRoomAgain(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		file, err := store.OpenFile(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		disk := &full{Store: file}
		d := start(t, dir, disk)
		defer d.stop()
		d.set(t, web("a", 2))
		noRoom := fmt.Errorf("no room")
		disk.fill(noRoom)
		if err := d.SetFile(config(web("b", 3))); !errors.Is(err, noRoom) {
			t.Errorf("the disk's error is lost: %v", err)
		}
		pass(time.Minute)
		d.sink.want(t, "a")
		disk.fill(nil)
		pass(time.Minute)
		d.sink.want(t, "a", "b", "b") // and once more without the old generation
		d.wantLog(t, 1)
	})
}
