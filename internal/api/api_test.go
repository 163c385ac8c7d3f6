package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// director stands for a running one.
type director struct {
	config model.Config
	info   api.Info
	status model.DatapathStatus
	err    error
}

func (d *director) Status() (model.DatapathStatus, error) { return d.status, d.err }
func (d *director) Config() model.Config                  { return d.config }
func (d *director) Info() api.Info                        { return d.info }

func newDirector() *director {
	d := &director{
		info: api.Info{
			Version: "v1", PID: 7, Revision: 9, File: "/etc/weir/weir.yaml", Refused: "weir.yaml:3: x: unknown key",
			Problems: []model.Problem{{Kind: model.ProblemFile, Part: "weir.yaml", Severity: model.SeverityError, Text: "weir.yaml:3: x: unknown key",
				Place: model.Place{File: "weir.yaml", Line: 3, Field: "x"}, Since: time.Date(2026, 1, 2, 3, 4, 7, 0, time.UTC)}},
			Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Applied: time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC), Changed: time.Date(2026, 1, 2, 3, 4, 7, 0, time.UTC),
		},
		status: model.DatapathStatus{
			Limits:     model.Limits{Services: 17, Flows: 2048}, // and not those of a file that has changed since
			Interfaces: []model.InterfaceStatus{{Name: "eth0", Index: 2, XDP: "native", MTU: 1500}},
			Reasons:    []model.Counter{{Name: "forward_ipip", Packets: 10, Bytes: 1000}},
			RingMemory: 8256,
			Flows:      model.FlowStatus{Remembered: 3, Settling: 2, Events: []model.Tallied{{Name: "flow_inserted", Count: 4}}},
			QUIC:       []model.Tallied{{Name: "quic_found", Count: 5}},
			Asks:       []model.Tallied{{Name: "ask_taken", Count: 7}},
			Left:       []model.Tallied{{Name: "drained", Count: 6}},
			Agents:     model.ReporterStatus{Reporting: 4, Silent: 1},
			Neighbor: model.NeighborStatus{Interfaces: []model.NeighborInterfaceStatus{{Name: "eth0", MAC: "02:00:00:00:00:01", Announced: 2}},
				VIPs: []model.NeighborVIP{{VIP: netip.MustParseAddr("203.0.113.10"), State: model.NeighborAnswers, Since: time.Unix(1767323100, 0).UTC(), Interfaces: []string{"eth0"}}}},
			Peers:     []model.PeerStatus{{Director: netip.MustParseAddr("10.0.0.3"), Shares: time.Unix(1767323100, 0).UTC(), Heard: 5, Shared: 6, Problem: "none"}},
			Strangers: 3,
			Probes:    []model.Tallied{{Name: "ok", Count: 8}},
			CPUs:      []model.CPUStatus{{CPU: 0, Utilization: 0.25, Busy: 0.5, Fullness: 0.125}},
			Services: []model.ServiceStatus{{
				Name: "web", VIP: netip.MustParseAddr("203.0.113.10"), Protocol: model.TCP,
				Port: model.PortRange{First: 443, Last: 443}, Slots: 1021, Packets: 10, Bytes: 1000,
				Backends: []model.BackendStatus{
					{Name: "a", Address: netip.MustParseAddr("10.0.1.1"), Mode: model.IPIP, State: model.Active,
						Interface: "eth0", NextHop: model.MAC{2, 0, 0, 0, 0, 1}, MTU: 1480, Slots: 1021, Share: new(1.0), Packets: 10, Bytes: 1000},
					{Name: "b", Address: netip.MustParseAddr("2001:db8::1"), Mode: model.GUE, State: model.Down},
				},
			}, {Name: "dns", VIP: netip.MustParseAddr("2001:db8::53"), Protocol: model.UDP}},
		},
	}
	d.config = model.Config{
		Director: model.Director{Interfaces: []string{"eth0"}},
		Services: []model.Service{{
			Name: "web", VIP: netip.MustParseAddr("203.0.113.10"), Protocol: model.TCP, Mode: model.IPIP,
			Segment:  model.Segment{Kind: model.SegmentVLAN, ID: 7},
			Port:     model.PortRange{First: 443, Last: 443},
			Backends: []model.Backend{{Address: netip.MustParseAddr("10.0.1.1"), MAC: model.MAC{2}}},
		}},
	}
	d.config.SetDefaults()
	return d
}

// start serves the director on a socket and returns its client.
func start(t *testing.T, d *director) *api.Client {
	t.Helper()
	return serve(t, api.NewServer(d, d, quiet()))
}

func serve(t *testing.T, server *api.Server) *api.Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "run", "director.sock")
	listener, err := api.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error("the server ended with an error:", err)
		}
		if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
			t.Error("the server left its socket behind")
		}
	})
	return api.NewClient(socket)
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

var equate = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

func TestClientGetsWhatTheDirectorSays(t *testing.T) {
	d := newDirector()
	client := start(t, d)
	services, err := client.Services(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(d.status.Services[0], services[0], equate); diff != "" {
		t.Errorf("services (-said +got):\n%s", diff)
	}
	backends, err := client.Backends(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []api.Backend{
		{Service: "web", BackendStatus: d.status.Services[0].Backends[0]},
		{Service: "web", BackendStatus: d.status.Services[0].Backends[1]},
	}
	if diff := cmp.Diff(want, backends, equate); diff != "" {
		t.Errorf("backends (-said +got):\n%s", diff)
	}
	config, err := client.Config(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(d.config, config, equate); diff != "" {
		t.Errorf("configuration (-said +got):\n%s", diff)
	}
	status, err := client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wantStatus := api.Status{
		Role: api.RoleDirector, Info: d.info, Interfaces: d.status.Interfaces, Services: 2, Backends: 2, RingMemory: 8256, Probes: d.status.Probes, Panic: []string{},
		Limits: d.status.Limits, Flows: d.status.Flows, QUIC: d.status.QUIC, Asks: d.status.Asks, Left: d.status.Left, Agents: d.status.Agents, Peers: d.status.Peers, Neighbor: d.status.Neighbor, Strangers: d.status.Strangers, CPUs: d.status.CPUs, Reasons: d.status.Reasons,
	}
	if diff := cmp.Diff(wantStatus, status, equate); diff != "" {
		t.Errorf("status (-said +got):\n%s", diff)
	}
}

// host stands for a running agent.
type host struct {
	*director
	status model.AgentStatus
}

func (h *host) Status() (model.AgentStatus, error) { return h.status, h.err }

func TestAgentStatus(t *testing.T) {
	h := &host{newDirector(), model.AgentStatus{
		Interfaces: []model.AgentInterface{{Name: "eth0", Index: 2, Ingress: "xdp", Egress: "tcx", MTU: 1500}},
		VIPs:       []netip.Addr{netip.MustParseAddr("203.0.113.10")},
		Reasons:    []model.Counter{{Name: "unwrap_ipip", Packets: 3, Bytes: 300}},
		Services: []model.AgentService{{Name: "web", VIP: netip.MustParseAddr("203.0.113.10"), Protocol: model.TCP,
			Port: model.PortRange{First: 443, Last: 443}, MSS: 1440, Packets: 3, Bytes: 300}},
	}}
	client := serve(t, api.NewAgentServer(h, h, quiet()))
	got, err := client.AgentStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(api.AgentStatus{Role: api.RoleAgent, Info: h.info, AgentStatus: h.status}, got, equate); diff != "" {
		t.Errorf("status (-said +got):\n%s", diff)
	}
	_, err = client.Status(t.Context())
	if err == nil || !strings.HasSuffix(err.Error(), "is where a weir agent answers, not a weir director") {
		t.Errorf("an agent's status as a director's gives %v", err)
	}
}

func TestNothingIsAnEmptyList(t *testing.T) {
	d := &director{}
	server := api.NewServer(d, d, quiet())
	for _, path := range []string{"/v1/services", "/v1/backends"} {
		w := httptest.NewRecorder()
		server.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if got := strings.TrimSpace(w.Body.String()); got != "[]" {
			t.Errorf("GET %s of an idle director is %s, want []", path, got)
		}
	}
}

func TestHandle(t *testing.T) {
	d := newDirector()
	server := api.NewServer(d, d, quiet())
	server.Handle("/metrics", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("up 1\n")) }))
	for method, want := range map[string]int{"GET": 200, "HEAD": 200, "POST": 405} {
		w := httptest.NewRecorder()
		server.Handler().ServeHTTP(w, httptest.NewRequest(method, "/metrics", nil))
		if w.Code != want {
			t.Errorf("%s /metrics gives %d, want %d", method, w.Code, want)
		}
		if method == "GET" && w.Body.String() != "up 1\n" {
			t.Errorf("GET /metrics gives %q, not what its handler wrote", w.Body)
		}
	}
}

func TestBGP(t *testing.T) {
	d := newDirector()
	server := api.NewServer(d, d, quiet())
	want := model.BGPStatus{ASN: 65001, RouterID: netip.MustParseAddr("10.0.0.2"), Neighbors: []model.BGPNeighborStatus{{
		Address: netip.MustParseAddr("10.0.0.1"), ASN: 65000, State: model.SessionEstablished, Families: []model.BGPFamily{model.BGPIPv4},
		HoldTime: model.Duration(9 * time.Second)}},
		Routes: []model.RouteStatus{{Prefix: netip.MustParsePrefix("203.0.113.10/32"), Neighbors: 1,
			Attributes: model.BGPAttributes{Communities: []model.Community{model.GracefulShutdown}}}}}
	server.HandleBGP(func() model.BGPStatus { return want })
	got, err := serve(t, server).BGP(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
		t.Errorf("what the client reads (-want +got):\n%s", diff)
	}
}

func TestProblems(t *testing.T) {
	d := newDirector()
	d.err = errors.New("map services4: lookup: bad file descriptor")
	server := api.NewServer(d, d, quiet())
	for _, test := range []struct {
		method, path string
		want         *api.Problem
	}{
		{"GET", "/v1/status", &api.Problem{Title: "Internal Server Error", Status: 500,
			Detail: "read the datapath: map services4: lookup: bad file descriptor"}},
		{"GET", "/v1/flows", &api.Problem{Title: "Not Found", Status: 404, Detail: "there is nothing at /v1/flows"}},
		{"PUT", "/v1/config", &api.Problem{Title: "Method Not Allowed", Status: 405, Detail: "/v1/config is only for GET, HEAD"}},
	} {
		t.Run(test.method+" "+test.path, func(t *testing.T) {
			w := httptest.NewRecorder()
			server.Handler().ServeHTTP(w, httptest.NewRequest(test.method, test.path, nil))
			got := &api.Problem{}
			if err := json.NewDecoder(w.Body).Decode(got); err != nil {
				t.Fatal(err)
			}
			if !cmp.Equal(got, test.want) || w.Code != test.want.Status {
				t.Errorf("status %d, %+v, want %+v", w.Code, got, test.want)
			}
			if got := w.Header().Get("Content-Type"); got != "application/problem+json" {
				t.Errorf("content type %s is not RFC 9457's", got)
			}
		})
	}
}

func TestClientReturnsProblem(t *testing.T) {
	d := newDirector()
	d.err = errors.New("no such map")
	_, err := start(t, d).Status(t.Context())
	var problem *api.Problem
	if !errors.As(err, &problem) || problem.Status != 500 || err.Error() != "read the datapath: no such map" {
		t.Errorf("error %#v is not the server's problem", err)
	}
}

func TestClientWithoutDirector(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "director.sock")
	_, err := api.NewClient(socket).Status(t.Context())
	want := "nobody listens on " + socket + `: start "weir run" or "weir agent", or name its --socket (no such file or directory)`
	if err == nil || err.Error() != want {
		t.Errorf("error\n  %v\nwant\n  %s", err, want)
	}
}

func TestListenReplacesDeadSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "director.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false) // as a killed process would leave it
	dead.Close()
	listener, err := api.Listen(socket)
	if err != nil {
		t.Fatal("a dead process's socket stops the next one:", err)
	}
	defer listener.Close()
	info, err := os.Stat(socket)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o660 {
		t.Errorf("the socket's mode is %v, want 0660", info.Mode().Perm())
	}
}

func TestListenRefusesLiveSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "director.sock")
	live, err := api.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	_, err = api.Listen(socket)
	if !errors.Is(err, api.ErrRunning) || err.Error() != "another weir process is running: it answers on "+socket {
		t.Errorf("error %v, want one that says who has the socket", err)
	}
	if _, err := os.Stat(socket); err != nil {
		t.Error("the live socket is gone:", err)
	}
}

func TestListenLeavesOtherFilesAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notes.txt")
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := api.Listen(path); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Errorf("error %v, want one that says that this is no socket", err)
	}
	if data, _ := os.ReadFile(path); string(data) != "mine" {
		t.Error("the file was replaced")
	}
}

// TestSlowClient opens a connection and says nothing: others are still served.
func TestSlowClient(t *testing.T) {
	d := newDirector()
	socket := filepath.Join(t.TempDir(), "director.sock")
	listener, err := api.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- api.NewServer(d, d, quiet()).Serve(ctx, listener) }()
	silent, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	if _, err := io.WriteString(silent, "GET /v1/sta"); err != nil {
		t.Fatal(err)
	}
	if _, err := api.NewClient(socket).Status(t.Context()); err != nil {
		t.Error("a silent client stops others:", err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
