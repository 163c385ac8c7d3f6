package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/test/chaos/schedule"
	"weir.io/weir/test/chaos/traffic"
)

// report is the result of a run.
type report struct {
	Mode       string  `json:"mode"`
	Seed       uint64  `json:"seed"`
	Duration   float64 `json:"duration"`  // seconds
	Retention  float64 `json:"retention"` // seconds
	Directors  int     `json:"directors"`
	Backends   int     `json:"backends"`
	SynCookies int     `json:"syncookies"`
	// OnlyBackends says that nothing happened to directors.
	OnlyBackends bool `json:"only_backends"`
	// OnlyDirectors says that nothing happened to backends.
	OnlyDirectors bool `json:"only_directors"`
	// Tiers is how often the first tier failed; none: there was one.
	Tiers int `json:"tiers_failed,omitempty"`
	// Rehash says that connections took another path when their clients sent again.
	Rehash bool `json:"rehash"`
	// Steered is what became of steering; none: no NIC steered.
	Steered *steered `json:"steered,omitempty"`

	Connections       int               `json:"connections"` // established ones of every protocol
	Concurrent        int               `json:"concurrent"`  // TCP connections, the least at any time
	Events            int               `json:"events"`
	DoubleChanges     int               `json:"double_changes"`
	OutlivedWindows   float64           `json:"outlived_windows"`     // share of the TCP connections that lived for five retentions
	Redirected        *redirected       `json:"redirected,omitempty"` // with mode redirect: TCP connections that were handed over
	BrokenBackendDied int               `json:"broken_backend_died"`
	Broken            int               `json:"broken"` // of every protocol
	Misdirected       int               `json:"misdirected"`
	P99StallMS        int64             `json:"p99_stall_ms"`
	TCP               protocol          `json:"tcp"`
	UDP               protocol          `json:"udp"`
	QUIC              protocol          `json:"quic"`
	QUICConnections   int               `json:"quic_connections"`
	QUICLeftOut       string            `json:"quic_left_out,omitempty"` // why there are no QUIC connections
	Migrations        int               `json:"migrations"`              // successful moves of QUIC clients to another address
	FailedToOpen      int               `json:"failed_to_open"`          // attempts; never established, so never broken
	Exchanges         int               `json:"exchanges"`
	CheckedBytes      int               `json:"checked_bytes"`
	Counters          map[string]uint64 `json:"counters"` // weir's reasons that ordinary traffic does not cause
	Weather           felt              `json:"weather"`  // packets
	BrokenConnections []broken          `json:"broken_connections"`
	// MisdirectedPackets are the first misdirected packets.
	MisdirectedPackets []stray `json:"misdirected_packets"`
}

// stray is a packet that came to a host without its connection. Of a QUIC packet only its
// connection ID is known: which server gave it out, and when.
type stray struct {
	At       float64           `json:"at"` // seconds from the beginning, like the others
	Protocol string            `json:"protocol"`
	Client   string            `json:"client,omitempty"`
	Kind     string            `json:"kind,omitempty"`
	Began    float64           `json:"began"`            // before its first packet; QUIC: when the connection ID was given out
	Opened   float64           `json:"opened,omitempty"` // when it was established
	Backend  string            `json:"backend"`          // that has the connection
	Answered []string          `json:"answered"`         // TCP: the backends that answered its SYN
	CameTo   string            `json:"came_to"`
	Events   []string          `json:"events"`             // around it
	Director string            `json:"director,omitempty"` // as in broken, like the next fields
	Places   []place           `json:"places"`
	Counters map[string]uint64 `json:"counters"`
}

// redirected is the result of TCP connections of which directors saw only the SYN.
type redirected struct {
	Connections     int `json:"connections"`
	OutlivedRemoval int `json:"outlived_removal"` // of their backend
	Broken          int `json:"broken"`
}

// protocol is the result of one protocol's connections.
type protocol struct {
	Connections       int `json:"connections"`
	BrokenBackendDied int `json:"broken_backend_died"`
	Broken            int `json:"broken"`
	Misdirected       int `json:"misdirected"`
}

// broken is a connection that broke although its backend lives.
type broken struct {
	Protocol   string            `json:"protocol"`
	Client     string            `json:"client"`
	Service    string            `json:"service"`
	Backend    string            `json:"backend"` // empty: no backend had accepted it
	Redirected bool              `json:"redirected,omitempty"`
	Kind       string            `json:"kind"`
	Saw        string            `json:"saw"`
	Detail     string            `json:"detail"`
	Opened     float64           `json:"opened"` // seconds from the beginning, like the others
	LastGood   float64           `json:"last_good"`
	At         float64           `json:"at"`
	Events     []string          `json:"events"`   // with their distance to the break
	Director   string            `json:"director"` // to which the router then sent its packets; empty: not known
	Places     []place           `json:"places"`   // the backends of its packets, as the directors were told
	Counters   map[string]uint64 `json:"counters"` // weir's reasons, within about a second, by host
	Accepted   []string          `json:"accepted"` // the backends that accepted it
	Answered   []string          `json:"answered"` // TCP: the backends that answered its SYN
	Resets     []string          `json:"resets"`   // of backends that do not have it
}

func newReport(h *harness, p *performer, weather felt) *report {
	totals := h.tracker.Totals()
	r := &report{Steered: h.cards.total(), Mode: h.mode.name, Seed: h.Seed, Duration: h.Duration.Seconds(), Retention: h.retention.Seconds(),
		Directors: h.Directors, Backends: h.Backends, SynCookies: h.syncookies, OnlyBackends: h.OnlyBackends, OnlyDirectors: h.OnlyDirectors, Rehash: h.rehash, Tiers: p.count(schedule.TierFailed),
		Connections: totals.TCP + totals.UDP + totals.QUIC, Concurrent: h.fewest, Events: len(p.done), DoubleChanges: p.doubles(),
		Misdirected: totals.Misdirected, P99StallMS: h.tracker.Stall(0.99).Milliseconds(),
		TCP: protocol{Connections: totals.TCP, Misdirected: totals.Astray["tcp"]}, UDP: protocol{Connections: totals.UDP, Misdirected: totals.Astray["udp"]},
		QUIC: protocol{Connections: totals.QUIC, Misdirected: totals.Astray["quic"]}, QUICConnections: totals.QUIC, QUICLeftOut: h.mode.withoutQUIC(), Migrations: totals.Moved,
		Weather: weather, Counters: h.counts.totals(), FailedToOpen: totals.FailedToOpen, Exchanges: totals.Exchanges, CheckedBytes: totals.Bytes, BrokenConnections: []broken{}}
	if totals.TCP > 0 {
		r.OutlivedWindows = float64(totals.Outlived) / float64(totals.TCP)
	}
	if h.mode.redirects {
		r.Redirected = &redirected{Connections: totals.Redirected, OutlivedRemoval: totals.OutlivedRemoval}
	}
	weirs, _ := h.group.(*group)
	x := &explainer{group: weirs, begin: h.begin, tables: map[int]model.Table{}, done: p.done, counts: h.counts, ways: h.ways}
	for _, b := range h.tracker.Breaks() {
		r.add(x, b)
	}
	r.MisdirectedPackets = []stray{}
	for _, s := range h.tracker.Strays() {
		r.MisdirectedPackets = append(r.MisdirectedPackets, newStray(x, s))
	}
	return r
}

func newStray(x *explainer, s traffic.Stray) stray {
	if s.Good.IsZero() { // QUIC
		s.Good = s.At
	}
	line := stray{At: x.seconds(s.At), Protocol: s.Protocol, Kind: s.Kind, Began: x.seconds(s.Began), Backend: backendText(s.Backend), Answered: []string{},
		CameTo: backendText(s.CameTo), Events: x.around(s.Good, s.At), Places: []place{}, Counters: x.counts.between(s.At.Add(-samplePause), s.At.Add(samplePause))}
	for _, backend := range s.Answered {
		line.Answered = append(line.Answered, backendName(backend))
	}
	if s.Client.IsValid() {
		line.Client, line.Opened = s.Client.String(), x.seconds(s.Opened)
		line.Director, line.Places = x.ways.of(s.ID), x.places(s.Connection, s.At)
	}
	return line
}

// backendText names a backend, or says that it is not known which one it is.
func backendText(backend int) string {
	if backend < 0 {
		return "one of the backends"
	}
	return backendName(backend)
}

func (r *report) add(x *explainer, b traffic.Break) {
	of := map[string]*protocol{"tcp": &r.TCP, "udp": &r.UDP, "quic": &r.QUIC}[b.Protocol]
	if b.Excused {
		r.BrokenBackendDied++
		of.BrokenBackendDied++
		return
	}
	r.Broken++
	of.Broken++
	if b.Redirected && r.Redirected != nil {
		r.Redirected.Broken++
	}
	line := broken{Protocol: b.Protocol, Client: b.Client.String(), Service: fmt.Sprintf("%s:%d", vip, servicePort(b.Protocol)),
		Kind: b.Kind, Redirected: b.Redirected, Saw: b.What, Detail: b.Detail, Opened: x.seconds(b.Opened), LastGood: x.seconds(b.Good), At: x.seconds(b.At),
		Events: x.events(b), Director: x.ways.of(b.ID), Places: x.places(b.Connection, b.At), Counters: x.counts.between(b.At.Add(-samplePause), b.At.Add(samplePause)), Resets: []string{}, Accepted: []string{}, Answered: []string{}}
	for _, backend := range b.Ends {
		line.Accepted = append(line.Accepted, backendName(backend))
	}
	for _, backend := range b.Answered {
		line.Answered = append(line.Answered, backendName(backend))
	}
	if b.Backend >= 0 {
		line.Backend = backendName(b.Backend)
	}
	for _, reset := range b.Resets {
		line.Resets = append(line.Resets, fmt.Sprintf("%+.3fs %s", reset.At.Sub(b.At).Seconds(), backendText(reset.Backend)))
	}
	r.BrokenConnections = append(r.BrokenConnections, line)
}

func servicePort(protocol string) int {
	return map[string]int{"tcp": tcpPort, "udp": udpPort, "quic": quicPort}[protocol]
}

// The minimum that a run must reach to show anything.
const (
	leastConnections = 2000
	leastEvents      = 100
	leastDoubles     = 20
	leastOutlived    = 0.5
	// fullRun is the length from which a run must have the first three.
	fullRun = 2 * time.Minute
)

// faults returns what is wrong with the run, in words for users: broken connections, or too little
// to break them.
func (r *report) faults() []string {
	var list []string
	if r.OutlivedWindows < leastOutlived && r.Broken == 0 {
		list = append(list, fmt.Sprintf("%.0f %% of the connections outlived %d retentions, less than %.0f %%: the run shows nothing",
			100*r.OutlivedWindows, retentions, 100*leastOutlived))
	}
	if r.Redirected != nil && 2*r.Redirected.Connections < r.TCP.Connections {
		list = append(list, fmt.Sprintf("%d of %d TCP connections were handed over, less than half: the run shows nothing", r.Redirected.Connections, r.TCP.Connections))
	}
	if r.Duration >= fullRun.Seconds() {
		for _, least := range []struct {
			what       string
			got, least int
			of         bool // whether it applies to this run
		}{{"concurrent connections", r.Concurrent, leastConnections, true}, {"events", r.Events, leastEvents, true},
			{"double changes", r.DoubleChanges, leastDoubles, !r.OnlyBackends && !r.OnlyDirectors}} {
			if least.of && least.got < least.least && r.Broken == 0 {
				list = append(list, fmt.Sprintf("%d %s, less than %d: the run shows nothing", least.got, least.what, least.least))
			}
		}
	}
	if r.Broken > 0 {
		list = append(list, fmt.Sprintf("%d connections broke whose backends live", r.Broken))
	}
	if r.Misdirected > 0 {
		list = append(list, fmt.Sprintf("%d packets of live connections came to hosts without them", r.Misdirected))
	}
	return list
}

func (r *report) printJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

// printed bounds how many broken connections are printed; JSON has all of them.
const printed = 10

func (r *report) print(w io.Writer) error {
	var err error
	line := func(format string, args ...any) {
		if err == nil {
			_, err = fmt.Fprintf(w, format+"\n", args...)
		}
	}
	line("mode %s, seed %d, %.0f s, retention %.0f s, %d directors, %d backends", r.Mode, r.Seed, r.Duration, r.Retention, r.Directors, r.Backends)
	line("%8d connections (%d TCP, %d UDP, %d QUIC), never fewer than %d of TCP at once", r.Connections, r.TCP.Connections, r.UDP.Connections, r.QUICConnections, r.Concurrent)
	if s := r.Steered; s != nil {
		line("%8d packets of steered flows, %d of them at once, while something else changed %d rules", s.Packets, s.Flows, s.Changed)
	}
	if r.QUICLeftOut == "" {
		line("%8d times a QUIC client went on from another address", r.Migrations)
	} else {
		line("         no QUIC: %s", r.QUICLeftOut)
	}
	line("%8d events, %d double changes", r.Events, r.DoubleChanges)
	line("%7.0f%% of the TCP connections outlived %d retentions", 100*r.OutlivedWindows, retentions)
	if of := r.Redirected; of != nil {
		line("%8d TCP connections were handed over, %d of them went on after their backend's removal, %d broke", of.Connections, of.OutlivedRemoval, of.Broken)
	}
	line("%8d broken because their backends died", r.BrokenBackendDied)
	line("%8d broken (%d TCP, %d UDP, %d QUIC)", r.Broken, r.TCP.Broken, r.UDP.Broken, r.QUIC.Broken)
	line("%8d misdirected packets (%d TCP, %d UDP, %d QUIC)", r.Misdirected, r.TCP.Misdirected, r.UDP.Misdirected, r.QUIC.Misdirected)
	line("%8d ms for an answer at most, 99 %% of %d", r.P99StallMS, r.Exchanges)
	line("%8d packets lost, %d overtaken by others", r.Weather.Lost, r.Weather.Late)
	for _, reason := range slices.Sorted(maps.Keys(r.Counters)) {
		line("%8d %s", r.Counters[reason], reason)
	}
	for _, saw := range slices.Sorted(maps.Keys(r.saw())) {
		line("%8d saw: %s", r.saw()[saw], saw)
	}
	for i, b := range r.BrokenConnections {
		if i == printed {
			line("and %d more: --json has them all", len(r.BrokenConnections)-printed)
			break
		}
		line("\n%s %s -> %s (%s) of %q broke at %.1f s, opened at %.1f s, well until %.1f s: %s", b.Protocol, b.Client, b.Service, b.Kind, b.Backend, b.At, b.Opened, b.LastGood, b.Detail)
		for _, e := range b.Events {
			line("    %s", e)
		}
		line("    by %s", b.Director)
		for _, p := range b.Places {
			line("    from %.1f s slot %d is of %s, then %s", p.Since, p.Slot, p.Owner, p.Backup)
		}
		for _, c := range slices.Sorted(maps.Keys(b.Counters)) {
			line("    counted %s: %d", c, b.Counters[c])
		}
		for _, reset := range b.Resets {
			line("    reset %s", reset)
		}
	}
	return err
}

// saw counts the broken connections by what their clients saw.
func (r *report) saw() map[string]int {
	counts := map[string]int{}
	for _, b := range r.BrokenConnections {
		counts[b.Protocol+" "+b.Saw]++
	}
	return counts
}
