// Package logs has the flags that say how a process logs.
package logs

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// Flags choose what a process writes to its log, and how. The zero value is what it writes without
// flags.
type Flags struct {
	format string
	level  slog.Level
}

// Add adds the flags to a command.
func (f *Flags) Add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.format, "log-format", "text", "text or json")
	cmd.Flags().TextVar(&f.level, "log-level", slog.LevelInfo, "debug, info, warn or error")
}

// Args returns the flags as they were given, for another process that is to log like this one.
func (f *Flags) Args() []string {
	return []string{"--log-format", f.format, "--log-level", f.level.String()}
}

// Handler returns a handler that writes as the flags say. An unknown format is an error of the
// user's.
func (f *Flags) Handler(w io.Writer) (slog.Handler, error) {
	options := &slog.HandlerOptions{Level: f.level}
	switch f.format {
	case "text":
		return slog.NewTextHandler(w, options), nil
	case "json":
		return slog.NewJSONHandler(w, options), nil
	}
	return nil, fmt.Errorf("unknown log format %q (one of json, text)", f.format)
}

// IsTerminal says whether a person may be reading what is written to w.
func IsTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}
