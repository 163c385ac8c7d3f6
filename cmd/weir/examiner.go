package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
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

// examiner examines the host of a process that runs as weir doctor does, one examination at a time.
// A failure is a problem when two examinations have found it, one after the other: an address that
// is replaced is gone for a moment, and so is the route to a pod that the configuration still has.
// It is over when one does not find it.
type examiner struct {
	examine func(context.Context) ([]doctor.Finding, error)
	listen  func() (*upkeep.Notices, error)
	every   time.Duration // without a notice
	least   time.Duration // from the end of one examination to the next
	woken   chan struct{}

	mu    sync.Mutex
	last  []model.Problem // the failures that the last examination has found
	found []model.Problem
	deaf  error // why the kernel's notices are not heard
}

func newExaminer(examine func(context.Context) ([]doctor.Finding, error)) *examiner {
	return &examiner{examine: examine, listen: listenToHost, every: examineEvery, least: examineLeast, woken: make(chan struct{}, 1)}
}

// wake has the host examined soon: something else is asked of it.
func (e *examiner) wake() {
	select {
	case e.woken <- struct{}{}:
	default:
	}
}

// listenToHost hears when links and addresses change.
func listenToHost() (*upkeep.Notices, error) {
	return upkeep.Listen(unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
}

// problems are what the last two examinations have found, and what keeps the host from being examined
// at once.
func (e *examiner) problems() []model.Problem {
	e.mu.Lock()
	defer e.mu.Unlock()
	found := slices.Clone(e.found)
	if e.deaf != nil {
		found = append(found, model.Problem{Part: partNotices, Severity: model.SeverityWarning,
			Text: fmt.Sprintf("failures of this host are found within %v, and not at once: %v", e.every, e.deaf),
			Fix:  "give the process more open files, and its user more inotify instances (sysctl fs.inotify.max_user_instances): it tries again with each examination"})
	}
	return found
}

// start examines the host until the context ends: when links and addresses change, and regularly.
// Where the kernel gives no notice of changes, only the latter, until it does.
func (e *examiner) start(ctx context.Context, running *sync.WaitGroup) {
	running.Go(func() { e.run(ctx) })
}

func (e *examiner) run(ctx context.Context) {
	var notices *upkeep.Notices
	var heard <-chan struct{}
	for {
		if notices == nil {
			if notices = e.hear(); notices != nil {
				defer notices.Close()
				heard = notices.C()
			}
		}
		if pause(ctx, max(e.least, examineShare*e.look(ctx))) != nil {
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
		if pause(ctx, examineSettle) != nil {
			return
		}
	}
}

// hear begins to hear notices; nil: that is not possible now.
func (e *examiner) hear() *upkeep.Notices {
	notices, err := e.listen()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.deaf = err; err != nil {
		return nil
	}
	return notices
}

// look examines the host once, and returns how long that took. What an examination cannot see stays
// as it was.
func (e *examiner) look(ctx context.Context) time.Duration {
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
func (e *examiner) compare(findings []doctor.Finding) {
	before := e.last
	e.last = make([]model.Problem, len(findings))
	for i := range findings {
		e.last[i] = ofFinding(&findings[i])
		if slices.Contains(before, e.last[i]) {
			e.found = append(e.found, e.last[i])
		}
	}
	if len(e.found) < len(e.last) {
		e.wake()
	}
}

// examineHost examines a director's host for what it runs now. It takes addresses that have come.
func (d *director) examineHost(ctx context.Context) ([]doctor.Finding, error) {
	d.joinGroupAgain()
	c := d.Config()
	found, err := doctor.Running(ctx, doctor.Options{Config: &c, Role: doctor.Director, BPFFS: filepath.Dir(d.info.Pin), Probes: d.checker.Connections})
	if err != nil {
		return nil, err
	}
	return append(found, examineTaken(&c)...), nil
}

// examineAgent returns a function that examines an agent's host. Parameter interfaces has those that
// its command line names in place of the file's.
func examineAgent(d *daemon, interfaces []string) func(context.Context) ([]doctor.Finding, error) {
	return func(ctx context.Context) ([]doctor.Finding, error) {
		c := d.Config()
		if len(interfaces) > 0 {
			c.Agent.Interfaces = interfaces
		}
		return doctor.Running(ctx, doctor.Options{Config: &c, Role: doctor.Agent, BPFFS: filepath.Dir(d.info.Pin)})
	}
}

// toldTwice says whether doctor has found a problem by itself that a process lists.
func toldTwice(p *model.Problem, own []doctor.Finding) bool {
	return p.Kind == model.ProblemHost && slices.ContainsFunc(own, func(f doctor.Finding) bool {
		return f.Level == doctor.Fail && f.Check == p.Part && ofFinding(&f).Text == p.Text
	})
}

// Parts that are about the examination itself.
const (
	partExamination = "examination"
	partNotices     = "notices"
)

// ofFinding is the problem that a failure is.
func ofFinding(f *doctor.Finding) model.Problem {
	return model.Problem{Part: f.Check, Text: f.Check + ": " + f.Text, Fix: f.Fix}
}
