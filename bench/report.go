package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"weir.io/weir/bench/record"
	"weir.io/weir/bench/report"
)

func newReport() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "report FILE.json",
		Short: "Write " + document + " and its figures from a record",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := record.Read(args[0])
			if err != nil {
				return err
			}
			return writeDocument(cmd.ErrOrStderr(), r, args[0], out)
		},
	}
	cmd.Flags().StringVar(&out, "out", document, "the document; its figures go into a directory of its name")
	return cmd
}

// writeDocument writes the document of a record, which names the record's file: there
// is every round.
func writeDocument(progress io.Writer, r *record.Record, source, path string) error {
	d, err := report.New(r, source, path)
	if err != nil {
		return err
	}
	if err := d.Write(path); err != nil {
		return err
	}
	fmt.Fprintf(progress, "wrote %s\n", path)
	return nil
}
