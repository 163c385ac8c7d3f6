package desired

import (
	"errors"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// A set becomes another one part by part, each of which is planned as it is made, and the
// last one makes it what was asked for.
func TestPutPart(t *testing.T) {
	inBubble(t, func(t *testing.T, d *director, _ string) {
		d.set(t, web("a", 2))
		first, err := d.Put(t.Context(), "cli", beside(2), model.SetCondition{None: true})
		if err != nil {
			t.Fatal(err)
		}
		tag, target := first.Tag, store.TagOf(beside(3))
		for i, part := range []float64{1. / 3, 1. / 2, 1} {
			plan, err := d.Plan(t.Context(), "cli", beside(3), part)
			if err != nil {
				t.Fatal(err)
			}
			if len(plan.Services) != 1 || plan.Group || plan.Base != tag || (plan.Tag == target) != (part == 1) {
				t.Errorf("part %d is planned as %+v", i+1, plan)
			}
			s := &plan.Services[0]
			if s.Before == nil || s.After == nil || s.Shift.Before == nil || s.Shift.After == nil || s.Moved() == 0 || s.Moved() != plan.Moves[0].Moved || s.Reported(s.Before.Service.Backends[0].Endpoint()) != nil {
				t.Errorf("of the service it is planned %+v", s)
			}
			change, err := d.PutPart(t.Context(), "cli", beside(3), part, model.SetCondition{Tags: []string{tag}})
			if err != nil || change.Tag != plan.Tag || change.Moves[0] != plan.Moves[0] {
				t.Fatalf("part %d is planned as %+v, and made as %+v: %v", i+1, plan.SetChange, change, err)
			}
			if _, err := d.PutPart(t.Context(), "cli", beside(1), part, model.SetCondition{Tags: []string{tag}}); !errors.Is(err, ErrOtherSet) {
				t.Errorf("who has an older set makes a part of another way: %v", err)
			}
			tag = change.Tag
		}
		if got := d.Sets().Sets["cli"]; got.Tag() != target {
			t.Errorf("in the end there is %+v", got)
		}
	})
}

// Everything that another owner has is said, each by its field.
func TestPlanNamesAllConflicts(t *testing.T) {
	inBubble(t, func(t *testing.T, d *director, _ string) {
		d.set(t, web("a", 2))
		if _, err := d.Put(t.Context(), "other", beside(2), model.SetCondition{}); err != nil {
			t.Fatal(err)
		}
		theirs, file, free := beside(1)[0], web("mine", 1), web("b", 1)
		theirs.Name, free.Port = "x", model.PortRange{First: 443, Last: 443}
		_, err := d.Plan(t.Context(), "cli", []model.Service{theirs, config(file).Services[0], config(free).Services[0]}, 1)
		refused := (*RefusedError)(nil)
		if !errors.As(err, &refused) || !refused.Conflict || len(refused.Refusals) != 3 {
			t.Fatalf("it is answered with %v", err)
		}
		for i, want := range []struct{ path, owner string }{{"services[1].vip", "file"}, {"services[2].name", "other"}, {"services[0].vip", "other"}} {
			found := false
			for _, r := range refused.Refusals {
				found = found || r.Path == want.path && strings.Contains(r.Problem, `"`+want.owner+`"`)
			}
			if !found {
				t.Errorf("conflict %d, with %s by %s, is not in %v", i, want.owner, want.path, err)
			}
		}
	})
}

// Services that come, stay, and go are planned in the order of the set that is put, and behind
// them those that go.
func TestPlanOfWhatComesAndGoes(t *testing.T) {
	inBubble(t, func(t *testing.T, d *director, _ string) {
		d.set(t)
		named := func(name string, port uint16, n int) model.Service {
			s := web(name, n)
			s.Port = model.PortRange{First: port, Last: port}
			return config(s).Services[0]
		}
		if _, err := d.Put(t.Context(), "cli", []model.Service{named("goes", 1, 2), named("stays", 2, 2), named("changes", 3, 2)}, model.SetCondition{}); err != nil {
			t.Fatal(err)
		}
		plan, err := d.Plan(t.Context(), "cli", []model.Service{named("comes", 4, 2), named("changes", 3, 3), named("stays", 2, 2)}, 1)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, s := range plan.Services {
			if s.After != nil {
				got += " to " + s.After.Service.Name
			}
			if s.Before != nil {
				got += " from " + s.Before.Service.Name
			}
		}
		if want := " to comes to changes from changes from goes"; got != want || len(plan.Moves) != 1 || plan.Moves[0].Service != "changes" {
			t.Errorf("planned is%s, with %+v; want%s", got, plan.Moves, want)
		}
	})
}
