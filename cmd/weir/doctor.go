package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/daemon"
	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/model"
)

// errUnhealthy says why doctor's exit status is 1; the findings say the rest.
var errUnhealthy = errors.New("something does not work: see the FAIL lines")

func newDoctor() *cobra.Command {
	var out output
	var file, bpffs string
	var role roleFlag
	var sockets doctorSockets
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Examine this host: what would keep weir from working, and how to fix it",
		Long: "doctor examines this host for what a configuration asks of it, as a director or as\n" +
			"a backend's host, and asks those that run there what does not run. It changes nothing. The exit status is 1 if something fails.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if err := role.check(); err != nil {
				return err
			}
			options := doctor.Options{Role: doctor.Role(role), BPFFS: bpffs}
			if socket := os.Getenv("WEIR_SOCKET"); socket != "" && !cmd.Flags().Changed("socket") {
				sockets.director = socket // as for the commands that ask a director
			}
			findings := examine(cmd, file, sockets, options)
			err := out.write(cmd.OutOrStdout(), findings, func(t *table) { findingsTable(t, findings) })
			if err == nil && doctor.Worst(findings) == doctor.Fail {
				err = errUnhealthy
			}
			return err
		},
	}
	out.add(cmd)
	cmd.Flags().StringVarP(&file, "config", "c", defaultConfig, "configuration `file`")
	role.add(cmd, "examine as a director, as an agent, or auto: as the file says")
	cmd.Flags().StringVar(&sockets.director, "socket", api.DefaultSocket, "unix `socket` of the director that is asked what does not run")
	cmd.Flags().StringVar(&sockets.agent, "agent-socket", api.DefaultAgentSocket, "the same of the agent")
	addBPFFS(cmd, &bpffs)
	return cmd
}

// doctorSockets are the sockets of the processes that doctor asks what does not run.
type doctorSockets struct{ director, agent string }

// examine examines this host.
func examine(cmd *cobra.Command, file string, sockets doctorSockets, options doctor.Options) []doctor.Finding {
	waits := progress{w: cmd.ErrOrStderr()}
	defer waits.start(func() string { return "examining this host" })()
	findings := readForDoctor(file, cmd.Flags().Changed("config"), &options)
	options.Places = func() *model.SegmentsStatus {
		ctx, cancel := context.WithTimeout(cmd.Context(), directorPatience)
		defer cancel()
		status, err := api.NewClient(sockets.director).Segments(ctx)
		if err != nil {
			return nil // examineProblems says so of one that should answer
		}
		return &status
	}
	findings = append(findings, doctor.Examine(options)...)
	return append(findings, examineProblems(cmd, sockets, &options, findings)...)
}

// readForDoctor reads the configuration; what is wrong with it is a finding. A file that was not
// named may be missing.
func readForDoctor(file string, named bool, options *doctor.Options) []doctor.Finding {
	c, err := config.Load(file)
	if err != nil && !named && errors.Is(err, fs.ErrNotExist) {
		return []doctor.Finding{{Level: doctor.Warn, Check: "config", Text: "there is no " + file,
			Fix: "name one with -c: without it, most checks are left out"}}
	}
	var errs config.Errors
	if errors.As(err, &errs) {
		findings := make([]doctor.Finding, len(errs))
		for i, e := range errs {
			findings[i] = doctor.Finding{Level: doctor.Fail, Check: "config", Text: e.Error()}
		}
		return findings
	}
	if err != nil {
		return []doctor.Finding{{Level: doctor.Fail, Check: "config", Text: err.Error()}}
	}
	options.Config = &c
	options.State = func() []doctor.Finding {
		return slices.Concat(examineState(c.Director.Store), examineBGP(&c.BGP), examineBFD(&c), examineAnswers(&c), examineOVN(context.Background(), &c))
	}
	options.Reports = func(backends []model.HostAddress) []doctor.Finding { return examineReports(c.Agent.Store, backends) }
	findings := []doctor.Finding{{Level: doctor.OK, Check: "config", Text: file + ": " + daemon.ServicesText(len(c.Services))}}
	for _, key := range c.FormerKeys {
		findings = append(findings, doctor.Finding{Level: doctor.Warn, Check: "config", Fix: "write " + key.Now,
			Text: fmt.Sprintf("%s:%d: %v", file, key.Line, key)})
	}
	for _, e := range config.Exposed(file, &c) {
		at := config.Error{File: file, Path: e.Path, Problem: e.Problem}
		findings = append(findings, doctor.Finding{Level: doctor.Warn, Check: "config", Text: at.Error(), Fix: e.Fix})
	}
	return findings
}

func findingsTable(t *table, findings []doctor.Finding) {
	for _, f := range findings {
		level, text := string(f.Level), f.Text
		if f.Level == doctor.Fail {
			level = strings.ToUpper(level)
		}
		if f.Fix != "" {
			text += "; fix: " + f.Fix
		}
		t.row(level, f.Check, text)
	}
}

// examineProblems asks the director and the agent of this host what does not run, and leaves out
// what doctor has found itself. A process that does not run is a problem if one has run: what that one
// has set up still forwards.
func examineProblems(cmd *cobra.Command, sockets doctorSockets, options *doctor.Options, own []doctor.Finding) (findings []doctor.Finding) {
	for _, of := range []struct{ role, socket string }{{"director", sockets.director}, {"agent", sockets.agent}} {
		list, err := askProblems(cmd, of.socket, of.role)
		var problem *api.Problem
		switch {
		case errors.Is(err, api.ErrSilent):
			findings = append(findings, doctor.Finding{Level: doctor.Fail, Check: of.role, Text: fmt.Sprintf("the %s cannot be asked: %v", of.role, err),
				Fix: "let it go on, or restart it: what it has set up goes on forwarding meanwhile"})
			continue
		case errors.Is(err, api.ErrUnreachable):
			if doctor.Attached(options.BPFFS, of.role) {
				level := doctor.Warn
				if of.role == string(doctor.Director) && options.Config != nil && len(options.Config.Director.Interfaces) > 0 {
					level = doctor.Fail // the file asks for it
				}
				findings = append(findings, doctor.Finding{Level: level, Check: of.role,
					Text: fmt.Sprintf("no %s answers at %s, and an earlier one's programs are attached: they handle packets as they did, whatever changes", of.role, of.socket),
					Fix:  "start it; if it listens elsewhere, name its socket; if it is to end, weir detach"})
			}
			continue
		case errors.As(err, &problem):
			continue
		case err != nil:
			findings = append(findings, doctor.Finding{Level: doctor.Warn, Check: of.role, Text: fmt.Sprintf("the %s at %s cannot be asked: %v", of.role, of.socket, err)})
		case len(list) == 0:
			findings = append(findings, doctor.Finding{Level: doctor.OK, Check: of.role, Text: fmt.Sprintf("the %s runs all that is asked for", of.role)})
		}
		for i := range list {
			if !toldTwice(&list[i], own) {
				findings = append(findings, findingOf(of.role, &list[i]))
			}
		}
	}
	return findings
}

func askProblems(cmd *cobra.Command, socket, role string) ([]model.Problem, error) {
	client := api.NewClient(socket)
	if role == "agent" {
		status, err := client.AgentStatus(cmd.Context())
		return status.Problems, err
	}
	status, err := client.Status(cmd.Context())
	return status.Problems, err
}

func findingOf(role string, p *model.Problem) doctor.Finding {
	f := doctor.Finding{Level: doctor.Warn, Check: role + " " + string(p.Kind), Text: p.Text, Fix: p.Fix}
	if p.Severity == model.SeverityError {
		f.Level = doctor.Fail
	}
	if p.Stored != "" {
		f.Text += "; the other is in " + p.Stored
	}
	f.Text += " (since " + p.Since.Format(time.RFC3339) + ")"
	return f
}

// toldTwice says whether doctor has found a problem by itself that a process lists.
func toldTwice(p *model.Problem, own []doctor.Finding) bool {
	return p.Kind == model.ProblemHost && slices.ContainsFunc(own, func(f doctor.Finding) bool {
		return f.Level == doctor.Fail && f.Check == p.Part && f.Problem().Text == p.Text
	})
}
