package main

import (
	"io"
	"log/slog"

	"github.com/spf13/cobra"
)

// logFlags choose what a process writes to stderr, and how.
type logFlags struct {
	format string
	level  slog.Level
}

func (f *logFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.format, "log-format", "text", "text or json")
	cmd.Flags().TextVar(&f.level, "log-level", slog.LevelInfo, "debug, info, warn or error")
}

func (f *logFlags) logger(w io.Writer) (*slog.Logger, error) {
	options := &slog.HandlerOptions{Level: f.level}
	switch f.format {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return nil, usagef("unknown log format %q (one of json, text)", f.format)
}
