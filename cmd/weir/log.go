package main

import (
	"io"
	"log/slog"

	"weir.io/weir/internal/logs"
)

// logger returns what logs as the flags say; where they are wrong, so was the command line.
func logger(f *logs.Flags, w io.Writer) (*slog.Logger, error) {
	handler, err := f.Handler(w)
	if err != nil {
		return nil, usageError{err}
	}
	return slog.New(handler), nil
}
