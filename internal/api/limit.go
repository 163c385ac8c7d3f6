package api

import (
	"errors"
	"fmt"
	"net/http"
	"os"
)

// unreadable says why a body could not be read.
func unreadable(err error) *Problem {
	if long := (*http.MaxBytesError)(nil); errors.As(err, &long) {
		return NewProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is longer than %d bytes", long.Limit))
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return NewProblem(http.StatusRequestTimeout, "the body has not come in time")
	}
	return NewProblem(http.StatusBadRequest, "the body cannot be read: "+err.Error())
}
