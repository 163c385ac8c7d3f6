package controller

import (
	"errors"
	"fmt"
	"sync"
)

// atOnce is how many requests to the API server are under way at a time, at most.
const atOnce = 16

// each calls f for all of a list, some at a time, and returns when it has been called for all.
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

// joined makes one error of several; of many the first ones are told.
func joined(errs []error) error {
	const most = 5
	if more := len(errs) - most; more > 0 {
		errs = append(errs[:most:most], fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}
