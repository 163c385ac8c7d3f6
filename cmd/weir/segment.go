package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
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

// known says of a segment of which there is nothing to show whether the director knows it at all: it may be mistyped.
func (f *segmentFlag) known(ctx context.Context, client *api.Client) error {
	if f.in == nil || *f.in == (model.Segment{}) {
		return nil
	}
	status, err := client.SegmentsIn(ctx, f.in)
	if err != nil || len(status.Segments) > 0 {
		return err
	}
	return f.unknown()
}

// unknown says that the director does not know the segment.
func (f *segmentFlag) unknown() error {
	return fmt.Errorf("this director knows no segment %s: no service, backend or host of it is in that (see weir segments)", f.in)
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

// segmentColumn is the head of a column of segments: it is shown where some row has one, because tenants may have the same
// addresses.
func segmentColumn[T any](rows []T, of func(*T) model.Segment) string {
	for i := range rows {
		if of(&rows[i]) != (model.Segment{}) {
			return "SEGMENT"
		}
	}
	return onlyWide + "SEGMENT"
}
