package metrics_test

import (
	"fmt"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// TestMetricsOfBackendsAreBounded: whatever is configured, a scrape has at most 10,000 backends, of
// whole services, and says how many it leaves out.
func TestMetricsOfBackendsAreBounded(t *testing.T) {
	var d datapath
	for _, backends := range []int{6000, 4000, 1, 500} {
		s := model.ServiceStatus{Name: fmt.Sprint("of ", backends), Health: &model.ServiceHealth{}}
		for n := range backends {
			s.Backends = append(s.Backends, model.BackendStatus{Name: fmt.Sprint(n), Health: &model.BackendHealth{State: model.HealthUp}})
		}
		d.status.Services = append(d.status.Services, s)
	}
	code, body := scrape(t, d)
	if code != 200 {
		t.Fatalf("answers %d", code)
	}
	for text, want := range map[string]int{
		"\nweir_service_packets_total{": 4, "\nweir_backend_packets_total{": 10_000, "\nweir_backend_up{": 10_000, "\nweir_backends_without_metrics 501\n": 1,
	} {
		if got := strings.Count(body, text); got != want {
			t.Errorf("%d lines of %q, want %d", got, strings.TrimSpace(text), want)
		}
	}
}
