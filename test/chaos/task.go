package main

import (
	"context"
	"errors"
)

// task is something that goes on beside the events.
type task struct {
	done chan struct{}
	err  error // once done is closed
}

func finishedTask() *task {
	t := &task{done: make(chan struct{})}
	close(t.done)
	return t
}

// beside does something with a director's process when what was begun with it
// before is done. Not after an error of that: it is the run's end.
func (p *performer) beside(director int, do func() error) {
	before, t := p.tasks[director], &task{done: make(chan struct{})}
	p.tasks[director] = t
	go func() {
		defer close(t.done)
		if <-before.done; before.err != nil {
			t.err = before.err
			return
		}
		t.err = do()
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
