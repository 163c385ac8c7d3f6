package main

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
)

// logFlags say how a process says what it does.
type logFlags struct {
	format string
	level  slog.Level
}

func (f *logFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.format, "log-format", "text", "text or json")
	cmd.Flags().TextVar(&f.level, "log-level", slog.LevelInfo, "debug, info, warn or error")
}

// logger returns what logs as the flags say, also what the client's library has to say.
func (f *logFlags) logger(to io.Writer) (*slog.Logger, error) {
	options := &slog.HandlerOptions{Level: f.level}
	var handler slog.Handler = slog.NewTextHandler(to, options)
	switch f.format {
	case "text":
	case "json":
		handler = slog.NewJSONHandler(to, options)
	default:
		return nil, fmt.Errorf("unknown log format %q (one of json, text)", f.format)
	}
	klog.SetLogger(logr.FromSlogHandler(handler))
	return slog.New(handler), nil
}
