package metrics_test

import (
	"errors"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.io/weir/internal/metrics"
	"weir.io/weir/internal/model"
)

type agent struct {
	status model.AgentStatus
	err    error
}

func (a agent) Status() (model.AgentStatus, error) { return a.status, a.err }

func scrapeAgent(t *testing.T, a agent) (code int, body string) {
	t.Helper()
	w := httptest.NewRecorder()
	metrics.AgentHandler("v1.2.3", a, func() []model.Problem { return troubles }).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Code, w.Body.String()
}

var redirecting = agent{status: model.AgentStatus{
	Directors: []model.AgentDirector{{Director: "https://192.0.2.10:6083", Taken: 7}, {Director: "https://192.0.2.11:6083", Failed: 2, Problem: "away"}},
	Reasons:   []model.Counter{{Name: "decap_gue", Packets: 8, Bytes: 4200}},
	Services:  []model.AgentService{{Name: "web", Packets: 8, Bytes: 4200, NoPlace: 3}},
	Loads:     &model.AgentLoads{Directors: 3, Known: 2, Sent: 12, Failed: 1},
	Upkeep:    []model.Upkeep{{Part: "vips", Repairs: 4, Problems: []model.UpkeepProblem{{What: "192.0.2.10 on lo", State: model.UpkeepContested}}}, {Part: "sysctls"}},
	Redirects: []model.AgentRedirect{{Name: "search", VIP: netip.MustParseAddrPort("203.0.113.20:443"), Opened: 7, Connections: 2,
		SentPackets: 70, SentBytes: 7000, ReceivedPackets: 90, ReceivedBytes: 90000,
		Events: []model.Tallied{{Name: "asked", Count: 9}, {Name: "again", Count: 2}, {Name: "no_room", Count: 1}, {Name: "taken", Count: 7}, {Name: "unechoed"}}}},
}}

func TestScrapeAgent(t *testing.T) {
	code, body := scrapeAgent(t, redirecting)
	if code != 200 {
		t.Fatalf("answers %d: %s", code, body)
	}
	if diff := cmp.Diff(golden(t, "agent.txt", weirs(body)), weirs(body)); diff != "" {
		t.Errorf("scrape of an agent (-want +got):\n%s", diff)
	}
	if !strings.Contains(body, "\nprocess_open_fds ") {
		t.Error("it does not say what the process takes")
	}
	lint(t, body)
}

func TestUnreadableAgent(t *testing.T) {
	code, body := scrapeAgent(t, agent{err: errors.New("map redirect_events: bad file descriptor")})
	if code != 500 || !strings.Contains(body, "map redirect_events: bad file descriptor") {
		t.Errorf("when the kernel cannot be read it answers %d: %s", code, body)
	}
}
