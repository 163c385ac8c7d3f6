package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/record"
)

// scenario is one question to the machine. Each has a file of its own.
type scenario struct {
	name string
	what string // one sentence
	// notes are what a reader of the figures must know.
	notes []string
	run   func(context.Context, *session) error
	// when it runs.
	when
}

// when is when a scenario runs.
type when int

const (
	always when = iota
	// named: only when named, because a complete run has a quarter of an hour; smoke runs include
	// it, too.
	named
	// apart: only when named, also in smoke runs: it needs programs that take minutes to build.
	apart
)

// scenarios are all scenarios, in the order in which they run.
var scenarios = []scenario{
	{"rfc2544", "Packets per second by frame length, through every way to forward them.", rfc2544Notes, measureRFC2544, always},
	{"imix", "Packets per second of the simple Internet mix.", imixNotes, measureIMIX, always},
	{"flows", "A packet's cost by the number of flows.", flowsNotes, measureFlows, always},
	{"state", "A packet's cost by the number of flows where flows are remembered, and by frame length.", stateNotes, measureState, named},
	{"steering", "A packet's cost by the number of flows that a NIC steers, beside tables of flows.", steeringNotes, measureSteering, named},
	{"fan-out", "What a packet takes of the receiving core where others do the rest.", fanOutNotes, measureFanOut, named},
	{"cores", "Packets per second by the number of CPUs, each with a receive queue, with even and uneven flows.", coresNotes, measureCores, named},
	{"modes", "A packet's cost in every mode and family.", modesNotes, measureModes, always},
	{"segments", "A packet's cost in VLANs, VXLAN and Geneve, beside one in no segment, and whether tenants' packets and backends that move come where they belong.", segmentsNotes, measureSegments, named},
	{"rows", "A packet's cost by how many slots may have connections of several backends, beside an older version.", rowsNotes, measureRows, named},
	{"syn", "Packets per second that begin a flow each.", synNotes, measureSYN, always},
	{"churn", "What a ring that is replaced ten times per second does to packets.", churnNotes, measureChurn, always},
	{"program", "The director's program alone, beside the least that a forwarder can do.", programNotes, measureProgram, always},
	{"versions", "The director's program alone, beside that of an older version.", versionsNotes, measureVersions, named},
	{"http", "Requests per second and their latency through every way to spread connections, by number of servers.", webNotes, measureHTTP, always},
	{"backend", "A backend's CPU time per byte of bulk TCP, behind the agent and without.", backendNotes, measureBackend, always},
	{"update", "How long a change takes until packets follow it.", updateNotes, measureUpdate, always},
	{"convergence", "How long routers and traffic take to follow directors and backends that come and go.", convergenceNotes, measureConvergence, named},
	{"scaleout", "What several directors behind a router carry.", scaleoutNotes, measureScaleout, named},
	{"bypass", "What connections that go by the director gain, and what handing them over costs.", bypassNotes, measureBypass, named},
	{"tail", "How long requests wait for servers by load, by policies in mode redirect and without memory.", tailNotes, measureTail, named},
	{"memory", "Bytes per service, backend and flow, and of the director's process.", memoryNotes, measureMemory, always},
	{"health", "CPU time of checks of a thousand backends, once a second.", healthNotes, measureHealth, always},
	{"explain", "Whether what a director says of packets is what it does with them, and asking changes nothing.", explainNotes, measureExplain, named},
	{"utilization", "How the exported utilization of a CPU follows the offered load.", utilizationNotes, measureUtilization, always},
	{"soak", "What hours of changes leave behind.", soakNotes, measureSoak, named},
	{"kubernetes", "How long traffic takes to follow pods and Services of a real Kubernetes control plane.", nil, measureKubernetes, apart},
}

// session is what a scenario works with.
type session struct {
	settings record.Settings
	into     *record.Scenario
	soak     soakTime
	base     string    // the commit that rows, versions and segments compare with; empty: the one before flow memory, or before segments
	progress io.Writer // for people; the record is for machines
	closers  []func() error
}

// atEnd closes something when the scenario has ended, or [session.close] is called: what came last
// first.
func (s *session) atEnd(closer func() error) { s.closers = append(s.closers, closer) }

// close removes what a scenario, or a part of it, has built.
func (s *session) close() error {
	var errs []error
	for _, closer := range slices.Backward(s.closers) {
		errs = append(errs, closer())
	}
	s.closers = nil
	return errors.Join(errs...)
}

// newLab makes a lab for the scenario.
func (s *session) newLab() (*netlab.Lab, error) {
	lab, err := netlab.New()
	if err == nil {
		s.atEnd(lab.Close)
	}
	return lab, err
}

// inLab builds what a scenario measures in a lab of its own. If it can be closed, it will be.
func inLab[T any](ctx context.Context, s *session, build func(context.Context, *netlab.Lab) (T, error)) (T, error) {
	lab, err := s.newLab()
	if err != nil {
		return *new(T), err
	}
	built, err := build(ctx, lab)
	if err != nil {
		return built, fmt.Errorf("build the lab: %w", err)
	}
	if c, is := any(built).(io.Closer); is {
		s.atEnd(c.Close)
	}
	return built, nil
}

// note adds a note that only this run has.
func (s *session) note(format string, args ...any) {
	s.into.Notes = append(s.into.Notes, fmt.Sprintf(format, args...))
}

// say reports progress to the user.
func (s *session) say(format string, args ...any) {
	fmt.Fprintf(s.progress, format+"\n", args...)
}

// add records a round's value.
func (s *session) add(subject string, at record.Conditions, quantity record.Quantity, value float64) {
	s.into.Add(subject, at, quantity, value)
}

// sample is how long one subject is measured in one round.
func (s *session) sample() time.Duration { return s.settings.Sample }

// inRounds measures everything once per round, so that a slow moment of the machine affects all of
// it alike.
func (s *session) inRounds(ctx context.Context, steps ...func(context.Context) error) error {
	began := time.Now()
	for round := range s.settings.Rounds {
		for _, step := range steps {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := step(ctx); err != nil {
				return err
			}
		}
		s.sayRound(round+1, time.Since(began))
	}
	return nil
}

// sayRound tells how many rounds are done, and when the rest will be done if they take as long.
func (s *session) sayRound(done int, took time.Duration) {
	left := s.settings.Rounds - done
	if left == 0 {
		s.say("  round %d of %d", done, s.settings.Rounds)
		return
	}
	s.say("  round %d of %d, about %.0f s to go", done, s.settings.Rounds, took.Seconds()/float64(done)*float64(left))
}

func newList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the scenarios, and the checks that each answers",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			for _, s := range scenarios {
				what := s.what
				if s.when != always {
					what += " Only where it is named."
				}
				fmt.Fprintf(w, "%s\t%s\n", s.name, what)
				for _, c := range slices.Concat(checks, alternates) {
					if c.scenario == s.name {
						fmt.Fprintf(w, "\t  %s %s %g%s: %s\n", c.name, c.relation, c.target, c.unit, c.what)
					}
				}
			}
			return w.Flush()
		},
	}
}
