package agentd

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/problems"
)

const vmToken = "vm-0123456789abcdef"

var (
	tenant = model.Segment{Kind: model.SegmentVLAN, ID: 100}
	own    = netip.MustParseAddr("172.16.0.11")
)

// tenantService is one in gue with a backend in the tenant's network.
func tenantService(port uint16) model.Service {
	return model.Service{Name: fmt.Sprint("web", port), Segment: tenant, VIP: netip.MustParseAddr("172.16.0.100"), Protocol: model.TCP,
		Port: model.PortRange{First: port, Last: port}, Mode: model.GUE, Backends: []model.Backend{{Name: "a", Address: own, Segment: &tenant, Weight: 100, State: model.Active}}}
}

// keeps takes reports for a director of the tests, unless it cannot.
type keeps struct {
	shared   bool
	services []model.Service
	uses     []api.LoadTarget

	mu    sync.Mutex
	came  int
	last  model.AgentReport
	loads []api.ReportedLoad
	fails bool
}

func (k *keeps) Reportable(of *api.Reporter) api.Reportable {
	may := api.Reportable{Segment: of.Segment, Addresses: []netip.Addr{of.V4}, Shared: k.shared, Time: time.Now(), Loads: k.uses}
	for i := range k.services {
		may.Services = append(may.Services, k.services[i].ID())
	}
	return may
}

func (k *keeps) PutReport(_ context.Context, _ *api.Reporter, text []byte) (api.PutReport, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fails {
		return api.PutReport{}, api.NewProblem(http.StatusServiceUnavailable, "etcd is away")
	}
	k.came++
	k.last = model.AgentReport{}
	return api.PutReport{Shared: k.shared}, json.Unmarshal(text, &k.last)
}

func (k *keeps) PutLoads(_ *api.Reporter, loads *api.LoadReport) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fails {
		return api.NewProblem(http.StatusForbidden, "of another backend")
	}
	k.loads = loads.Loads
	return nil
}

func (k *keeps) heard() (int, model.AgentReport) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.came, k.last
}

func (k *keeps) count() int {
	came, _ := k.heard()
	return came
}

func (k *keeps) fail(is bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fails = is
}

// fakeDirector is the part of a director that takes reports, with its API over TLS.
type fakeDirector struct {
	*keeps
	dir    string
	remote *api.Remote
	config model.API
}

func startDirector(t *testing.T, shared bool, services ...model.Service) *fakeDirector {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	d := &fakeDirector{keeps: &keeps{shared: shared, services: services}, dir: t.TempDir()}
	quiet := slog.New(slog.DiscardHandler)
	server := api.NewServer(nil, nil, quiet)
	server.HandleReports(d.keeps)
	d.remote = api.NewRemote(server, quiet)
	t.Cleanup(d.remote.Close)
	d.certify(t, time.Hour)
	d.write(t, "token", vmToken)
	d.config = model.API{Listen: []netip.AddrPort{l.Addr().(*net.TCPAddr).AddrPort()}, Cert: d.path("cert.pem"), Key: d.path("key.pem"),
		Clients: []model.APIClient{{Name: "vm", Role: model.RoleAgent, TokenFile: d.path("token"), Addresses: []netip.Addr{own}, Segment: tenant}}}
	d.set(t)
	return d
}

func (d *fakeDirector) path(name string) string { return filepath.Join(d.dir, name) }

func (d *fakeDirector) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(d.path(name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (d *fakeDirector) set(t *testing.T) {
	t.Helper()
	if err := d.remote.Set(d.config); err != nil {
		t.Fatal(err)
	}
}

// certify makes a certificate that lasts so long.
func (d *fakeDirector) certify(t *testing.T, lasts time.Duration) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "director"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:  x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(lasts), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	d.write(t, "cert.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	d.write(t, "key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
}

// reporting is an agent's side of directors, with a clock of its own.
type reporting struct {
	*directors
	at time.Time
}

func reportTo(t *testing.T, all ...*fakeDirector) *reporting {
	t.Helper()
	r := &reporting{directors: &directors{}, at: time.Now()}
	for _, d := range all {
		s := model.AgentDirectors{Endpoints: []string{"https://" + d.config.Listen[0].String()}, CA: d.path("cert.pem"), TokenFile: d.path("token")}
		one := newDirectors(&s, slog.New(slog.DiscardHandler)).all[0]
		one.now = func() time.Time { return r.at }
		r.all = append(r.all, one)
	}
	return r
}

// put reports once.
func (r *reporting) put(t *testing.T, about ...model.Service) error {
	t.Helper()
	report := model.AgentReport{Backend: own, Segment: tenant, Taken: time.Now()}
	for i := range about {
		report.Services = append(report.Services, model.ReportedService{ServiceID: about[i].ID(), Used: model.NewSlotSet(1 << 14)})
	}
	elsewhere := model.AgentReport{Backend: own, Taken: report.Taken, Services: report.Services}
	return r.PutReports(t.Context(), []model.AgentReport{elsewhere, report})
}

// later is after all pauses.
func (r *reporting) later() { r.at = r.at.Add(2 * lastPause) }

// listed are the problems of the directors.
func (r *reporting) listed() []model.Problem {
	list := problems.New(slog.New(slog.DiscardHandler))
	r.warn(list)
	return list.All()
}

// Directors that share no store all have to have each report; what the file has besides is not sent, and a service
// that it does not have is listed.
func TestReportsToEachDirector(t *testing.T) {
	web, more := tenantService(80), tenantService(81)
	first, second := startDirector(t, false, web), startDirector(t, false, web)
	r := reportTo(t, first, second)
	for range 3 {
		if err := r.put(t, web, more); err != nil {
			t.Fatalf("%v: %+v", err, r.status())
		}
	}
	for _, d := range []*fakeDirector{first, second} {
		if came, got := d.heard(); came != 3 || got.At() != (model.HostAddress{Segment: tenant, Address: own}) || len(got.Services) != 1 || got.Services[0].ServiceID != web.ID() {
			t.Errorf("after 3 reports a director has taken %d, the last %v", came, got)
		}
	}
	if got := r.listed(); len(got) != 0 {
		t.Errorf("listed is %v", got)
	}
	if err := r.put(t); err != nil {
		t.Fatal(err)
	}
	if got := r.listed(); len(got) != 2 || !strings.Contains(got[0].Text, "expects reports of services that this agent's file does not have (172.16.0.100 port 80)") || got[0].Fix == "" {
		t.Errorf("while the file lacks a service listed is %v", got)
	}
	if err := r.put(t, web); err != nil {
		t.Fatal(err)
	}
	if got := r.listed(); len(got) != 0 {
		t.Errorf("when the file has it listed is %v", got)
	}
}

// Of directors that share one gets each report, another one if that fails, and each of them from time to time.
func TestReportsToOneOfAGroup(t *testing.T) {
	web := tenantService(80)
	first, second := startDirector(t, true, web), startDirector(t, true, web)
	r := reportTo(t, first, second)
	for range 3 { // no more: a director takes some at once, and then one in some seconds
		if err := r.put(t, web); err != nil {
			t.Fatal(err)
		}
	}
	if a, b := first.count(), second.count(); a+b != 4 || a == 0 || b == 0 {
		t.Errorf("of 3 reports the directors have taken %d and %d, want both the first one, and one of them the others", a, b)
	}
	using, other := first, second
	if second.count() > first.count() {
		using, other = second, first
	}
	before := other.count()
	using.fail(true)
	if err := r.put(t, web); err != nil {
		t.Errorf("while one director cannot keep reports: %v", err)
	}
	if other.count() != before+1 {
		t.Error("the other one has not got the report")
	}
	if got := r.listed(); len(got) != 1 || !strings.Contains(got[0].Text, "503") && !strings.Contains(got[0].Text, "etcd is away") {
		t.Errorf("listed is %v", got)
	}
	using.fail(false)
	r.later()
	if err := r.put(t, web); err != nil {
		t.Error(err)
	}
	if got := r.listed(); len(got) != 0 {
		t.Errorf("when it is back listed is %v", got)
	}
	counts := first.count() + second.count()
	r.at = r.at.Add(2 * eachAskedEvery)
	if err := r.put(t, web); err != nil {
		t.Error(err)
	}
	if got := first.count() + second.count(); got != counts+2 {
		t.Errorf("after a long time %d directors have got a report, want both", got-counts)
	}
}

// A director that does not take reports is listed with the reason until it does, and asked again after a pause. It
// keeps none of the others from having them.
func TestDirectorsThatDoNotTakeReports(t *testing.T) {
	web := tenantService(80)
	for name, test := range map[string]struct {
		breaks, mends func(t *testing.T, d *fakeDirector)
		says          string
	}{
		"is away": {func(t *testing.T, d *fakeDirector) { d.remote.Close() }, nil, "connection refused"},
		"does not know the token": {
			func(t *testing.T, d *fakeDirector) {
				d.config.Clients[0].TokenFile = d.path("other")
				d.write(t, "other", "other-0123456789abcdef")
				d.set(t)
			},
			func(t *testing.T, d *fakeDirector) { d.config.Clients[0].TokenFile = d.path("token"); d.set(t) }, "no client of api.clients has the token that was shown"},
		"gives it another role": {
			func(t *testing.T, d *fakeDirector) { d.config.Clients[0].Role = model.RoleRead; d.set(t) },
			func(t *testing.T, d *fakeDirector) { d.config.Clients[0].Role = model.RoleAgent; d.set(t) }, "has the role read, and this needs agent"},
		"takes another backend's": {
			func(t *testing.T, d *fakeDirector) {
				d.config.Clients[0].Addresses = []netip.Addr{own.Next()}
				d.set(t)
			},
			func(t *testing.T, d *fakeDirector) { d.config.Clients[0].Addresses = []netip.Addr{own}; d.set(t) }, "takes reports of 172.16.0.12 in vlan:100, and by this agent's file"},
		"has a certificate that has ended": {
			func(t *testing.T, d *fakeDirector) { d.certify(t, -time.Hour); d.set(t) },
			func(t *testing.T, d *fakeDirector) { d.certify(t, time.Hour); d.set(t) }, "certificate has expired"},
		"cannot be asked without a file": {
			func(t *testing.T, d *fakeDirector) { _ = os.Rename(d.path("token"), d.path("moved")) },
			func(t *testing.T, d *fakeDirector) { _ = os.Rename(d.path("moved"), d.path("token")) }, "read the token"},
	} {
		t.Run(name, func(t *testing.T) {
			good, bad := startDirector(t, false, web), startDirector(t, false, web)
			r := reportTo(t, good, bad)
			test.breaks(t, bad)
			for range 2 {
				if err := r.put(t, web); err != nil {
					t.Errorf("another director takes reports, and yet: %v", err)
				}
			}
			if got := r.listed(); len(got) != 1 || !strings.Contains(got[0].Text, test.says) || got[0].Part != r.all[1].options.URL || got[0].Fix == "" || got[0].Kind != model.ProblemReports {
				t.Errorf("listed is %+v, want %q", got, test.says)
			}
			if s := r.status(); s[0].Taken != 2 || s[0].Problem != "" || s[1].Taken != 0 || s[1].Failed != 1 || !strings.Contains(s[1].Problem, test.says) {
				t.Errorf("the status is %+v, want one attempt, because of the pause", s)
			}
			only := reportTo(t, bad)
			if err := only.put(t, web); err == nil {
				t.Error("no director takes reports, and there is no error")
			}
			if test.mends == nil {
				return
			}
			test.mends(t, bad)
			r.later()
			if err := r.put(t, web); err != nil {
				t.Error(err)
			}
			if got := r.listed(); len(got) != 0 || bad.count() != 1 {
				t.Errorf("when it takes them again listed is %+v", got)
			}
		})
	}
}

// metered is a meter that always says the same.
type metered []model.Load

func (m metered) Loads() ([]model.Load, time.Duration, error) { return m, 0, nil }

// Each director gets the loads that it uses, by one connection; one that takes none is listed until it does.
func TestLoadsToEachDirector(t *testing.T) {
	web, more := tenantService(80), tenantService(81)
	target := func(s *model.Service) model.Target {
		return model.Target{Service: s.ID(), Backend: s.Backends[0].Endpoint()}
	}
	first, second := startDirector(t, true, web), startDirector(t, true, web)
	first.uses = []api.LoadTarget{{ServiceID: web.ID(), Backend: target(&web).Backend}}
	r := reportTo(t, first, second)
	meter := metered{{Target: target(&web), Connections: 7}, {Target: target(&more), Connections: 9}}
	report := func(until func() bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		r.reportLoads(ctx, meter, func() bool {
			if until() {
				cancel()
			}
			return true
		})
		if !until() {
			t.Fatalf("it does not come so far: %+v", r.loadStatus())
		}
	}
	listed := func() []model.Problem {
		list := problems.New(slog.New(slog.DiscardHandler))
		r.warnOfLoads(list)
		return list.All()
	}
	report(func() bool { return r.loadStatus().Sent >= 2 })
	if s := r.loadStatus(); s.Directors != 2 || s.Known != 2 || s.Failed != 0 || s.Problem != "" {
		t.Errorf("the status is %+v", s)
	}
	if len(first.loads) != 1 || first.loads[0].Connections != 7 || second.loads != nil {
		t.Errorf("taken are %v and %v, want those that the first director uses", first.loads, second.loads)
	}
	first.fail(true)
	report(func() bool { return r.loadStatus().Failed > 0 })
	if got := listed(); len(got) != 1 || got[0].Kind != model.ProblemLoads || !strings.Contains(got[0].Text, "of another backend") {
		t.Errorf("listed is %+v", got)
	}
	first.fail(false)
	r.later()
	report(func() bool { return r.loadStatus().Known == 2 })
	if got := listed(); len(got) != 0 {
		t.Errorf("when it takes them listed is %+v", got)
	}
}
