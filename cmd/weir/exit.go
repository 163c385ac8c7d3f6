package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/bfd"
)

// exitStatus is the status with which a command line ends: scripts decide by it what to do next.
type exitStatus int

const (
	exitDone        exitStatus = 0
	exitFailed      exitStatus = 1
	exitUsage       exitStatus = 2
	exitUnreachable exitStatus = 3
	exitRefused     exitStatus = 4
	exitProblems    exitStatus = 5
)

// exitStatuses are all statuses, in the words of the manual.
var exitStatuses = []struct {
	status  exitStatus
	meaning string
}{
	{exitDone, "it is done"},
	{exitFailed, "it could not be done; or what was examined is not well (check, doctor)"},
	{exitUsage, "the command line is wrong: nothing was tried"},
	{exitUnreachable, "nobody could be asked: no process answers there, another kind of process does, or the way there is not safe"},
	{exitRefused, "the director refused what it was asked: it is wrong, in conflict with another set, or the caller may not"},
	{exitProblems, "it is done, and something that was asked for does not run (status)"},
}

// usageError is an error of the command line itself.
type usageError struct{ error }

// Unwrap returns what is wrong.
func (e usageError) Unwrap() error { return e.error }

// usagef says what is wrong with a command line.
func usagef(format string, values ...any) error { return usageError{fmt.Errorf(format, values...)} }

// statusOf returns the exit status for an error.
func statusOf(err error) exitStatus {
	var (
		usage    usageError
		problem  *api.Problem
		problems problemsError
	)
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &problems):
		return exitProblems
	case errors.Is(err, context.Canceled):
		return exitFailed // interrupted, whatever it waited for
	case errors.Is(err, api.ErrUnreachable), errors.Is(err, bfd.ErrNobody):
		return exitUnreachable
	case errors.As(err, &problem) && problem.Status >= http.StatusBadRequest && problem.Status < http.StatusInternalServerError:
		return exitRefused
	}
	return exitFailed
}

// exitHelp lists the statuses for the root command's help and manual page.
func exitHelp() string {
	var b strings.Builder
	b.WriteString("Exit status:\n\n")
	for _, s := range exitStatuses {
		fmt.Fprintf(&b, "  %d  %s\n", s.status, s.meaning)
	}
	return b.String()
}

// noteBegin notes whether a command has begun: an error before that is one of usage. Such errors
// are unknown commands and flags, and missing or extra arguments.
func noteBegin(root *cobra.Command) (began *bool) {
	began = new(bool)
	walk(root, func(cmd *cobra.Command) {
		if run := cmd.RunE; run != nil {
			cmd.RunE = func(cmd *cobra.Command, args []string) error {
				*began = true
				return run(cmd, args)
			}
		}
	})
	return began
}

// walk visits a command and all that are under it.
func walk(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, sub := range cmd.Commands() {
		walk(sub, visit)
	}
}
