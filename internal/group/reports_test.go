package group

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/etcdlab"
)

func reportOf(last byte, used ...uint64) model.AgentReport {
	of := model.ReportedService{ServiceID: web.ID(), Affinity: model.AffinitySourceIP, Used: model.NewSlotSet(1 << 14)}
	for _, hash := range used {
		of.Note(hash)
	}
	return model.AgentReport{
		Backend: netip.AddrFrom4([4]byte{10, 0, 0, last}), Taken: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
		Services: []model.ReportedService{of},
	}
}

// backends are those of the tests.
func backends(last ...byte) map[model.HostAddress]bool {
	all := map[model.HostAddress]bool{}
	for _, l := range last {
		all[model.HostAddress{Address: netip.AddrFrom4([4]byte{10, 0, 0, l})}] = true
	}
	return all
}

// says waits until a follower has these reports about backends 1 to 4, and no others.
func says(t *testing.T, r *Reports, want ...model.AgentReport) {
	t.Helper()
	etcdlab.Eventually(t, "the reports are followed", func() error {
		got, known := r.Latest(backends(1, 2, 3, 4))
		if !known {
			return errors.New("nothing is known yet")
		}
		if len(got) != len(want) {
			return fmt.Errorf("there are %d reports, want %d", len(got), len(want))
		}
		for _, w := range want {
			if !reflect.DeepEqual(got[w.At()], w) {
				return fmt.Errorf("of %s it is said %v, want %v", w.Backend, got[w.At()], w)
			}
		}
		return nil
	})
}

// Agents' reports come to directors that follow already and to those that begin to.
func TestReportsAreFollowed(t *testing.T) {
	c := newCluster(t, true)
	agent, other, director := c.open(), c.open(), c.open()
	put(t, director, web)
	first := director.FollowReports(t.Context())
	says(t, first)
	one, two := reportOf(1, 1<<40, 1<<63), reportOf(2)
	for _, step := range []struct {
		by   *Group
		what []model.AgentReport
		want []model.AgentReport
	}{
		{agent, []model.AgentReport{one}, []model.AgentReport{one}},
		{other, []model.AgentReport{two}, []model.AgentReport{one, two}},
		{agent, []model.AgentReport{reportOf(1), reportOf(3, 5<<50)}, []model.AgentReport{reportOf(1), two, reportOf(3, 5<<50)}},
	} {
		if err := step.by.PutReports(t.Context(), step.what); err != nil {
			t.Fatal(err)
		}
		says(t, first, step.want...)
		says(t, c.open().FollowReports(t.Context()), step.want...)
	}
	if s, err := director.Read(t.Context()); err != nil || s.Revision != 1 {
		t.Errorf("reports have changed the state: it has revision %d (%v)", s.Revision, err)
	}
}

// Reports live as long as their agents renew them, also through an etcd that has
// forgotten about that.
func TestReportsEnd(t *testing.T) {
	c := newCluster(t, false)
	agent := c.open()
	follower := c.open().FollowReports(t.Context())
	if err := agent.PutReports(t.Context(), []model.AgentReport{reportOf(1)}); err != nil {
		t.Fatal(err)
	}
	says(t, follower, reportOf(1))
	revoke := func(lease clientv3.LeaseID) error {
		_, err := c.Client().Revoke(t.Context(), lease)
		return err
	}
	if err := agent.stays.Use(t.Context(), revoke); err != nil {
		t.Fatal(err)
	}
	says(t, follower)
	if err := agent.PutReports(t.Context(), []model.AgentReport{reportOf(1, 9)}); err != nil {
		t.Fatal(err)
	}
	says(t, follower, reportOf(1, 9))
	leases, err := c.Client().Leases(t.Context())
	if err != nil || len(leases.Leases) != 1 {
		t.Fatalf("etcd has the leases %v, error %v; want the agent's", leases, err)
	}
	left, err := c.Client().TimeToLive(t.Context(), leases.Leases[0].ID, clientv3.WithAttachedKeys())
	if err != nil || len(left.Keys) != 1 || left.GrantedTTL != reportsLive {
		t.Errorf("the agent's lease is %v, error %v; want its report in it", left, err)
	}
}

// etcd may lose a lease after it has prolonged it, and before the keys are written.
func TestLeaseIsLostWhileItIsUsed(t *testing.T) {
	c := newCluster(t, false)
	agent := c.open()
	times := 0
	write := func(lease clientv3.LeaseID) error {
		if times++; times == 1 {
			if _, err := c.Client().Revoke(t.Context(), lease); err != nil {
				t.Fatal(err)
			}
		}
		_, err := agent.client.Commit(t.Context(), nil, clientv3.OpPut(agent.evidenceKey()+"key", "text", clientv3.WithLease(lease)))
		return err
	}
	if err := agent.stays.Use(t.Context(), write); err != nil || times != 2 {
		t.Errorf("the key was written %d times, error %v; want a second time, under another lease", times, err)
	}
}

// An agent whose report cannot be read may have connections anywhere: it must not
// count as an agent that does not report.
func TestReportsThatCannotBeRead(t *testing.T) {
	c := newCluster(t, false)
	listed := &listed{}
	etcd := c.open()
	etcd.client.Warn = listed.warn
	follower := etcd.FollowReports(t.Context())
	silent := func(last byte) model.AgentReport {
		return model.AgentReport{Backend: netip.AddrFrom4([4]byte{10, 0, 0, last})}
	}
	for key, text := range map[string]string{
		"10.0.0.1": "no JSON",
		"10.0.0.2": `{"backend": "10.0.0.7", "taken": "2026-01-02T03:04:05Z", "services": []}`,
		"10.0.0.3": `{"backend": "10.0.0.3", "services": [{"vip": "192.0.2.1", "protocol": "tcp", "port": "80", "used": null}]}`,
		"10.0.0.4": `{"backend": "10.0.0.4", "services": [{"vip": "192.0.2.1", "protocol": "tcp", "port": "80", "used": "1000 gaps "}]}`,
		"nobody":   "{}",
	} {
		if _, err := c.Client().Put(t.Context(), c.Prefix+"/evidence/"+key, text); err != nil {
			t.Fatal(err)
		}
	}
	says(t, follower, silent(1), silent(2), silent(3), silent(4))
	etcdlab.Eventually(t, "they are listed", func() error {
		if text := listed.of(model.ProblemReports, ""); !strings.Contains(text, "10.0.0.1") || !strings.Contains(text, "another version") {
			return fmt.Errorf("listed is %q", text)
		}
		return nil
	})
	if _, err := c.Client().Delete(t.Context(), c.Prefix+"/evidence/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	says(t, follower)
	etcdlab.Eventually(t, "nothing is listed", func() error { return listed.none() })
}

// Shared data that cannot be written, because etcd does not answer, is listed until etcd does.
func TestSilentEtcdIsListed(t *testing.T) {
	c := newCluster(t, false)
	listed := &listed{}
	etcd := c.open()
	etcd.client.Warn = listed.warn
	c.Kill(0)
	etcd.Watch(t.Context())
	etcd.FollowReports(t.Context()).Latest(backends(1))
	go etcd.KeepFingerprint(t.Context(), []netip.Addr{netip.MustParseAddr("10.0.0.1")}, "print")
	views := etcd.FollowViews(t.Context())
	views.Report([]model.View{{ServiceID: reportOf(1).Services[0].ServiceID}})
	for _, part := range []struct {
		kind model.ProblemKind
		name string
	}{{model.ProblemGroup, "etcd"}, {model.ProblemReports, partReports}, {model.ProblemGroup, partFlows}, {model.ProblemGroup, partViews}} {
		etcdlab.Eventually(t, part.name+" is listed", func() error {
			if listed.of(part.kind, part.name) == "" {
				return errors.New("it is not")
			}
			return nil
		})
	}
	c.Start(0)
	etcdlab.Eventually(t, "nothing is listed", func() error { return listed.none() })
}

// listed are problems that were told.
type listed struct {
	mu    sync.Mutex
	parts map[[2]string]string
}

func (l *listed) warn(kind model.ProblemKind, part string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.parts == nil {
		l.parts = map[[2]string]string{}
	}
	if delete(l.parts, [2]string{string(kind), part}); err != nil {
		l.parts[[2]string{string(kind), part}] = err.Error()
	}
}

func (l *listed) of(kind model.ProblemKind, part string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.parts[[2]string{string(kind), part}]
}

func (l *listed) none() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.parts) > 0 {
		return fmt.Errorf("listed are %v", l.parts)
	}
	return nil
}

// An agent needs no more than to write its own backends' keys, and a user that may write
// only these cannot speak for others.
func TestAgentSpeaksForItself(t *testing.T) {
	c := newCluster(t, true)
	client, err := c.openAs("root", "of-the-tests").client.Connect()
	if err != nil {
		t.Fatal(err)
	}
	own := reportOf(1, 1<<40)
	key := c.options.Prefix + "/evidence/" + own.Backend.String()
	_, roleErr := client.RoleAdd(t.Context(), "agent1")
	_, grantErr := client.RoleGrantPermission(t.Context(), "agent1", key, "", clientv3.PermissionType(clientv3.PermWrite))
	_, userErr := client.UserAdd(t.Context(), "agent1", "of-backend1")
	_, toErr := client.UserGrantRole(t.Context(), "agent1", "agent1")
	if err := errors.Join(roleErr, grantErr, userErr, toErr); err != nil {
		t.Fatal(err)
	}
	agent := c.openAs("agent1", "of-backend1")
	follower := c.open().FollowReports(t.Context())
	for _, test := range []struct {
		about []model.HostAddress
		want  error
	}{
		{[]model.HostAddress{own.At()}, nil},
		{[]model.HostAddress{own.At(), {Address: reportOf(2).Backend}}, rpctypes.ErrPermissionDenied},
		{[]model.HostAddress{{Segment: model.Segment{Kind: model.SegmentVLAN, ID: 100}, Address: own.Backend}}, rpctypes.ErrPermissionDenied},
	} {
		if err := agent.MayReport(t.Context(), test.about); !errors.Is(err, test.want) {
			t.Errorf("asked for reports about %v etcd says %v, want %v", test.about, err, test.want)
		}
	}
	says(t, follower) // asking changes nothing
	for range 2 {     // with a new lease, and with the same
		if err := agent.PutReports(t.Context(), []model.AgentReport{own}); err != nil {
			t.Fatal(err)
		}
	}
	says(t, follower, own)
	if err := agent.PutReports(t.Context(), []model.AgentReport{reportOf(2)}); !errors.Is(err, rpctypes.ErrPermissionDenied) {
		t.Errorf("a report about another host's backend: error %v, want %v", err, rpctypes.ErrPermissionDenied)
	}
	says(t, c.open().FollowReports(t.Context()), own)
}

// Reports about addresses that are no backend's are not kept, however many there are. Once
// it is one's, they are there, and nobody takes it for a backend without an agent before.
func TestReportsOfStrangers(t *testing.T) {
	c := newCluster(t, false)
	agents := c.open()
	follower := c.open().FollowReports(t.Context())
	says(t, follower)
	var all []model.AgentReport
	for last := range byte(200) {
		all = append(all, reportOf(last, uint64(last)<<56))
	}
	if err := agents.PutReports(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	says(t, follower, all[1:5]...)
	kept := func(r *Reports) int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.latest.of)
	}
	later := c.open().FollowReports(t.Context())
	says(t, later, all[1:5]...)
	for name, r := range map[string]*Reports{"one that followed": follower, "one that has begun to": later} {
		if n := kept(r); n != 4 {
			t.Errorf("%s keeps %d reports, want those about 4 backends", name, n)
		}
		got, known := r.Latest(backends(3, 77, 250))
		want := map[model.HostAddress]model.AgentReport{all[3].At(): all[3], all[77].At(): all[77]}
		if !known || !reflect.DeepEqual(got, want) {
			t.Errorf("%s, of other backends, says %v, %v", name, known, got)
		}
	}
}

// While etcd does not say whether there is a report about a backend that is new, it has an
// agent that may have connections anywhere.
func TestReportsOfNewBackendsWithoutEtcd(t *testing.T) {
	c := newCluster(t, false)
	follower := c.open().FollowReports(t.Context())
	says(t, follower)
	c.Kill(0)
	got, known := follower.Latest(backends(1, 9))
	nine := model.AgentReport{Backend: netip.AddrFrom4([4]byte{10, 0, 0, 9})}
	if want := (map[model.HostAddress]model.AgentReport{nine.At(): nine}); !known || !reflect.DeepEqual(got, want) {
		t.Errorf("without etcd it is said %v, %v, want %v", known, got, want)
	}
}

// Tenants may have the same backend's address: their reports, and one of a host with that address in no
// segment, are apart. Agents up to 0.1 know no segments: what they say of the address stands in for
// a report that is not there.
func TestReportsOfTenants(t *testing.T) {
	c := newCluster(t, false)
	agents := c.open()
	in := func(id uint32, used ...uint64) model.AgentReport {
		r := reportOf(1, used...)
		r.Segment = model.Segment{Kind: model.SegmentVLAN, ID: id}
		return r
	}
	red, blue, none, absent := in(100, 1<<40), in(200, 1<<60), reportOf(1, 1<<63), in(300)
	if err := agents.PutReports(t.Context(), []model.AgentReport{red, blue, none}); err != nil {
		t.Fatal(err)
	}
	all := map[model.HostAddress]bool{red.At(): true, blue.At(): true, absent.At(): true}
	for _, test := range []struct {
		what   string
		change func() error
		want   map[model.HostAddress]model.AgentReport
	}{
		{"all have reported", func() error { return nil }, map[model.HostAddress]model.AgentReport{red.At(): red, blue.At(): blue, absent.At(): none}},
		{"one tenant's report is gone", func() error {
			_, err := c.Client().Delete(t.Context(), c.Prefix+"/evidence/vlan:100/10.0.0.1")
			return err
		}, map[model.HostAddress]model.AgentReport{red.At(): none, blue.At(): blue, absent.At(): none}},
		{"that of no segment is gone", func() error {
			_, err := c.Client().Delete(t.Context(), c.Prefix+"/evidence/10.0.0.1")
			return err
		}, map[model.HostAddress]model.AgentReport{blue.At(): blue}},
		{"one says that it is of another segment", func() error {
			_, err := c.Client().Put(t.Context(), c.Prefix+"/evidence/vlan:100/10.0.0.1", `{"backend":"10.0.0.1","segment":"vlan:200","taken":"2026-01-02T03:04:05Z"}`)
			return err
		}, map[model.HostAddress]model.AgentReport{red.At(): silent(red.At()), blue.At(): blue}},
	} {
		follows := c.open().FollowReports(t.Context())
		etcdlab.Eventually(t, "the reports are listed", func() error {
			if _, known := follows.Latest(all); !known {
				return errors.New("nothing is known yet")
			}
			return nil
		})
		if err := test.change(); err != nil {
			t.Fatal(err)
		}
		for name, r := range map[string]*Reports{"one that follows": follows, "one that starts": c.open().FollowReports(t.Context())} {
			etcdlab.Eventually(t, test.what+": "+name, func() error {
				if got, _ := r.Latest(all); !reflect.DeepEqual(got, test.want) {
					return fmt.Errorf("it is said %v, want %v", got, test.want)
				}
				return nil
			})
		}
	}
}

// What an agent reports to a director comes to all directors, and lives for as long as if the agent had written it.
func TestReportsByADirector(t *testing.T) {
	c := newCluster(t, false)
	first, second := c.open(), c.open()
	follows := first.FollowReports(t.Context())
	of := first.OfAgents(follows)
	report := reportOf(1, 1<<40)
	report.Segment = model.Segment{Kind: model.SegmentVXLAN, ID: 5001}
	at := report.At()
	other := second.FollowReports(t.Context())
	for range 2 { // with a new lease, and with the same
		report.Taken = report.Taken.Add(time.Second)
		if err := of.PutReports(t.Context(), []model.AgentReport{report}); err != nil {
			t.Fatal(err)
		}
		for _, r := range []*Reports{follows, other} {
			etcdlab.Eventually(t, "every director has the report", func() error {
				if got, known := r.Latest(map[model.HostAddress]bool{at: true}); !known || !reflect.DeepEqual(got[at], report) {
					return fmt.Errorf("it is said %v", got)
				}
				return nil
			})
		}
		if got := of.LastReport(at); !got.Equal(report.Taken) {
			t.Errorf("the last report is from %v, want %v", got, report.Taken)
		}
	}
	of.since = time.Now().Add(-2 * leaseFor)
	if err := of.PutReports(t.Context(), []model.AgentReport{report}); err != nil {
		t.Fatal(err)
	}
	leases, err := c.Client().Leases(t.Context())
	if err != nil || len(leases.Leases) != 2 {
		t.Fatalf("etcd has the leases %v, error %v; want two", leases, err)
	}
	held := 0
	for _, l := range leases.Leases {
		left, err := c.Client().TimeToLive(t.Context(), l.ID, clientv3.WithAttachedKeys())
		if err != nil || left.GrantedTTL != reportsLive {
			t.Fatalf("a lease is %v, error %v", left, err)
		}
		held += len(left.Keys)
	}
	if held != 1 {
		t.Errorf("%d leases keep the report, want the newest one alone", held)
	}
}
