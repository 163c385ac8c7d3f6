package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// coreTime is what the cores have done since the machine booted, in ticks. Time of programs that
// give way to others (nice) also counts as idle.
type coreTime struct{ idle, all uint64 }

// cores reads it: the first line of /proc/stat (proc_stat(5)).
func cores() (t coreTime, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return t, fmt.Errorf("what the cores do: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return parseCores(line)
}

func parseCores(line string) (t coreTime, err error) {
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return t, fmt.Errorf("what the cores do: /proc/stat begins with %q", line)
	}
	for i, field := range fields[1:9] { // user to steal; guests' time is in user's
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return t, fmt.Errorf("what the cores do: %w", err)
		}
		t.all += n
		if i == 1 || i == 3 || i == 4 { // nice, idle, and idle while something waits for a disk
			t.idle += n
		}
	}
	return t, nil
}

// idleSince is the share of the time that no program used, except those that give way.
func (t coreTime) idleSince(before coreTime) float64 {
	if t.all == before.all {
		return 1
	}
	return float64(t.idle-before.idle) / float64(t.all-before.all)
}
