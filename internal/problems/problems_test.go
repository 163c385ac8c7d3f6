package problems_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/problems"
)

// story is a list of problems, and what its followers are told.
type story struct {
	*problems.List
	heard []string
	log   bytes.Buffer
}

func newStory() *story {
	s := &story{}
	s.List = problems.New(slog.New(slog.NewTextHandler(&s.log, nil)))
	return s
}

func (s *story) listen() {
	s.Follow(func(changes []problems.Change) {
		for _, c := range changes {
			what := "raised"
			if c.Over {
				what = "over"
			}
			s.heard = append(s.heard, fmt.Sprintf("%s %s %s: %s", what, c.Kind, c.Part, c.Text))
		}
	})
}

func (s *story) hears(t *testing.T, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, s.heard); diff != "" {
		t.Errorf("what is heard (-want +got):\n%s", diff)
	}
	s.heard = nil
}

// Followers are told of a problem once when it begins, or when they begin to follow, and once
// when it is over, however often somebody looks.
func TestBeginsAndEndsOnce(t *testing.T) {
	s := newStory()
	s.Report(model.ProblemInterface, "eth1", errors.New("is not there"))
	s.listen()
	s.hears(t, "raised interface eth1: is not there")
	since := s.All()[0].Since
	for range 3 {
		s.Report(model.ProblemInterface, "eth1", errors.New("is not there"))
	}
	s.hears(t)
	if got := s.All(); len(got) != 1 || got[0].Since != since || got[0].Severity != model.SeverityError {
		t.Errorf("the list is %+v", got)
	}
	s.Report(model.ProblemInterface, "eth1", errors.New("is down"))
	s.hears(t, "raised interface eth1: is down", "over interface eth1: is not there")
	s.Report(model.ProblemInterface, "eth1", nil)
	s.Report(model.ProblemInterface, "eth1", nil)
	s.hears(t, "over interface eth1: is down")
	if got := s.All(); len(got) != 0 {
		t.Errorf("nothing is wrong, and the list is %+v", got)
	}
	for text, times := range map[string]int{"level=ERROR msg=problem kind=interface part=eth1": 2, `level=INFO msg="problem is over" kind=interface part=eth1`: 2} {
		if got := strings.Count(s.log.String(), text); got != times {
			t.Errorf("%q is logged %d times and not %d:\n%s", text, got, times, &s.log)
		}
	}
}

// A problem that is not among all problems of its kind is over; other kinds stay.
func TestReplace(t *testing.T) {
	s := newStory()
	s.listen()
	s.Warn(model.ProblemRestart, "director.limits", errors.New("waits"))
	s.Replace(model.ProblemHook, []model.Problem{{Part: "cloud", Text: "exit status 1"}, {Part: "pager", Text: "503"}})
	s.Replace(model.ProblemHook, []model.Problem{{Part: "pager", Text: "503"}})
	if s.heard[0] != "raised restart director.limits: waits" || len(s.heard) != 4 || s.heard[3] != "over hook cloud: exit status 1" {
		t.Errorf("heard %q", s.heard)
	}
	all := s.All()
	if len(all) != 2 || all[0].Kind != model.ProblemRestart || all[0].Severity != model.SeverityWarning || all[1].Part != "pager" || all[1].Severity != model.SeverityError {
		t.Errorf("the list is %+v", all)
	}
}

type placedError struct {
	at   model.Place
	text string
}

func (e placedError) Error() string      { return e.text }
func (e placedError) Place() model.Place { return e.at }

// Errors say where what is wrong stands and what to do, also behind words of others; those that
// are independent of each other are problems of their own.
func TestWhatErrorsSay(t *testing.T) {
	s := newStory()
	first := placedError{model.Place{File: "weir.yaml", Line: 3, Field: "services[0].vip"}, "weir.yaml:3: services[0].vip: is required"}
	second := placedError{model.Place{Owner: "cli"}, `owner "cli": is no set`}
	s.Report(model.ProblemFile, "weir.yaml", errors.Join(first, problems.Fixed(fmt.Errorf("read: %w", second), "apply it again")))
	all := s.All()
	if len(all) != 2 || all[0].Place != first.at || all[1].Place != second.at || all[1].Fix != "apply it again" || all[1].Text != `read: owner "cli": is no set` {
		t.Errorf("the list is %+v", all)
	}
}

// Of a part with thousands of problems some are told, and how many there are.
func TestManyProblems(t *testing.T) {
	s := newStory()
	var errs []error
	for i := range 5000 {
		errs = append(errs, placedError{model.Place{File: "weir.yaml", Line: i + 1}, fmt.Sprintf("line %d is wrong", i+1)})
	}
	s.Report(model.ProblemFile, "weir.yaml", errors.Join(errs...))
	all := s.All()
	if len(all) != 101 || all[99].Line != 100 || all[100].Line != 0 || all[100].Text != "4900 more problems of this part are not listed" {
		t.Errorf("%d problems, the last: %+v", len(all), all[len(all)-1])
	}
}

// One tenant's problems leave others' theirs, and each is told how many of its own are left out.
func TestTenantsProblems(t *testing.T) {
	s := newStory()
	in := func(id uint32) model.Segment { return model.Segment{Kind: model.SegmentVXLAN, ID: id} }
	var list []model.Problem
	for id, many := range map[uint32]int{0: 10, 1: 5000, 2: 3, 3: 2000} {
		for i := range many {
			p := model.Problem{Part: fmt.Sprintf("%d/%d", id, i), Text: "is wrong"}
			if id > 0 {
				p.Segment = in(id)
			}
			list = append(list, p)
		}
	}
	s.Replace(model.ProblemBackend, list)
	has, rest := map[model.Segment]int{}, map[model.Segment]string{}
	for _, p := range s.All() {
		if has[p.Segment]++; p.Text != "is wrong" {
			rest[p.Segment] = p.Text
		}
	}
	wantHas := map[model.Segment]int{{}: 10, in(1): 44, in(2): 3, in(3): 44}
	wantRest := map[model.Segment]string{in(1): "4957 more problems of this kind are not listed", in(3): "1957 more problems of this kind are not listed"}
	if !maps.Equal(has, wantHas) || !maps.Equal(rest, wantRest) {
		t.Errorf("listed are %v and %v, want %v and %v", has, rest, wantHas, wantRest)
	}
}

// Every kind is said what it is about.
func TestKinds(t *testing.T) {
	seen := map[model.ProblemKind]bool{}
	for _, row := range model.ProblemKinds {
		if seen[row.Kind] || row.About == "" {
			t.Errorf("kind %s: %+v", row.Kind, row)
		}
		seen[row.Kind] = true
	}
}
