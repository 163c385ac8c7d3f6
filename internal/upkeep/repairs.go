package upkeep

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"weir.io/weir/internal/model"
)

// The bounds on repairs against another owner.
const (
	// Most is how often a thing is repaired within Window. After that it is contested.
	Most   = 3
	Window = time.Minute
	// Again is how long after a failed repair the next one is tried.
	Again = time.Second
	// LongestPause is between two attempts to find whether the other owner has stopped. The
	// first is a Window after the thing became contested, and each pause is twice the one before.
	LongestPause = 16 * time.Minute
)

// repairs remembers what was repaired in one part, and decides what to repair. It is pure:
// callers pass the time. A thing that differs is repaired, at most Most times within Window.
// Then it is contested: it is left as it is until the other owner has stopped. The owner has
// stopped when the thing holds for a whole Window, by itself or after an attempt; there is one
// attempt after each pause. forget drops all of that, because something else should hold now.
//
// The zero value is ready.
type repairs struct {
	things  map[string]*thing
	count   uint64
	unknown time.Time // since when the differences are not known; zero: they are known
}

// thing is what is remembered of one thing.
type thing struct {
	state   model.UpkeepState // empty: it holds, as far as is known
	found   string
	by      string
	err     string
	since   time.Time   // of the state
	repairs []time.Time // within the last Window, oldest first
	next    time.Time   // not repaired before this
	pause   time.Duration
	holds   time.Time // since when a contested thing holds; zero: it does not
}

// look takes what differs at a moment, repairs what may be repaired, and returns what people
// should be told. failed is why the part could not be read; then nothing is known of the rest.
func (r *repairs) look(now time.Time, differences []Difference, failed error) []Event {
	if r.things == nil {
		r.things = map[string]*thing{}
	}
	if errors.Is(failed, ErrUnknown) {
		return r.unsure(now, failed)
	}
	r.unknown = time.Time{}
	if failed != nil {
		return r.unread(now, failed)
	}
	var events []Event
	differs := make(map[string]bool, len(differences))
	for _, d := range differences {
		if differs[d.What] {
			continue
		}
		differs[d.What] = true
		events = append(events, r.differs(now, d)...)
	}
	for _, what := range slices.Sorted(maps.Keys(r.things)) {
		if !differs[what] {
			events = append(events, r.same(now, what)...)
		}
	}
	return events
}

// unsure leaves all as it is, and tells people if that lasts.
func (r *repairs) unsure(now time.Time, why error) []Event {
	if r.unknown.IsZero() {
		r.unknown = now
	}
	if now.Sub(r.unknown) < Window {
		return nil
	}
	return r.turn(now, "", r.thing(""), model.UpkeepWaiting, Difference{Found: "could not be compared for " + Window.String() + ": " + brief(why.Error())}, nil)
}

func (r *repairs) unread(now time.Time, failed error) []Event {
	return r.turn(now, "", r.thing(""), model.UpkeepFailing, Difference{Found: "cannot be read"}, failed)
}

func (r *repairs) thing(what string) *thing {
	t := r.things[what]
	if t == nil {
		t = &thing{}
		r.things[what] = t
	}
	return t
}

// turn notes a state that lasts, and tells it if it is another one than before.
func (r *repairs) turn(now time.Time, what string, t *thing, state model.UpkeepState, d Difference, err error) []Event {
	text := ""
	if err != nil {
		text = brief(err.Error())
	}
	told := t.state == state && t.err == text && (state == model.UpkeepContested || t.found == d.Found)
	if t.state != state {
		t.since = now
	}
	t.state, t.found, t.err = state, d.Found, text
	t.by = cmp.Or(d.By, t.by)
	if told {
		return nil
	}
	return []Event{{What: what, State: state, Found: d.Found, By: t.by, Error: text}}
}

// differs decides about one thing that does not hold.
func (r *repairs) differs(now time.Time, d Difference) []Event {
	t := r.thing(d.What)
	t.forgetRepairs(now)
	if d.Repair == nil {
		return r.turn(now, d.What, t, model.UpkeepWaiting, d, nil)
	}
	if t.state == model.UpkeepContested {
		return r.try(now, d, t)
	}
	if len(t.repairs) >= Most {
		t.pause, t.next = Window, now.Add(Window)
		return r.turn(now, d.What, t, model.UpkeepContested, d, nil)
	}
	if now.Before(t.next) {
		return nil
	}
	if err := d.Repair(); err != nil {
		t.next = now.Add(Again)
		return r.turn(now, d.What, t, model.UpkeepFailing, d, err)
	}
	r.repaired(now, t)
	t.state, t.err, t.next = "", "", time.Time{}
	return []Event{{What: d.What, State: model.UpkeepRepaired, Found: d.Found, By: d.By}}
}

// try repairs a contested thing when the pause is over, and tells nothing: it may not last. A
// failure is told.
func (r *repairs) try(now time.Time, d Difference, t *thing) []Event {
	t.found, t.by, t.holds = d.Found, cmp.Or(d.By, t.by), time.Time{}
	if now.Before(t.next) {
		return nil
	}
	t.pause = min(2*t.pause, LongestPause)
	t.next = now.Add(t.pause)
	err := d.Repair()
	if err == nil {
		r.repaired(now, t)
		t.holds = now
	}
	return r.turn(now, d.What, t, model.UpkeepContested, d, err)
}

func (r *repairs) repaired(now time.Time, t *thing) {
	t.repairs = append(t.repairs, now)
	r.count++
}

// same decides about one thing that holds.
func (r *repairs) same(now time.Time, what string) []Event {
	t := r.things[what]
	t.forgetRepairs(now)
	if t.state == model.UpkeepContested {
		if t.holds.IsZero() {
			t.holds = now
		}
		if now.Sub(t.holds) < Window {
			return nil
		}
	}
	over := t.state
	found := t.found
	t.state, t.found, t.err, t.by, t.next = "", "", "", "", time.Time{}
	if len(t.repairs) == 0 || over == model.UpkeepContested {
		delete(r.things, what)
	}
	if over == "" {
		return nil
	}
	return []Event{{What: what, State: model.UpkeepHolds, Found: found}}
}

func (t *thing) forgetRepairs(now time.Time) {
	t.repairs = slices.DeleteFunc(t.repairs, func(at time.Time) bool { return now.Sub(at) >= Window })
}

// forget ends all contests, and forgets earlier repairs: something else should hold now.
func (r *repairs) forget() {
	maps.DeleteFunc(r.things, func(_ string, t *thing) bool {
		t.repairs, t.next = nil, time.Time{}
		return t.state == "" || t.state == model.UpkeepContested
	})
}

// status returns what people should know of the part now, in order.
func (r *repairs) status(part string) model.Upkeep {
	s := model.Upkeep{Part: part, Repairs: r.count, Unknown: !r.unknown.IsZero()}
	for _, what := range slices.Sorted(maps.Keys(r.things)) {
		t := r.things[what]
		if t.state == "" {
			continue
		}
		s.Problems = append(s.Problems, model.UpkeepProblem{
			What: what, State: t.state, Found: t.found, By: t.by, Error: t.err, Since: t.since,
		})
	}
	return s
}

// brief is the first line of an error, and how many more there are: if a file system is gone, each
// of a hundred pins says the same.
func brief(text string) string {
	first, rest, more := strings.Cut(text, "\n")
	if !more {
		return text
	}
	return fmt.Sprintf("%s (and %d more)", first, strings.Count(rest, "\n")+1)
}

// Event is what has become of a thing that did not hold.
type Event struct {
	Part  string
	What  string // empty: the whole part, which cannot be read
	State model.UpkeepState
	Found string // what was there instead
	By    string // the process that changed it, if known
	Error string // why it could not be repaired, or read
}

// Text says it for people.
func (e Event) Text() string {
	return Text(e.Part, &model.UpkeepProblem{What: e.What, State: e.State, Found: e.Found, By: e.By, Error: e.Error})
}

// Text says for people what is wrong with a thing of a part, or what became of it.
func Text(part string, p *model.UpkeepProblem) string {
	var text strings.Builder
	text.WriteString(part + ": ")
	if p.What != "" {
		text.WriteString(p.What + " ")
	}
	if p.State == model.UpkeepHolds {
		text.WriteString("is as it should be again")
		return text.String()
	}
	text.WriteString(p.Found)
	if p.By != "" {
		text.WriteString(", changed by " + p.By)
	}
	switch p.State {
	case model.UpkeepRepaired:
		text.WriteString(": repaired")
	case model.UpkeepWaiting:
		text.WriteString(": weir waits for it")
	case model.UpkeepFailing:
		text.WriteString(": " + p.Error)
	case model.UpkeepContested:
		fmt.Fprintf(&text, ": repaired %d times within %v, and somebody changes it back: weir leaves it until that stops or the configuration changes", Most, Window)
		if p.Error != "" {
			text.WriteString("; the last repair failed: " + p.Error)
		}
	}
	return text.String()
}

// log writes a repair as a warning: it undoes a change that was not asked for. Lasting problems are
// logged by the list of problems.
func (e Event) log(log *slog.Logger) {
	log = log.With("part", e.Part, "what", e.What, "found", e.Found)
	if e.By != "" {
		log = log.With("by", e.By)
	}
	if e.State == model.UpkeepRepaired {
		log.Warn("host repaired")
		return
	}
	log.Debug("host is not repaired", "state", e.State, "error", e.Error)
}
