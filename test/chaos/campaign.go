package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"weir.io/weir/test/chaos/schedule"
)

// campaign is the runs of one command line, one after the other.
type campaign struct {
	options
	modes   []mode
	seeds   []uint64
	compare bool // ends with a table, and broken connections are no failure
	json    bool
	out     io.Writer
}

// jobs returns the options of each run.
func (c *campaign) jobs() []options {
	var list []options
	for _, seed := range c.seeds {
		for _, m := range c.modes {
			o := c.options
			o.Seed, o.mode = seed, m
			o.shared = o.shared && !m.dnat
			o.syncookies = cookies(o.syncookies, seed)
			list = append(list, o)
		}
	}
	return list
}

// outcome is the result of one run.
type outcome struct {
	Mode   string   `json:"mode"`
	Seed   uint64   `json:"seed"`
	Faults []string `json:"faults"` // none: it passed
	report *report  // nil: the run did not finish
}

// run does all runs and returns what was wrong with them. A run that fails to work does not stop
// the others.
func (c *campaign) run(ctx context.Context) error {
	jobs := c.jobs()
	if slices.ContainsFunc(jobs, upgrades) {
		c.say("building other versions of weir")
	}
	weir, remove, err := findBinaries(ctx, slices.ContainsFunc(jobs, upgrades), c.steer)
	if err != nil {
		return err
	}
	done, err := c.each(ctx, jobs, weir)
	if err = errors.Join(err, remove()); err != nil {
		return err
	}
	if len(jobs) > 1 || c.compare {
		if err := c.summarise(done); err != nil {
			return err
		}
	}
	return verdict(done)
}

// each does one run after the other. Its error says why it could not continue.
func (c *campaign) each(ctx context.Context, jobs []options, weir binaries) ([]outcome, error) {
	var done []outcome
	for i, o := range jobs {
		if len(jobs) > 1 {
			c.say("run %d of %d: seed %d, mode %s", i+1, len(jobs), o.Seed, o.mode.name)
		}
		o.binaries = weir
		r, err := run(ctx, o, schedule.Make(o.Options))
		if ctx.Err() != nil {
			return done, errors.Join(ctx.Err(), err)
		}
		if r != nil {
			if err := c.show(r); err != nil {
				return done, err
			}
		}
		done = append(done, c.judge(o, r, err))
	}
	return done, nil
}

// judge says what was wrong with a run. Broken connections in a comparison are no fault.
func (c *campaign) judge(o options, r *report, err error) outcome {
	result := outcome{Mode: o.mode.name, Seed: o.Seed, Faults: []string{}, report: r}
	if err != nil {
		result.Faults, result.report = append(result.Faults, err.Error()), nil
	} else if !c.compare {
		result.Faults = append(result.Faults, r.faults()...)
	}
	return result
}

func (c *campaign) show(r *report) error {
	if c.json {
		return r.printJSON(c.out)
	}
	return r.print(c.out)
}

// verdict returns the runs' faults as one error.
func verdict(done []outcome) error {
	var faults []string
	for _, o := range done {
		text := strings.Join(o.Faults, "; ")
		if len(done) > 1 && text != "" {
			text = fmt.Sprintf("seed %d, mode %s: %s", o.Seed, o.Mode, text)
		}
		if text != "" {
			faults = append(faults, text)
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return errors.New(strings.Join(faults, "\n"))
}
