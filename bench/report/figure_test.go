package report

import (
	"strconv"
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
