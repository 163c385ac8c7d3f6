package report

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"weir.io/weir/lab/record"
)

// TestTimeIsEven: values that span a wide range are drawn on a logarithmic axis, except time.
func TestTimeIsEven(t *testing.T) {
	for _, test := range []struct {
		key, title string
		log        bool
	}{{"flows", "flows", true}, {timeAxis, "time (s)", false}} {
		s := &record.Scenario{Name: "made-up"}
		for _, x := range []int{1, 10, 1000} {
			s.Add("gue", record.Conditions{test.key: strconv.Itoa(x)}, record.Throughput, float64(x))
		}
		v := newView(s, record.Throughput)
		figures := v.figures()
		if len(figures) != 1 {
			t.Fatalf("over %s there are %d figures, want one", test.key, len(figures))
		}
		if f := figures[0]; f.logX != test.log || f.x != test.title {
			t.Errorf("over %s the axis %q is logarithmic: %v; want %q, %v", test.key, f.x, f.logX, test.title, test.log)
		}
	}
}

func TestBins(t *testing.T) {
	for _, test := range []struct{ value, end float64 }{
		{1, 1}, {1.01, 1.6}, {1.6, 1.6}, {1.61, 2.5}, {4, 4}, {9.9, 10}, {10, 10}, {10.1, 16}, {100.1, 160}, {640, 1000},
		{0.02, 0.025}, {0, 0.001}, {-1, 0.001}, {1e-9, 0.001},
	} {
		if got := endOf(binOf(test.value)); math.Abs(got-test.end) > 1e-9 {
			t.Errorf("%g is in the bin that ends at %g, want %g", test.value, got, test.end)
		}
	}
}

func TestHistogram(t *testing.T) {
	s := record.Scenario{Name: "update"}
	delay := record.Quantity{Name: "delay", Unit: "ms", Better: record.Lower}
	rounds(&s, "stop", nil, delay, 12, 15, 24, math.NaN())
	rounds(&s, "start", nil, delay, 70, 14)
	f := views(&s)[0].histogram()
	if want := []string{"16", "25", "40", "63", "100"}; !slices.Equal(f.groups, want) {
		t.Errorf("the bins end at %v, want %v", f.groups, want)
	}
	heights := map[string][]point{}
	for _, s := range f.series {
		heights[s.name] = s.points
	}
	if want := []point{{0, 2, 2, 2}, {1, 1, 1, 1}}; !slices.Equal(heights["stop"], want) {
		t.Errorf("stop has %v, want %v", heights["stop"], want)
	}
	if want := []point{{0, 1, 1, 1}, {4, 1, 1, 1}}; !slices.Equal(heights["start"], want) {
		t.Errorf("start has %v, want %v", heights["start"], want)
	}
	if svg, err := f.svg(); err != nil || !strings.Contains(string(svg), "how often") {
		t.Errorf("it is not drawn: %v", err)
	}
}

// Values far below all others do not take their space.
func TestHistogramFolds(t *testing.T) {
	s := record.Scenario{Name: "update"}
	rounds(&s, "stop", nil, record.Quantity{Name: "delay", Unit: "ms"}, 0, 0.2, 900, 950)
	f := views(&s)[0].histogram()
	if len(f.groups) != mostBins || f.groups[0] != "1.60" || f.groups[mostBins-1] != "1000" {
		t.Errorf("the bins end at %v", f.groups)
	}
	if want := []point{{0, 2, 2, 2}, {mostBins - 1, 2, 2, 2}}; !slices.Equal(f.series[0].points, want) {
		t.Errorf("stop has %v, want %v", f.series[0].points, want)
	}
}

func TestHistogramOfNothing(t *testing.T) {
	s := record.Scenario{Name: "update"}
	rounds(&s, "stop", nil, record.Quantity{Name: "delay", Unit: "ms"}, math.NaN())
	if f := views(&s)[0].histogram(); len(f.series) > 0 {
		t.Errorf("a histogram of nothing has %v", f.series)
	}
}
