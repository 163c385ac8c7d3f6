package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Running examines the host of a director or an agent that runs, which calls it from time to time:
// it returns the failures that the process does not find by itself, and none that concern only a
// start. Role is Director or Agent, and there is a Config; State and Reports are not called. An
// error says that the host could not be examined, or not before the context ended: then nothing is
// known about it.
//
// Warnings are not returned: they often hold on a host where all goes well, and the exit status of
// weir doctor leaves them out, too.
func Running(ctx context.Context, o Options) ([]Finding, error) {
	x := newExamination(ctx, &o)
	x.running = true
	if !x.prepare() {
		return nil, errors.New(x.findings[0].Text)
	}
	if o.Role == Agent {
		x.agent()
	} else {
		x.director()
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("examine this host: %w", err)
	}
	return slices.DeleteFunc(x.findings, func(f Finding) bool { return f.Level != Fail }), nil
}
