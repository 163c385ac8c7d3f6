package metrics_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"weir.io/weir/internal/metrics"
	"weir.io/weir/internal/model"
)

type datapath struct {
	status model.DatapathStatus
	err    error
	only   []model.Segment // that the scrape is about; nil: all
}

func (d datapath) Status() (model.DatapathStatus, error) { return d.status, d.err }

func scrape(t *testing.T, d datapath) (code int, body string) {
	t.Helper()
	w := httptest.NewRecorder()
	metrics.Handler("v1.2.3", d, func() model.BGPStatus { return told }, func() *model.BFDStatus { return &watched }, func() []model.Problem { return troubles }, func(context.Context) []model.Segment { return d.only }).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Code, w.Body.String()
}

var troubles = []model.Problem{{Kind: model.ProblemSet, Severity: model.SeverityError}, {Kind: model.ProblemSet, Severity: model.SeverityError}, {Kind: model.ProblemBGP, Severity: model.SeverityWarning}}

var busy = datapath{status: model.DatapathStatus{
	Reasons: []model.Counter{{Name: "pass_not_ip"}, {Name: "forward_ipip", Packets: 3, Bytes: 180}},
	NAT:     &model.NATStatus{Flows: 9, Fresh: 4, Places: 4096},
	FanOut:  &model.FanOutStatus{CPUs: []uint32{2, 3}, Given: 5000, Taken: 4900, Dropped: 100},
	Steering: &model.SteeringStatus{Flows: 1200, Most: 2000, Packets: 48_000_000, Elsewhere: 2, Interfaces: []model.SteeredInterface{
		{Name: "eth0", Works: true, Rules: 1200, Room: 8192, Others: 3, Inserted: 1500, Deleted: 290, Refused: 2, Lost: 10, Queues: []model.SteeredQueue{{Queue: 8, Service: "web", Flows: 1200}}},
		{Name: "eth1", Problem: "no flow is steered: eth1: read the flow table: the driver has no flow table (ntuple filters)", Queues: []model.SteeredQueue{}},
	}},
	Flows: model.FlowStatus{Remembered: 2, Events: []model.Tallied{{Name: "flow_inserted", Count: 5}, {Name: "flow_refused", Count: 1}},
		Imported: []model.Tallied{{Name: "told_new", Count: 9}}},
	Peers: []model.PeerStatus{{Director: netip.MustParseAddr("10.0.0.3"), Shares: time.Unix(1, 0), Heard: 9, Shared: 4, Slow: 2}},
	Capture: model.CaptureStatus{Begun: 3, CaptureCounts: model.CaptureCounts{Matched: 120, Limited: 7, Lost: 2},
		Running: &model.CaptureRunning{Client: "ops"}},
	Hooks:   []model.HookStatus{{Name: "cloud", Current: true, Calls: 5, Failures: 2}},
	QUIC:    []model.Tallied{{Name: "quic_found", Count: 7}, {Name: "quic_other"}},
	Asks:    []model.Tallied{{Name: "ask_asked", Count: 8}, {Name: "ask_taken"}},
	Refused: []model.Tallied{{Name: "certificate", Count: 3}, {Name: "handshake"}},
	Left:    []model.Tallied{{Name: "drained", Count: 4}, {Name: "max_drain"}},
	Segments: []model.SegmentCounts{{Services: 1, Backends: 3, Packets: 40, Bytes: 4000, Opened: 4, Dropped: 2},
		{ID: model.Segment{Kind: model.SegmentVXLAN, ID: 5001}, Services: 2, Backends: 5, RingMemory: 8256, Probes: 5, Flows: 7, Packets: 90, Bytes: 9000, Opened: 9, Dropped: 1, Limited: 1,
			Limits: &model.SegmentLimits{ShareLimits: model.ShareLimits{Services: 3, RingMemory: 1 << 20, ProbesPerSecond: 500}}}},
	Services: []model.ServiceStatus{{Name: "web", Slots: 1021, Packets: 40, Bytes: 4000, Opened: 4, Dropped: 2, Log: model.LogStatus{
		Generations: 2, Oldest: time.UnixMilli(1767323100500), Moved: 204, MovedTotal: 545, Shared: 340, Held: 1, Kept: 25},
		Health: &model.ServiceHealth{Kind: model.CheckTCP, Up: 1, Down: 2, Unknown: 3, Panic: true},
		Tiers:  &model.ServiceTiers{Active: 1, Needs: 1, Tiers: []model.TierState{{Backends: 5}, {Tier: 1, Backends: 1, Healthy: 1}}},
		Loads:  &model.ServiceLoads{Reported: 1, Stale: 3, Degraded: true, Degradations: 2},
		Backends: []model.BackendStatus{{Name: "a", Slots: 512, Packets: 30, Bytes: 3000, Opened: 3, Health: &model.BackendHealth{State: model.HealthUp}, Load: &model.BackendLoad{Connections: 12, Queue: 5, Pressure: 0.25}}, {Name: "b", Health: &model.BackendHealth{State: model.HealthDown}, Load: &model.BackendLoad{Connections: 7, Stale: true}},
			{Name: "c", Health: &model.BackendHealth{State: model.HealthUnknown}, Redirect: &model.BackendRedirect{}}, {Name: "d", Strain: &model.BackendStrain{Parts: 6, Overflows: 12.5}, Redirect: &model.BackendRedirect{Able: true}}}}},
	Probes: []model.Tallied{{Name: "ok", Count: 9}, {Name: "refused"}}, CheckPackets: []model.Tallied{{Name: "check_sent", Count: 90}},
	RedirectProbes: []model.Tallied{{Name: "ok", Count: 6}, {Name: "unechoed", Count: 1}},
	Upkeep:         []model.Upkeep{{Part: "next-hops", Repairs: 2, Problems: []model.UpkeepProblem{{What: "10.0.1.11", State: model.UpkeepFailing}}}},
	Neighbor: model.NeighborStatus{Director: netip.MustParseAddr("10.0.0.2"), Lease: model.LeaseHeld, Taken: 3, Lost: 1,
		Interfaces: []model.NeighborInterfaceStatus{{Name: "eth0", Announced: 12, Answered: 7, Conflicts: 1},
			{Name: "eth0", Segment: model.Segment{Kind: model.SegmentVLAN, ID: 100}, Answered: 4}},
		VIPs: []model.NeighborVIP{{State: model.NeighborAnswers}, {State: model.NeighborAnswers}, {State: model.NeighborOther}}},
	HostSources: []model.HostSourceStatus{{Source: model.HostsOfAPI, Hosts: 3, Since: time.Unix(1767323100, 0)}, {Source: model.HostsOfOVN, Hosts: 40, Since: time.Unix(1767323160, 0), Lost: "refused"}},
	OVN:         &model.OVNStatus{Networks: 5, Ports: 60, Registered: true},
	Agents:      model.ReporterStatus{Reporting: 3, Silent: 1, Taken: 17, Refused: 2},
	Loads:       &model.LoadStatus{Agents: 2, Messages: []model.Tallied{{Name: "taken", Count: 90}, {Name: "forged", Count: 3}}},
	CPUs:        []model.CPUStatus{{CPU: 0, Utilization: 0.25, Busy: 0.5, Fullness: 0.125}, {CPU: 3}},
}}

var told = model.BGPStatus{Listen: []model.BGPListenerStatus{{Address: netip.MustParseAddr("10.0.0.2")}, {Address: netip.MustParseAddr("10.0.0.3"), Problem: "address already in use"}}, Neighbors: []model.BGPNeighborStatus{
	{Address: netip.MustParseAddr("10.0.0.1"), State: model.SessionEstablished, Announced: 2, Losses: 3,
		EVPN: &model.BGPEVPNStatus{Sent: 4, Received: 5, Stale: 1, Malformed: 2}},
	{Address: netip.MustParseAddr("2001:db8::1"), State: model.SessionConnecting},
	{Address: netip.MustParseAddr("10.0.0.1"), VRF: "red", State: model.SessionConnecting},
}}

var watched = model.BFDStatus{PID: 8, Discards: []model.Tallied{{Name: "ttl", Count: 3}, {Name: "doubted"}}, Sessions: []model.BFDSessionStatus{
	{Neighbor: netip.MustParseAddr("10.0.0.1"), Source: netip.MustParseAddr("10.0.0.2"), State: "up", Losses: 2},
	{Neighbor: netip.MustParseAddr("10.0.0.1"), Multihop: true, State: "down"},
	{Neighbor: netip.MustParseAddr("10.0.0.1"), VRF: "red", Multihop: true, State: "up"},
}}

func TestScrape(t *testing.T) {
	code, body := scrape(t, busy)
	if code != 200 {
		t.Fatalf("answers %d: %s", code, body)
	}
	want := golden(t, "scrape.txt", weirs(body))
	if diff := cmp.Diff(want, weirs(body)); diff != "" {
		t.Errorf("scrape (-want +got):\n%s", diff)
	}
}

// weirs is a scrape without the lines about the process, whose values differ each time.
func weirs(body string) string {
	var lines []string
	for line := range strings.Lines(body) {
		name := strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE ")
		if !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// The process's resources have the names that all programs use for them.
func TestProcess(t *testing.T) {
	_, body := scrape(t, busy)
	for _, name := range []string{"go_goroutines", "go_gc_heap_live_bytes", "process_resident_memory_bytes", "process_open_fds", "process_cpu_seconds_total"} {
		if !strings.Contains(body, "\n"+name+" ") {
			t.Errorf("there is no %s", name)
		}
	}
}

// If the kernel does not let CPUs be watched, the metric is absent rather than 0.
func TestNoUtilization(t *testing.T) {
	d := busy
	d.status.CPUs = nil
	code, body := scrape(t, d)
	if code != 200 || strings.Contains(body, "utilization") || !strings.Contains(body, "weir_packets_total") {
		t.Errorf("without utilization it answers %d:\n%s", code, body)
	}
}

func TestUnreadable(t *testing.T) {
	code, body := scrape(t, datapath{err: errors.New("map reasons: bad file descriptor")})
	if code != 500 || !strings.Contains(body, "map reasons: bad file descriptor") {
		t.Errorf("when the kernel cannot be read it answers %d: %s", code, body)
	}
}

// Neither Prometheus's own linter nor promtool complains about the names.
func TestLint(t *testing.T) {
	_, body := scrape(t, busy)
	lint(t, body)
}

func lint(t *testing.T, body string) {
	t.Helper()
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	cmd := exec.Command("promtool", "check", "metrics")
	cmd.Stdin = strings.NewReader(body)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

// A scrape by a client of one segment has its services, backends and problems, and nothing of others, of the
// director or of its host.
func TestScrapeOfSegments(t *testing.T) {
	red, blue := model.Segment{Kind: model.SegmentVXLAN, ID: 5001}, model.Segment{Kind: model.SegmentVXLAN, ID: 5002}
	d := busy
	service := func(name string, in model.Segment, backends ...model.BackendStatus) model.ServiceStatus {
		return model.ServiceStatus{Name: name, Segment: in, Packets: 7, Backends: backends}
	}
	d.status.Services = []model.ServiceStatus{service("red-web", red, model.BackendStatus{Name: "red-a", Segment: red}, model.BackendStatus{Name: "blue-b", Segment: blue}),
		service("blue-web", blue, model.BackendStatus{Name: "blue-a", Segment: blue}), service("public", model.Segment{}, model.BackendStatus{Name: "red-c", Segment: red})}
	d.status.Segments = []model.SegmentCounts{{Services: 1}, {ID: red, Services: 1}, {ID: blue, Services: 1}}
	d.only = []model.Segment{red}
	code, body := scrape(t, d)
	if code != 200 {
		t.Fatalf("answers %d: %s", code, body)
	}
	names := map[string]bool{}
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		name, _, _ := strings.Cut(line, "{")
		names[strings.Fields(name)[0]] = true
		if strings.Contains(line, "blue") || strings.Contains(line, "5002") || strings.Contains(line, "public") || strings.Contains(line, "none") {
			t.Errorf("it has %s", line)
		}
	}
	for name := range names {
		if !strings.HasPrefix(name, "weir_service_") && !strings.HasPrefix(name, "weir_backend") && !strings.HasPrefix(name, "weir_segment_") && name != "weir_build_info" && name != "weir_problems" {
			t.Errorf("it has %s", name)
		}
	}
	for _, want := range []string{`weir_service_packets_total{service="red-web"} 7`, `weir_backend_packets_total{backend="red-a",service="red-web"} 0`, `weir_segment_services{segment="vxlan:5001"} 1`} {
		if !strings.Contains(body, want) {
			t.Errorf("it has no %s", want)
		}
	}
}
