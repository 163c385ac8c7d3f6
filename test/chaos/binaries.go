package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"weir.io/weir/lab/process"
	"weir.io/weir/lab/version"
	"weir.io/weir/test/chaos/schedule"
)

// binaries are the paths of the versions of weir.
type binaries [schedule.Versions]string

// findBinaries returns this version's binary, where "make build" leaves it, and with others also
// the other versions', built from the sources in the working directory. With steer all know the NICs of
// labs. remove deletes the others.
func findBinaries(ctx context.Context, others, steer bool) (list binaries, remove func() error, err error) {
	remove = func() error { return nil }
	this := process.Binary
	var flags []string
	if steer {
		this = func() (string, error) { return version.WithNICs(ctx) }
		flags = []string{"-tags", version.NICsTag}
	}
	if list[schedule.This], err = this(); err != nil || !others {
		return list, remove, err
	}
	dir, err := os.MkdirTemp("", "weir-versions-")
	if err != nil {
		return list, remove, fmt.Errorf("build other versions: %w", err)
	}
	remove = func() error { return os.RemoveAll(dir) }
	if list[schedule.SameABI], err = version.BuildSameABI(ctx, ".", dir, flags...); err == nil {
		list[schedule.OtherABI], err = version.BuildOtherABI(ctx, ".", dir, flags...)
	}
	if err != nil {
		return list, func() error { return nil }, errors.Join(err, remove())
	}
	return list, remove, nil
}

// upgrades reports whether a run needs other versions of weir.
func upgrades(o options) bool {
	return !o.mode.dnat && slices.ContainsFunc(schedule.Make(o.Options), func(e schedule.Event) bool {
		return e.Kind == schedule.DirectorUpgraded || e.Kind == schedule.AgentUpgraded
	})
}
