package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// A segment that the director does not know is mistyped, and no command answers with nothing.
func TestUnknownSegments(t *testing.T) {
	socket, _ := serveFakes(t)
	asks := func(command ...string) (string, int) {
		var out bytes.Buffer
		code := execute(t.Context(), append(command, "--socket", socket), &out, &out)
		return out.String(), code
	}
	for _, command := range []string{"services", "backends", "segments", "capture", "top --once"} {
		out, code := asks(append(strings.Fields(command), "--segment", "vxlan:9999")...)
		if want := "this director knows no segment vxlan:9999: no service, backend or host of it is in that (see weir segments)"; code != int(exitFailed) || !strings.Contains(out, want) {
			t.Errorf("weir %s of an unknown segment ends with %d and says\n%s", command, code, out)
		}
		if out, code := asks(append(strings.Fields(command), "--segment", "vxlan:5001")...); code != 0 {
			t.Errorf("weir %s of a segment without anything ends with %d and says\n%s", command, code, out)
		}
	}
	file := filepath.Join(t.TempDir(), "hosts.yaml")
	for text, want := range map[string]string{
		"segments: [{id: 'vxlan:5001', hosts: [{address: 172.16.0.1, mac: '02:00:00:00:00:01', vtep: 192.0.2.11}]}]": "the director has 1 host in 1 segment from its API\n",
		"segments: [{id: 'vxlan:7777', hosts: []}]": "the director has 0 hosts in 1 segment from its API\nnamed nowhere else, so that nothing is sent there yet: vxlan:7777; is it mistyped?\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, code := asks("segments", "--file", file); code != 0 || out != want {
			t.Errorf("of %s weir segments ends with %d and says\n%s", text, code, out)
		}
		var out bytes.Buffer
		root := newRoot()
		root.SetArgs([]string{"segments", "--file", "-", "--socket", socket})
		root.SetIn(strings.NewReader(text))
		root.SetOut(&out)
		if err := root.Execute(); err != nil || out.String() != want {
			t.Errorf("of %s as standard input weir segments says %v\n%s", text, err, &out)
		}
	}
}

// Tenants may have the same addresses: where something is in a segment, the column is shown, and else with wide alone.
func TestColumnOfSegments(t *testing.T) {
	red := model.Segment{Kind: model.SegmentVXLAN, ID: 5001}
	for name, print := range map[string]func(*table, model.Segment){
		"services": func(t *table, in model.Segment) { servicesTable(t, []model.ServiceStatus{{}, {Segment: in}}) },
		"backends": func(t *table, in model.Segment) {
			backendsTable(t, []api.Backend{{}, {BackendStatus: model.BackendStatus{Segment: in}}})
		},
		"flows": func(t *table, in model.Segment) { flowsTable(t, api.Flows{Flows: []api.Flow{{}, {Segment: in}}}) },
	} {
		for _, test := range []struct {
			in    model.Segment
			wide  bool
			shown bool
		}{{red, false, true}, {model.Segment{}, false, false}, {model.Segment{}, true, true}} {
			var out bytes.Buffer
			printed := newTable(&out)
			printed.wide = test.wide
			print(printed, test.in)
			if err := printed.w.Flush(); err != nil {
				t.Fatal(err)
			}
			if head, _, _ := strings.Cut(out.String(), "\n"); strings.Contains(head, "SEGMENT") != test.shown {
				t.Errorf("with something in %s, wide: %v, the columns of %s are %q", test.in, test.wide, name, head)
			}
		}
	}
}
