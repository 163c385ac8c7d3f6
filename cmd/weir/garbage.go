package main

import (
	"os"
	"runtime/debug"
)

// garbage is how much garbage a director may have before it is collected, in percent of the memory
// in use. That memory is nearly all tables, which stay: with thousands of services hundreds of
// megabytes, and by default there could be as much garbage. A change makes little garbage, so
// collecting twice as often costs little, although its cost grows with the memory in use.
const garbage = 50

// collect sets that limit, unless the environment sets another one.
func collect() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
}
