package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
)

func newSegments() *cobra.Command {
	var file string
	var segment segmentFlag
	cmd := &cobra.Command{
		Use:   "segments",
		Short: "Show what a director knows of tenants' networks, or say where their hosts are",
		Long: "segments shows the segments that a director knows, what their services and backends use and\n" +
			"count, where their hosts are, and which source says so. With --file it says to the director where hosts are: the file replaces everything\n" +
			"that was said so before, also after a restart, and in this director alone. It has one key,\n" +
			"segments, a list of id and hosts as in the configuration.",
		Example: "  weir segments\n" +
			"  weir segments --file hosts.yaml",
		Args: cobra.NoArgs,
	}
	segment.add(cmd, "about")
	cmd.Flags().StringVarP(&file, "file", "f", "", "say where hosts are, as this `file` does; -: as standard input")
	asks(cmd, func(ctx context.Context, client *api.Client, _ []string) (answer segmentsAnswer, err error) {
		if !cmd.Flags().Changed("file") {
			status, err := client.SegmentsIn(ctx, segment.in)
			if err == nil && len(status.Segments) == 0 && segment.in != nil {
				err = segment.unknown()
			}
			return segmentsAnswer{SegmentsStatus: &status}, err
		}
		if segment.in != nil {
			return answer, usagef("--segment: a file says where hosts of all segments are")
		}
		text, err := readHosts(cmd.InOrStdin(), file)
		if err != nil {
			return answer, err
		}
		put, err := client.PutSegments(ctx, api.SetText{Text: text})
		return segmentsAnswer{PutHosts: &put}, err
	}, segmentsTable)
	return cmd
}

// readHosts reads a file; -: standard input. No director takes more than so many bytes.
func readHosts(stdin io.Reader, file string) ([]byte, error) {
	if file != "-" {
		return os.ReadFile(file)
	}
	text, err := io.ReadAll(io.LimitReader(stdin, config.MaxSize))
	if err != nil {
		return nil, fmt.Errorf("read standard input: %w", err)
	}
	return text, nil
}

// segmentsAnswer is what is known, or what was put.
type segmentsAnswer struct {
	*model.SegmentsStatus `json:",inline"`
	*api.PutHosts         `json:",inline"`
}

// MarshalJSON writes the one that there is: both have a field segments.
func (a segmentsAnswer) MarshalJSON() ([]byte, error) {
	if a.PutHosts != nil {
		return json.Marshal(a.PutHosts)
	}
	return json.Marshal(a.SegmentsStatus)
}

func segmentsTable(t *table, a segmentsAnswer) {
	if a.PutHosts != nil {
		t.line(fmt.Sprintf("the director has %s in %s from its API", model.Count(a.PutHosts.Hosts, "host"), model.Count(a.PutHosts.Segments, "segment")))
		if unnamed := a.PutHosts.Unnamed; len(unnamed) > 0 {
			t.line(fmt.Sprintf("named nowhere else, so that nothing is sent there yet: %s; is it mistyped?", model.SegmentList(unnamed)))
		}
		return
	}
	status := a.SegmentsStatus
	if len(status.Segments) == 0 {
		t.line("this director knows no segment")
	} else {
		t.row("SEGMENT", "VNI", "MAC", "ADDRESSES", "NETWORK", "SERVICES", "HOSTS")
	}
	hosts := 0
	for i := range status.Segments {
		s := &status.Segments[i]
		hosts += len(s.Hosts)
		vni := ""
		if s.ID.IsOverlay() && (s.VNI != 0 || s.Network == "") {
			vni = fmt.Sprint(s.VNI)
		}
		t.row(s.ID, vni, s.MAC, list(slices.Concat(s.Addresses, s.SNATAddresses)), s.Network, list(s.Services), len(s.Hosts))
	}
	if len(status.Segments) > 0 {
		t.line("")
		t.row("SEGMENT", "SERVICES", "BACKENDS", "RING-MEMORY", "SOURCE-RANGES", "PROBES/S", "FLOWS", "CONNECTIONS", "PACKETS", "BYTES", "DROPPED", "LIMITED")
	}
	for i := range status.Segments {
		c := &status.Segments[i].Counts
		l := model.SegmentLimits{}
		if c.Limits != nil {
			l = *c.Limits
		}
		t.row(status.Segments[i].ID, ofMost(c.Services, l.Services), ofMost(c.Backends, l.Backends), ofMost(c.RingMemory, l.RingMemory), ofMost(c.SourceRanges, l.SourceRanges), ofMost(c.Probes, l.ProbesPerSecond), ofMost(c.Flows, l.Flows), c.Opened, c.Packets, c.Bytes, c.Dropped, limited(c.Limited, l.PacketsPerSecond))
	}
	if hosts > 0 {
		t.line("")
		t.row("SEGMENT", "HOST", "MAC", "VTEP", "VNI", "OPTIONS", "SOURCE")
	}
	for i := range status.Segments {
		for _, h := range status.Segments[i].Hosts {
			vni := ""
			if h.VNI != 0 {
				vni = fmt.Sprint(h.VNI)
			}
			t.row(status.Segments[i].ID, h.Address, h.MAC, h.VTEP, vni, h.Options, h.Source)
		}
	}
	if len(status.Sources) > 0 {
		t.line("")
		t.row("SOURCE", "HOSTS", "SINCE", "LOST")
	}
	for _, s := range status.Sources {
		t.row(s.Source, s.Hosts, s.Since.Format(time.RFC3339), s.Lost)
	}
	for i := range status.Segments {
		for _, problem := range status.Segments[i].Problems {
			t.line(fmt.Sprintf("%s: %s", status.Segments[i].ID, problem))
		}
	}
}

// ofMost is how much is used of a limit; 0: there is none.
func ofMost[N, M int | uint32 | uint64](n N, most M) string {
	if most == 0 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d/%d", n, most)
}

// limited is how many packets were more than a limit, and the limit; 0: there is none.
func limited(packets uint64, most uint32) string {
	if most == 0 {
		return ""
	}
	return fmt.Sprintf("%d over %d/s", packets, most)
}
