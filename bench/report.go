package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"weir.io/weir/bench/report"
	"weir.io/weir/lab/record"
)

func newReport() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "report FILE.json",
		Short: "Write " + document + " and its figures from a record",
		Long: "report writes the document of a record. The checks are judged anew, from the rounds\n" +
			"in the record. One of a smoke run, of some scenarios or of a run in which something\n" +
			"broke is written only where --out says: " + document + " is not replaced by less\n" +
			"than a complete run, unless --out names it.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("out") {
				if err := placeFor(out); err != nil {
					return err
				}
			}
			r, err := record.Read(args[0])
			if err != nil {
				return err
			}
			if r.Machine.Kernel == "" && cmd.Flags().Changed("out") { // a simulation is of no machine
				r.Checks = judgeBy(simulated, r)
				return writeSimulated(cmd.ErrOrStderr(), r, args[0], out)
			}
			if why := incomplete(r); why != "" && !cmd.Flags().Changed("out") {
				return fmt.Errorf("%s: %s; %s is of complete runs: name another document, or that one, with --out", args[0], why, document)
			}
			r.Checks = judge(r)
			return writeDocument(cmd.ErrOrStderr(), r, args[0], out)
		},
	}
	cmd.Flags().StringVar(&out, "out", document, "the document, a `file`; its figures go into a directory of its name")
	return cmd
}

// incomplete says why a record is not one of a complete run.
func incomplete(r *record.Record) string {
	if r.Settings.Smoke {
		return "a smoke run, whose figures mean nothing"
	}
	for _, s := range r.Scenarios {
		if s.Error != "" {
			return s.Name + " ended with an error"
		}
	}
	if missing := lacks(r); len(missing) > 0 {
		return "it has no " + strings.Join(missing, ", ")
	}
	return ""
}

// writeDocument writes the document of a record, which names the record's file, as that has every
// round.
func writeDocument(progress io.Writer, r *record.Record, source, path string) error {
	guide := guide
	if len(lacks(r)) > 0 && !r.Settings.Smoke {
		guide.Head = headOfPart(path)
	}
	d, err := report.New(r, guide, source, path)
	if err != nil {
		return err
	}
	return written(progress, d, path)
}

func written(progress io.Writer, d *report.Document, path string) error {
	err := d.Write(path)
	if err == nil {
		fmt.Fprintf(progress, "wrote %s\n", path)
	}
	return err
}

// lacks are the scenarios of a complete run that are missing in a record.
func lacks(r *record.Record) (names []string) {
	for _, s := range scenarios {
		if s.when == always && r.Scenario(s.name) == nil {
			names = append(names, s.name)
		}
	}
	return names
}

// headOfPart begins the document of some scenarios: it says how this document is made, not the one
// of all scenarios.
func headOfPart(document string) func(io.Writer, *record.Record, string) {
	return func(w io.Writer, r *record.Record, source string) {
		var names []string
		for _, s := range r.Scenarios {
			names = append(names, s.Name)
		}
		fmt.Fprintf(w, "# Benchmarks: %s\n\n"+
			"Generated from `%s`; do not edit. The record and this document are made with\n\n"+
			"```sh\nbin/bench run %s --rounds %d --out %s\nbin/bench report --out %s %s\n```\n\n",
			strings.Join(names, " and "), source, strings.Join(names, " "), r.Settings.Rounds, source, document, source)
	}
}
