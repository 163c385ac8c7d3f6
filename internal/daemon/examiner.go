package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/upkeep"
)

// When a process examines its host.
const (
	examineEvery    = time.Minute
	examineSettle   = 100 * time.Millisecond // after a notice: they come in crowds
	examineLeast    = time.Second
	examineShare    = 50              // a long one is followed by so many times as long without
	examinePatience = 5 * time.Second // with one examination
)

// Examiner examines the host of a process that runs as weir doctor does, one examination at a time.
// A failure is a problem when two examinations have found it, one after the other: an address that
// is replaced is gone for a moment, and so is the route to a pod that the configuration still has.
// It is over when one does not find it.
type Examiner struct {
	examine func(context.Context) ([]doctor.Finding, error)
	notices *upkeep.Hearing
	every   time.Duration // without a notice
	least   time.Duration // from the end of one examination to the next
	woken   chan struct{}

	mu    sync.Mutex
	last  []model.Problem // the failures that the last examination has found
	found []model.Problem
}

// NewExaminer returns an examiner that examines by a function.
func NewExaminer(examine func(context.Context) ([]doctor.Finding, error)) *Examiner {
	return &Examiner{examine: examine, notices: upkeep.Hear(listenToHost), every: examineEvery, least: examineLeast, woken: make(chan struct{}, 1)}
}

// Wake has the host examined soon, because the configuration has changed.
func (e *Examiner) Wake() {
	select {
	case e.woken <- struct{}{}:
	default:
	}
}

// listenToHost hears when links and addresses change.
func listenToHost() (*upkeep.Notices, error) {
	return upkeep.Listen(unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
}

// Problems are what the last two examinations have found, and what keeps the host from being examined
// at once.
func (e *Examiner) Problems() []model.Problem {
	e.mu.Lock()
	defer e.mu.Unlock()
	found := slices.Clone(e.found)
	return append(found, deafProblems(partNotices, "failures of this host", e.every, e.notices.Problem())...)
}

// deafProblems are the problems if the kernel gives no notices; nil: it does. Then something is found
// late.
func deafProblems(part, what string, within time.Duration, deaf error) []model.Problem {
	if deaf == nil {
		return nil
	}
	return []model.Problem{{Part: part, Severity: model.SeverityWarning,
		Text: fmt.Sprintf("%s are found within %v, and not at once: %v", what, within, deaf),
		Fix:  "give the process more open files, and its user more inotify instances (sysctl fs.inotify.max_user_instances): it tries again within that time"}}
}

// Run examines the host until the context ends: regularly, and when links and addresses change, if the
// kernel gives notice of that.
func (e *Examiner) Run(ctx context.Context) {
	defer e.notices.Close()
	for {
		heard := e.notices.C()
		if !pause(ctx, max(e.least, examineShare*e.look(ctx))) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(e.every):
			continue
		case <-e.woken:
		case <-heard:
		}
		if !pause(ctx, examineSettle) {
			return
		}
	}
}

// look examines the host once, and returns how long that took. If the host cannot be examined, the
// failures of the examination before stay.
func (e *Examiner) look(ctx context.Context) time.Duration {
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, examinePatience)
	defer cancel()
	findings, err := e.examine(limited)
	if ctx.Err() != nil {
		return 0
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.found = slices.DeleteFunc(e.found, func(p model.Problem) bool { return err == nil || p.Part == partExamination })
	if err == nil {
		e.compare(findings)
	} else {
		p := model.Problem{Part: partExamination, Severity: model.SeverityWarning, Text: err.Error()}
		if errors.Is(err, context.DeadlineExceeded) {
			p.Text, p.Fix = fmt.Sprintf("this host cannot be examined within %v", examinePatience), "run weir doctor, which takes its time"
		}
		e.found = append(e.found, p)
	}
	return time.Since(began)
}

// compare takes over what the last two examinations have found. What only one has found is looked for
// soon. The mutex is held.
func (e *Examiner) compare(findings []doctor.Finding) {
	before := e.last
	e.last = make([]model.Problem, len(findings))
	for i := range findings {
		e.last[i] = findings[i].Problem()
		if slices.Contains(before, e.last[i]) {
			e.found = append(e.found, e.last[i])
		}
	}
	if len(e.found) < len(e.last) {
		e.Wake()
	}
}

// The parts that are about the examination itself.
const (
	partExamination = "examination"
	partNotices     = "notices"
)

// pause waits; false: the context ended meanwhile.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
