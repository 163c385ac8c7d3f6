package metrics_test

import (
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
}

func (d datapath) Status() (model.DatapathStatus, error) { return d.status, d.err }

func scrape(t *testing.T, d datapath) (code int, body string) {
	t.Helper()
	w := httptest.NewRecorder()
	metrics.Handler(d, func() model.BGPStatus { return told }, func() []model.BFDSessionStatus { return watched }).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Code, w.Body.String()
}

var busy = datapath{status: model.DatapathStatus{
	Reasons: []model.Counter{{Name: "pass_not_ip"}, {Name: "forward_ipip", Packets: 3, Bytes: 180}},
	Flows: model.FlowStatus{Remembered: 2, Events: []model.Tallied{{Name: "flow_inserted", Count: 5}, {Name: "flow_refused", Count: 1}},
		Told: []model.Tallied{{Name: "told_new", Count: 9}}},
	Peers: []model.PeerStatus{{Director: netip.MustParseAddr("10.0.0.3"), Tells: time.Unix(1, 0), Heard: 9, Told: 4, Slow: 2}},
	Hooks: []model.HookStatus{{Name: "cloud", Current: true, Calls: 5, Failures: 2}},
	QUIC:  []model.Tallied{{Name: "quic_found", Count: 7}, {Name: "quic_other"}},
	Left:  []model.Tallied{{Name: "drained", Count: 4}, {Name: "max_drain"}},
	Services: []model.ServiceStatus{{Name: "web", Log: model.LogStatus{
		Generations: 2, Oldest: time.UnixMilli(1767323100500), Moved: 204, MovedTotal: 545, Shared: 340, Held: 1, Kept: 25},
		Health: &model.ServiceHealth{Kind: model.CheckTCP, Up: 1, Down: 2, Unknown: 3, Panic: true},
		Backends: []model.BackendStatus{{Name: "a", Health: &model.BackendHealth{State: model.HealthUp}}, {Name: "b", Health: &model.BackendHealth{State: model.HealthDown}},
			{Name: "c", Health: &model.BackendHealth{State: model.HealthUnknown}}, {Name: "d", Strain: &model.BackendStrain{Parts: 6, Overflows: 12.5}}}}},
	Probes: []model.Tallied{{Name: "ok", Count: 9}, {Name: "refused"}}, CheckPackets: []model.Tallied{{Name: "check_sent", Count: 90}},
	Neighbor: model.NeighborStatus{Director: netip.MustParseAddr("10.0.0.2"), Lease: model.LeaseHeld, Taken: 3, Lost: 1,
		Interfaces: []model.NeighborInterfaceStatus{{Name: "eth0", Announced: 12, Answered: 7, Conflicts: 1}},
		VIPs:       []model.NeighborVIP{{State: model.NeighborAnswers}, {State: model.NeighborAnswers}, {State: model.NeighborOther}}},
	Agents: model.ReporterStatus{Reporting: 3, Silent: 1},
	CPUs:   []model.CPUStatus{{CPU: 0, Utilization: 0.25, Busy: 0.5, Fullness: 0.125}, {CPU: 3}},
}}

var told = model.BGPStatus{Neighbors: []model.BGPNeighborStatus{
	{Address: netip.MustParseAddr("10.0.0.1"), State: model.SessionEstablished, Announced: 2, Losses: 3},
	{Address: netip.MustParseAddr("2001:db8::1"), State: model.SessionConnecting},
}}

var watched = []model.BFDSessionStatus{
	{Neighbor: netip.MustParseAddr("10.0.0.1"), Source: netip.MustParseAddr("10.0.0.2"), State: "up", Losses: 2},
	{Neighbor: netip.MustParseAddr("10.0.0.1"), Multihop: true, State: "down"},
}

func TestScrape(t *testing.T) {
	code, body := scrape(t, busy)
	if code != 200 {
		t.Fatalf("answers %d: %s", code, body)
	}
	want := `# HELP weir_agents Backends whose agents report their connections to the group, and those that did and are silent for more than a minute.
# TYPE weir_agents gauge
weir_agents{state="reporting"} 3
weir_agents{state="silent"} 1
# HELP weir_backend_strain Connections in a second that the backend's host refuses, or has no room for in the accept queue, by its agent's last report: of services with health.passive, where there are any.
# TYPE weir_backend_strain gauge
weir_backend_strain{backend="d",service="web",sign="overflows"} 12.5
weir_backend_strain{backend="d",service="web",sign="refused"} 0
# HELP weir_backend_strained_share What part of its share the backend keeps, of those that are strained.
# TYPE weir_backend_strained_share gauge
weir_backend_strained_share{backend="d",service="web"} 0.75
# HELP weir_backend_up Whether the director's probes find the backend healthy. Backends that are not checked, or not yet, have none.
# TYPE weir_backend_up gauge
weir_backend_up{backend="a",service="web"} 1
weir_backend_up{backend="b",service="web"} 0
# HELP weir_bfd_session_up Whether the BFD session is up: 1 or 0.
# TYPE weir_bfd_session_up gauge
weir_bfd_session_up{hops="one",neighbor="10.0.0.1",source="10.0.0.2"} 1
weir_bfd_session_up{hops="several",neighbor="10.0.0.1",source=""} 0
# HELP weir_bfd_sessions_lost_total How often the BFD session was lost by a failure, since weir bfd started.
# TYPE weir_bfd_sessions_lost_total counter
weir_bfd_sessions_lost_total{hops="one",neighbor="10.0.0.1",source="10.0.0.2"} 2
weir_bfd_sessions_lost_total{hops="several",neighbor="10.0.0.1",source=""} 0
# HELP weir_bgp_routes_announced Routes that the neighbor has been told.
# TYPE weir_bgp_routes_announced gauge
weir_bgp_routes_announced{neighbor="10.0.0.1"} 2
weir_bgp_routes_announced{neighbor="2001:db8::1"} 0
# HELP weir_bgp_session_up Whether there is a BGP session with the neighbor: 1 or 0.
# TYPE weir_bgp_session_up gauge
weir_bgp_session_up{neighbor="10.0.0.1"} 1
weir_bgp_session_up{neighbor="2001:db8::1"} 0
# HELP weir_bgp_sessions_lost_total Sessions with the neighbor that have ended, since the director started.
# TYPE weir_bgp_sessions_lost_total counter
weir_bgp_sessions_lost_total{neighbor="10.0.0.1"} 3
weir_bgp_sessions_lost_total{neighbor="2001:db8::1"} 0
# HELP weir_bytes_total Bytes of their IP packets, as they came in.
# TYPE weir_bytes_total counter
weir_bytes_total{reason="forward_ipip"} 180
weir_bytes_total{reason="pass_not_ip"} 0
# HELP weir_datapath_utilization Share of the CPU's capacity for packets that was in use in the last 10 seconds, 0 to 1.
# TYPE weir_datapath_utilization gauge
weir_datapath_utilization{cpu="0"} 0.25
weir_datapath_utilization{cpu="3"} 0
# HELP weir_flow_memory_events_total What has happened to flow memory: flows inserted, refused for want of a place, moved to another CPU, not told to the group at once.
# TYPE weir_flow_memory_events_total counter
weir_flow_memory_events_total{event="flow_inserted"} 5
weir_flow_memory_events_total{event="flow_refused"} 1
# HELP weir_flows_remembered Flows whose backend the director remembers.
# TYPE weir_flows_remembered gauge
weir_flows_remembered 2
# HELP weir_flows_told_total Flows that other directors have told, by what became of them.
# TYPE weir_flows_told_total counter
weir_flows_told_total{outcome="told_new"} 9
# HELP weir_generations_left_total Generations that have left their service's log, by why. In a group each is counted by one director.
# TYPE weir_generations_left_total counter
weir_generations_left_total{cause="drained"} 4
weir_generations_left_total{cause="max_drain"} 0
# HELP weir_health_packets_total Packets of probes that take the way of clients' packets, by what has become of them.
# TYPE weir_health_packets_total counter
weir_health_packets_total{verdict="check_sent"} 90
# HELP weir_health_probes_total Probes of backends' health, by what they said: ok, or why not.
# TYPE weir_health_probes_total counter
weir_health_probes_total{result="ok"} 9
weir_health_probes_total{result="refused"} 0
# HELP weir_hook_calls_total Calls of the hook that have ended, since the director started, by their result: ok, failed.
# TYPE weir_hook_calls_total counter
weir_hook_calls_total{hook="cloud",result="failed"} 2
weir_hook_calls_total{hook="cloud",result="ok"} 3
# HELP weir_hook_current Whether the hook has taken which VIPs are up now: 1 or 0.
# TYPE weir_hook_current gauge
weir_hook_current{hook="cloud"} 1
# HELP weir_neighbor_frames_total Frames of ARP and NDP about VIPs, by what they were: announced, answered, limited (not answered, there were too many), conflict (of another host that claims a VIP).
# TYPE weir_neighbor_frames_total counter
weir_neighbor_frames_total{interface="eth0",kind="announced"} 12
weir_neighbor_frames_total{interface="eth0",kind="answered"} 7
weir_neighbor_frames_total{interface="eth0",kind="conflict"} 1
weir_neighbor_frames_total{interface="eth0",kind="limited"} 0
# HELP weir_neighbor_lease_held Whether this director has the lease that it answers by, in a group: 1 or 0.
# TYPE weir_neighbor_lease_held gauge
weir_neighbor_lease_held 1
# HELP weir_neighbor_moves_total VIPs that this director began to answer for, and ceased to, by direction: taken, lost.
# TYPE weir_neighbor_moves_total counter
weir_neighbor_moves_total{direction="lost"} 1
weir_neighbor_moves_total{direction="taken"} 3
# HELP weir_neighbor_vips VIPs for which somebody is to answer by ARP and NDP, by who does: answers (this director), other, nobody.
# TYPE weir_neighbor_vips gauge
weir_neighbor_vips{state="answers"} 2
weir_neighbor_vips{state="nobody"} 0
weir_neighbor_vips{state="other"} 1
# HELP weir_packets_total Packets that came in on the director's interfaces, by what became of them.
# TYPE weir_packets_total counter
weir_packets_total{reason="forward_ipip"} 3
weir_packets_total{reason="pass_not_ip"} 0
# HELP weir_peer_connected Whether what another director remembers is heard, and whether it is told what this one does.
# TYPE weir_peer_connected gauge
weir_peer_connected{direction="heard",director="10.0.0.3"} 1
weir_peer_connected{direction="told",director="10.0.0.3"} 0
# HELP weir_peer_flows_total Flows that went between this director and another one, by direction: heard, told.
# TYPE weir_peer_flows_total counter
weir_peer_flows_total{direction="heard",director="10.0.0.3"} 9
weir_peer_flows_total{direction="told",director="10.0.0.3"} 4
# HELP weir_peer_problems_total How often a director was too slow to be told what is new, and how often it could not be understood.
# TYPE weir_peer_problems_total counter
weir_peer_problems_total{director="10.0.0.3",problem="garbage"} 0
weir_peer_problems_total{director="10.0.0.3",problem="slow"} 2
# HELP weir_peer_strangers_total Connections of those who wanted to be told of flows, and were no directors of the group.
# TYPE weir_peer_strangers_total counter
weir_peer_strangers_total 0
# HELP weir_quic_packets_total Packets of services with quic, by what their connection IDs said: found, unknown, down, other.
# TYPE weir_quic_packets_total counter
weir_quic_packets_total{event="quic_found"} 7
weir_quic_packets_total{event="quic_other"} 0
# HELP weir_service_backends Backends of the service that would get connections if they were healthy, by what the director's probes say: up, down, unknown.
# TYPE weir_service_backends gauge
weir_service_backends{health="down",service="web"} 2
weir_service_backends{health="unknown",service="web"} 3
weir_service_backends{health="up",service="web"} 1
# HELP weir_service_generations Generations in the service's log: versions of its membership that connections may still need.
# TYPE weir_service_generations gauge
weir_service_generations{service="web"} 2
# HELP weir_service_oldest_generation_timestamp_seconds When the oldest of them became the newest.
# TYPE weir_service_oldest_generation_timestamp_seconds gauge
weir_service_oldest_generation_timestamp_seconds{service="web"} 1.7673231005e+09
# HELP weir_service_panic 1 while so few of the service's backends are healthy that all of them are used.
# TYPE weir_service_panic gauge
weir_service_panic{service="web"} 1
# HELP weir_service_slots_held Slots of the service that keep an older owner until their rows have room.
# TYPE weir_service_slots_held gauge
weir_service_slots_held{service="web"} 1
# HELP weir_service_slots_kept Slots of older generations in which agents report connections, or do not say that there are none.
# TYPE weir_service_slots_kept gauge
weir_service_slots_kept{service="web"} 25
# HELP weir_service_slots_moved_total Slots of the service that got another owner, since the director started.
# TYPE weir_service_slots_moved_total counter
weir_service_slots_moved_total{service="web"} 545
# HELP weir_service_slots_shared Slots of the service that may have connections of several backends.
# TYPE weir_service_slots_shared gauge
weir_service_slots_shared{service="web"} 340
`
	if diff := cmp.Diff(want, weirs(body)); diff != "" {
		t.Errorf("scrape (-want +got):\n%s", diff)
	}
}

// weirs is what of a scrape is not about the process, whose values differ each time.
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

// What the process takes is there by the names that all programs have for it.
func TestProcess(t *testing.T) {
	_, body := scrape(t, busy)
	for _, name := range []string{"go_goroutines", "go_gc_heap_live_bytes", "process_resident_memory_bytes", "process_open_fds", "process_cpu_seconds_total"} {
		if !strings.Contains(body, "\n"+name+" ") {
			t.Errorf("there is no %s", name)
		}
	}
}

// Where the kernel does not let CPUs be watched, the metric is absent rather than 0.
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

// Prometheus's own linter has nothing to say about the names, and neither has
// promtool where it is installed.
func TestLint(t *testing.T) {
	_, body := scrape(t, busy)
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		return
	}
	cmd := exec.Command(promtool, "check", "metrics")
	cmd.Stdin = strings.NewReader(body)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}
