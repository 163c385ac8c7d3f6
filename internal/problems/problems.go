// Package problems keeps what was asked for and does not run: one list in each process, of which
// `weir status`, events, metrics, `weir doctor` and exit statuses are made.
//
// The owner of a part reports the result of each attempt:
//
//	list.Report(model.ProblemInterface, "eth1", err) // nil: it runs, the problem is resolved
//	list.Warn(model.ProblemBGP, "10.0.0.1", err)     // it runs, and not in all of its parts
//
// and code that looks at all parts of a kind at once reports all of their problems; a problem that
// is not among them is resolved:
//
//	list.Replace(model.ProblemHook, found)
//
// A kind is fed in one of these ways, not in both. The list logs when a problem begins and when
// it is over, and tells its followers: its callers need not. A problem is the same as long as its
// kind, part and text are: a text has no counters or times in it, or each look would be an event.
//
// An error may say where the problem is, by a method Place, and what to do, by a method Fix. If an
// error consists of several, by Unwrap() []error, and one of them has such a method, each is a
// problem.
package problems

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"weir.io/weir/internal/model"
)

// mostOfPart is how many problems of one part, or that Replace replaces, are told: a file may have thousands. Tenants
// share them, but for the first one of each.
const mostOfPart = 100

// List is what does not run.
type List struct {
	log *slog.Logger

	mu      sync.Mutex
	parts   map[part][]model.Problem // that has some
	follow  func([]Change)
	waiting []Change // for a follower
}

type part struct {
	kind model.ProblemKind
	name string
}

// Change is a problem that begins, or is over.
type Change struct {
	model.Problem
	Over bool
}

// New returns a list on which there is nothing.
func New(log *slog.Logger) *List { return &List{log: log, parts: map[part][]model.Problem{}} }

// Report says what is wrong with a part, of which something does not run; nil: nothing is.
func (l *List) Report(kind model.ProblemKind, name string, err error) {
	l.set(part{kind, name}, of(kind, name, model.SeverityError, err))
}

// Warn is Report for a part that runs, but not all of it, or not for long.
func (l *List) Warn(kind model.ProblemKind, name string, err error) {
	l.set(part{kind, name}, of(kind, name, model.SeverityWarning, err))
}

// Replace replaces all problems of a kind. Their kind and since need not be given.
func (l *List) Replace(kind model.ProblemKind, found []model.Problem) {
	by := map[part][]model.Problem{}
	for _, p := range few(found, "kind") {
		p.Kind, p.Severity = kind, cmp.Or(p.Severity, model.SeverityError)
		by[part{kind, p.Part}] = append(by[part{kind, p.Part}], p)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var changes []Change
	for at := range l.parts {
		if at.kind == kind && by[at] == nil {
			changes = append(changes, l.put(at, nil)...)
		}
	}
	for at, list := range by {
		changes = append(changes, l.put(at, list)...)
	}
	l.report(changes)
}

// All returns all problems, in the order of kinds, of parts, and of when they were found.
func (l *List) All() []model.Problem {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := []model.Problem{}
	for _, list := range l.parts {
		all = append(all, list...)
	}
	slices.SortStableFunc(all, func(a, b model.Problem) int {
		return cmp.Or(cmp.Compare(rank(a.Kind), rank(b.Kind)), cmp.Compare(a.Part, b.Part))
	})
	return all
}

// Of returns those of a kind.
func (l *List) Of(kind model.ProblemKind) []model.Problem {
	return slices.DeleteFunc(l.All(), func(p model.Problem) bool { return p.Kind != kind })
}

func rank(kind model.ProblemKind) int {
	for i, row := range model.ProblemKinds {
		if row.Kind == kind {
			return i
		}
	}
	return len(model.ProblemKinds)
}

// Follow calls a function with all changes in order, and at once with those until now. It must not
// call the list.
func (l *List) Follow(follow func([]Change)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.follow = follow
	l.report(nil)
}

func (l *List) set(at part, found []model.Problem) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.report(l.put(at, found))
}

// put replaces all problems of a part. The lock is held.
func (l *List) put(at part, found []model.Problem) (changes []Change) {
	found = few(found, "part")
	now, before := time.Now().Truncate(time.Millisecond), l.parts[at]
	for i := range found {
		p := &found[i]
		p.Since = now
		if old := slices.IndexFunc(before, func(b model.Problem) bool { return same(b, *p) }); old >= 0 {
			p.Since = before[old].Since
			continue
		}
		changes = append(changes, Change{Problem: *p})
	}
	for _, b := range before {
		if !slices.ContainsFunc(found, func(p model.Problem) bool { return same(b, p) }) {
			changes = append(changes, Change{b, true})
		}
	}
	if l.parts[at] = found; len(found) == 0 {
		delete(l.parts, at)
	}
	return changes
}

// few leaves out what is too much to read of a part, or of a kind.
func few(found []model.Problem, of string) []model.Problem {
	if len(found) <= mostOfPart {
		return slices.Clone(found)
	}
	many := map[model.Segment]int{}
	for i := range found {
		many[found[i].Segment]++
	}
	each := model.FairShare(slices.Collect(maps.Values(many)), mostOfPart)
	told := map[model.Segment]int{}
	var list, rests []model.Problem
	for _, p := range found {
		switch told[p.Segment]++; told[p.Segment] {
		default:
			if told[p.Segment] <= each {
				list = append(list, p)
			}
		case each + 1:
			p.Place = model.Place{File: p.File, Owner: p.Owner, Stored: p.Stored}
			p.Text, p.Fix = fmt.Sprintf("%d more problems of this %s are not listed", many[p.Segment]-each, of), ""
			if of != "part" {
				p.Part = ""
			}
			rests = append(rests, p)
		}
	}
	return append(list, rests...)
}

func same(a, b model.Problem) bool {
	a.Since, b.Since = time.Time{}, time.Time{}
	return a == b
}

// report logs what changes, and passes it on. The lock is held, so that it is in order.
func (l *List) report(changes []Change) {
	for _, c := range changes {
		l.write(c)
	}
	l.waiting = append(l.waiting, changes...)
	if l.follow != nil && len(l.waiting) > 0 {
		l.follow(l.waiting)
		l.waiting = nil
	}
}

func (l *List) write(c Change) {
	log := l.log.With("kind", string(c.Kind))
	for _, more := range []struct{ key, value string }{{"part", c.Part}, {"owner", c.Owner}, {"stored", c.Stored}, {"fix", c.Fix}} {
		if more.value != "" {
			log = log.With(more.key, more.value)
		}
	}
	switch {
	case c.Over:
		log.Info("problem is over", "error", c.Text)
	case c.Severity == model.SeverityWarning:
		log.Warn("problem", "error", c.Text)
	default:
		log.Error("problem", "error", c.Text)
	}
}
