package main

import (
	"github.com/spf13/cobra"

	"weir.io/weir/internal/model"
)

// segmentFlag is a segment that a command is about; nil: all.
type segmentFlag struct{ in *model.Segment }

// add adds the flag --segment.
func (f *segmentFlag) add(cmd *cobra.Command, what string) {
	cmd.Flags().Var(f, "segment", what+" this `segment` alone: vlan:100, vxlan:5001, or none")
}

// Set reads a segment.
func (f *segmentFlag) Set(text string) error {
	var id model.Segment
	if err := id.UnmarshalText([]byte(text)); err != nil {
		return err
	}
	f.in = &id
	return nil
}

// String is what is given.
func (f *segmentFlag) String() string {
	if f.in == nil {
		return ""
	}
	return f.in.String()
}

// Type is for help.
func (f *segmentFlag) Type() string { return "segment" }
