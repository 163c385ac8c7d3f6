package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weir.io/weir/internal/api"
)

// completionPatience is how long a shell waits for names after a press of Tab: a longer wait is
// worse than no names.
const completionPatience = time.Second

// addCompletion adds the command that writes shells' scripts, and sets the completions of flags and
// arguments. By default no files are offered: most arguments are not files.
func addCompletion(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			cmd.Short = "Write the script by which a shell completes commands"
			cmd.Long = "completion writes a script for a shell. It completes commands, flags and the names of the\n" +
				"director's services. A package of weir has installed those of bash, zsh and fish already.\n\n" +
				"  weir completion bash >/etc/bash_completion.d/weir"
		}
	}
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	walk(root, func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) { completeByKind(cmd, f) })
	})
}

// completeByKind offers values of a flag by the kind that its help names.
func completeByKind(cmd *cobra.Command, f *pflag.Flag) {
	offer := func(directive cobra.ShellCompDirective, values ...string) {
		// It fails only if the flag already has a completion, which is better.
		_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(values, directive))
	}
	switch kind, _ := pflag.UnquoteUsage(f); {
	case kind == "file" || kind == "socket":
		offer(cobra.ShellCompDirectiveDefault)
	case kind == "directory":
		offer(cobra.ShellCompDirectiveFilterDirs)
	case f.Name == "output":
		offer(cobra.ShellCompDirectiveNoFileComp, "table", "wide", "json", "yaml")
	case f.Name == "log-format":
		offer(cobra.ShellCompDirectiveNoFileComp, "text", "json")
	case f.Name == "log-level":
		offer(cobra.ShellCompDirectiveNoFileComp, "debug", "info", "warn", "error")
	}
}

// completeServices offers the names of the director's services; none if it does not answer.
func (c *connection) completeServices(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return c.offer(cmd, func(ctx context.Context, client *api.Client) []string {
		services, _ := client.Services(ctx) // without an answer nothing is offered
		names := make([]string, len(services))
		for i, s := range services {
			names[i] = s.Name + "\t" + s.VIP.String()
		}
		return names
	})
}

// completeBackends offers the names of backends, each once, as SERVICE/BACKEND where the service is not
// given by --service.
func (c *connection) completeBackends(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	service, _ := cmd.Flags().GetString("service") // every command that completes backends has the flag
	return c.offer(cmd, func(ctx context.Context, client *api.Client) []string {
		backends, _ := client.Backends(ctx) // without an answer nothing is offered
		var names []string
		for _, b := range backends {
			about := fmt.Sprintf("%s, %s", endOf(&b.BackendStatus), b.State)
			switch service {
			case "":
				names = append(names, b.Service+"/"+b.Name+"\t"+about)
			case b.Service:
				names = append(names, b.Name+"\t"+about)
			}
		}
		return names
	})
}

// offer asks the director for the names to offer.
func (c *connection) offer(cmd *cobra.Command, ask func(context.Context, *api.Client) []string) ([]string, cobra.ShellCompDirective) {
	client, err := c.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	parent := cmd.Context()
	if parent == nil {
		parent = context.Background()
	}
	ctx, cancel := context.WithTimeout(parent, completionPatience)
	defer cancel()
	return ask(ctx, client), cobra.ShellCompDirectiveNoFileComp
}

// completeFlag offers services' names for a flag.
func (c *connection) completeFlag(cmd *cobra.Command, flag string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, c.completeServices)
}

// completeOwnerFlag offers the owners of sets for --owner.
func (c *connection) completeOwnerFlag(cmd *cobra.Command) {
	_ = cmd.RegisterFlagCompletionFunc("owner", func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		return c.completeOwners(cmd, nil, typed)
	})
}
