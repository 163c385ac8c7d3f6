package store

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

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
// or etcd has lost it, until the context ends.
func (e *Etcd) KeepRun(ctx context.Context, addresses []netip.Addr, run func() model.DirectorRun) {
	pause, life, last, rest := firstPause, lease{seconds: livesFor}, "", 0
	for ctx.Err() == nil {
		text, err := json.Marshal(run())
		if err == nil && (string(text) != last || rest == 0) {
			values := map[string]string{}
			for _, a := range addresses {
				values[e.directorsKey()+a.String()+runsSuffix] = string(text)
			}
			err = e.putRun(ctx, &life, values)
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

func (e *Etcd) putRun(ctx context.Context, life *lease, values map[string]string) error {
	if err := e.prolong(ctx, life); err != nil {
		return err
	}
	for key, value := range values {
		if _, err := e.commit(ctx, nil, clientv3.OpPut(key, value, clientv3.WithLease(life.id))); err != nil {
			return err
		}
	}
	return nil
}

// Runs returns what the group's directors say about themselves, by their addresses.
func (e *Etcd) Runs(ctx context.Context) ([]model.DirectorRun, error) {
	response, err := e.commit(ctx, nil, clientv3.OpGet(e.directorsKey(), clientv3.WithPrefix()))
	if err != nil {
		return nil, err
	}
	var runs []model.DirectorRun
	for _, kv := range response.Responses[0].GetResponseRange().Kvs {
		address, is := strings.CutSuffix(strings.TrimPrefix(string(kv.Key), e.directorsKey()), runsSuffix)
		a, err := netip.ParseAddr(address)
		if !is || err != nil {
			continue
		}
		run := model.DirectorRun{}
		if err := json.Unmarshal(kv.Value, &run); err != nil {
			run.Refused = "what it says about itself cannot be read: " + err.Error() // another version, perhaps
		}
		run.Address = a
		runs = append(runs, run)
	}
	slices.SortFunc(runs, func(a, b model.DirectorRun) int { return a.Address.Compare(b.Address) })
	return runs, nil
}
