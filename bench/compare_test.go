package main

import (
	"bytes"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/perf/benchfmt"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/record"
)

// recordOf is a record in which l2dsr and a reference take that long, a little longer in each round.
func recordOf(l2dsr, redirect float64) *record.Record {
	r := &record.Record{Format: record.Format, Scenarios: []record.Scenario{{Name: "flows"}}}
	for i := range 9 {
		noise := 1 + float64(i)/1000
		r.Scenarios[0].Add("l2dsr", record.Conditions{"flows": "1", "frame": "64"}, record.Cost, l2dsr*noise)
		r.Scenarios[0].Add("redirect", record.Conditions{"frame": "64"}, record.Cost, redirect*noise)
	}
	return r
}

// benchstat tells what got slower. If the machine did, the ratio to the reference stays.
func TestCompare(t *testing.T) {
	for _, test := range []struct {
		name      string
		new       *record.Record
		says, not string
	}{
		{"slower", recordOf(110, 10), "+10.00%", ""},
		{"the machine is slower", recordOf(200, 20), "+100.00%", ""},
		{"the same", recordOf(100, 10), "~ (p=1.000 n=9)", "%"},
	} {
		paths := []string{filepath.Join(t.TempDir(), "old.json"), filepath.Join(t.TempDir(), "new.json")}
		for i, r := range []*record.Record{recordOf(100, 10), test.new} {
			if err := r.Write(paths[i]); err != nil {
				t.Fatal(err)
			}
		}
		var out bytes.Buffer
		if code := execute(t.Context(), []string{"compare", paths[0], paths[1], "--", "-filter", "/subject:l2dsr .unit:cost-sec"}, &out, &out); code != 0 {
			t.Fatalf("%s: exit status %d: %s", test.name, code, &out)
		}
		changes := out.String()
		if !strings.Contains(changes, test.says) || test.not != "" && strings.Contains(changes, "+"+test.not) {
			t.Errorf("%s: benchstat does not say %q: %s", test.name, test.says, changes)
		}
		var ratios bytes.Buffer
		if code := execute(t.Context(), []string{"compare", paths[0], paths[1], "--", "-filter", ".unit:cost-vs-redirect"}, &ratios, &ratios); code != 0 {
			t.Fatalf("%s: exit status %d: %s", test.name, code, &ratios)
		}
		if changed := strings.Contains(ratios.String(), "+10.00%"); changed != (test.name == "slower") {
			t.Errorf("%s: of the ratios benchstat says: %s", test.name, &ratios)
		}
	}
}

// Every value is a line of its own, unless it is missing; names have no spaces.
func TestWriteRounds(t *testing.T) {
	r := &record.Record{Scenarios: []record.Scenario{{Name: "churn"}}}
	for _, value := range []float64{1, math.NaN(), 3} {
		r.Scenarios[0].Add("redirect round-robin", record.Conditions{"swaps": "10/s"}, record.Quantity{Name: "lost", Unit: "1"}, value)
	}
	var text bytes.Buffer
	if err := writeRounds(&text, r); err != nil {
		t.Fatal(err)
	}
	var got []float64
	for reader := benchfmt.NewReader(&text, "record"); reader.Scan(); {
		line, is := reader.Result().(*benchfmt.Result)
		if !is || string(line.Name) != "churn/subject=redirect_round-robin/swaps=10/s" || line.Values[0].Unit != "lost" {
			t.Fatalf("read %+v", reader.Result())
		}
		got = append(got, line.Values[0].Value)
	}
	if len(got) != 2 || got[0] != 1 || got[1] != 3 {
		t.Errorf("the values are %v, want 1 and 3", got)
	}
}

// What a record of before frames had tags measured is compared with frames without one.
func TestImpliedConditions(t *testing.T) {
	for _, c := range []struct {
		at   record.Conditions
		want string
	}{
		{smallest(oneVIP, 1000).at(), "rfc2544/subject=l2dsr/cores=1/flows=1000/frame=64/protocol=udp"},
		{variant{model.UDP, 64, 1000, oneVIP, 1, taggedVLAN}.at(), "rfc2544/subject=l2dsr/cores=1/flows=1000/frame=64/protocol=udp/tag=802.1Q"},
		{imixAt(1000, byCount), "rfc2544/subject=l2dsr/flows=1000/link=none"},
		{imixAt(1000, byBytes), "rfc2544/subject=l2dsr/flows=1000/link=none/mix=by_bytes"},
	} {
		r := &record.Record{Scenarios: []record.Scenario{{Name: "rfc2544"}}}
		r.Scenarios[0].Add(l2dsr.Name, c.at, record.Throughput, 1)
		var text bytes.Buffer
		if err := writeRounds(&text, r); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text.String(), c.want+" ") {
			t.Errorf("%v is written as %q, want %q", c.at, text.String(), c.want)
		}
	}
}

func TestDifferences(t *testing.T) {
	old, new := recordOf(1, 1), recordOf(1, 1)
	old.Machine.Kernel, new.Machine.Kernel = "6.1", "6.12"
	old.Machine.CPU = "another"
	new.Settings.Smoke = true
	got := strings.Join(differences(old, new), "\n")
	for _, want := range []string{"the machine differs: another with 0 cores", "the kernel differs: 6.1, then 6.12", "a smoke run"} {
		if !strings.Contains(got, want) {
			t.Errorf("it does not say %q: %s", want, got)
		}
	}
}

// Help names every reference, so that users know what is compared with what.
func TestReferencesAreNamed(t *testing.T) {
	var help bytes.Buffer
	execute(t.Context(), []string{"compare", "--help"}, &help, &help)
	for _, name := range record.References() {
		if !strings.Contains(help.String(), name) {
			t.Errorf("the help of compare does not name the reference %s:\n%s", name, &help)
		}
	}
}

func TestInterval(t *testing.T) {
	const tries = 1000
	missed := 0
	for seed := range uint64(tries) {
		r := rand.New(rand.NewPCG(seed, 1))
		values := make([]float64, 20)
		for i := range values {
			values[i] = 3 + r.ExpFloat64() - math.Ln2 // whose median is 3
		}
		low, median, high := interval(values)
		if low > median || median > high {
			t.Fatalf("the median %g of %v is not between %g and %g", median, values, low, high)
		}
		if low > 3 || high < 3 {
			missed++
		}
	}
	if missed > tries/50 { // 1 % is expected
		t.Errorf("%d of %d intervals do not contain the median", missed, tries)
	}
	if low, _, high := interval([]float64{1, 2, 3, 4, 5, 6, 7}); !math.IsInf(low, -1) && !math.IsInf(high, 1) {
		t.Errorf("seven values bound the median by %g and %g", low, high)
	}
}
