package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weir.io/weir/internal/manual"
)

func newMan() *cobra.Command {
	return &cobra.Command{
		Use:   "man DIRECTORY",
		Short: "Write the manual pages into a directory",
		Long: "man writes a manual page for each command, weir.1 and weir-COMMAND.1. They say what\n" +
			"--help says, of this very program. Their date is SOURCE_DATE_EPOCH where that is set.",
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			date, err := manual.Date()
			if err != nil {
				return err
			}
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fmt.Errorf("make the directory of the manual pages: %w", err)
			}
			var failed error
			walk(cmd.Root(), func(of *cobra.Command) {
				if !hasManPage(of) || failed != nil {
					return
				}
				path := filepath.Join(args[0], manName(of)+".1")
				if err := os.WriteFile(path, manPage(of, date), 0o644); err != nil {
					failed = fmt.Errorf("write the manual pages: %w", err)
				}
			})
			return failed
		},
	}
}

// hasManPage says whether a command has a page of its own. Those that write completions for one shell
// are on the page of all of them.
func hasManPage(cmd *cobra.Command) bool {
	if !cmd.HasParent() {
		return true
	}
	return cmd.IsAvailableCommand() && cmd.Name() != "help" && cmd.Parent().Name() != "completion"
}

func manName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// manPage returns a command's page.
func manPage(cmd *cobra.Command, date time.Time) []byte {
	var p manual.Page
	fmt.Fprintf(&p, ".TH %s 1 %s %q weir\n.nh\n", strings.ToUpper(manName(cmd)), date.Format(time.DateOnly), "weir "+version)
	p.Section("NAME")
	fmt.Fprintf(&p, "%s \\- %s\n", manual.Literal(manName(cmd)), manual.Literal(cmd.Short))
	p.Section("SYNOPSIS")
	fmt.Fprintf(&p, ".B %s\n", manual.Literal(cmd.UseLine()))
	p.Section("DESCRIPTION")
	p.Help(cmp.Or(cmd.Long, cmd.Short+"."))
	related := []string{}
	if cmd.HasParent() {
		related = append(related, manName(cmd.Parent())+"(1)")
	}
	if below := slices.DeleteFunc(slices.Clone(cmd.Commands()), func(c *cobra.Command) bool { return !c.IsAvailableCommand() || c.Name() == "help" }); len(below) > 0 {
		p.Section("COMMANDS")
		for _, c := range below {
			p.Term(".B "+manual.Literal(c.CommandPath()), manual.Literal(c.Short))
			if hasManPage(c) {
				related = append(related, manName(c)+"(1)")
			}
		}
	}
	p.Section("OPTIONS")
	cmd.InitDefaultHelpFlag()
	for _, flags := range []*pflag.FlagSet{cmd.NonInheritedFlags(), cmd.InheritedFlags()} {
		flags.VisitAll(func(f *pflag.Flag) { manFlag(&p, f) })
	}
	related = append(related, "weir.yaml(5)")
	p.Section("SEE ALSO")
	fmt.Fprintf(&p, "%s\n", manual.Literal(strings.Join(related, ", ")))
	return []byte(p.String())
}

func manFlag(p *manual.Page, f *pflag.Flag) {
	if f.Hidden {
		return
	}
	kind, usage := pflag.UnquoteUsage(f)
	term := manual.Bold(manual.Literal("--" + f.Name))
	if f.Shorthand != "" {
		term = manual.Bold(manual.Literal("-"+f.Shorthand)) + ", " + term
	}
	if kind != "" {
		term += " " + manual.Italic(manual.Literal(kind))
	}
	text := manual.Literal(usage)
	if unset := []string{"", "0", "0s", "false", "[]"}; !slices.Contains(unset, f.DefValue) {
		text += manual.Literal(" (" + f.DefValue + " if it is not given)")
	}
	p.Term(term, text)
}
