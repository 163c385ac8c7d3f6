package desired

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/etcdclient"
	"weir.io/weir/internal/group"
	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
	"weir.io/weir/lab/etcdlab"
)

const patience = 60 * time.Second

// member is the part of weir run that is tested here, with a group's store.
type member struct {
	room    int // of the kernel, in services; 0: enough
	t       *testing.T
	dir     string
	cluster *etcdlab.Cluster
	grace   time.Duration
	notice  model.Duration // zero: short
	probes  *prober        // nil: nobody probes
	current bool           // what it began with is etcd's state
	list    *recorder
	*director
}

// openGroup opens a group's store, until the test ends.
func openGroup(t *testing.T, c *etcdlab.Cluster, cache string, log *slog.Logger) *group.Group {
	t.Helper()
	g, err := group.Open(etcdclient.Options{Endpoints: c.Endpoints, Prefix: c.Prefix, Log: log}, cache)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

// run starts it with a file that has these services of its own.
func (m *member) run(own ...model.Service) error {
	m.t.Helper()
	log := slog.New(slog.NewTextHandler(m.t.Output(), nil)).With("director", m.dir[len(m.dir)-3:])
	local, err := store.OpenFile(m.dir, store.OwnerFile)
	if err != nil {
		m.t.Fatal(err)
	}
	group := openGroup(m.t, m.cluster, m.dir+"/group", log)
	ctx, cancel := context.WithCancel(m.t.Context())
	d := &director{sink: &sink{room: m.room}}
	d.engine = engine.New(engine.Deps{Forwarder: d.sink, Log: log})
	m.list = &recorder{}
	deps := Deps{Local: local, Engine: d.engine, Problems: m.list, Reports: group.FollowReports(ctx), Log: log}
	if m.probes != nil {
		deps.Health, deps.Views = m.probes, group.FollowViews(ctx)
	}
	d.Controller = New(deps)
	var running sync.WaitGroup
	running.Go(func() { d.engine.Run(ctx) })
	d.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		group.Close()
		local.Close()
	})
	m.t.Cleanup(d.stop)
	m.director = d
	if m.current, err = d.Join(ctx, group, m.grace); err != nil {
		return err
	}
	file := config(own...)
	file.Director.Store.Etcd = model.Etcd{Endpoints: m.cluster.Endpoints, Prefix: m.cluster.Prefix}
	if m.notice != 0 {
		file.Notice = m.notice
	}
	if err := d.Start(file, nil); err != nil {
		return err
	}
	running.Go(func() { d.Controller.Run(ctx) })
	return nil
}

func (m *member) must(own ...model.Service) {
	m.t.Helper()
	if err := m.run(own...); err != nil {
		m.t.Fatal(err)
	}
}

func (m *member) table() model.Table {
	m.sink.mu.Lock()
	defer m.sink.mu.Unlock()
	return m.sink.last
}

func (m *member) revision() uint64 { return m.forwarding().revision }

func newGroup(t *testing.T, c *etcdlab.Cluster, n int) []*member {
	t.Helper()
	var group []*member
	for range n {
		group = append(group, &member{t: t, dir: t.TempDir(), cluster: c, grace: patience})
	}
	return group
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); {
		if time.Now().After(end) {
			t.Fatal("never: ", what)
		}
		time.Sleep(5 * time.Millisecond) // between two looks
	}
}

// forwarding is what a director does at a moment.
type forwarding struct {
	revision uint64 // of the group
	coming   bool   // a generation does not place connections yet
	table    model.Table
}

// forwarding returns all of it at one moment: a state is adopted with the lock held.
func (m *member) forwarding() forwarding {
	m.mu.Lock()
	defer m.mu.Unlock()
	return forwarding{m.shared.Revision, !m.placing.IsZero(), m.table()}
}

// agree waits until all have the same revision, and checks that they forward the same.
func agree(t *testing.T, members ...*member) model.Table {
	t.Helper()
	var all []forwarding
	until(t, "the directors have the same revision, and place connections by it", func() bool {
		all = nil
		for _, m := range members {
			all = append(all, m.forwarding())
		}
		return !slices.ContainsFunc(all, func(f forwarding) bool {
			return f.coming || f.revision != all[0].revision
		})
	})
	for i, f := range all {
		if !reflect.DeepEqual(f.table, all[0].table) {
			t.Fatalf("director %d forwards other rows than director 0 at revision %d", i, f.revision)
		}
	}
	return all[0].table
}

// shared is a service of the group with n backends, which rarely trims.
func shared(name string, last byte, n int) model.Service {
	s := web(name, n)
	s.VIP = netip.AddrFrom4([4]byte{203, 0, 113, last})
	s.Retention = model.Duration(time.Hour)
	return s
}

// put puts a set, again if etcd loses its leader meanwhile.
func put(t *testing.T, m *member, owner string, services ...model.Service) model.SetChange {
	t.Helper()
	c := config(services...)
	for i := range services {
		c.Services[i].Retention = services[i].Retention
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		change, err := m.Put(ctx, owner, c.Services, model.SetCondition{})
		if err == nil {
			return change
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// Directors that come and go see different parts of a history, and forward the same
// rows; the loss of a member of etcd changes nothing.
func TestGroupForwardsTheSame(t *testing.T) {
	c := etcdlab.New(t, etcdlab.Options{Members: 3})
	group := newGroup(t, c, 3)
	group[0].must()
	running := map[int]bool{0: true}
	r := rand.New(rand.NewPCG(4, 7))
	for step := range 30 {
		if i := 1 + r.IntN(2); running[i] && r.IntN(3) == 0 {
			group[i].stop()
			running[i] = false
		} else if !running[i] && r.IntN(2) == 0 {
			group[i].must()
			running[i] = true
		}
		if step == 15 {
			c.Kill(1)
		}
		by := group[0]
		if i := r.IntN(3); running[i] {
			by = group[i]
		}
		s := shared("a", 1, 2+r.IntN(12))
		if r.IntN(3) == 0 {
			s = shared("b", 2, 1+r.IntN(3))
		}
		for i := range s.Backends {
			s.Backends[i].Weight = uint16(r.IntN(3) * 50)
		}
		put(t, by, "owner-of-"+s.Name, s)
	}
	for i := range group {
		if !running[i] {
			group[i].must()
		}
	}
	table := agree(t, group...)
	lists := 0
	for _, s := range table.Services {
		lists += len(s.Ring.Lists)
	}
	if lists == 0 {
		t.Error("the history has left no row with older candidates: nothing was compared")
	}
}

// Without etcd nothing changes; a director that starts then forwards the same; and what
// waits for etcd happens when it is back.
func TestGroupWithoutEtcd(t *testing.T) {
	c := etcdlab.New(t, etcdlab.Options{Members: 1})
	group := newGroup(t, c, 3)
	group[0].must()
	group[1].must()
	short := shared("a", 1, 8)
	put(t, group[0], "cli", short)
	short.Backends = short.Backends[:7]
	short.Retention = model.Duration(5 * time.Second) // until then etcd is dead
	put(t, group[1], "cli", short)
	before := agree(t, group[:2]...)
	if len(before.Services[0].Ring.Lists) == 0 {
		t.Fatal("no row has older candidates")
	}
	c.Kill(0)
	group[1].stop()
	if !group[1].current {
		t.Error("what a director began with beside etcd is not the group's state of the moment")
	}
	group[1].grace = time.Second
	group[1].must() // from its disk
	if group[1].current {
		t.Error("what a director remembers of the group without etcd is taken for its state of the moment")
	}
	if got := group[1].table(); !reflect.DeepEqual(got, before) {
		t.Error("a director that started without etcd forwards otherwise than before")
	}
	began := make(chan error)
	go func() { began <- group[2].run() }() // it has never known the group's state
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	short.Backends = short.Backends[:6]
	if _, err := group[0].Put(ctx, "cli", config(short).Services, model.SetCondition{}); !errors.Is(err, etcdclient.ErrUnreachable) {
		t.Errorf("a set is put without etcd: %v", err)
	}
	pause := time.NewTimer(6 * time.Second) // longer than drain
	defer pause.Stop()
	select {
	case err := <-began:
		t.Fatalf("a director that knows nothing of its group begins to forward (%v)", err)
	case <-pause.C:
	}
	for i, m := range group[:2] {
		if got := m.table(); !reflect.DeepEqual(got, before) {
			t.Errorf("the loss of etcd has changed what director %d forwards", i)
		}
	}
	c.Start(0)
	if err := <-began; err != nil {
		t.Fatal(err)
	}
	until(t, "the old generation leaves the logs", func() bool {
		return len(agree(t, group...).Services[0].Ring.Lists) == 0
	})
	// All three had something to trim, and one of them did. Before that, one that has not read
	// agents' reports since it began may have noted that connections may need all slots.
	if got := group[0].revision(); got != 3 && got != 4 {
		t.Errorf("two sets and a trim lead to revision %d", got)
	}
	// It counts when the store has answered, which may be after all have seen the trim.
	drained := func() (n uint64) {
		for _, m := range group {
			n += m.Left()[history.Drained]
		}
		return n
	}
	until(t, "a director counts the generation that left", func() bool { return drained() > 0 })
	put(t, group[2], "cli")
	if got := len(agree(t, group...).Services); got != 0 {
		t.Errorf("%d services are left", got)
	}
	// Another's count would have come by now.
	if n := drained(); n != 1 {
		t.Errorf("the directors count %d generations that left, want 1 together", n)
	}
}

// An etcd that has lost its data is not taken for a group that wants nothing.
func TestGroupWhoseStoreIsEmptied(t *testing.T) {
	c := etcdlab.New(t, etcdlab.Options{Members: 1})
	group := newGroup(t, c, 2)
	group[0].must()
	group[1].must()
	put(t, group[0], "cli", shared("a", 1, 4))
	put(t, group[0], "cli", shared("a", 1, 3))
	before := agree(t, group...)
	if _, err := c.Client().Delete(t.Context(), c.Prefix, clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	group[1].stop()
	group[1].must()
	for i, m := range group {
		if got := m.table(); !reflect.DeepEqual(got, before) {
			t.Errorf("the loss of etcd's data has changed what director %d forwards", i)
		}
	}
	put(t, group[0], "kube", shared("b", 2, 1))
	until(t, "the new set is all there is", func() bool {
		services := group[0].table().Services
		return len(services) == 1 && services[0].Name == "b"
	})
	agree(t, group...)
}

// A set that does not go with the file of one director is not what that one forwards,
// until the file is changed; the others are not concerned.
func TestGroupAndFilesThatDoNotGoTogether(t *testing.T) {
	c := etcdlab.New(t, etcdlab.Options{Members: 1})
	group := newGroup(t, c, 2)
	own := shared("mine", 1, 2)
	group[0].must()
	group[1].must(own)
	put(t, group[0], "cli", shared("a", 1, 3))
	until(t, "the second director refuses the set", func() bool { return group[1].Problem() != nil })
	if err := group[1].Problem(); err == nil || !strings.Contains(err.Error(), `owner "cli"`) || !strings.Contains(err.Error(), `owner "file"`) {
		t.Errorf("the problem is told as %v", err)
	}
	if got := group[1].table().Services; len(got) != 1 || got[0].Name != "mine" {
		t.Errorf("the second director forwards %d services", len(got))
	}
	if _, err := group[1].Put(t.Context(), "kube", config(own).Services, model.SetCondition{}); err == nil {
		t.Error("a set is put by a director whose file has the same service")
	}
	if err := group[1].SetFile(config()); err != nil {
		t.Fatal(err)
	}
	if err := group[1].Problem(); err != nil {
		t.Errorf("there is still a problem: %v", err)
	}
	agree(t, group...)
}
