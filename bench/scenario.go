package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"weir.io/weir/lab/record"
)

// scenario is one question to the machine. Each has a file of its own.
type scenario struct {
	name string
	what string // one sentence
	run  func(context.Context, *session) error
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
	{"rfc2544", "Packets per second by frame length, through every way to forward them.", measureRFC2544, always},
	{"imix", "Packets per second of the simple Internet mix.", measureIMIX, always},
	{"flows", "A packet's cost by the number of flows.", measureFlows, always},
	{"modes", "A packet's cost in every mode and family.", measureModes, always},
	{"rows", "A packet's cost by how many slots may have connections of several backends, beside an older version.", measureRows, named},
	{"syn", "Packets per second that begin a flow each.", measureSYN, always},
	{"churn", "What a ring that is replaced ten times per second does to packets.", measureChurn, always},
	{"program", "The director's program alone, beside the least that a forwarder can do.", measureProgram, always},
	{"versions", "The director's program alone, beside that of an older version.", measureVersions, named},
	{"http", "Requests per second and their latency through every way to spread connections, by number of servers.", measureHTTP, always},
	{"backend", "A backend's CPU time per byte of bulk TCP, behind the agent and without.", measureBackend, always},
	{"update", "How long a change takes until packets follow it.", measureUpdate, always},
	{"convergence", "How long routers and traffic take to follow directors and backends that come and go.", measureConvergence, named},
	{"scaleout", "What several directors behind a router carry.", measureScaleout, named},
	{"bypass", "What connections that go by the director gain, and what handing them over costs.", measureBypass, named},
	{"tail", "How long requests wait for servers by load, by policies in mode redirect and without memory.", measureTail, named},
	{"memory", "Bytes per service, backend and flow, and of the director's process.", measureMemory, always},
	{"health", "CPU time of checks of a thousand backends, once a second.", measureHealth, always},
	{"explain", "Whether what a director says of packets is what it does with them, and asking changes nothing.", measureExplain, named},
	{"utilization", "How the exported utilization of a CPU follows the offered load.", measureUtilization, always},
	{"soak", "What hours of changes leave behind.", measureSoak, named},
	{"kubernetes", "How long traffic takes to follow pods and Services of a real Kubernetes control plane.", measureKubernetes, apart},
}

// session is what a scenario works with.
type session struct {
	settings    record.Settings
	into        *record.Scenario
	soak        soakTime
	withoutSYNs bool      // of bypass
	base        string    // the commit that rows and versions compare with; empty: the one before flow memory
	progress    io.Writer // for people; the record is for machines
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
		Args:  takes(0),
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
