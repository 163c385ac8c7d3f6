package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"weir.io/weir/bench/record"
)

// scenario is one question to the machine. Each has a file of its own.
type scenario struct {
	name string
	what string // one sentence
	run  func(context.Context, *session) error
	// named is one that runs only where it is named, because a complete run has a quarter of
	// an hour; a smoke run has it, too.
	named bool
}

// scenarios are all there are, in the order in which they run.
var scenarios = []scenario{
	{"rfc2544", "Packets per second by frame length, through every way to forward them.", measureRFC2544, false},
	{"imix", "Packets per second of the simple Internet mix.", measureIMIX, false},
	{"flows", "A packet's cost by the number of flows.", measureFlows, false},
	{"modes", "A packet's cost in every mode and family.", measureModes, false},
	{"rows", "A packet's cost by how many slots may have connections of several backends, beside an older version.", measureRows, true},
	{"syn", "Packets per second that begin a flow each.", measureSYN, false},
	{"churn", "What a ring that is replaced ten times per second does to packets.", measureChurn, false},
	{"program", "The director's program alone, beside the least that a forwarder can do.", measureProgram, false},
	{"versions", "The director's program alone, beside that of an older version.", measureVersions, true},
	{"http", "Requests per second and their latency through every way to spread connections, by number of servers.", measureHTTP, false},
	{"backend", "A backend's CPU time per byte of bulk TCP, behind the agent and without.", measureBackend, false},
	{"update", "How long a change takes until packets follow it.", measureUpdate, false},
	{"convergence", "How long routers and traffic take to follow directors and backends that come and go.", measureConvergence, true},
	{"scaleout", "What several directors behind a router carry.", measureScaleout, true},
	{"bypass", "What connections that go by the director gain, and what handing them over costs.", measureBypass, true},
	{"tail", "How long requests wait for servers by load, by policies in mode redirect and without memory.", measureTail, true},
	{"memory", "Bytes per service, backend and flow, and of the director's process.", measureMemory, false},
	{"health", "CPU time of checks of a thousand backends, once a second.", measureHealth, false},
	{"explain", "Whether what a director says of packets is what it does with them, and asking changes nothing.", measureExplain, true},
	{"utilization", "How the exported utilization of a CPU follows the offered load.", measureUtilization, false},
	{"soak", "What hours of changes leave behind.", measureSoak, true},
}

// session is what a scenario has to work with.
type session struct {
	settings    record.Settings
	into        *record.Scenario
	soak        soakTime
	withoutSYNs bool      // of bypass
	base        string    // commit that rows and versions compare with; empty: the one before flow memory
	progress    io.Writer // for people; the record is for machines
}

// say tells whoever waits how far it is.
func (s *session) say(format string, args ...any) {
	fmt.Fprintf(s.progress, format+"\n", args...)
}

// add writes a round's value down.
func (s *session) add(subject string, at record.Conditions, quantity record.Quantity, value float64) {
	s.into.Add(subject, at, quantity, value)
}

// sample is how long one subject is measured in one round.
func (s *session) sample() time.Duration { return s.settings.Sample }

// inRounds measures everything once per round, so that a slow moment of the machine
// hits all of it alike.
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

// sayRound tells how many rounds are done, and when the others will be if they take as
// long.
func (s *session) sayRound(done int, took time.Duration) {
	left := s.settings.Rounds - done
	if left == 0 {
		s.say("  round %d of %d", done, s.settings.Rounds)
		return
	}
	s.say("  round %d of %d, about %.0f s to go", done, s.settings.Rounds, took.Seconds()/float64(done)*float64(left))
}
