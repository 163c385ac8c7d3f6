package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weir.io/weir/docs/reference"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/daemon"
	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/model"
)

func newCheck() *cobra.Command {
	var out output
	var role roleFlag
	var configs, more []string
	var schema bool
	cmd := &cobra.Command{
		Use:   "check [FILE...]",
		Short: "Check configuration files, and change nothing",
		Long: "check says everything that is wrong with configuration files (" + defaultConfig + " if none is named;\n" +
			"- is what comes in), as weir run and weir agent would, and what is likely a mistake. It needs no\n" +
			"privileges, no network and no process of weir's. The exit status is 1 if something is wrong;\n" +
			"warnings leave it 0.",
		RunE: func(cmd *cobra.Command, files []string) error {
			if err := out.check(); err != nil {
				return err
			}
			files = slices.Concat(configs, more, files)
			if schema {
				if len(files) > 0 {
					return usagef("--schema is not about a file")
				}
				_, err := cmd.OutOrStdout().Write(reference.Schema)
				return err
			}
			if err := role.check(); err != nil {
				return err
			}
			roles := map[doctor.Role]model.Roles{doctor.Director: {Director: true}, doctor.Agent: {Agent: true}}[doctor.Role(role)]
			if len(files) == 0 {
				files = []string{defaultConfig}
			}
			return checkFiles(cmd, &out, files, roles)
		},
	}
	out.add(cmd)
	cmd.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return nil, cobra.ShellCompDirectiveDefault // files
	}
	role.add(cmd, "check for a director, for an agent, or auto: for what the file is for")
	cmd.Flags().StringArrayVarP(&configs, "config", "c", nil, "check this `file`, too: as other commands name it, or -")
	cmd.Flags().StringArrayVarP(&more, "file", "f", nil, "the same")
	cmd.Flags().BoolVar(&schema, "schema", false, "print the JSON Schema of configuration files, for editors")
	return cmd
}

// roleFlag is --role.
type roleFlag string

func (r *roleFlag) add(cmd *cobra.Command, usage string) {
	cmd.Flags().StringVar((*string)(r), "role", string(doctor.Auto), usage)
	_ = cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions([]string{string(doctor.Auto), string(doctor.Director), string(doctor.Agent)}, cobra.ShellCompDirectiveNoFileComp))
}

func (r roleFlag) check() error {
	switch doctor.Role(r) {
	case doctor.Auto, doctor.Director, doctor.Agent:
		return nil
	}
	return usagef("unknown role %q (one of agent, auto, director)", string(r))
}

// checkedLine is one thing that weir check says.
type checkedLine struct {
	File     string         `json:"file"`
	Line     int            `json:"line,omitempty"`
	Field    string         `json:"field,omitempty"`
	Text     string         `json:"text"`
	Fix      string         `json:"fix,omitempty"`
	Severity model.Severity `json:"severity"`
}

func checkFiles(cmd *cobra.Command, out *output, files []string, roles model.Roles) error {
	found, text := []checkedLine{}, strings.Builder{}
	var wrong []string
	for _, file := range files {
		file, checked := checkFile(cmd.InOrStdin(), file, roles)
		fine := true
		for _, e := range checked.Errors {
			line := checkedLine{e.File, e.Line, e.Path, e.Problem, e.Fix, model.SeverityError}
			if e.Warning {
				line.Severity = model.SeverityWarning
			} else {
				fine = false
			}
			found = append(found, line)
			fmt.Fprintln(&text, printable(e.Error()))
		}
		if fine {
			fmt.Fprintf(&text, "%s: ok (%s, %v)\n", printable(file), daemon.ServicesText(len(checked.Config.Services)), checked.Roles)
		} else {
			wrong = append(wrong, file)
		}
	}
	if err := out.write(cmd.OutOrStdout(), found, func(t *table) { t.line(strings.TrimSuffix(text.String(), "\n")) }); err != nil {
		return err
	}
	if len(wrong) > 0 {
		return fmt.Errorf("something is wrong with %s", printable(strings.Join(wrong, ", ")))
	}
	return nil
}

// checkFile checks one file, and returns its name in messages. One that cannot be read is something that is wrong.
func checkFile(stdin io.Reader, file string, roles model.Roles) (name string, checked config.Checked) {
	name, from, err := "<stdin>", stdin, error(nil)
	if file != "-" {
		var f *os.File
		if f, err = os.Open(file); err == nil {
			defer f.Close()
		}
		name, from = file, f
	}
	if err == nil {
		checked, err = config.Check(name, from, roles)
	}
	var of *fs.PathError
	if errors.As(err, &of) {
		err = of.Err
	}
	if err != nil && !errors.As(err, &checked.Errors) {
		checked.Errors = config.Errors{{File: name, Problem: fmt.Sprintf("cannot be read: %v", err)}}
	}
	return name, checked
}
