package main

import (
	"io"
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"weir.io/weir/internal/logs"
)

// logger returns a logger that logs as the flags say, including messages of the client library.
func logger(f *logs.Flags, w io.Writer) (*slog.Logger, error) {
	handler, err := f.Handler(w)
	if err != nil {
		return nil, err
	}
	klog.SetLogger(logr.FromSlogHandler(handler))
	return slog.New(handler), nil
}
