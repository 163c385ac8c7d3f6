package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// setFlags say what set a command is about, and how it is planned.
type setFlags struct {
	file, owner string
	measure     time.Duration
}

func (f *setFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.file, "file", "f", "", "`file` with the services")
	cmd.Flags().StringVar(&f.owner, "owner", store.OwnerCLI, "`name` of the set's owner; of a client that may write one owner's set alone, that one")
	cmd.Flags().DurationVar(&f.measure, "measure", time.Second, "count traffic for this `time`, in whole seconds up to 10s, to say what of it moves; 0: do not")
	_ = cmd.MarkFlagRequired("file")
}

// request reads the file.
func (f *setFlags) request(cmd *cobra.Command) (r api.PlanRequest, err error) {
	if err := model.CheckOwner(f.owner); err != nil {
		return r, usageError{err}
	}
	if f.measure < 0 || f.measure > 10*time.Second || f.measure%time.Second != 0 {
		return r, usagef("--measure %v is not a number of seconds from 0s to 10s", f.measure)
	}
	_, text, err := loadSet(cmd, f.file)
	return api.PlanRequest{Owner: f.owner, SetText: api.SetText{Text: text}, Measure: f.measure}, err
}

// asOwner asks about an owner's set. Where the command names no owner, and the director says that this client may write
// one owner's set alone, it asks about that one.
func asOwner[T any](cmd *cobra.Command, owner *string, ask func() (T, error)) (T, error) {
	answer, err := ask()
	var p *api.Problem
	if cmd.Flags().Changed("owner") || !errors.As(err, &p) || p.Owner == "" || p.Owner == *owner {
		return answer, err
	}
	*owner = p.Owner
	return ask()
}

// loadSet reads the services in a file, and says which of its keys have former names.
func loadSet(cmd *cobra.Command, file string) ([]model.Service, []byte, error) {
	services, former, text, err := config.LoadSet(file)
	for _, key := range former {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s:%d: %v\n", file, key.Line, key)
	}
	return services, text, err
}

func newPlan() *cobra.Command {
	var set setFlags
	cmd := &cobra.Command{
		Use:   "plan -f FILE",
		Short: "Say what applying a file would move, and which connections it would risk",
		Long: "plan says what apply would do with the file's services, and changes nothing: the share of\n" +
			"each service's slots and of its traffic that moves, what backends have before and after,\n" +
			"which connections are at risk and why, what of this director's limits it takes, and which\n" +
			"backends of the director's own file stay drained. What contradicts other sets is refused,\n" +
			"as apply would be.",
		Args: cobra.NoArgs,
	}
	set.add(cmd)
	conn := asks(cmd, func(ctx context.Context, client *api.Client, _ []string) (none api.Plan, _ error) {
		request, err := set.request(cmd)
		if err != nil {
			return none, err
		}
		return asOwner(cmd, &request.Owner, func() (api.Plan, error) { return client.Plan(ctx, request) })
	}, func(t *table, p api.Plan) { planTable(t, &p) })
	conn.completeOwnerFlag(cmd)
	return cmd
}

// planTable has tables of the services that change, of their backends, of the connections at risk,
// of limits, and of states beside the director's own file.
func planTable(t *table, p *api.Plan) {
	t.row("CHANGE", "SERVICE", "SLOTS", "MOVED", "SHARE", "TRAFFIC", "HELD")
	for i := range p.Services {
		s := &p.Services[i]
		if s.Change != "changed" {
			t.row(s.Change, s.Service, "", "", "", "", "")
			continue
		}
		move := model.Move{Slots: s.Slots, Moved: s.Moved}
		t.row(s.Change, s.Service, s.Slots, s.Moved, move.Share(), sharePercent(s.Traffic), s.Held)
	}
	if len(p.Services) > 0 {
		plannedTables(t, p)
	}
	if len(p.Overrides) > 0 {
		t.line("")
		t.row("GOES-ON", "BACKEND", "STATE", "BY", "SINCE")
		for i := range p.Overrides {
			o := &p.Overrides[i]
			t.row(o.Service, o.Backend, o.State.String(), o.By, o.At.Format(time.RFC3339))
		}
	}
}

func plannedTables(t *table, p *api.Plan) {
	t.line("")
	t.row("SERVICE", "BACKEND", "STATE", "SHARE", "AFTER", "CONNECTIONS/S", "AFTER", "PACKETS/S", "AFTER", "OPEN")
	for i := range p.Services {
		for j := range p.Services[i].Backends {
			plannedBackendRow(t, p.Services[i].Service, &p.Services[i].Backends[j])
		}
	}
	risksTable(t, p)
	if len(p.Limits) == 0 { // a tenant's client is not told the director's
		return
	}
	t.line("")
	t.row("LIMIT", "BEFORE", "AFTER", "PEAK", "MOST", "ROOM")
	for _, l := range p.Limits {
		exceeded := "enough"
		if l.Exceeded {
			exceeded = "not enough: it would be stored, and not applied"
		}
		t.row(l.Limit, l.Before, l.After, l.Peak, l.Most, exceeded)
	}
}

func plannedBackendRow(t *table, service string, b *model.PlannedBackend) {
	var state, open string
	var shares, connections, packets [2]string
	for i, load := range []*model.PlannedLoad{b.Before, b.After} {
		if load == nil {
			continue
		}
		state, shares[i] = load.State.String(), percent(load.Share)
		if load.Rate != nil {
			connections[i], packets[i] = short(load.Rate.Connections), short(load.Rate.Packets)
		}
	}
	switch {
	case b.After == nil:
		state = "removed"
	case b.Down:
		state += " (fails probes)"
	}
	if b.Open != nil {
		open = fmt.Sprint(*b.Open)
	}
	t.row(service, b.Name, state, shares[0], shares[1], connections[0], connections[1], packets[0], packets[1], open)
}

func risksTable(t *table, p *api.Plan) {
	t.line("")
	heads := false
	for _, s := range p.Services {
		for _, r := range s.Risks {
			if !heads {
				heads = true
				t.row("AT-RISK", "SERVICE", "WHY", "BACKENDS", "CONNECTIONS", "IN-WORDS")
			}
			t.row(r.When, s.Service, r.Reason, strings.Join(r.Backends, ","), knownAtRisk(&r), r.Text)
		}
		if s.Waits {
			t.line(fmt.Sprintf("%s: its other members, ring size, affinity or policy wait until older generations have left its log", s.Service))
		}
	}
	if !heads {
		t.line("no connection is known to be at risk")
	}
}

// knownAtRisk says how many connections are at risk, and how exactly that is known.
func knownAtRisk(r *model.Risk) string {
	switch {
	case r.Connections == nil:
		return "unknown"
	case r.CountedBy == model.CountedByMemory:
		return fmt.Sprintf("at least %d", *r.Connections)
	}
	return fmt.Sprintf("about %d", *r.Connections)
}

func sharePercent(part *float64) string {
	if part == nil {
		return ""
	}
	return percent(*part)
}
