package store

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"weir.io/weir/internal/etcdclient"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/etcdlab"
)

func put(t *testing.T, e *Etcd, owner string, services ...model.Service) State {
	t.Helper()
	s, err := e.Update(t.Context(), Replace(owner, services, count))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func readEtcd(t *testing.T, e *Etcd) State {
	t.Helper()
	s, err := e.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Every director reads what another one writes.
func TestEtcdIsShared(t *testing.T) {
	c := newCluster(t, 1, false)
	one, other := c.open(), c.open()
	if s := readEtcd(t, one); s.Revision != 0 || len(s.Sets) != 0 {
		t.Errorf("a new etcd has %v", s)
	}
	put(t, one, "cli", service("a", 1, 2), service("b", 2, 0))
	put(t, other, "kube", service("c", 3, 300))
	put(t, one, "cli", service("a", 1, 3))
	want := put(t, other, "octavia")
	if want.Revision != 4 || len(want.Documents()) != 2 {
		t.Errorf("after four changes there are revision %d and %d services, want 4 and 2", want.Revision, len(want.Documents()))
	}
	for _, e := range []*Etcd{one, other, c.open()} {
		if diff := difference(want, readEtcd(t, e)); diff != "" {
			t.Errorf("a director reads another state (-want +got):\n%s", diff)
		}
	}
	if s, err := one.Update(t.Context(), Trim(newestOnly)); err != nil || s.Revision != 5 {
		t.Errorf("trimming leads to revision %d, error %v", s.Revision, err)
	}
	if s, err := other.Update(t.Context(), Trim(newestOnly)); err != nil || s.Revision != 5 {
		t.Errorf("trimming what is trimmed leads to revision %d, error %v; want no new revision", s.Revision, err)
	}
	if _, err := other.Update(t.Context(), Replace("cli", []model.Service{service("x", 3, 1)}, count)); err == nil {
		t.Error("a service of another owner is accepted")
	}
}

// Writers of one owner and of several lose nothing of each other: each change is made
// from the state before it.
func TestEtcdWritersLoseNothing(t *testing.T) {
	c := newCluster(t, 1, false)
	const each = 15
	var writers sync.WaitGroup
	for i, owner := range []string{"cli", "cli", "kube"} {
		e, s := c.open(), service(owner, byte(len(owner)), 1)
		writers.Go(func() {
			for range each {
				if _, err := e.Update(t.Context(), Replace(owner, []model.Service{s}, count)); err != nil {
					t.Errorf("writer %d: %v", i, err)
					return
				}
			}
		})
	}
	writers.Wait()
	s := readEtcd(t, c.open())
	if s.Revision != 3*each {
		t.Errorf("the revision is %d after %d changes", s.Revision, 3*each)
	}
	for owner, want := range map[string]int{"cli": 2 * each, "kube": each} {
		if got := len(s.Sets[owner].Documents[0].Log.Generations); got != want {
			t.Errorf("the log of %s has %d generations, want %d", owner, got, want)
		}
	}
	checkNoGarbage(t, c, s)
}

// Of two owners that want the same VIP at the same moment, one gets it.
func TestEtcdConflictHasOneWinner(t *testing.T) {
	c := newCluster(t, 1, false)
	var writers sync.WaitGroup
	results := make([]error, 2)
	for i, owner := range []string{"cli", "kube"} {
		e := c.open()
		writers.Go(func() {
			_, results[i] = e.Update(t.Context(), Replace(owner, []model.Service{service(owner, 1, 1)}, count))
		})
	}
	writers.Wait()
	var conflict *ConflictError
	if (results[0] == nil) == (results[1] == nil) || !errors.As(errors.Join(results...), &conflict) {
		t.Errorf("the two end with %v and %v; want one without error and one conflict", results[0], results[1])
	}
	if n := len(readEtcd(t, c.open()).Documents()); n != 1 {
		t.Errorf("there are %d services, want 1", n)
	}
}

// Nothing that etcd could lose or alter unseen is taken for a state.
func TestEtcdRefusesWhatItCannotRead(t *testing.T) {
	c := newCluster(t, 1, false)
	e, client := c.open(), c.client()
	put(t, e, "cli", service("a", 1, 1))
	segments, err := client.Get(t.Context(), e.segmentsKey(), clientv3.WithPrefix())
	if err != nil || len(segments.Kvs) != 1 {
		t.Fatalf("there are segments %v, error %v", segments, err)
	}
	key, text := string(segments.Kvs[0].Key), string(segments.Kvs[0].Value)
	root := fmt.Sprintf(`{"format":%d,"revision":9,"sets":{}}`, Format+1)
	for name, test := range map[string]struct{ key, value, want string }{
		"an altered segment": {key, strings.Replace(text, "203", "204", 1), nameProblem},
		"a newer format":     {e.rootKey(), root, "written by another version"},
		"no JSON":            {e.rootKey(), "x", "read the root"},
	} {
		before, err := client.Get(t.Context(), test.key)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Put(t.Context(), test.key, test.value); err != nil {
			t.Fatal(err)
		}
		fresh := c.open()
		if _, err := fresh.Read(t.Context()); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s is read with error %v, want %q", name, err, test.want)
		}
		if _, err := fresh.Update(t.Context(), Replace("cli", nil, count)); err == nil {
			t.Errorf("%s is written over", name)
		}
		if _, err := client.Put(t.Context(), test.key, string(before.Kvs[0].Value)); err != nil {
			t.Fatal(err)
		}
	}
}

// More than etcd takes in one request, in one service and in many.
func TestEtcdHoldsALargeState(t *testing.T) {
	c := newCluster(t, 1, false)
	one, other := c.open(), c.open()
	huge := service("huge", 1, 0)
	for i := range 20000 {
		address := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		huge.Backends = append(huge.Backends, model.Backend{Name: address.String(), Address: address, Weight: 1, State: model.Active})
	}
	put(t, one, "huge", huge)
	many := make([]model.Service, 4096)
	for i := range many {
		many[i] = service(fmt.Sprint(i), 2, 64)
		many[i].Port = model.PortRange{First: uint16(i + 1), Last: uint16(i + 1)}
	}
	want := put(t, one, "many", many...)
	if got := readEtcd(t, other); len(got.Documents()) != 4097 || !got.Sets["many"].equal(want.Sets["many"]) || !got.Sets["huge"].equal(want.Sets["huge"]) {
		t.Error("another director reads another state")
	}
	before, err := c.client().Get(t.Context(), one.rootKey())
	if err != nil {
		t.Fatal(err)
	}
	many[2000].Backends[0].Weight = 77
	keep := func(log model.Log, _ model.Service) model.Log { return log }
	want, err = other.Update(t.Context(), Replace("many", many, keep))
	if err != nil {
		t.Fatal(err)
	}
	written, err := c.client().Get(t.Context(), one.segmentsKey(), clientv3.WithPrefix(), clientv3.WithKeysOnly(),
		clientv3.WithMinModRev(before.Header.Revision+1))
	if err != nil || len(written.Kvs) != 1 {
		t.Errorf("the change of one service wrote %d keys, error %v; want one segment", len(written.Kvs), err)
	}
	checkNoGarbage(t, c, want)
}

// checkNoGarbage checks that etcd has the segments of the state and no others.
func checkNoGarbage(t *testing.T, c *cluster, s State) {
	t.Helper()
	e := c.open()
	there, err := e.list(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, segments, err := root{}.follow(s, s.Owners())
	if err != nil {
		t.Fatal(err)
	}
	for _, segment := range segments {
		if !there[segment.name] {
			t.Errorf("segment %s is gone", segment.name)
		}
		delete(there, segment.name)
	}
	if len(there) > 0 {
		t.Errorf("etcd has %d segments that nothing needs", len(there))
	}
}

// The next writer that changes anything collects the segments of a writer that died.
func TestEtcdCollectsWhatADeadWriterLeft(t *testing.T) {
	c := newCluster(t, 1, false)
	dead := c.open()
	segments, err := cut(Set{Documents: []Document{{Service: service("never", 9, 1)}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := dead.upload(t.Context(), segments); err != nil {
		t.Fatal(err)
	}
	checkNoGarbage(t, c, put(t, c.open(), "cli", service("a", 1, 1)))
}

// A writer whose segments were collected before it switched the root does not switch it:
// the root would name what is gone.
func TestEtcdWriterNoticesACollection(t *testing.T) {
	c := newCluster(t, 1, false)
	slow, quick := c.open(), c.open()
	put(t, quick, "cli", service("a", 1, 1), service("b", 2, 1))
	from, err := slow.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	change := must(t, from.State, Replace("kube", []model.Service{service("c", 3, 1)}, count))
	to, fresh, err := from.root.follow(change, []string{"kube"})
	if err != nil {
		t.Fatal(err)
	}
	if err := slow.upload(t.Context(), fresh); err != nil {
		t.Fatal(err)
	}
	quick.swept = false
	quick.collect(t.Context(), from.root, from.root, from.switched)
	done, _, err := slow.switchRoot(t.Context(), from, to)
	if err != nil || done {
		t.Errorf("the root was switched (%v, error %v) to segments that were collected", done, err)
	}
	put(t, slow, "kube", service("c", 3, 1))
	if n := len(readEtcd(t, c.open()).Documents()); n != 3 {
		t.Errorf("there are %d services after the second try, want 3", n)
	}
}

// Every director that watches ends at the same revision, and the only effect of
// etcd's trouble is that changes wait.
func TestEtcdMembersDie(t *testing.T) {
	c := newCluster(t, 3, true)
	one, other := c.open(), c.open()
	watches := []<-chan State{one.Watch(t.Context()), other.Watch(t.Context())}
	applied := func(revision uint64) {
		t.Helper()
		for _, w := range watches {
			next(t, w, func(s State) bool { return s.Revision == revision })
		}
	}
	put(t, one, "cli", service("a", 1, 1))
	applied(1)
	c.kill(0)
	etcdlab.Eventually(t, "a change with two of three members", func() error {
		_, err := other.Update(t.Context(), Replace("cli", []model.Service{service("a", 1, 2)}, func(model.Log, model.Service) model.Log { return model.Log{} }))
		return err
	})
	applied(readEtcd(t, one).Revision)
	last := readEtcd(t, one)
	c.kill(1)
	c.kill(2)
	if _, err := one.Read(t.Context()); err == nil {
		t.Error("a dead etcd is read")
	}
	if _, err := one.Update(t.Context(), Replace("cli", nil, count)); err == nil || !strings.Contains(err.Error(), c.options.Endpoints[0]) {
		t.Errorf("a change without etcd ends with %v, want an error that names it", err)
	}
	for i, w := range watches {
		select {
		case s := <-w:
			t.Errorf("director %d gets revision %d from a dead etcd", i, s.Revision)
		default:
		}
	}
	late := c.open().Watch(t.Context()) // a director that starts now
	for i := range 3 {
		c.start(i)
	}
	got := next(t, late, func(State) bool { return true })
	if diff := difference(last, got); diff != "" {
		t.Errorf("the etcd that is back has another state (-want +got):\n%s", diff)
	}
	var changed State
	etcdlab.Eventually(t, "a change after etcd is back", func() (err error) {
		changed, err = one.Update(t.Context(), Replace("kube", []model.Service{service("k", 5, 1)}, count))
		return err
	})
	applied(changed.Revision) // the other one may need longer to find etcd again
}

// A client without a password, or with another group's, gets nothing.
func TestEtcdIsAuthenticated(t *testing.T) {
	c := newCluster(t, 1, true)
	put(t, c.open(), "cli", service("a", 1, 1))
	other := etcdlab.New(t, etcdlab.Options{Members: 1, Secure: true}).CA
	var asking sync.WaitGroup
	for name, change := range map[string]func(*etcdclient.Options){
		"no password":    func(o *etcdclient.Options) { o.Username, o.Password = "", "" },
		"wrong password": func(o *etcdclient.Options) { o.Password = "x" },
		"other prefix":   func(o *etcdclient.Options) { o.Prefix = "/weir/other" },
		"unknown CA":     func(o *etcdclient.Options) { o.CA = "" },
		"no certificate": func(o *etcdclient.Options) { o.Cert, o.Key = "", "" },
		"another CA":     func(o *etcdclient.Options) { o.CA = other },
		"another name": func(o *etcdclient.Options) {
			o.Endpoints = []string{strings.Replace(o.Endpoints[0], "127.0.0.1", "localhost", 1)}
		},
	} {
		options := c.options
		change(&options)
		e := c.openWith(options, "")
		asking.Go(func() {
			if _, err := e.Read(t.Context()); err == nil {
				t.Errorf("%s: the state is read", name)
			}
		})
	}
	asking.Wait()
	for name, change := range map[string]func(*etcdclient.Options){
		"no endpoints": func(o *etcdclient.Options) { o.Endpoints = nil },
		"half a pair":  func(o *etcdclient.Options) { o.Key = "" },
	} {
		options := c.options
		change(&options)
		if _, err := etcdclient.New(options); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A director that was away for longer than etcd remembers gets the last state.
func TestEtcdWatchSurvivesCompaction(t *testing.T) {
	c := newCluster(t, 1, false)
	e := c.open()
	states := e.Watch(t.Context())
	next(t, states, func(s State) bool { return s.Revision == 0 })
	for i := range 5 {
		put(t, e, "cli", service("a", byte(i+1), 1))
		now, err := c.client().Get(t.Context(), e.rootKey())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.client().Compact(t.Context(), now.Header.Revision); err != nil {
			t.Fatal(err)
		}
	}
	next(t, states, func(s State) bool { return s.Revision == 5 })
	next(t, c.open().Watch(t.Context()), func(s State) bool { return s.Revision == 5 })
}
