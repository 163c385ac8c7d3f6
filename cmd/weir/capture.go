package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/explain"
	"weir.io/weir/internal/logs"
	"weir.io/weir/internal/model"
)

type captureOptions struct {
	out      output
	conn     connection
	wanted   model.Capture
	duration time.Duration
	file     string
	segment  segmentFlag
}

func newCapture() *cobra.Command {
	var o captureOptions
	cmd := &cobra.Command{
		Use:   "capture",
		Short: "Show packets as they come and leave, with what became of each and why",
		Long: "capture shows the packets that come to a director's services, with the reason under\n" +
			"which each is counted, its service, backend and slot. With -w they go to a pcapng file,\n" +
			"as they came and as they left, for Wireshark and tcpdump. It ends with its limits, or\n" +
			"with Ctrl-C. While it lasts another program forwards, which does the same and takes a\n" +
			"little longer; without a capture there is nothing of it.",
		Example: "  weir capture --service web --client 198.51.100.7\n" +
			"  weir capture --drops --duration 10m -w drops.pcapng\n" +
			"  weir capture --vip 203.0.113.10:443 -w - | tshark -r -",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			client, err := o.conn.client()
			if err != nil {
				return err
			}
			if in := o.wanted.Segment; in != nil && in.IsOverlay() { // packets have tags of any VLAN
				if err := o.segment.known(cmd.Context(), client); err != nil {
					return err
				}
			}
			return o.capture(cmd.Context(), client, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.file, "write", "w", "", "write pcapng to this `file`; -: to stdout")
	flags.StringVar(&o.wanted.Service, "service", "", "of this `service` alone")
	o.segment.add(cmd, "that come in")
	flags.StringVar(&o.wanted.VIP, "vip", "", "of this `address` of a service alone, perhaps with a port")
	flags.StringVar(&o.wanted.Client, "client", "", "of clients of this `prefix` or address alone, perhaps with a port")
	flags.StringVar(&o.wanted.Backend, "backend", "", "of the backend of this `name` or address alone")
	flags.StringVar(&o.wanted.Protocol, "protocol", "", "of this `protocol` alone: tcp, udp, icmp or icmpv6")
	flags.StringVar(&o.wanted.Interface, "interface", "", "that come in by this `interface` alone")
	flags.StringSliceVar(&o.wanted.Reasons, "reason", nil, "counted under this `reason` alone, or one of several: drop_no_backend,pass_no_service")
	flags.BoolVar(&o.wanted.Drops, "drops", false, "that are dropped alone")
	flags.IntVar(&o.wanted.Sample, "sample", 1, "one of so many `packets`, at random")
	flags.IntVar(&o.wanted.Snap, "snap", model.CaptureSnap, "so many `bytes` of each, at most 2048")
	flags.IntVar(&o.wanted.Packets, "packets", model.CapturePackets, "end after so many `packets`")
	flags.DurationVar(&o.duration, "duration", time.Duration(model.CaptureDuration), "end after this `time`, at most 1h")
	flags.IntVar(&o.wanted.Rate, "rate", model.CaptureRate, "take so many `packets` in a second, at most")
	o.out.add(cmd)
	o.conn.add(cmd)
	o.conn.completeFlag(cmd, "service")
	_ = cmd.RegisterFlagCompletionFunc("reason", cobra.FixedCompletions(model.Reasons(), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("protocol", cobra.FixedCompletions([]string{"tcp", "udp", "sctp", "icmp", "icmpv6"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (o *captureOptions) check(cmd *cobra.Command) error {
	if err := o.out.check(); err != nil {
		return err
	}
	if o.file != "" && cmd.Flags().Changed("output") {
		return usagef("-w writes pcapng, and -o says what else is written: give one of the two")
	}
	if o.file == "-" && logs.IsTerminal(cmd.OutOrStdout()) {
		return usagef("-w -: pcapng is nothing for a terminal: name a file, or give it to a program")
	}
	o.wanted.Duration, o.wanted.Segment = model.Duration(o.duration), o.segment.in
	var fields model.FieldErrors
	if err := o.wanted.Validate(); errors.As(err, &fields) {
		return usagef("--%s: %s", captureFlag(fields[0].Path), fields[0].Problem)
	}
	return nil
}

// captureFlag is the flag for a field of the API.
func captureFlag(field string) string {
	if field == "reasons" {
		return "reason"
	}
	return field
}

// capture writes what the director says, and in the end what was left out.
func (o *captureOptions) capture(ctx context.Context, client *api.Client, stdout, stderr io.Writer) error {
	sink, err := o.sink(stdout)
	if err != nil {
		return err
	}
	var packets, ended = uint64(0), "interrupted"
	var counts model.CaptureCounts
	err = client.Capture(ctx, o.wanted, func(m *model.CaptureMessage) error {
		if m.Began != nil {
			if err := sink.start(m.Interfaces); err != nil {
				return err
			}
			if o.file != "" {
				fmt.Fprintf(stderr, "capturing on %v for %v, or %d packets\n", m.Interfaces, o.duration, o.wanted.Packets)
			}
		}
		if m.Counts != nil {
			counts = *m.Counts
		}
		if m.Ended != "" {
			ended = m.Ended
		}
		if m.Packet == nil {
			return nil
		}
		packets++
		return sink.packet(m.Packet)
	})
	if errors.Is(err, api.ErrCaptureCut) {
		ended = "cut"
	}
	err = errors.Join(err, sink.end(counts))
	if err == nil || packets > 0 {
		fmt.Fprintf(stderr, "%d packets (%s); left out: %d over the rate, %d not read in time\n", packets, captureEnds[ended], counts.Limited, counts.Lost)
	}
	return err
}

// captureEnds say why a capture has ended.
var captureEnds = map[string]string{"packets": "as many as were asked for", "duration": "its time is over", "director": "the director has ended", "interrupted": "interrupted", "cut": "cut off"}

// captureSink is where packets go.
type captureSink interface {
	start(interfaces []string) error
	packet(*model.CapturedPacket) error
	end(model.CaptureCounts) error
}

func (o *captureOptions) sink(stdout io.Writer) (captureSink, error) {
	switch {
	case o.file == "-":
		return &pcapng{w: stdout, snap: o.wanted.Snap}, nil
	case o.file != "":
		return &pcapng{path: o.file, snap: o.wanted.Snap}, nil
	}
	return &captureText{stdout, o.out.format}, nil
}

// captureText writes a line, or an object, for each packet.
type captureText struct {
	w      io.Writer
	format string
}

func (c *captureText) start([]string) error { return nil }

func (c *captureText) packet(p *model.CapturedPacket) error {
	switch c.format {
	case "json":
		return json.NewEncoder(c.w).Encode(p)
	case "yaml":
		text, err := config.Marshal([]*model.CapturedPacket{p})
		if err != nil {
			return err
		}
		_, err = c.w.Write(text)
		return err
	}
	_, err := fmt.Fprintf(c.w, "%s %s %s, %d bytes: %s\n", p.Time.UTC().Format("15:04:05.000000"), p.Interface, explain.Summary(p.In, p.Segment), p.InLength, p.Text())
	return err
}

func (c *captureText) end(model.CaptureCounts) error { return nil }
