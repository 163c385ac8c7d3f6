package main

import (
	"os"
	"runtime/debug"
)

// garbage is how much of it there may be in a director before it is collected, in per cent of what
// is in use. That is nearly all tables, which stay: with thousands of services hundreds of
// megabytes, beside which there would be as many of garbage by default. A change makes little of
// it, and collecting costs what is in use, so it costs little to do it twice as often.
const garbage = 50

// collect has garbage collected by that, unless somebody wants it otherwise.
func collect() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
}
