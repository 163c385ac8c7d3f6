package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/upkeep"
)

// The host is examined again and again, once at a time, and what an examination finds stays until
// one is made that does not find it.
func TestExaminations(t *testing.T) {
	broken := doctor.Finding{Level: doctor.Fail, Check: "mtu eth0", Text: "600 is less than IPv6 may rely on", Fix: "ip link set eth0 mtu 1500"}
	want := model.Problem{Part: "mtu eth0", Text: "mtu eth0: 600 is less than IPv6 may rely on", Fix: broken.Fix}
	var findings []doctor.Finding
	var err error
	woken := func(e *Examiner) bool {
		select {
		case <-e.woken:
			return true
		default:
			return false
		}
	}
	e := NewExaminer(func(context.Context) ([]doctor.Finding, error) { return findings, err })
	for _, step := range []struct {
		what     string
		findings []doctor.Finding
		err      error
		want     []model.Problem
	}{
		{"all is well", nil, nil, nil},
		{"something is not for a moment", []doctor.Finding{broken}, nil, nil},
		{"it is again", nil, nil, nil},
		{"something is not", []doctor.Finding{broken}, nil, nil},
		{"it is still not", []doctor.Finding{broken}, nil, []model.Problem{want}},
		{"the host cannot be examined", nil, errors.New("no memory"), []model.Problem{want, {Part: partExamination, Severity: model.SeverityWarning, Text: "no memory"}}},
		{"nor in time", nil, fmt.Errorf("examine this host: %w", context.DeadlineExceeded),
			[]model.Problem{want, {Part: partExamination, Severity: model.SeverityWarning, Text: "this host cannot be examined within 5s", Fix: "run weir doctor, which takes its time"}}},
		{"it can again", []doctor.Finding{broken}, nil, []model.Problem{want}},
		{"all is well again", nil, nil, nil},
	} {
		findings, err = step.findings, step.err
		e.look(t.Context())
		if diff := cmp.Diff(step.want, e.Problems(), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("when %s, the problems are (-want +got):\n%s", step.what, diff)
		}
		if got, want := woken(e), step.err == nil && len(step.findings) > len(step.want); got != want {
			t.Errorf("when %s, it is looked for again soon: %t, want %t", step.what, got, want)
		}
	}

	looks := make(chan struct{})
	e = NewExaminer(func(context.Context) ([]doctor.Finding, error) { looks <- struct{}{}; return nil, nil })
	e.every, e.least = time.Millisecond, 0
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { e.Run(ctx); close(ended) }()
	for range 2 { // nobody has said that something has changed
		<-looks
	}
	cancel()
	for {
		select {
		case <-looks:
		case <-ended:
			return
		}
	}
}

// While the kernel gives no notices of changes, that is a problem: it is over with the first examination
// before which it gives them.
func TestExaminationsWithoutNotices(t *testing.T) {
	looks := make(chan struct{})
	e := NewExaminer(func(context.Context) ([]doctor.Finding, error) { looks <- struct{}{}; return nil, nil })
	e.every, e.least = time.Millisecond, 0
	refused := errors.New("watch files: too many open files")
	var answer atomic.Value
	e.notices = upkeep.Hear(func() (*upkeep.Notices, error) {
		if answer.Load() == "refused" {
			return nil, refused
		}
		return listenToHost()
	})
	answer.Store("refused")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { e.Run(ctx); close(ended) }()
	for _, now := range []string{"refused", "heard"} {
		answer.Store(now)
		<-looks // it may have asked before
		<-looks
		found := e.Problems()
		if now == "heard" && len(found) > 0 {
			t.Errorf("notices are heard, and the problems are %+v", found)
		}
		if now == "refused" && (len(found) != 1 || found[0].Part != partNotices || found[0].Severity != model.SeverityWarning ||
			found[0].Text != "failures of this host are found within 1ms, and not at once: watch files: too many open files" || found[0].Fix == "") {
			t.Errorf("no notices are heard, and the problems are %+v", found)
		}
	}
	cancel()
	for {
		select {
		case <-looks:
		case <-ended:
			return
		}
	}
}
