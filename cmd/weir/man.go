package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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
			date, err := manDate()
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

// manDate is the date on the pages: two builds of one commit have to write the same.
func manDate() (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		return time.Now().UTC(), nil
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("read SOURCE_DATE_EPOCH: %q is not a number of seconds", text)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// manPage returns a command's page, in the language of man(7).
func manPage(cmd *cobra.Command, date time.Time) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1 %s %q weir\n", strings.ToUpper(manName(cmd)), date.Format(time.DateOnly), "weir "+version)
	fmt.Fprintf(&b, ".nh\n.SH NAME\n%s \\- %s\n", roff(manName(cmd)), roff(cmd.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roff(cmd.UseLine()))
	b.WriteString(".SH DESCRIPTION\n")
	manText(&b, cmp.Or(cmd.Long, cmd.Short+"."))
	related := []string{}
	if cmd.HasParent() {
		related = append(related, manName(cmd.Parent())+"(1)")
	}
	if below := slices.DeleteFunc(slices.Clone(cmd.Commands()), func(c *cobra.Command) bool { return !c.IsAvailableCommand() || c.Name() == "help" }); len(below) > 0 {
		b.WriteString(".SH COMMANDS\n")
		for _, c := range below {
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(c.CommandPath()), roff(c.Short))
			if hasManPage(c) {
				related = append(related, manName(c)+"(1)")
			}
		}
	}
	b.WriteString(".SH OPTIONS\n")
	cmd.InitDefaultHelpFlag()
	for _, flags := range []*pflag.FlagSet{cmd.NonInheritedFlags(), cmd.InheritedFlags()} {
		flags.VisitAll(func(f *pflag.Flag) { manFlag(&b, f) })
	}
	related = append(related, "weir.yaml(5)")
	fmt.Fprintf(&b, ".SH SEE ALSO\n%s\n", roff(strings.Join(related, ", ")))
	return []byte(b.String())
}

// manText writes the text of a help: paragraphs, and lines that are indented, which stay lines.
func manText(b *strings.Builder, text string) {
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		b.WriteString(".PP\n")
		for line := range strings.SplitSeq(paragraph, "\n") {
			kept := strings.TrimLeft(line, " \t")
			if kept != line {
				b.WriteString(".br\n")
			}
			b.WriteString(roff(kept) + "\n")
		}
	}
}

func manFlag(b *strings.Builder, f *pflag.Flag) {
	if f.Hidden {
		return
	}
	kind, usage := pflag.UnquoteUsage(f)
	b.WriteString(".TP\n")
	if f.Shorthand != "" {
		fmt.Fprintf(b, "\\fB\\-%s\\fR, ", f.Shorthand)
	}
	fmt.Fprintf(b, "\\fB%s\\fR", roff("--"+f.Name))
	if kind != "" {
		fmt.Fprintf(b, " \\fI%s\\fR", roff(kind))
	}
	b.WriteString("\n" + roff(usage))
	if unset := []string{"", "0", "0s", "false", "[]"}; !slices.Contains(unset, f.DefValue) {
		b.WriteString(roff(" (" + f.DefValue + " if it is not given)"))
	}
	b.WriteString("\n")
}

// roff writes text so that man(7) shows it as it is.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text // else it would be a request
	}
	return text
}
