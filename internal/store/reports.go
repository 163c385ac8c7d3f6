package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"weir.io/weir/internal/model"
)

// What agents say about connections is beside the state, in keys of its own:
//
//	PREFIX/evidence/ADDRESS of a backend
//
// It is no part of the state and no revision of it: losing it loses no configuration.

// reportsLive is how long a report stays in etcd when its agent does not renew it, in
// seconds. Until then an agent that is away is not taken for one that never reported;
// a host that is gone for good leaves nothing behind.
const reportsLive = 7 * 24 * 60 * 60

// MaxReport is how long the text of a report may be: etcd takes requests of 1.5 MiB.
const MaxReport = 1 << 20

func (e *Etcd) evidenceKey() string { return e.options.Prefix + "/evidence/" }

// PutReports writes what an agent says, in place of what it has said before about the
// same backends.
func (e *Etcd) PutReports(ctx context.Context, reports []model.AgentReport) error {
	for again := false; ; again = true {
		err := e.putReports(ctx, reports)
		if again || !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return err
		}
		e.mu.Lock()
		e.lease = clientv3.NoLease // it has ended, or etcd has lost it
		e.mu.Unlock()
	}
}

func (e *Etcd) putReports(ctx context.Context, reports []model.AgentReport) error {
	lease, err := e.renewLease(ctx)
	if err != nil {
		return err
	}
	for i := range reports {
		text, err := json.Marshal(&reports[i])
		if err != nil {
			return fmt.Errorf("encode a report: %w", err)
		}
		key := e.evidenceKey() + reports[i].Backend.String()
		if _, err := e.commit(ctx, nil, clientv3.OpPut(key, string(text), clientv3.WithLease(lease))); err != nil {
			return err
		}
	}
	return nil
}

// MayReport asks whether etcd would take reports about these backends, and changes nothing.
func (e *Etcd) MayReport(ctx context.Context, backends []netip.Addr) error {
	var puts []clientv3.Op
	for _, b := range backends {
		puts = append(puts, clientv3.OpPut(e.evidenceKey()+b.String(), ""))
	}
	// No comparison fails, so the other branch is never done; but it has to be allowed.
	_, err := e.transact(ctx, func(t clientv3.Txn) clientv3.Txn { return t.Else(puts...) })
	return err
}

// renewLease returns the lease by which this process's reports live, for as long again.
func (e *Etcd) renewLease(ctx context.Context) (clientv3.LeaseID, error) {
	client, err := e.connect()
	if err != nil {
		return clientv3.NoLease, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	e.mu.Lock()
	lease := e.lease
	e.mu.Unlock()
	if lease != clientv3.NoLease {
		if _, err := client.KeepAliveOnce(ctx, lease); err != nil {
			return lease, fmt.Errorf("ask etcd at %s to keep reports: %w", strings.Join(e.options.Endpoints, ", "), err)
		}
		return lease, nil
	}
	granted, err := client.Grant(ctx, reportsLive)
	if err != nil {
		return lease, fmt.Errorf("ask etcd at %s to take reports: %w", strings.Join(e.options.Endpoints, ", "), err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lease = granted.ID
	return e.lease, nil
}

// Reports are the reports of agents that a director follows.
type Reports struct {
	prefix string

	mu     sync.Mutex
	known  bool
	latest map[netip.Addr]model.AgentReport
}

// FollowReports follows what agents say, until the context ends.
func (e *Etcd) FollowReports(ctx context.Context) *Reports {
	r := &Reports{prefix: e.evidenceKey(), latest: map[netip.Addr]model.AgentReport{}}
	go func() {
		pause := firstPause
		for ctx.Err() == nil {
			at, err := e.listReports(ctx, r)
			if err != nil {
				e.options.Log.Debug("agents' reports cannot be read", "error", err)
				wait(ctx, pause)
				pause = min(2*pause, lastPause)
				continue
			}
			pause = firstPause
			e.watchReports(ctx, r, at)
		}
	}()
	return r
}

// Latest returns the last report about each backend, and whether it is known yet which
// there are.
func (r *Reports) Latest() (reports map[netip.Addr]model.AgentReport, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.latest), r.known
}

// listReports reads all reports and returns etcd's revision at that moment.
func (e *Etcd) listReports(ctx context.Context, r *Reports) (int64, error) {
	response, err := e.commit(ctx, nil, clientv3.OpGet(r.prefix, clientv3.WithPrefix()))
	if err != nil {
		return 0, err
	}
	latest := map[netip.Addr]model.AgentReport{}
	for _, kv := range response.Responses[0].GetResponseRange().Kvs {
		r.read(latest, string(kv.Key), kv.Value)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.latest, r.known = latest, true
	return response.Header.Revision, nil
}

// read puts a report among others. One that cannot be read, of another version maybe,
// is one that says nothing: its agent may have connections anywhere.
func (r *Reports) read(latest map[netip.Addr]model.AgentReport, key string, text []byte) {
	backend, err := netip.ParseAddr(strings.TrimPrefix(key, r.prefix))
	if err != nil {
		return
	}
	var report model.AgentReport
	if err := json.Unmarshal(text, &report); err != nil || report.Check() != nil || report.Backend != backend {
		report = model.AgentReport{Backend: backend}
	}
	latest[backend] = report
}

// watchReports takes what agents write after a revision of etcd. It returns when it
// cannot go on, and from time to time: a network can lose a watch without either end
// knowing.
func (e *Etcd) watchReports(ctx context.Context, r *Reports, since int64) {
	client, err := e.connect()
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), lookAgain)
	defer cancel()
	for response := range client.Watch(ctx, r.prefix, clientv3.WithPrefix(), clientv3.WithRev(since+1)) {
		if response.Err() != nil {
			wait(ctx, firstPause)
			return
		}
		r.mu.Lock()
		for _, event := range response.Events {
			if event.Type == clientv3.EventTypeDelete {
				if backend, err := netip.ParseAddr(strings.TrimPrefix(string(event.Kv.Key), r.prefix)); err == nil {
					delete(r.latest, backend)
				}
				continue
			}
			r.read(r.latest, string(event.Kv.Key), event.Kv.Value)
		}
		r.mu.Unlock()
	}
}
