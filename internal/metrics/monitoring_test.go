package metrics_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const monitoring = "../../monitoring"

func promtool(t *testing.T, arguments ...string) {
	t.Helper()
	if out, err := exec.Command("promtool", arguments...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(arguments, " "), err, out)
	}
}

// TestAlerts: no rule fires while nothing is wrong, and each does when it is.
func TestAlerts(t *testing.T) {
	promtool(t, "check", "rules", filepath.Join(monitoring, "alerts.yml"))
	promtool(t, "test", "rules", filepath.Join(monitoring, "alerts_test.yml"))
	rules, tests := read(t, "alerts.yml"), read(t, "alerts_test.yml")
	for _, alert := range regexp.MustCompile(`(?m)^  - alert: (\w+)$`).FindAllStringSubmatch(rules, -1) {
		if !strings.Contains(tests, `alertname="`+alert[1]+`"`) {
			t.Errorf("no test makes %s fire", alert[1])
		}
	}
}

// TestDashboard: Prometheus understands the query of every panel of the dashboard.
func TestDashboard(t *testing.T) {
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, "grafana.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	// promtool reads only the expressions of rules.
	rules, n := strings.Builder{}, 0
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			n++
			expression := strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*", "$service", ".*").Replace(target.Expr)
			fmt.Fprintf(&rules, "  - {record: 'panel:%d', expr: '%s'} # %s\n", n, strings.ReplaceAll(expression, "'", "''"), panel.Title)
		}
	}
	if n < 20 {
		t.Errorf("the dashboard asks %d questions", n)
	}
	file := filepath.Join(t.TempDir(), "rules.yml")
	if err := os.WriteFile(file, []byte(rules.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", file)
}

// TestMonitoredMetrics: the metrics that alerts and the dashboard ask for exist.
func TestMonitoredMetrics(t *testing.T) {
	_, body := scrape(t, busy)
	_, ofAgent := scrapeAgent(t, redirecting)
	body += ofAgent
	for _, file := range []string{"alerts.yml", "alerts_test.yml", "grafana.json"} {
		for _, name := range regexp.MustCompile(`\bweir_\w+`).FindAllString(read(t, file), -1) {
			if !strings.Contains(body, "\n# TYPE "+name+" ") {
				t.Errorf("%s: there is no metric %s", file, name)
			}
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(monitoring, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
