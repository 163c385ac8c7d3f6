package main

import (
	"context"
	"errors"
)

// task is something that goes on beside the events.
type task struct {
	done    chan struct{}
	err     error // once done is closed
	abandon context.CancelFunc
}

// errAbandoned is why a task ended whose director's host was taken meanwhile.
var errAbandoned = errors.New("its host is gone")

func finishedTask() *task {
	t := &task{done: make(chan struct{}), abandon: func() {}}
	close(t.done)
	return t
}

// beside does something with a director's process when what was begun with it
// before is done. Not after an error of that: it is the run's end.
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
