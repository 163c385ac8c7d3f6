package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"weir.io/weir/bench/echo"
)

// newEcho and newAsk are the server and the client of labs, as processes of their own.
func newEcho() *cobra.Command {
	var port uint16
	var cpu int
	cmd := &cobra.Command{
		Use: "echo-server", Short: "Answer requests of a lab", Hidden: true, Args: takes(0),
		RunE: func(*cobra.Command, []string) error { return echo.Serve(port, cpu) },
	}
	cmd.Flags().Uint16Var(&port, "port", 0, "where to listen")
	cmd.Flags().IntVar(&cpu, "cpu", 0, "where to run")
	return cmd
}

func newAsk() *cobra.Command {
	var to string
	var connections bool
	var duration time.Duration
	var cpu int
	cmd := &cobra.Command{
		Use: "echo-client", Short: "Ask a server of a lab", Hidden: true, Args: takes(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			server, err := netip.ParseAddrPort(to)
			if err != nil || !server.Addr().Is4() {
				return fmt.Errorf("--to %s: is no IPv4 address with a port", to)
			}
			r, err := echo.Ask(server, connections, duration, cpu)
			if err != nil {
				return err
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(r)
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "whom to ask, address:port")
	cmd.Flags().BoolVar(&connections, "connections", false, "open a connection for each request")
	cmd.Flags().DurationVar(&duration, "for", time.Second, "how long to ask")
	cmd.Flags().IntVar(&cpu, "cpu", 0, "where to run")
	return cmd
}
