package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.io/weir/lab/record"
)

var update = flag.Bool("update", false, "write the document in testdata as it is now")

// madeUp is a small record with everything that a document treats differently: lines
// and bars, one row and many, a reference that knows fewer conditions, a value that
// is missing, a scenario that broke.
func madeUp() *record.Record {
	r := &record.Record{
		Format: record.Format, Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Commit: "abc1234",
		Machine: record.Machine{CPU: "A Processor", Cores: 2, MemoryBytes: 8 << 30, Kernel: "6.18.0", Arch: "amd64",
			Go: "go1.26.0", JIT: true, Mitigations: map[string]string{"spectre_v2": "Mitigation: Retpolines"},
			Tools:     map[string]string{"nginx": "1.22.1", "iptables": "1.8.9"},
			Latencies: []record.Latency{{Bytes: 1 << 20, Nanoseconds: 9.25}, {Bytes: 64 << 20, Nanoseconds: 101.6}}},
		Settings:  record.Settings{Rounds: 3, Sample: time.Second},
		Scenarios: []record.Scenario{flowsMadeUp(), modesMadeUp(), memoryMadeUp()},
		Checks: []record.Check{
			{Name: "flat", What: "flatness", Value: 1.04, Relation: "<=", Target: 1.5, OK: true, Scenario: "flows", Quantity: "throughput"},
			{Name: "set_ms", What: "a set of services", Value: 612, Unit: "ms", Relation: "<=", Target: 500, Scenario: "memory", Quantity: "took"},
			{Name: "size", What: "the size", Value: 64, Unit: "B", Relation: "<=", Target: 50, Scenario: "memory", Quantity: "size"},
			{Name: "lost", Value: record.Number(math.NaN()), Relation: "<=", Target: 0, Note: "there is no lost of swap"},
			{Name: "cost", What: "dear to cheap", Value: -3, Relation: ">=", Target: 12, Note: "cost of l2dsr is not above 0 in 1 of 3 rounds"},
		},
	}
	return r
}

func rounds(s *record.Scenario, subject string, at record.Conditions, q record.Quantity, values ...float64) {
	for _, value := range values {
		s.Add(subject, at, q, value)
	}
}

func flowsMadeUp() record.Scenario {
	s := record.Scenario{Name: "flows", What: "time per packet by flows", Seconds: 3, Notes: []string{"One core."}}
	rounds(&s, "redirect", record.Conditions{"frame": "64"}, record.Throughput, 10e6, 10.2e6, 9.8e6)
	for i, flows := range []string{"1000000", "1", "1000"} {
		for j, family := range []string{"ipv4", "ipv6"} {
			at := record.Conditions{"frame": "64", "flows": flows, "family": family}
			less := float64(i)*2e5 + float64(j)*3e5
			rounds(&s, "l2dsr", at, record.Throughput, 8e6-less, 8.2e6-less, 7.9e6-less)
			rounds(&s, "iptables", at, record.Throughput, 0.8e6, 0.7e6, 0.75e6)
		}
	}
	return s
}

func modesMadeUp() record.Scenario {
	s := record.Scenario{Name: "modes", What: "Every mode.", Error: "ipip: a frame came to the wrong backend"}
	for i, mode := range []string{"l2dsr", "ipip", "gue", "nat"} {
		for _, family := range []string{"ipv4", "ipv6"} {
			cost := 20 + 5*float64(i)
			rounds(&s, mode, record.Conditions{"family": family}, record.Cost, cost, cost+1, cost+2)
		}
	}
	rounds(&s, "late", record.Conditions{"family": "ipv4"}, record.Cost, math.NaN())
	return s
}

func memoryMadeUp() record.Scenario {
	s := record.Scenario{Name: "memory", What: "Memory <of> everything | all."}
	size := record.Quantity{Name: "size", Unit: "B"}
	rounds(&s, "service", nil, size, 65536)
	rounds(&s, "backend", nil, size, 64)
	return s
}

var guideMadeUp = Guide{
	Remarks: map[string][]string{"flows": {"`-` was [left out](datapath.md).", "So was `x`."}, "memory": {"All of it."}},
	Reasons: map[string]string{"set_ms": "datapath.md#a-change", "lost": "datapath.md#loss"},
}

func document(t *testing.T, r *record.Record) *Document {
	t.Helper()
	d, err := New(r, guideMadeUp, "bench/results/"+r.FileName(), "docs/benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDocument(t *testing.T) {
	const golden = "testdata/benchmarks.md"
	d := document(t, madeUp())
	if *update {
		if err := os.WriteFile(golden, d.markdown, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(d.markdown)); diff != "" {
		t.Errorf("the document differs (-want +got):\n%s", diff)
	}
	for name := range d.figures {
		if !bytes.Contains(want, []byte("(benchmarks/"+name+")")) {
			t.Errorf("the document does not show %s", name)
		}
	}
}

var (
	within  = regexp.MustCompile(`\]\(#([^)]*)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
)

// The targets of a document's links within itself exist.
func TestLinksWithin(t *testing.T) {
	text := string(document(t, madeUp()).markdown)
	there := map[string]bool{}
	for _, h := range heading.FindAllStringSubmatch(text, -1) {
		there[anchor(h[1])] = true
	}
	links := within.FindAllStringSubmatch(text, -1)
	if len(links) == 0 {
		t.Error("no check leads to its table")
	}
	for _, link := range links {
		if !there[link[1]] {
			t.Errorf("#%s is no heading", link[1])
		}
	}
}

func TestReferencesAreExplained(t *testing.T) {
	for _, name := range record.References() {
		if !strings.Contains(method, "`"+name+"`") {
			t.Errorf("the method does not say what %s is", name)
		}
	}
}

func TestSameRecordSameBytes(t *testing.T) {
	a, b := document(t, madeUp()), document(t, madeUp())
	if !bytes.Equal(a.markdown, b.markdown) {
		t.Error("the document of the same record differs")
	}
	if !maps.EqualFunc(a.figures, b.figures, bytes.Equal) {
		t.Error("the figures of the same record differ")
	}
}

func TestFiguresAreImages(t *testing.T) {
	for name, data := range document(t, madeUp()).figures {
		decoder := xml.NewDecoder(bytes.NewReader(data))
		for {
			_, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s is not well-formed XML: %v", name, err)
			}
		}
		if len(data) > 40_000 {
			t.Errorf("%s has %d bytes, more than a repository wants", name, len(data))
		}
	}
}

func TestWriteRemovesOldFigures(t *testing.T) {
	path := filepath.Join(t.TempDir(), "docs", "benchmarks.md")
	if err := document(t, madeUp()).Write(path); err != nil {
		t.Fatal(err)
	}
	note := filepath.Join(filepath.Dir(path), "benchmarks", "note.txt")
	if err := os.WriteFile(note, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	less := madeUp()
	less.Scenarios = less.Scenarios[1:]
	if err := document(t, less).Write(path); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Dir(note) + "/*")
	if err != nil {
		t.Fatal(err)
	}
	for i := range files {
		files[i] = filepath.Base(files[i])
	}
	if want := []string{"modes-cost.svg", "note.txt"}; !slices.Equal(files, want) {
		t.Errorf("the directory of figures holds %v, want %v", files, want)
	}
}

func TestText(t *testing.T) {
	var text bytes.Buffer
	if err := Text(&text, madeUp()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"flows: time per packet by flows (3 s)\n", "8 Mpps (7.95 to 8.10)",
		"ended with an error: ipip", "MISSED             set_ms  612 ms", "not measured       lost    -",
		"too noisy to tell  cost    -3       >= 12      dear to cheap (cost of l2dsr is not above 0 in 1 of 3 rounds)",
		"Of the checks 1 of 5 are met, 2 are missed, 1 is too noisy to tell, 1 is not measured."} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the text does not say %q:\n%s", want, &text)
		}
	}
}
