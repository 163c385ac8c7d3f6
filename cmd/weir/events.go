package main

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
)

// How many events are listed by default, and at most.
const (
	someEvents = 20
	mostEvents = 1000
)

func newEvents() *cobra.Command {
	var out output
	var conn connection
	var last int
	var follow, agent bool
	var segment segmentFlag
	cmd := &cobra.Command{
		Use:   "events",
		Short: "List what has happened to a director or an agent: sets, health, routers, the host",
		Long: "events lists the last events, the oldest first. A process keeps a thousand, and none of\n" +
			"an earlier one. With --follow it goes on with those that come, until Ctrl-C.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if last < 0 || last > mostEvents {
				return usagef("--last %d: 0 to %d", last, mostEvents)
			}
			if agent && segment.in != nil {
				return usagef("--segment: an agent knows no segments")
			}
			if agent && !cmd.Flags().Changed("socket") {
				conn.socket = api.DefaultAgentSocket
			}
			client, err := conn.client()
			if err != nil {
				return err
			}
			if follow {
				if err := segment.known(cmd.Context(), client); err != nil { // it may come
					fmt.Fprintf(cmd.ErrOrStderr(), "weir: %v\n", err)
				}
				return client.Events(cmd.Context(), api.EventQuery{Last: last, Follow: true, Segment: segment.in}, func(e api.Event) error {
					return writeEvent(cmd.OutOrStdout(), out.format, &e)
				})
			}
			events := []api.Event{}
			if err := client.Events(cmd.Context(), api.EventQuery{Last: last, Segment: segment.in}, func(e api.Event) error {
				events = append(events, e)
				return nil
			}); err != nil {
				return err
			}
			if len(events) == 0 {
				if err := segment.known(cmd.Context(), client); err != nil {
					return err
				}
			}
			return out.write(cmd.OutOrStdout(), events, func(t *table) {
				t.row("TIME", "KIND", "WHAT")
				for _, e := range events {
					t.row(e.Time.Format(time.RFC3339), e.Kind, e.Text)
				}
			})
		},
	}
	cmd.Flags().IntVar(&last, "last", someEvents, fmt.Sprintf("begin with so `many`, at most %d", mostEvents))
	segment.add(cmd, "about")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with those that come; -o json writes one on each line")
	cmd.Flags().BoolVar(&agent, "agent", false, "ask the agent instead (its default socket is "+api.DefaultAgentSocket+")")
	out.add(cmd)
	conn.add(cmd)
	return cmd
}

// writeEvent writes an event without knowing whether another one follows.
func writeEvent(w io.Writer, format string, e *api.Event) error {
	switch format {
	case "json":
		return json.NewEncoder(w).Encode(e)
	case "yaml":
		text, err := config.Marshal([]*api.Event{e})
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	}
	_, err := fmt.Fprintf(w, "%s  %-8s  %s\n", e.Time.Format(time.RFC3339), e.Kind, printable(e.Text))
	return err
}
