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
	metrics.Handler(d).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Code, w.Body.String()
}

var busy = datapath{status: model.DatapathStatus{
	Reasons: []model.Counter{{Name: "pass_not_ip"}, {Name: "forward_ipip", Packets: 3, Bytes: 180}},
	Flows: model.FlowStatus{Remembered: 2, Events: []model.Tallied{{Name: "flow_inserted", Count: 5}, {Name: "flow_refused", Count: 1}},
		Told: []model.Tallied{{Name: "told_new", Count: 9}}},
	Peers: []model.PeerStatus{{Director: netip.MustParseAddr("10.0.0.3"), Tells: time.Unix(1, 0), Heard: 9, Told: 4, Slow: 2}},
	QUIC:  []model.Tallied{{Name: "quic_found", Count: 7}, {Name: "quic_other"}},
	Left:  []model.Tallied{{Name: "drained", Count: 4}, {Name: "max_drain"}},
	Services: []model.ServiceStatus{{Name: "web", Log: model.LogStatus{
		Generations: 2, Oldest: time.UnixMilli(1767323100500), Moved: 204, MovedTotal: 545, Shared: 340, Held: 1, Kept: 25}}},
	Agents: model.ReporterStatus{Reporting: 3, Silent: 1},
	CPUs:   []model.CPUStatus{{CPU: 0, Utilization: 0.25, Busy: 0.5, Fullness: 0.125}, {CPU: 3}},
}}

func TestScrape(t *testing.T) {
	code, body := scrape(t, busy)
	if code != 200 {
		t.Fatalf("answers %d: %s", code, body)
	}
	want := `# HELP weir_agents Backends whose agents report their connections to the group, and those that did and are silent for more than a minute.
# TYPE weir_agents gauge
weir_agents{state="reporting"} 3
weir_agents{state="silent"} 1
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
# HELP weir_quic_packets_total Packets of services with quic, by what their connection IDs said: found, unknown, down, other.
# TYPE weir_quic_packets_total counter
weir_quic_packets_total{event="quic_found"} 7
weir_quic_packets_total{event="quic_other"} 0
# HELP weir_service_generations Generations in the service's log: versions of its membership that connections may still need.
# TYPE weir_service_generations gauge
weir_service_generations{service="web"} 2
# HELP weir_service_oldest_generation_timestamp_seconds When the oldest of them became the newest.
# TYPE weir_service_oldest_generation_timestamp_seconds gauge
weir_service_oldest_generation_timestamp_seconds{service="web"} 1.7673231005e+09
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
	if diff := cmp.Diff(want, body); diff != "" {
		t.Errorf("scrape (-want +got):\n%s", diff)
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
