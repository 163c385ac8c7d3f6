package main

import (
	"context"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
)

// connection is how a command asks a director: on its socket, or over TCP.
type connection struct {
	socket   string
	remote   api.RemoteOptions
	progress progress
	cmd      *cobra.Command
}

func (c *connection) add(cmd *cobra.Command) {
	c.cmd = cmd
	addSocket(cmd, &c.socket)
	cmd.Flags().StringVar(&c.remote.URL, "server", "", "`URL` of a director's api.listen, https://HOST:PORT, in place of a socket")
	cmd.Flags().StringVar(&c.remote.CA, "ca", "", "with --server: `file` of those who may have signed its certificate; else as the system trusts")
	cmd.Flags().StringVar(&c.remote.Cert, "cert", "", "with --server: `file` of this client's certificate")
	cmd.Flags().StringVar(&c.remote.Key, "key", "", "with --server: `file` of its key")
	cmd.Flags().StringVar(&c.remote.TokenFile, "token-file", "", "with --server: `file` of this client's token")
	cmd.MarkFlagsMutuallyExclusive("server", "socket")
}

// environment fills in flags that a command line does not have: WEIR_SERVER for --server. Together
// they say which director is asked, so they are not used if the command line says it.
func (c *connection) environment() {
	flags := c.cmd.Flags()
	for _, f := range []string{"server", "socket"} {
		if flags.Changed(f) {
			return
		}
	}
	from := func(name string, to *string) {
		if value := os.Getenv("WEIR_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))); value != "" && !flags.Changed(name) {
			*to = value
		}
	}
	from("server", &c.remote.URL)
	if c.remote.URL == "" {
		from("socket", &c.socket)
		return
	}
	from("ca", &c.remote.CA)
	from("cert", &c.remote.Cert)
	from("key", &c.remote.Key)
	from("token-file", &c.remote.TokenFile)
}

func (c *connection) client() (*api.Client, error) {
	c.environment()
	c.progress.w = c.cmd.ErrOrStderr()
	o := c.remote
	if o.URL != "" {
		client, err := api.NewRemoteClient(o)
		if err != nil {
			return nil, err
		}
		return c.progress.follows(client, o.URL), nil
	}
	if o.CA+o.Cert+o.Key+o.TokenFile != "" {
		return nil, usagef("--ca, --cert, --key and --token-file are for --server")
	}
	return c.progress.follows(api.NewClient(c.socket), c.socket), nil
}

// asks makes a command that asks a director, and prints the answer as a table or as --output says.
func asks[T any](cmd *cobra.Command, ask func(ctx context.Context, client *api.Client, args []string) (T, error), print func(t *table, answer T)) *connection {
	var out output
	var conn connection
	out.add(cmd)
	conn.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := out.check(); err != nil {
			return err
		}
		client, err := conn.client()
		if err != nil {
			return err
		}
		answer, err := ask(cmd.Context(), client, args)
		if err != nil {
			return err
		}
		return out.write(cmd.OutOrStdout(), answer, func(t *table) { print(t, answer) })
	}
	return &conn
}
