package store

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"weir.io/weir/internal/model"
)

// What a director says about itself is beside its fingerprint:
//
//	PREFIX/directors/ADDRESS/runs
//
// It is for people, and disappears some seconds after the process.
const runsSuffix = "/runs"

// lookAtRun is the time between two checks whether what a director says has changed; without a
// change it is written again as often as fingerprints.
const lookAtRun = renewFingerprint / 5

// KeepRun writes what a director says about itself under its addresses, whenever that has changed
// or etcd has lost it, and compares it with what the others say, until the context ends. What it has listed ends then, too: nobody
// compares any more.
func (e *Etcd) KeepRun(ctx context.Context, addresses []netip.Addr, run func() (model.DirectorRun, Settings)) {
	pause, life, last, rest := firstPause, lease{seconds: livesFor}, "", 0
	clocks, settings := clocks{}, settings{}
	defer e.options.over(partClocks, partSettings)
	for ctx.Err() == nil {
		is := writtenRun{Also: addresses}
		is.DirectorRun, is.Settings = run()
		text, err := json.Marshal(is)
		if err == nil && (string(text) != last || rest == 0) {
			err = e.putRun(ctx, &life, is)
			if err == nil && rest == 0 {
				err = e.compare(ctx, clocks, settings, &is)
			}
			last, rest = string(text), int(renewFingerprint/lookAtRun)
		}
		if err != nil {
			e.options.Log.Debug("the group does not know what this director runs", "error", err)
			last = ""
			wait(ctx, pause)
			pause = min(2*pause, lastPause)
			continue
		}
		rest--
		pause = firstPause
		wait(ctx, lookAtRun)
	}
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
func (e *Etcd) putRun(ctx context.Context, life *lease, run writtenRun) error {
	if err := e.prolong(ctx, life); err != nil {
		return err
	}
	for _, a := range run.Also {
		run.Clock = time.Now().UTC()
		text, err := json.Marshal(run)
		if err != nil {
			return fmt.Errorf("say what this director runs: %w", err)
		}
		key := e.directorsKey() + a.String() + runsSuffix
		if _, err := e.commit(ctx, nil, clientv3.OpPut(key, string(text), clientv3.WithLease(life.id))); err != nil {
			return err
		}
	}
	return nil
}

// compare lists what of the other directors does not go together with this one.
func (e *Etcd) compare(ctx context.Context, c clocks, s settings, own *writtenRun) error {
	runs, err := e.writtenRuns(ctx)
	if err != nil {
		return err
	}
	e.options.warn(model.ProblemGroup, partClocks, "generations may leave the group's logs before their drain has passed", c.compare(runs, own.Also, time.Now()))
	if found := s.compare(runs, own); e.options.Warn != nil {
		e.options.Warn(model.ProblemGroup, partSettings, found)
	}
	return nil
}

// Runs returns what the group's directors say about themselves, by their addresses.
func (e *Etcd) Runs(ctx context.Context) ([]model.DirectorRun, error) {
	written, err := e.writtenRuns(ctx)
	if err != nil {
		return nil, err
	}
	runs := make([]model.DirectorRun, len(written))
	for i := range written {
		runs[i] = written[i].DirectorRun
	}
	return runs, nil
}

func (e *Etcd) writtenRuns(ctx context.Context) ([]writtenRun, error) {
	response, err := e.commit(ctx, nil, clientv3.OpGet(e.directorsKey(), clientv3.WithPrefix()))
	if err != nil {
		return nil, err
	}
	var runs []writtenRun
	for _, kv := range response.Responses[0].GetResponseRange().Kvs {
		address, is := strings.CutSuffix(strings.TrimPrefix(string(kv.Key), e.directorsKey()), runsSuffix)
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
