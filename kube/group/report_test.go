package group

import (
	"fmt"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// What a director reports is read as it was written, has room in its Lease however much there is, and
// garbage is no report.
func TestReports(t *testing.T) {
	r := Report{Problems: []Problem{{"no link", model.Segment{Kind: model.SegmentVLAN, ID: 7}}}, Services: map[string]ServiceReport{"a": {Down: map[string]string{"m": "no answer"}, Unknown: []string{"n"}, Checked: true}, "b": {}}}
	read, err := ReadReport(r.String())
	if err != nil || fmt.Sprint(read) != fmt.Sprint(r) {
		t.Errorf("%v is read as %v, %v", r, read, err)
	}
	if text := (Report{}).String(); text != "" {
		t.Errorf("nothing to report is %q", text)
	}
	c := Counts{Services: map[string]Count{"a": {1, 2, 3, 4}}, Load: Load{Utilization: 0.25, Used: 0.5}}
	if read, err := ReadCounts(c.String()); err != nil || fmt.Sprint(read) != fmt.Sprint(c) {
		t.Errorf("%v is read as %v, %v", c, read, err)
	}
	many, counts := Report{Services: map[string]ServiceReport{}}, Counts{Services: map[string]Count{}}
	for i := range 40000 {
		name := fmt.Sprintf("loadbalancer/ns-%d/web-%d/http/10.%d.%d.1", i*7919%40000, i, i%250, i/250)
		many.Services[name], counts.Services[name] = ServiceReport{Down: map[string]string{fmt.Sprint("member-", i*104729): "x"}}, Count{uint64(i) * 7919 * 104729, uint64(i) * 104729, uint64(i), 0}
	}
	text := many.String()
	if read, err = ReadReport(text); err != nil || len(text) > MostReport || len(read.Services) == 0 || read.Missing+len(read.Services) != 40000 {
		t.Errorf("of 40000 services %d are in %d bytes, %d are missing, %v", len(read.Services), len(text), read.Missing, err)
	}
	if text := counts.String(); len(text) > MostReport {
		t.Errorf("counts of 40000 services have %d bytes", len(text))
	}
	for _, bad := range []string{"x", "AAAA", strings.Repeat("A", MostReport+1), packed("text")} {
		if r, err := ReadReport(bad); err == nil {
			t.Errorf("%.10q is read as %v", bad, r)
		}
	}
	if c, err := ReadCounts(packed(map[string]any{"load": map[string]any{"utilization": 1e9, "used": -3}})); err != nil || c.Load != (Load{1, 0}) {
		t.Errorf("shares that are none are read as %v, %v", c.Load, err)
	}
}
