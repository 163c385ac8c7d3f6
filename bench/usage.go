package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// unknownCommand refuses an unknown command, and names the one that was probably meant.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	meant := didYouMean("", args[0], names)
	for _, s := range scenarios {
		if s.name == args[0] {
			meant = "; did you mean run " + s.name + "?"
		}
	}
	return fmt.Errorf("there is no command %q%s (see %s --help)", args[0], meant, cmd.CommandPath())
}

// takes demands that many arguments, those in the command's first line of help.
func takes(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		return fmt.Errorf("%s: got %s (see %s --help)", strings.TrimSuffix(cmd.UseLine(), " [flags]"), counted(len(args), "argument"), cmd.CommandPath())
	}
}

// flagError says where flags are explained, and which one was probably meant.
func flagError(cmd *cobra.Command, err error) error {
	meant := ""
	if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		meant = didYouMean("--", unknown.GetSpecifiedName(), names)
	}
	return fmt.Errorf("%w%s (see %s --help)", err, meant, cmd.CommandPath())
}

// didYouMean names the word that a misspelled one is close to; empty: none. Cobra recognizes
// misspelled commands, so the words become its commands.
func didYouMean(prefix, typed string, known []string) string {
	words := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, word := range known {
		words.AddCommand(&cobra.Command{Use: word, Run: func(*cobra.Command, []string) {}})
	}
	meant := words.SuggestionsFor(typed)
	if len(meant) == 0 {
		return ""
	}
	return "; did you mean " + prefix + strings.Join(meant, " or "+prefix) + "?"
}

// placeFor refuses a path to which no file can be written, before hours are spent on the file. It
// makes no directory: it would make a misspelled one, too.
func placeFor(path string) error {
	if path == "" {
		return nil
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return fmt.Errorf("--out %s: is a directory; name a file in it", path)
	}
	directory := filepath.Dir(path)
	if info, err := os.Stat(directory); err != nil || !info.IsDir() {
		return fmt.Errorf("--out %s: there is no directory %s", path, directory)
	}
	return nil
}
