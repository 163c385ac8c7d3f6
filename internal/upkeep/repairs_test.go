package upkeep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.io/weir/internal/model"
)

// hand is what another owner does to one thing, second by second.
type hand func(second int) bool

func at(seconds ...int) hand {
	return func(second int) bool { return slices.Contains(seconds, second) }
}

func every(step, from, until int) hand {
	return func(second int) bool { return second >= from && second < until && (second-from)%step == 0 }
}

// A repair that fails in many ways is told in one line.
func TestErrorsAreBrief(t *testing.T) {
	for text, want := range map[string]string{
		"pin a: no":                         "pin a: no",
		"pin a: no\npin b: no":              "pin a: no (and 1 more)",
		"pin a: no\npin b: no\npin c: none": "pin a: no (and 2 more)",
	} {
		var r repairs
		repair := func() error { return errors.New(text) }
		events := r.look(time.Now(), []Difference{{What: "pins", Found: "are gone", Repair: repair}}, nil)
		if len(events) != 1 || events[0].Error != want {
			t.Errorf("%q is told as %+v, want %q", text, events, want)
		}
	}
}

// A look that finds nothing out ends nothing: what fails goes on to fail. Status does not claim to know
// more, and says so when it lasts.
func TestUnknownChangesNothing(t *testing.T) {
	var r repairs
	now := time.Now()
	r.look(now, []Difference{{What: "map", Found: "is empty", Repair: func() error { return errors.New("no") }}}, nil)
	before := r.status("tables")
	events := r.look(now.Add(time.Minute), nil, ErrUnknown)
	before.Unknown = true
	if d := cmp.Diff(before, r.status("tables")); d != "" || len(before.Problems) != 1 || len(events) > 0 {
		t.Errorf("it tells %+v, and (- before, + now):\n%s", events, d)
	}
	why := fmt.Errorf("%w: a change is under way", ErrUnknown)
	events = slices.Concat(r.look(now.Add(time.Minute+Window), nil, why), r.look(now.Add(time.Minute+2*Window), nil, why))
	if len(events) != 1 || events[0].What != "" || events[0].State != model.UpkeepWaiting || events[0].Found != "could not be compared for 1m0s: not known yet what differs: a change is under way" {
		t.Errorf("when it lasts, it tells %+v", events)
	}
	if events = r.look(now.Add(time.Minute+3*Window), nil, nil); len(events) == 0 || r.status("tables").Unknown || len(r.status("tables").Problems) > 0 {
		t.Errorf("when it is known, it tells %+v, and status has %+v", events, r.status("tables"))
	}
}

// TestRepairs plays a host with one thing for some minutes, which is looked at every second.
func TestRepairs(t *testing.T) {
	for _, test := range []struct {
		name    string
		breaks  hand // somebody takes the thing away
		mends   hand // somebody puts it back
		refuses hand // a repair does not work
		waits   hand // nothing can be done about it
		unread  hand // the part cannot be read
		forget  hand // another configuration
		seconds int
		want    []string
		status  string // of the problem at the end
	}{
		{name: "nobody touches it", seconds: 200},
		{name: "a hand once", breaks: at(3), seconds: 200, want: []string{"3 repaired"}},
		{name: "at the first look", breaks: at(0), seconds: 200, want: []string{"0 repaired"}},
		{name: "a hand twice in a row", breaks: at(3, 4), seconds: 200, want: []string{"3 repaired", "4 repaired"}},
		{name: "three times, then nobody", breaks: at(1, 2, 3), seconds: 300, want: []string{"1 repaired", "2 repaired", "3 repaired"}},
		{name: "a hand every 30 s is no fight", breaks: every(30, 0, 121), seconds: 200,
			want: []string{"0 repaired", "30 repaired", "60 repaired", "90 repaired", "120 repaired"}},
		{name: "the other stops after the fourth time", breaks: at(1, 2, 3, 4), seconds: 300,
			want: []string{"1 repaired", "2 repaired", "3 repaired", "4 contested", "124 holds"}},
		{name: "the other stops at its second attempt", breaks: every(1, 1, 100), seconds: 400,
			want: []string{"1 repaired", "2 repaired", "3 repaired", "4 contested", "244 holds"}},
		{name: "the other never stops", breaks: every(1, 1, 10000), seconds: 2000,
			want: []string{"1 repaired", "2 repaired", "3 repaired", "4 contested"}, status: "contested"},
		{name: "the other puts it back and leaves it", breaks: at(1, 2, 3, 4), mends: at(10), seconds: 300,
			want: []string{"1 repaired", "2 repaired", "3 repaired", "4 contested", "70 holds"}},
		{name: "the other puts it back and takes it again", breaks: at(1, 2, 3, 4, 20), mends: at(10), seconds: 50,
			want: []string{"1 repaired", "2 repaired", "3 repaired", "4 contested"}, status: "contested"},
		{name: "a fight after a fight", breaks: at(1, 2, 3, 4, 200, 201, 202, 203), seconds: 210,
			want: []string{"1 repaired", "2 repaired", "3 repaired", "4 contested", "124 holds", "200 repaired", "201 repaired", "202 repaired", "203 contested"}, status: "contested"},
		{name: "what is contested cannot be repaired any more", breaks: at(1, 2, 3, 4), refuses: every(1, 5, 10000), seconds: 300,
			want: []string{"1 repaired", "2 repaired", "3 repaired", "4 contested", "64 contested refused"}, status: "contested"},
		{name: "what is contested can be repaired again", breaks: at(1, 2, 3, 4), refuses: every(1, 5, 100), seconds: 300,
			want: []string{"1 repaired", "2 repaired", "3 repaired", "4 contested", "64 contested refused", "184 contested", "244 holds"}},
		{name: "another configuration takes it up again", breaks: at(1, 2, 3, 4), forget: at(8), seconds: 100,
			want: []string{"1 repaired", "2 repaired", "3 repaired", "4 contested", "8 repaired"}},
		{name: "repairs do not work for a while", breaks: at(5), refuses: every(1, 0, 9), seconds: 100,
			want: []string{"5 failing refused", "9 repaired"}},
		{name: "repairs do not work, and the other puts it back", breaks: at(5), refuses: every(1, 0, 100), mends: at(9), seconds: 100,
			want: []string{"5 failing refused", "9 holds"}},
		{name: "it has to be waited for", waits: every(1, 2, 90), seconds: 100, want: []string{"2 waiting", "90 holds"}},
		{name: "it is waited for over a change of the configuration", waits: every(1, 2, 90), forget: at(10), seconds: 100,
			want: []string{"2 waiting", "90 holds"}},
		{name: "it comes and needs a repair", waits: every(1, 2, 9), breaks: at(5), seconds: 100, want: []string{"2 waiting", "9 repaired"}},
		{name: "it is waited for to the end", waits: every(1, 2, 200), seconds: 100, want: []string{"2 waiting"}, status: "waiting"},
		{name: "the part cannot be read", unread: every(1, 2, 9), seconds: 100, want: []string{"2 failing unreadable", "9 holds"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			is := func(h hand, second int) bool { return h != nil && h(second) }
			var r repairs
			begin := time.Unix(1e9, 0)
			broken, repairs, second := false, []int(nil), 0
			var got []string
			for ; second < test.seconds; second++ {
				broken = (broken || is(test.breaks, second)) && !is(test.mends, second)
				var found []Difference
				if waits := is(test.waits, second); broken || waits {
					d := Difference{What: "it", Found: "is gone"}
					if !waits {
						d.Repair = func() error {
							if is(test.refuses, second) {
								return errors.New("refused")
							}
							broken = false
							repairs = append(repairs, second)
							return nil
						}
					}
					found = append(found, d)
				}
				if is(test.forget, second) {
					r.forget()
				}
				var failed error
				if is(test.unread, second) {
					failed = errors.New("unreadable")
				}
				for _, e := range r.look(begin.Add(time.Duration(second)*time.Second), found, failed) {
					said := fmt.Sprintf("%d %s", second, e.State)
					if e.Error != "" {
						said += " " + e.Error
					}
					got = append(got, said)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("what was said (-want +got):\n%s", diff)
			}
			for i := Most; i < len(repairs) && test.forget == nil; i++ {
				if within := repairs[i] - repairs[i-Most]; within < int(Window/time.Second) {
					t.Errorf("%d repairs within %d s, want at most %d within %v: %v", Most+1, within, Most, Window, repairs)
				}
			}
			status := r.status("part")
			if status.Repairs != uint64(len(repairs)) {
				t.Errorf("%d repairs are counted, there were %d", status.Repairs, len(repairs))
			}
			var problem model.UpkeepState
			for _, p := range status.Problems {
				problem = p.State
			}
			if string(problem) != test.status {
				t.Errorf("at the end the problem is %q, want %q", problem, test.status)
			}
		})
	}
}

// TestThingsAreApart has a fight about one thing, which must not keep another from repair.
func TestThingsAreApart(t *testing.T) {
	var r repairs
	repaired := map[string]int{}
	repair := func(what string) Difference {
		return Difference{What: what, Found: "is gone", Repair: func() error { repaired[what]++; return nil }}
	}
	now := time.Unix(1e9, 0)
	for range 10 {
		r.look(now, []Difference{repair("contested")}, nil)
		now = now.Add(time.Second)
	}
	r.look(now, []Difference{repair("contested"), repair("other")}, nil)
	if want := map[string]int{"contested": Most, "other": 1}; !cmp.Equal(repaired, want) {
		t.Errorf("repaired %v, want %v", repaired, want)
	}
}

func TestText(t *testing.T) {
	for _, test := range []struct {
		event Event
		want  string
	}{
		{Event{Part: "vips", What: "192.0.2.1 on lo", State: model.UpkeepRepaired, Found: "is gone", By: "process 12 (ip)"},
			"vips: 192.0.2.1 on lo is gone, changed by process 12 (ip): repaired"},
		{Event{Part: "vips", What: "192.0.2.1 on lo", State: model.UpkeepContested, Found: "is gone"},
			"vips: 192.0.2.1 on lo is gone: repaired 3 times within 1m0s, and somebody changes it back: weir leaves it until that stops or the configuration changes"},
		{Event{Part: "vips", What: "192.0.2.1 on lo", State: model.UpkeepContested, Found: "is gone", By: "process 12 (ip)", Error: "add it: no"},
			"vips: 192.0.2.1 on lo is gone, changed by process 12 (ip): repaired 3 times within 1m0s, and somebody changes it back: weir leaves it until that stops or the configuration changes; the last repair failed: add it: no"},
		{Event{Part: "interfaces", What: "eth1", State: model.UpkeepWaiting, Found: "is not there"}, "interfaces: eth1 is not there: weir waits for it"},
		{Event{Part: "interfaces", What: "eth1", State: model.UpkeepHolds, Found: "is not there"}, "interfaces: eth1 is as it should be again"},
		{Event{Part: "vips", State: model.UpkeepFailing, Found: "cannot be read", Error: "list addresses: no"}, "vips: cannot be read: list addresses: no"},
	} {
		if got := test.event.Text(); got != test.want {
			t.Errorf("%+v reads\n%s\nwant\n%s", test.event, got, test.want)
		}
	}
}

// A Reconciler is not alive while it looks at a part that hangs.
func TestAliveIfNoLookHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		r := New(Deps{Log: slog.New(slog.DiscardHandler)}, Part{Name: "hangs", Look: func() ([]Difference, error) { <-goOn; return nil, nil }})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		deaf := Hear(func() (*Notices, error) { return nil, errors.New("no notices") })
		go r.Run(ctx, deaf)
		alive := func() error {
			limited, done := context.WithTimeout(ctx, Interval/2)
			defer done()
			return r.Alive(limited)
		}
		if err := alive(); err != nil {
			t.Errorf("before its first look it is not alive: %v", err)
		}
		r.Wake()
		synctest.Wait()
		if err := alive(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("while a look hangs, it says %v", err)
		}
		close(goOn)
		if err := alive(); err != nil {
			t.Errorf("after the look it is not alive: %v", err)
		}
	})
}
