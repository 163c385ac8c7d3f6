package main

import (
	"context"
	"errors"
)

// task is work that goes on beside the events.
type task struct {
	done    chan struct{}
	err     error // valid once done is closed
	abandon context.CancelFunc
}

// errAbandoned is the cause of a task's end if its director's host was killed meanwhile.
var errAbandoned = errors.New("its host is gone")

func finishedTask() *task {
	t := &task{done: make(chan struct{}), abandon: func() {}}
	close(t.done)
	return t
}

// beside does something with a director's process when its previous task is done. It does nothing
// if that task failed, which ends the run.
func (p *performer) beside(ctx context.Context, director int, do func(context.Context) error) {
	ctx, cancel := context.WithCancelCause(ctx)
	before, t := p.tasks[director], &task{done: make(chan struct{}), abandon: func() { cancel(errAbandoned) }}
	p.tasks[director] = t
	go func() {
		defer cancel(nil)
		defer close(t.done)
		if <-before.done; before.err != nil {
			t.err = before.err
			return
		}
		err := do(ctx)
		if err != nil && !errors.Is(context.Cause(ctx), errAbandoned) {
			t.err = err
		}
	}()
}

func (t *task) wait(ctx context.Context) error {
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// failed returns the errors of tasks that are done.
func (p *performer) failed() error {
	var errs []error
	for _, t := range p.tasks {
		select {
		case <-t.done:
			errs = append(errs, t.err)
		default:
		}
	}
	return errors.Join(errs...)
}
