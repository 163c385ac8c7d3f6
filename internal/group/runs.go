package group

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"weir.io/weir/internal/etcdclient"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/retry"
)

// runsSuffix ends the key of what a director says about itself, for people. It disappears some seconds
// after the process.
const runsSuffix = "/runs"

// lookAtRun is the time between two checks whether what a director says has changed; without a
// change it is written again as often as fingerprints.
const lookAtRun = renewFingerprint / 5

// KeepRun writes what a director says about itself under its addresses, whenever that has changed
// or etcd has lost it, and compares it with what the others say, until the context ends. What it has
// listed ends then, too.
func (g *Group) KeepRun(ctx context.Context, addresses []netip.Addr, run func() (model.DirectorRun, Settings)) {
	life, last, rest := g.newLife(), "", 0
	clocks, settings := clocks{}, settings{}
	defer g.forget(partClocks, partSettings)
	g.client.Repeat(ctx, etcdclient.Task{
		Try: func(ctx context.Context) error {
			is := writtenRun{Also: addresses}
			is.DirectorRun, is.Settings = run()
			text, err := json.Marshal(is)
			if err == nil && (string(text) != last || rest == 0) {
				err = g.putRun(ctx, life, is)
				if err == nil && rest == 0 {
					err = g.compare(ctx, clocks, settings, &is)
				}
				last, rest = string(text), int(renewFingerprint/lookAtRun)
			}
			if err != nil {
				last = ""
				return err
			}
			rest--
			return nil
		},
		Rest:        func(ctx context.Context) { retry.Sleep(ctx, lookAtRun) },
		Consequence: "the group does not know what this director runs",
	})
}

// writtenRun is what a director has written about itself.
type writtenRun struct {
	model.DirectorRun

	// Older versions do not say these.
	Clock    time.Time    `json:"clock,omitzero"`      // of its host when it wrote
	Also     []netip.Addr `json:"addresses,omitempty"` // all of the director's in the group
	Settings Settings     `json:"settings,omitzero"`
}

// putRun writes what a director says, under each of its addresses.
func (g *Group) putRun(ctx context.Context, life *etcdclient.Lease, run writtenRun) error {
	return life.Use(ctx, func(lease clientv3.LeaseID) error {
		for _, a := range run.Also {
			run.Clock = time.Now().UTC()
			text, err := json.Marshal(run)
			if err != nil {
				return fmt.Errorf("say what this director runs: %w", err)
			}
			key := g.directorsKey() + a.String() + runsSuffix
			if _, err := g.client.Commit(ctx, nil, clientv3.OpPut(key, string(text), clientv3.WithLease(lease))); err != nil {
				return err
			}
		}
		return nil
	})
}

// compare lists what of the other directors does not go together with this one.
func (g *Group) compare(ctx context.Context, c clocks, s settings, own *writtenRun) error {
	runs, err := g.writtenRuns(ctx)
	if err != nil {
		return err
	}
	g.client.Problem(model.ProblemGroup, partClocks, "generations may leave the group's logs before their drain has passed", c.compare(runs, own.Also, time.Now()))
	g.client.Problem(model.ProblemGroup, partSettings, "", s.compare(runs, own))
	return nil
}

// Runs returns what the group's directors say about themselves, by their addresses.
func (g *Group) Runs(ctx context.Context) ([]model.DirectorRun, error) {
	written, err := g.writtenRuns(ctx)
	if err != nil {
		return nil, err
	}
	runs := make([]model.DirectorRun, len(written))
	for i := range written {
		runs[i] = written[i].DirectorRun
	}
	return runs, nil
}

func (g *Group) writtenRuns(ctx context.Context) ([]writtenRun, error) {
	response, err := g.client.Commit(ctx, nil, clientv3.OpGet(g.directorsKey(), clientv3.WithPrefix()))
	if err != nil {
		return nil, err
	}
	var runs []writtenRun
	for _, kv := range response.Responses[0].GetResponseRange().Kvs {
		address, is := strings.CutSuffix(strings.TrimPrefix(string(kv.Key), g.directorsKey()), runsSuffix)
		a, err := netip.ParseAddr(address)
		if !is || err != nil {
			continue
		}
		run := writtenRun{}
		if err := json.Unmarshal(kv.Value, &run); err != nil {
			run.Refused = "what it says about itself cannot be read: " + err.Error() // another version, perhaps
		}
		run.Address = a
		runs = append(runs, run)
	}
	slices.SortFunc(runs, func(a, b writtenRun) int { return a.Address.Compare(b.Address) })
	return runs, nil
}
