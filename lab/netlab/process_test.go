package netlab

import (
	"context"
	"fmt"
	"os"
)

// process is the T of a process that is no test.
type process struct{}

func (process) Helper()        {}
func (process) Cleanup(func()) {}

func (process) context() context.Context { return context.Background() }

func (process) Errorf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (p process) Fatalf(format string, args ...any) {
	p.Errorf(format, args...)
	os.Exit(1)
}
