package main

import (
	"io"
	"log/slog"

	"weir.io/weir/internal/logs"
)

// logger returns a logger as the flags say; wrong flags are an error of the command line.
func logger(f *logs.Flags, w io.Writer) (*slog.Logger, error) {
	handler, err := f.Handler(w)
	if err != nil {
		return nil, usageError{err}
	}
	return slog.New(handler), nil
}
