package controller

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// atOnce is the greatest number of requests to the API server that are under way at a time.
const atOnce = 16

// each calls f for every item of a list, some at a time. When all calls are done it returns what
// went wrong.
func each[T any](list []T, f func(T) error) error {
	errs := make([]error, len(list))
	var all sync.WaitGroup
	limit := make(chan struct{}, atOnce)
	for i, one := range list {
		limit <- struct{}{}
		all.Go(func() {
			errs[i] = f(one)
			<-limit
		})
	}
	all.Wait()
	return joined(errs)
}

// joined makes one error of several; if there are many, it has only the first ones.
func joined(errs []error) error {
	const most = 5
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if more := len(errs) - most; more > 0 {
		errs = append(errs[:most:most], fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}
