package site

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Rolled is the result of requests while pods were replaced.
type Rolled struct {
	Made, Failed int      // requests, each over its own connection
	Long, Broken int      // answers that took [LongAnswer]
	Stories      []string // of failed requests
}

// Roll replaces pods of an app one after the other, as a Deployment does by default (one more, and
// none too few): when a new pod is ready, an old one is deleted and the next is made. The old one
// goes on for preStop and finishes its requests. Roll returns the new pods.
func (s *Site) Roll(ctx context.Context, app string, old []*Pod, preStop time.Duration) ([]*Pod, error) {
	var ending sync.WaitGroup
	ended := make([]error, len(old))
	var pods []*Pod
	err := func() error {
		for i, before := range old {
			p, err := s.StartPod(ctx, before.Node, app)
			if err != nil {
				return err
			}
			pods = append(pods, p)
			if _, err := p.Ready(ctx); err != nil {
				return err
			}
			if _, err := before.Delete(ctx); err != nil {
				return err
			}
			ending.Go(func() { ended[i] = before.endAfter(ctx, preStop) })
		}
		return nil
	}()
	ending.Wait()
	return pods, errors.Join(err, errors.Join(ended...))
}

// endAfter ends a pod whose preStop hook sleeps.
func (p *Pod) endAfter(ctx context.Context, preStop time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(preStop): // the hook's own time
	}
	if err := p.End(ctx); err != nil {
		return fmt.Errorf("end %s: %w", p.Name, err)
	}
	return nil
}

// Loaded does something while short and long requests are made, which begin before it and end after
// it, and returns their results.
func Loaded(ctx context.Context, short, long *Requests, what func() error) (r Rolled, err error) {
	began := time.Now()
	if err := what(); err != nil {
		return r, err
	}
	short.Close()
	long.Close()
	for _, a := range short.Since(began) {
		r.Made++
		if a.Err != nil {
			r.Failed++
		}
	}
	for _, a := range long.Since(time.Time{}) {
		r.Long++
		if a.Err != nil {
			r.Broken++
		}
	}
	r.Stories = append(short.Failures(began), long.Failures(time.Time{})...)
	return r, ctx.Err()
}
