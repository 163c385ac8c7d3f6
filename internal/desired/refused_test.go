package desired

import (
	"errors"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
	"weir.io/weir/lab/etcdlab"
)

// kept are the services of a table.
func kept(table model.Table) string {
	var names []string
	for _, s := range table.Services {
		names = append(names, s.Name)
	}
	return strings.Join(names, " ")
}

// problem returns the one problem that a member lists, or fails.
func (m *member) problem(t *testing.T) model.Problem {
	t.Helper()
	all := m.list.All()
	if len(all) != 1 {
		t.Fatalf("%d problems are listed and not 1: %+v", len(all), all)
	}
	return all[0]
}

// The documented way into a group: a director that was alone has an empty set of its own left, and
// gets the group's of the same owner.
func TestEmptySetOfOneDirectorDoesNotHideTheGroups(t *testing.T) {
	c := etcdlab.New(t, etcdlab.Options{Members: 1})
	m := newGroup(t, c, 1)[0]
	alone := start(t, m.dir, nil)
	alone.set(t)
	for _, services := range [][]model.Service{config(shared("a", 1, 1)).Services, nil} {
		if _, err := alone.Put(t.Context(), "cli", services, model.SetCondition{}); err != nil {
			t.Fatal(err)
		}
	}
	alone.stop()
	m.must()
	put(t, m, "cli", shared("a", 1, 2), shared("b", 2, 1))
	if got := kept(m.table()); got != "a b" {
		t.Errorf("applied, and what is forwarded is %q", got)
	}
	m.stop()
	m.must()
	if got := kept(m.table()); got != "a b" {
		t.Errorf("after a restart what is forwarded is %q", got)
	}
	if all := m.list.All(); len(all) > 0 {
		t.Errorf("nothing is wrong, and listed is %+v", all)
	}
}

// A set that a director kept alone goes on when the director joins a group, and is reported. When
// it is applied to the group it becomes the group's, with the log that its connections need.
func TestSetOfOneDirectorGoesOnInAGroup(t *testing.T) {
	c := etcdlab.New(t, etcdlab.Options{Members: 1})
	group := newGroup(t, c, 2)
	m := group[0]
	alone := start(t, m.dir, nil)
	alone.set(t)
	for _, n := range []int{3, 2} {
		if _, err := alone.Put(t.Context(), "cli", config(shared("a", 1, n)).Services, model.SetCondition{}); err != nil {
			t.Fatal(err)
		}
	}
	log, _ := alone.Log(config(shared("a", 1, 2)).Services[0].ID())
	alone.stop()
	m.must()
	if got := kept(m.table()); got != "a" {
		t.Fatalf("what is forwarded is %q", got)
	}
	if p := m.problem(t); p.Kind != model.ProblemStore || p.Owner != "cli" || p.Fix == "" {
		t.Errorf("listed is %+v", p)
	}
	group[1].must()
	put(t, m, "cli", shared("a", 1, 2))
	until(t, "the other director forwards it, too", func() bool { return kept(group[1].table()) == "a" })
	if all := m.list.All(); len(all) > 0 {
		t.Errorf("it is the group's, and listed is %+v", all)
	}
	now, _ := group[1].Log(config(shared("a", 1, 2)).Services[0].ID())
	if len(log.Generations) != 2 || len(now.Generations) != 2 {
		t.Errorf("its log had %d generations, and has %d in the group", len(log.Generations), len(now.Generations))
	}
	agree(t, group...)
}

// A state of the group's that does not go together with a director's file is listed there, with
// whose and where it is; at its next start, too, what ran goes on, until the two go together.
func TestRefusedStateOfTheGroupIsListed(t *testing.T) {
	c := etcdlab.New(t, etcdlab.Options{Members: 1})
	group := newGroup(t, c, 2)
	own := shared("mine", 1, 2)
	group[0].must()
	group[1].must(own)
	m := group[1]
	put(t, group[0], "web-team", shared("b", 2, 1))
	until(t, "the second director follows", func() bool { return kept(m.table()) == "mine b" })
	put(t, group[0], "cli", shared("a", 1, 3))
	until(t, "the second director refuses the set", func() bool { return m.Problem() != nil })
	check := func(when string) {
		t.Helper()
		p := m.problem(t)
		if p.Kind != model.ProblemSet || p.Owner != "cli" || !strings.HasPrefix(p.Field, "services[0].") || !strings.Contains(p.Text, `owner "file"`) {
			t.Errorf("%s, listed is %+v", when, p)
		}
		if got := kept(m.table()); got != "mine b" {
			t.Errorf("%s, what is forwarded is %q", when, got)
		}
	}
	check("refused")
	m.stop()
	m.must(own)
	check("started again")
	put(t, group[0], "cli")
	until(t, "nothing is listed any more", func() bool { return len(m.list.All()) == 0 })
	if got := kept(m.table()); got != "mine b" {
		t.Errorf("in the end, what is forwarded is %q", got)
	}
}

// A version of the file that does not go together with a set is tried again when the set has
// changed; a start with it goes on with what ran.
func TestRefusedFileIsTriedAgain(t *testing.T) {
	dir := t.TempDir()
	d := start(t, dir, nil)
	d.set(t, web("old", 1))
	other := web("app", 1)
	other.VIP = other.VIP.Next()
	if _, err := d.Put(t.Context(), "cli", config(other).Services, model.SetCondition{}); err != nil {
		t.Fatal(err)
	}
	conflicting := config(web("old", 1), other)
	refused := func(err error) {
		t.Helper()
		var r *RefusedError
		if !errors.As(err, &r) || r.Refusals[0].With != "cli" {
			t.Errorf("the file is refused with %v", err)
		}
	}
	refused(d.SetFile(conflicting))
	if got := kept(d.sink.last); got != "old app" {
		t.Errorf("what is forwarded is %q", got)
	}
	d.stop()

	d = start(t, dir, nil)
	if err := d.SetFile(conflicting); err == nil {
		t.Error("the file goes together with the set")
	}
	if err := d.Start(conflicting, nil); err != nil {
		t.Fatalf("what ran before does not go on: %v", err)
	}
	if got := kept(d.sink.last); got != "old app" {
		t.Errorf("what is forwarded is %q", got)
	}
	if _, err := d.Put(t.Context(), "cli", nil, model.SetCondition{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the file runs", func() bool { return len(d.File().Services) == 2 && len(d.Sets().Sets[store.OwnerFile].Documents) == 2 })
	d.stop()
}
