package group

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"weir.io/weir/internal/etcdclient"
	"weir.io/weir/internal/model"
)

// reportsLive is how long a report stays in etcd when its agent does not renew it, in seconds.
// Until then an absent agent is not taken for one that never reported; a host that is gone for good
// leaves nothing behind.
const reportsLive = 7 * 24 * 60 * 60

// MaxReport is how long the text of a report may be: etcd takes requests of 1.5 MiB.
const MaxReport = 1 << 20

// mostReports bounds the bytes of all reports that a director keeps. Agents may write about any
// backend: a report beyond the bound counts as one that says nothing.
const mostReports = 512 << 20

func (g *Group) evidenceKey() string { return g.client.Prefix + "/evidence/" }

// evidenceName is the rest of the key of the report about a backend.
func evidenceName(of model.HostAddress) string {
	if of.Segment == (model.Segment{}) {
		return of.Address.String()
	}
	return of.Segment.String() + "/" + of.Address.String()
}

// readEvidenceName reads what evidenceName returns.
func readEvidenceName(name string) (of model.HostAddress, is bool) {
	segment, address, in := strings.Cut(name, "/")
	if !in {
		segment, address = "", name
	}
	err := of.Segment.UnmarshalText([]byte(segment))
	if err != nil || in && of.Segment == (model.Segment{}) {
		return of, false
	}
	of.Address, err = netip.ParseAddr(address)
	return of, err == nil
}

// PutReports writes an agent's reports, in place of its earlier ones about the same backends.
func (g *Group) PutReports(ctx context.Context, reports []model.AgentReport) error {
	return g.putReports(ctx, g.stays, reports)
}

func (g *Group) putReports(ctx context.Context, stays *etcdclient.Lease, reports []model.AgentReport) error {
	return stays.Use(ctx, func(lease clientv3.LeaseID) error {
		for i := range reports {
			text, err := json.Marshal(&reports[i])
			if err != nil {
				return fmt.Errorf("encode a report: %w", err)
			}
			key := g.evidenceKey() + evidenceName(reports[i].At())
			if _, err := g.client.Commit(ctx, nil, clientv3.OpPut(key, string(text), clientv3.WithLease(lease))); err != nil {
				return err
			}
		}
		return nil
	})
}

// leaseFor is how long a director uses the same lease for agents' reports: it prolongs that with each report, also
// the stay of those of agents that are gone.
const leaseFor = time.Hour

// OfAgents writes what agents report to a director.
type OfAgents struct {
	group   *Group
	follows *Reports

	mu    sync.Mutex
	stays *etcdclient.Lease
	since time.Time
}

// OfAgents lets a director that follows reports write those of agents.
func (g *Group) OfAgents(follows *Reports) *OfAgents { return &OfAgents{group: g, follows: follows} }

// PutReports writes reports, in place of earlier ones about the same backends.
func (o *OfAgents) PutReports(ctx context.Context, reports []model.AgentReport) error {
	o.mu.Lock()
	if o.stays == nil || time.Since(o.since) > leaseFor {
		o.stays, o.since = o.group.client.NewLease(reportsLive, "reports"), time.Now()
	}
	stays := o.stays
	o.mu.Unlock()
	return o.group.putReports(ctx, stays, reports)
}

// LastReport returns when the last report about a backend was taken, if this director has one.
func (o *OfAgents) LastReport(of model.HostAddress) time.Time {
	o.follows.mu.Lock()
	defer o.follows.mu.Unlock()
	return o.follows.latest.of[of].Taken
}

// MayReport asks whether etcd would take reports about these backends, and changes nothing.
func (g *Group) MayReport(ctx context.Context, backends []model.HostAddress) error {
	var puts []clientv3.Op
	for _, b := range backends {
		puts = append(puts, clientv3.OpPut(g.evidenceKey()+evidenceName(b), ""))
	}
	// No comparison fails, so the other branch never runs, but etcd checks that it is allowed.
	_, err := g.client.Transact(ctx, func(t clientv3.Txn) clientv3.Txn { return t.Else(puts...) })
	return err
}

// Reports are the reports of agents that a director follows: those about its own backends. A client
// that may write reports may write many, about addresses that are no backends.
type Reports struct {
	client *etcdclient.Client
	prefix string
	again  chan struct{} // is sent to when the backends have changed
	signs  chan struct{} // is sent to when signs of strain appear, or disappear

	mu       sync.Mutex
	backends map[model.HostAddress]bool // all of the director, and their addresses in no segment
	listed   map[model.HostAddress]bool // all when the reports were listed; nil: they were not yet listed
	renewed  chan struct{}              // is closed when the reports are listed
	latest   heldReports
	warned   string // about reports that are not kept
}

// FollowReports follows what agents say, until the context ends.
func (g *Group) FollowReports(ctx context.Context) *Reports {
	r := &Reports{client: g.client, prefix: g.evidenceKey(), again: make(chan struct{}, 1), signs: make(chan struct{}, 1), renewed: make(chan struct{}), latest: newHeldReports()}
	go g.client.Follow(ctx, etcdclient.Followed{
		Key: r.prefix, Prefix: true, List: r.list, Take: r.take, Again: r.again,
		Consequence: "agents' reports cannot be read, logs keep generations until max-retention", Kind: model.ProblemReports, Part: partReports,
	})
	return r
}

// Signs is sent to when there is a report with signs of strain, or the first one without any.
func (r *Reports) Signs() <-chan struct{} { return r.signs }

// None is false: etcd says what there is.
func (r *Reports) None() bool { return false }

// listPatience is how long Latest waits for reports about new backends.
const listPatience = time.Second

// Latest returns the last report about each of these backends, and whether it is known yet which
// reports exist. While etcd does not say whether a new backend has a report, it counts as one whose
// report says nothing: its agent may have connections anywhere. Agents up to 0.1 do not know in which
// segment they are: of a backend without a report in its own, the one about its address in none is
// returned, which may be of another host.
func (r *Reports) Latest(backends map[model.HostAddress]bool) (reports map[model.HostAddress]model.AgentReport, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.backends = withNone(backends)
	if !r.covers(backends) {
		signal(r.again)
	}
	patience := time.NewTimer(listPatience)
	defer patience.Stop()
	for waiting := true; waiting && !r.covers(backends); {
		next := r.renewed
		r.mu.Unlock()
		select {
		case <-next:
		case <-patience.C:
			waiting = false
		}
		r.mu.Lock()
	}
	reports = map[model.HostAddress]model.AgentReport{}
	for b := range backends {
		if report, has := r.latest.of[b]; has {
			reports[b] = report
		} else if r.listed != nil && !r.listed[b] {
			reports[b] = silent(b)
		} else if report, has := r.latest.of[inNone(b)]; has {
			reports[b] = report
		}
	}
	return reports, r.listed != nil
}

// silent is a report that says nothing about a backend.
func silent(b model.HostAddress) model.AgentReport {
	return model.AgentReport{Backend: b.Address, Segment: b.Segment}
}

// inNone is the address in no segment.
func inNone(b model.HostAddress) model.HostAddress { return model.HostAddress{Address: b.Address} }

// withNone returns the backends, and their addresses in no segment.
func withNone(backends map[model.HostAddress]bool) map[model.HostAddress]bool {
	all := make(map[model.HostAddress]bool, len(backends))
	for b := range backends {
		all[b], all[inNone(b)] = true, true
	}
	return all
}

// covers says whether the reports about these backends, if any, are known.
func (r *Reports) covers(backends map[model.HostAddress]bool) bool {
	for b := range backends {
		if !r.listed[b] {
			return false
		}
	}
	return r.listed != nil
}

// readsAtOnce is how many keys one transaction reads: etcd takes 128, of 1.5 MiB each.
const readsAtOnce = 16

// list reads the reports about the backends, and returns the revision of etcd up to which they are
// complete.
func (r *Reports) list(ctx context.Context) (revision int64, err error) {
	r.mu.Lock()
	backends := r.backends
	r.mu.Unlock()
	response, err := r.client.Commit(ctx, nil)
	if err != nil {
		return 0, err
	}
	revision = response.Header.Revision
	latest, signs := newHeldReports(), false
	for some := range slices.Chunk(slices.Collect(maps.Keys(backends)), readsAtOnce) {
		var reads []clientv3.Op
		for _, b := range some {
			reads = append(reads, clientv3.OpGet(r.prefix+evidenceName(b), clientv3.WithRev(revision)))
		}
		response, err := r.client.Commit(ctx, nil, reads...)
		if err != nil {
			return 0, err
		}
		for _, one := range response.Responses {
			for _, kv := range one.GetResponseRange().Kvs {
				signs = r.read(&latest, backends, string(kv.Key), kv.Value) || signs
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.latest, r.listed = latest, backends
	r.warn()
	if r.listed == nil {
		r.listed = map[model.HostAddress]bool{}
	}
	close(r.renewed)
	r.renewed = make(chan struct{})
	if signs {
		signal(r.signs)
	}
	return revision, nil
}

// read adds a report about one of the backends. A report that cannot be read, perhaps of another
// version, counts as one that says nothing: its agent may have connections anywhere. signs says
// that this report, or the one before, has signs of strain.
func (r *Reports) read(latest *heldReports, backends map[model.HostAddress]bool, key string, text []byte) (signs bool) {
	backend, is := readEvidenceName(strings.TrimPrefix(key, r.prefix))
	if !is || !backends[backend] {
		return false
	}
	report := readReport(backend, text)
	signs = len(report.Signals)+len(r.latest.of[backend].Signals) > 0
	latest.put(report)
	return signs
}

// readReport reads a report about a backend.
func readReport(backend model.HostAddress, text []byte) (report model.AgentReport) {
	if len(text) > MaxReport || json.Unmarshal(text, &report) != nil || report.Check() != nil || report.At() != backend {
		return silent(backend)
	}
	return report
}

// warn lists how many backends have reports that say nothing because they cannot be read, or
// because there is no room for them. The lock is held.
func (r *Reports) warn() {
	text := ""
	var errs []error
	for _, row := range []struct {
		backends map[model.HostAddress]bool
		why      string
	}{
		{r.latest.noRoom, fmt.Sprintf("all reports take as much memory as they may, %d bytes", mostReports)},
		{r.latest.unread, "the report is wrong, or of another version of weir"},
		{r.latest.ahead, fmt.Sprintf("the clock of its host is more than %v ahead of this one's: let both follow the same time servers", model.MostAhead)},
	} {
		if len(row.backends) == 0 {
			continue
		}
		first := slices.MinFunc(slices.Collect(maps.Keys(row.backends)), model.HostAddress.Compare)
		err := fmt.Errorf("agents' reports about backends (%v and perhaps others) are taken to say nothing, logs keep generations until max-retention: %s", first, row.why)
		errs, text = append(errs, err), text+err.Error()
	}
	if text == r.warned {
		return
	}
	r.warned = text
	r.client.Problem(model.ProblemReports, "", "", errors.Join(errs...))
}

// heldReports are the last report about each backend, and the bytes that all of them take.
type heldReports struct {
	of     map[model.HostAddress]model.AgentReport
	bytes  int
	noRoom map[model.HostAddress]bool // backends whose reports have no room
	unread map[model.HostAddress]bool // backends whose reports could not be read
	ahead  map[model.HostAddress]bool // backends whose reports are of a later time than when they came
}

// put keeps a report in place of the one before, or one that says nothing if there is no room for
// it.
func (h *heldReports) put(report model.AgentReport) {
	h.remove(report.At())
	size := report.Size()
	if report.Taken.IsZero() {
		h.unread[report.At()] = true
	}
	if time.Until(report.Taken) > model.MostAhead {
		h.ahead[report.At()] = true
	}
	if h.bytes+size > mostReports {
		h.noRoom[report.At()] = true
		report = silent(report.At())
		size = report.Size()
	}
	h.of[report.At()] = report
	h.bytes += size
}

func newHeldReports() heldReports {
	return heldReports{of: map[model.HostAddress]model.AgentReport{}, noRoom: map[model.HostAddress]bool{}, unread: map[model.HostAddress]bool{}, ahead: map[model.HostAddress]bool{}}
}

func (h *heldReports) remove(backend model.HostAddress) {
	if before, has := h.of[backend]; has {
		h.bytes -= before.Size()
		delete(h.of, backend)
		delete(h.noRoom, backend)
		delete(h.unread, backend)
		delete(h.ahead, backend)
	}
}

// take takes what agents write.
func (r *Reports) take(events []*clientv3.Event) (again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, event := range events {
		if event.Type == clientv3.EventTypeDelete {
			if backend, is := readEvidenceName(strings.TrimPrefix(string(event.Kv.Key), r.prefix)); is {
				r.latest.remove(backend)
			}
			continue
		}
		if r.read(&r.latest, r.listed, string(event.Kv.Key), event.Kv.Value) {
			signal(r.signs)
		}
	}
	r.warn()
	return false
}

func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}
