package controller

import (
	"errors"
	"fmt"
	"sync"
)

// atOnce is the greatest number of requests to the API server that are under way at a time.
const atOnce = 16

// each calls f for every item of a list, some at a time, and returns when all calls are done.
func each[T any](list []T, f func(T)) {
	if len(list) == 1 { // the usual case
		f(list[0])
		return
	}
	var all sync.WaitGroup
	next := make(chan T)
	for range min(atOnce, len(list)) {
		all.Go(func() {
			for one := range next {
				f(one)
			}
		})
	}
	for _, one := range list {
		next <- one
	}
	close(next)
	all.Wait()
}

// joined makes one error of several; if there are many, it has only the first ones.
func joined(errs []error) error {
	const most = 5
	if more := len(errs) - most; more > 0 {
		errs = append(errs[:most:most], fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}
