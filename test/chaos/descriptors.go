package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// mostDescriptors is room for two ends of each of 40,000 connections, and for those that
// only a backend still has: whose connections break opens them again, and what is left of
// the broken ones stays open.
const mostDescriptors = 1 << 18

// raiseDescriptors lets the process have that many, unless it may already.
func raiseDescriptors() error {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return fmt.Errorf("read RLIMIT_NOFILE: %w", err)
	}
	if files.Cur >= mostDescriptors {
		return nil
	}
	files.Cur, files.Max = mostDescriptors, max(files.Max, mostDescriptors)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return fmt.Errorf("raise RLIMIT_NOFILE to %d, which needs CAP_SYS_RESOURCE: %w", mostDescriptors, err)
	}
	return nil
}
