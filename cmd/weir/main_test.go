package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

var update = flag.Bool("update", false, "write the transcripts in testdata as they are now")

// asWeir makes the test binary the program, for tests that need a process.
const asWeir = "WEIR_TEST_RUN"

func TestMain(m *testing.M) {
	if name := os.Getenv(asStranger); name != "" {
		holdName(name)
	}
	if os.Getenv(asWeir) != "" {
		main()
	}
	os.Exit(m.Run())
}

// TestTranscripts runs the commands of testdata/*.txt: each line that begins with
// "$ weir" is one, and what follows it is what it must print.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no transcripts:", err)
	}
	socket, agentSocket := serveFakes(t)
	speaker := serveFakeBFD(t)
	names := strings.NewReplacer("DIRECTOR", socket, "AGENT", agentSocket, "SPEAKER", speaker)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			for line := range strings.Lines(string(want)) {
				command, is := strings.CutPrefix(line, "$ weir")
				if !is {
					continue
				}
				got.WriteString(line)
				var out bytes.Buffer
				args := strings.Fields(names.Replace(command))
				if code := execute(t.Context(), args, &out, &out); code != 0 {
					fmt.Fprintf(&out, "(exit status %d)\n", code)
				}
				text := strings.NewReplacer(socket, "DIRECTOR", agentSocket, "AGENT", speaker, "SPEAKER").Replace(out.String())
				got.WriteString(text)
			}
			if *update {
				if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("the transcript differs (-want +got):\n%s", diff)
			}
		})
	}
}

// The fakes stand for a director and an agent.
type fakeDirector struct{}

func (fakeDirector) Status() (model.DatapathStatus, error) {
	var defaults model.Config
	defaults.SetDefaults()
	return model.DatapathStatus{
		Limits:     defaults.Director.Limits,
		Interfaces: []model.InterfaceStatus{{Name: "eth0", Index: 2, XDP: "native", MTU: 1500}},
		Reasons: []model.Counter{
			{Name: "pass_not_ip"}, {Name: "forward_ipip", Packets: 120, Bytes: 64000}, {Name: "drop_no_backend", Packets: 3, Bytes: 180}},
		RingMemory: 16512,
		NAT:        &model.NATStatus{Flows: 9, Fresh: 4, Places: 4096},
		FanOut:     &model.FanOutStatus{CPUs: []uint32{2, 3}, Given: 5000, Taken: 4900, Dropped: 100},
		Steering: &model.SteeringStatus{Flows: 1200, Most: 2000, Packets: 48_000_000, Elsewhere: 2, Interfaces: []model.SteeredInterface{
			{Name: "eth0", Works: true, Rules: 1200, Room: 8192, Others: 3, Inserted: 1500, Deleted: 290, Refused: 2, Lost: 10, Queues: []model.SteeredQueue{{Queue: 8, Service: "web", Flows: 1200}}},
			{Name: "eth1", Problem: "no flow is steered: eth1: read the flow table: the driver has no flow table (ntuple filters)", Queues: []model.SteeredQueue{}},
		}},
		Flows: model.FlowStatus{Remembered: 21, Settling: 7, Events: []model.Tallied{
			{Name: "flow_inserted", Count: 40}, {Name: "flow_refused", Count: 2}, {Name: "flow_moved"}},
			Imported: []model.Tallied{{Name: "told_new", Count: 30}, {Name: "told_older"}}},
		Peers: []model.PeerStatus{
			{Director: netip.MustParseAddr("10.0.0.3"), Shares: time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC), Listens: time.Date(2026, 1, 2, 3, 4, 7, 0, time.UTC), Heard: 30, Shared: 12, Everything: 1},
			{Director: netip.MustParseAddr("10.0.0.4"), Heard: 3, Problem: "dial tcp 10.0.0.4:6082: connect: connection refused"}},
		Hooks: []model.HookStatus{
			{Name: "cloud-route", Current: true, Up: 3, Calls: 4, Failures: 1, Took: time.Date(2026, 1, 2, 3, 4, 8, 0, time.UTC), Duration: model.Duration(250 * time.Millisecond)},
			{Name: "pager", Up: 3, Calls: 7, Failures: 7, NextTry: time.Date(2026, 1, 2, 3, 5, 0, 0, time.UTC), Problem: "503 Service Unavailable: try later"}},
		Neighbor:    fakeNeighbor,
		HostSources: fakeSources(),
		OVN: &model.OVNStatus{Endpoint: "tcp:192.0.2.5:6642", Since: time.Date(2026, 1, 2, 4, 4, 5, 0, time.UTC), Problem: "tcp:192.0.2.5:6642: connection refused", Known: true, Networks: 2, Ports: 5,
			Chassis: "weir-lb1", Registered: true},
		Capture: model.CaptureStatus{Begun: 3, CaptureCounts: model.CaptureCounts{Matched: 120, Limited: 7, Lost: 2}, Running: &model.CaptureRunning{Client: "ops",
			Since: time.Date(2026, 1, 2, 3, 5, 0, 0, time.UTC), Wanted: model.Capture{Service: "web", Duration: model.CaptureDuration, Packets: model.CapturePackets}}},
		Asks:   []model.Tallied{{Name: "ask_asked", Count: 12}, {Name: "ask_again"}, {Name: "ask_not_taken", Count: 2}},
		QUIC:   []model.Tallied{{Name: "quic_found", Count: 90}, {Name: "quic_unknown"}, {Name: "quic_down"}, {Name: "quic_other", Count: 11}},
		Left:   []model.Tallied{{Name: "drained", Count: 4}, {Name: "max_drain", Count: 1}, {Name: "gone"}},
		Agents: model.ReporterStatus{Reporting: 2, Silent: 1},
		Loads: &model.LoadStatus{Listens: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.2:6085")}, Agents: 2,
			Messages: []model.Tallied{{Name: "taken", Count: 1200}, {Name: "forged"}, {Name: "old_epoch", Count: 2}}},
		Probes: []model.Tallied{{Name: "ok", Count: 118}, {Name: "refused"}, {Name: "status", Count: 55}},
		CPUs:   []model.CPUStatus{{CPU: 0, Utilization: 0.1234, Busy: 0.4, Fullness: 0.0625}, {CPU: 1}},
		Services: []model.ServiceStatus{{
			Name: "web", VIP: netip.MustParseAddr("203.0.113.10"), Protocol: model.TCP,
			Loads: &model.ServiceLoads{Reported: 1, Stale: 2, Degraded: true, Degradations: 1},
			Port:  model.PortRange{First: 443, Last: 443}, Slots: 1021, Packets: 120, Bytes: 64000,
			Log:    model.LogStatus{Generations: 2, Oldest: time.Date(2026, 1, 2, 3, 5, 0, 0, time.UTC), Waits: true, Moved: 204, MovedTotal: 545, Shared: 340, Held: 1, Kept: 12},
			Health: &model.ServiceHealth{Kind: model.CheckHTTP, Up: 1, Down: 1, Panic: true},
			Backends: []model.BackendStatus{
				{Name: "a", Address: netip.MustParseAddr("10.0.1.1"), Mode: model.IPIP, State: model.Active, Interface: "eth1",
					Load:    &model.BackendLoad{Connections: 310, Queue: 12, Pressure: 0.25},
					NextHop: model.MAC{2, 0, 0, 0, 1, 1}, MTU: 1500, Slots: 681, Share: new(1.0), Packets: 80, Bytes: 42000,
					Health: &model.BackendHealth{Kind: model.CheckHTTP, State: model.HealthUp, Since: time.Date(2026, 1, 2, 3, 4, 7, 0, time.UTC),
						Probed: time.Date(2026, 1, 2, 3, 6, 0, 0, time.UTC), Took: model.Duration(850 * time.Microsecond)}},
				{Name: "b", Address: netip.MustParseAddr("10.0.1.2"), Mode: model.IPIP, State: model.Down, Interface: "eth1",
					MTU: 1500, Slots: 340, Share: new(0.0), Packets: 40, Bytes: 22000, Port: 8080,
					Health: &model.BackendHealth{Kind: model.CheckHTTP, State: model.HealthDown, Since: time.Date(2026, 1, 2, 3, 5, 7, 0, time.UTC),
						Probed: time.Date(2026, 1, 2, 3, 6, 0, 0, time.UTC), Took: model.Duration(time.Millisecond),
						Reason: "status", Detail: "GET / was answered with 500 Internal Server Error"}},
				{Name: "here", Address: netip.MustParseAddr("10.0.0.1"), Mode: model.L2DSR, State: model.Draining, Local: true, MTU: 65535, Share: new(0.0)},
			},
		}, {
			Name: "dns", Segment: model.Segment{Kind: model.SegmentVLAN, ID: 7}, VIP: netip.MustParseAddr("2001:db8::53"),
			Protocol: model.UDP, Dropped: 3,
			QUIC: []model.QUICStatus{{Encryption: model.Plaintext, ServerIDLength: 3, NonceLength: 5},
				{ID: 6, Encryption: model.SinglePass, ServerIDLength: 4, NonceLength: 12}},
		}},
	}, nil
}

func (fakeDirector) Config() model.Config {
	c := model.Config{Director: model.Director{Interfaces: []string{"eth0"}}}
	c.SetDefaults()
	return c
}

func (fakeDirector) Info() api.Info {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return api.Info{Version: "v1.2.3", Host: "lb1", PID: 7, Started: at, Pin: "/sys/fs/bpf/weir", File: "/etc/weir/weir.yaml", Applied: at.Add(time.Minute), Changed: at.Add(2 * time.Minute),
		Refused: "/etc/weir/weir.yaml:3: service: unknown key", Revision: 12,
		Problems: []model.Problem{
			{Kind: model.ProblemFile, Part: "/etc/weir/weir.yaml", Severity: model.SeverityError, Text: "/etc/weir/weir.yaml:3: service: unknown key",
				Place: model.Place{File: "/etc/weir/weir.yaml", Line: 3, Field: "service"}, Since: at.Add(2 * time.Minute)},
			{Kind: model.ProblemRestart, Part: "director.limits", Severity: model.SeverityWarning, Text: "director.limits is another than when the process started",
				Fix: "start it again: then the change takes effect", Since: at.Add(time.Minute)}}}
}

type fakeAgent struct{ fakeDirector }

func (fakeAgent) Status() (model.AgentStatus, error) {
	vip := netip.MustParseAddr("203.0.113.10")
	return model.AgentStatus{
		Loads:      &model.AgentLoads{Directors: 3, Known: 2, Interval: model.Duration(50 * time.Millisecond), Sent: 4000, Failed: 2},
		Interfaces: []model.AgentInterface{{Name: "eth0", Index: 2, Ingress: "tcx", Egress: "tcx", MTU: 1500, NoXDP: "the driver has no XDP"}},
		VIPs:       []netip.Addr{vip},
		Reasons:    []model.Counter{{Name: "unwrap_ipip", Packets: 80, Bytes: 42000}},
		Services: []model.AgentService{{Name: "web", VIP: vip, Protocol: model.TCP, Port: model.PortRange{First: 443, Last: 443},
			MSS: 1440, Packets: 80, Bytes: 42000}},
		Redirects: []model.AgentRedirect{{Name: "search", VIP: netip.AddrPortFrom(vip, 80), Opened: 7, Connections: 2, SentPackets: 70, SentBytes: 7000, ReceivedPackets: 90, ReceivedBytes: 90000,
			Events: []model.Tallied{{Name: "asked", Count: 9}, {Name: "again", Count: 2}, {Name: "taken", Count: 7}, {Name: "unechoed"}}}},
	}, nil
}

func serveFakes(t *testing.T) (director, agent string) {
	t.Helper()
	dir := t.TempDir()
	director, agent = filepath.Join(dir, "director.sock"), filepath.Join(dir, "agent.sock")
	log := slog.New(slog.DiscardHandler)
	server := api.NewServer(fakeDirector{}, fakeDirector{}, log)
	server.HandleBGP(fakeBGP)
	server.HandleCapture(fakeCapture)
	server.HandleExplain(fakeExplain)
	server.HandleSets(fakeSets{})
	server.HandleDirectors(fakeDirectors)
	server.HandleFlows(fakeFlows)
	server.HandleSegments(fakeSegments{})
	serve(t, director, server)
	serve(t, agent, api.NewAgentServer(fakeAgent{}, fakeAgent{}, log))
	return director, agent
}

func serve(t *testing.T, socket string, server *api.Server) {
	t.Helper()
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
			t.Error(err)
		}
	})
}

// An error repeats a long argument in part, and both what is before it and what is behind it.
func TestErrorsRepeatNoLongArgument(t *testing.T) {
	long := strings.Repeat("a", 100_000)
	none := []string{"--socket", filepath.Join(t.TempDir(), "none.sock")}
	for _, test := range []struct {
		args        []string
		begins, end string
	}{
		{[]string{long}, `weir: unknown command "aaa`, `aaa" for "weir"`},
		{[]string{"run", "--" + long}, "weir: unknown flag: --aaa", "aaa (see weir run --help)"},
		{[]string{"run", "-c", long}, "weir: ", "file name too long"},
		{[]string{"services", "-o", long}, `weir: unknown output "aaa`, "aaa\" (one of json, table, wide, yaml)"},
		{[]string{"status", "--socket", long}, "weir: ", ""},
		{[]string{"check", long}, "weir: ", ""},
		{append([]string{"drain", long + "/"}, none...), `weir: "aaa`, `aaa/" is not SERVICE/BACKEND: one of both is empty`},
		{append([]string{"explain", "198.51.100.7:1", long}, none...), `weir: destination: "aaa`, "aaa/tcp)"},
		{append([]string{"flows", "--client", long}, none...), `weir: --client: "aaa`, "aaa\" is not an IP address"},
	} {
		var stdout, stderr bytes.Buffer
		execute(t.Context(), test.args, &stdout, &stderr)
		got := strings.TrimSuffix(stderr.String(), "\n")
		if !strings.HasPrefix(got, test.begins) || !strings.HasSuffix(got, test.end) || len(got) > mostLine+100 {
			t.Errorf("weir %.60s ends with %d bytes: %.200s", test.args, len(got), got)
		}
	}
}

func TestMistakes(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	bad := write("bad.yaml", "services:\n- name: web\n")
	agentOnly := write("agent.yaml", "services: []\n")
	for _, test := range []struct {
		args   []string
		status exitStatus
		want   string
	}{
		{[]string{"frobnicate"}, exitUsage, `weir: unknown command "frobnicate" for "weir"`},
		{[]string{"run", "--speed"}, exitUsage, "weir: unknown flag: --speed (see weir run --help)"},
		{[]string{"run", "now"}, exitUsage, `weir: unknown command "now" for "weir run"`},
		{[]string{"services", "-o", "xml"}, exitUsage, `weir: unknown output "xml" (one of json, table, wide, yaml)`},
		{[]string{"run", "--log-format", "xml"}, exitUsage, `weir: unknown log format "xml" (one of json, text)`},
		{[]string{"doctor", "--role", "client"}, exitUsage, `weir: unknown role "client" (one of agent, auto, director)`},
		{[]string{"run", "-c", dir + "/none.yaml"}, exitFailed, "weir: there is no " + dir + "/none.yaml; name one with -c"},
		{[]string{"agent", "-c", dir + "/none/weir.yaml"}, exitFailed, "weir: there is no " + dir + "/none/weir.yaml; name one with -c"},
		{[]string{"run", "-c", bad}, exitFailed, strings.Join([]string{
			"weir: " + bad + ":2: services[0].vip: is required (an IP address)",
			bad + ":2: services[0].protocol: is required (tcp, udp or sctp)",
			bad + ":2: services[0].port: is required (443, 8000-8100 or all)",
			bad + ":2: services[0].mode: is required (l2dsr, ipip, gue, nat or redirect)",
			bad + ":2: services[0].backends: is required (a list; an empty one is [])"}, "\n")},
		{[]string{"run", "-c", agentOnly}, exitFailed, "weir: " + agentOnly +
			": director.interfaces: is empty; name those that clients' packets come in by"},
		{[]string{"status", "--socket", dir + "/none.sock"}, exitUnreachable, "weir: nobody listens on " + dir +
			`/none.sock: start "weir run" or "weir agent", or name its --socket (no such file or directory)`},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := execute(t.Context(), test.args, &stdout, &stderr)
			if code != int(test.status) || stdout.Len() > 0 || stderr.String() != test.want+"\n" {
				t.Errorf("exit status %d, stdout %q, stderr\n%s\nwant %d, nothing and\n%s", code, &stdout, &stderr, test.status, test.want)
			}
		})
	}
}
