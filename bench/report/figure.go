package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"weir.io/weir/lab/record"
)

// An axis is logarithmic if its largest value divided by the smallest reaches these ratios.
const (
	logFromX = 50
	logFromY = 30
)

// figure is what is drawn of one view, or of a part of it.
type figure struct {
	name       string // of its files
	title      string
	x, y       string // titles of the axes
	logX, logY bool
	course     bool     // over time, which passes evenly
	groups     []string // of bars; a figure without groups has lines
	series     []series
	unit       float64 // what values are divided by
	exact      bool    // points are not medians: they have no spread
}

// series is a line, or the bars of one color.
type series struct {
	name      string
	reference bool
	points    []point
}

// point is a median and the middle half of the rounds, over a value or a group.
type point struct {
	x, median, low, high float64
}

func (v *view) figure(axis string, split []string, rows []record.Conditions, subjects []string) figure {
	same := only(rows[0], split)
	f := figure{
		name:  slug(v.scenario.Name, v.quantity.Name, same.String()),
		title: v.scenario.Name + ": " + v.quantity.Name,
	}
	if len(same) > 0 {
		f.title += ", " + named(same)
	}
	within := slices.DeleteFunc(slices.Clone(v.keys), func(key string) bool {
		return key == axis || slices.Contains(split, key)
	})
	switch {
	case axis != "":
		f.x, f.course = axisTitle(axis), axis == timeAxis
		f.series = v.lines(axis, within, rows, subjects)
	case len(rows) == 1:
		f.groups, f.series = v.bars(rows[0], subjects)
	default:
		f.x = strings.Join(within, ", ")
		for _, row := range rows {
			f.groups = append(f.groups, label(row, within))
		}
		f.series = v.groupedBars(rows, subjects)
	}
	f.series = slices.DeleteFunc(f.series, func(s series) bool { return len(s.points) == 0 })
	f.scale(v.quantity)
	return f
}

// lines returns a series for each subject under each set of the inner conditions.
func (v *view) lines(axis string, within []string, rows []record.Conditions, subjects []string) []series {
	var all []series
	drawn := map[string]int{}
	for _, subject := range subjects {
		for _, row := range rows {
			m := v.at(row, subject)
			x, err := strconv.ParseFloat(row[axis], 64)
			if m == nil || err != nil {
				continue
			}
			// A reference without these conditions is a single line, not one for each.
			name := strings.TrimSpace(subject + " " + label(m.Conditions, within))
			if _, found := drawn[name]; !found {
				drawn[name] = len(all)
				all = append(all, series{name: name, reference: record.IsReference(subject)})
			}
			s := &all[drawn[name]]
			if len(s.points) == 0 || s.points[len(s.points)-1].x != x {
				s.add(x, m)
			}
		}
	}
	for i := range all {
		slices.SortFunc(all[i].points, func(a, b point) int { return int(math.Copysign(1, a.x-b.x)) })
		all[i].points = slices.CompactFunc(all[i].points, func(a, b point) bool { return a.x == b.x })
	}
	return all
}

// bars returns one series with a group for each subject.
func (v *view) bars(row record.Conditions, subjects []string) (groups []string, all []series) {
	s := series{name: v.quantity.Name}
	for _, subject := range subjects {
		if m := v.at(row, subject); m != nil {
			s.add(float64(len(groups)), m)
			groups = append(groups, subject)
		}
	}
	return groups, []series{s}
}

// groupedBars returns a series for each subject with a bar in each row's group.
func (v *view) groupedBars(rows []record.Conditions, subjects []string) []series {
	var all []series
	for _, subject := range subjects {
		s := series{name: subject, reference: record.IsReference(subject)}
		for i, row := range rows {
			if m := v.at(row, subject); m != nil {
				s.add(float64(i), m)
			}
		}
		all = append(all, s)
	}
	return all
}

// add appends a measurement, unless one of its values is missing.
func (s *series) add(x float64, m *record.Measurement) {
	median := record.Median(m.Rounds)
	if record.Number(median).Finite() {
		s.points = append(s.points, point{x, median, record.Quantile(m.Rounds, 0.25), record.Quantile(m.Rounds, 0.75)})
	}
}

// scale chooses the unit of the values and the scales of the axes.
func (f *figure) scale(quantity record.Quantity) {
	x, y := f.spans()
	f.logX = f.groups == nil && !f.course && x.ratio() >= logFromX
	f.logY = y.ratio() >= logFromY
	about := max(math.Abs(y.low), math.Abs(y.high))
	if f.logY {
		about = math.Sqrt(y.low * y.high) // the middle of the axis
	}
	divisor, unit := record.Scale(about, quantity.Unit)
	f.unit, f.y = divisor, quantity.Name
	var remarks []string
	if unit != "" {
		remarks = append(remarks, unit)
	}
	if quantity.Better != record.Neither {
		remarks = append(remarks, string(quantity.Better)+" is better")
	}
	if len(remarks) > 0 {
		f.y += fmt.Sprintf(" (%s)", strings.Join(remarks, ", "))
	}
}

// spans are what the axes have to show.
func (f *figure) spans() (x, y span) {
	for _, s := range f.series {
		for _, p := range s.points {
			x.take(p.x)
			y.take(p.low)
			y.take(p.high)
		}
	}
	return x, y
}

// span is from the smallest to the largest of some values.
type span struct {
	low, high float64
	any       bool
}

func (s *span) take(value float64) {
	if !s.any {
		*s = span{value, value, true}
	}
	s.low, s.high = min(s.low, value), max(s.high, value)
}

// ratio is the largest value divided by the smallest, or 1 if they have no logarithm.
func (s *span) ratio() float64 {
	if !s.any || s.low <= 0 {
		return 1
	}
	return s.high / s.low
}

// How much a reader can tell apart in one figure.
const (
	mostSeries = 8
	mostGroups = 6 // of bars
)

// figures returns the figures of a view: lines over the numeric condition, or bars; several figures
// if one would have too many of them.
func (v *view) figures() []figure {
	axis := v.axis()
	if axis == "" && v.quantity.Better == record.Neither {
		return nil // there is nothing to compare: the table is enough
	}
	splitters := slices.DeleteFunc(slices.Clone(v.keys), func(key string) bool { return key == axis })
	var all []figure
	split := v.split(splitters, axis)
	for _, rows := range v.panels(split) {
		for _, subjects := range v.crowds(axis, len(rows)) {
			f := v.figure(axis, split, rows, subjects)
			if len(f.series) == 0 || axis != "" && !f.hasLines() {
				continue
			}
			if len(subjects) < len(v.subjects) {
				part := strconv.Itoa(len(all) + 1)
				f.name, f.title = f.name+"-"+part, f.title+", part "+part
			}
			all = append(all, f)
		}
	}
	return all
}

// hasLines is whether any series goes from one point to another.
func (f *figure) hasLines() bool {
	return slices.ContainsFunc(f.series, func(s series) bool { return len(s.points) > 1 })
}

// split chooses the conditions whose values get figures of their own: the choice with the fewest
// figures that are still readable.
func (v *view) split(keys []string, axis string) []string {
	best, fewest := keys, math.MaxInt
	for mask := range uint(1) << len(keys) {
		var chosen []string
		panels, inside := 1, 1
		for i, key := range keys {
			n := len(v.values(key))
			if mask&(1<<i) != 0 {
				chosen = append(chosen, key)
				panels *= n
			} else {
				inside *= n
			}
		}
		readable := inside <= mostGroups
		if axis != "" {
			readable = inside*min(len(v.subjects), mostSeries) <= mostSeries
		}
		if readable && (panels < fewest || panels == fewest && len(chosen) < len(best)) {
			best, fewest = chosen, panels
		}
	}
	return best
}

// panels returns the rows of each figure.
func (v *view) panels(split []string) [][]record.Conditions {
	var names []string
	rows := map[string][]record.Conditions{}
	for _, row := range v.rows {
		name := only(row, split).String()
		if rows[name] == nil {
			names = append(names, name)
		}
		rows[name] = append(rows[name], row)
	}
	panels := make([][]record.Conditions, len(names))
	for i, name := range names {
		panels[i] = rows[name]
	}
	return panels
}

// crowds returns the subjects of each figure. References are in all figures. A list of bars may
// have any length.
func (v *view) crowds(axis string, rows int) [][]string {
	if len(v.subjects) <= mostSeries || axis == "" && rows == 1 {
		return [][]string{v.subjects}
	}
	first := slices.IndexFunc(v.subjects, func(s string) bool { return !record.IsReference(s) })
	references, others := v.subjects[:max(first, 0)], v.subjects[max(first, 0):]
	var crowds [][]string
	most := mostSeries - len(references)
	parts := (len(others) + most - 1) / most
	for crowd := range slices.Chunk(others, (len(others)+parts-1)/parts) {
		crowds = append(crowds, slices.Concat(references, crowd))
	}
	return crowds
}

// binsPerDecade is the resolution of a histogram: each bin is about half as long again as the one
// before, and its ends are round numbers (Renard's R5 series, ISO 3).
const binsPerDecade = 5

// mostBins is how many bins readers can tell apart. Values below them are in the first bin.
const mostBins = 15

// histogram returns how often values fell into each bin, for quantities each of whose values is of
// one event. Bins are logarithmic, because delays span decades.
func (v *view) histogram() figure {
	_, unit := record.Scale(1, v.quantity.Unit)
	f := figure{
		name:  slug(v.scenario.Name, v.quantity.Name, "histogram"),
		title: v.scenario.Name + ": " + v.quantity.Name + ", how often",
		x:     v.quantity.Name + ", up to (" + unit + ")", y: "times", unit: 1, exact: true,
	}
	bins, any := map[string][]int{}, []int{}
	for _, m := range v.scenario.Measurements {
		if m.Quantity.Name != v.quantity.Name {
			continue
		}
		for _, value := range m.Rounds {
			if !math.IsNaN(value) {
				bins[m.Subject] = append(bins[m.Subject], binOf(value))
				any = append(any, binOf(value))
			}
		}
	}
	if len(any) == 0 {
		return f
	}
	high := slices.Max(any)
	low := max(slices.Min(any), high-mostBins+1)
	for bin := low; bin <= high; bin++ {
		f.groups = append(f.groups, record.Digits(endOf(bin)))
	}
	for _, subject := range v.subjects {
		times := make([]float64, high-low+1)
		for _, bin := range bins[subject] {
			times[max(bin, low)-low]++
		}
		s := series{name: subject, reference: record.IsReference(subject)}
		for i, n := range times {
			if n > 0 {
				s.points = append(s.points, point{float64(i), n, n, n})
			}
		}
		f.series = append(f.series, s)
	}
	f.series = slices.DeleteFunc(f.series, func(s series) bool { return len(s.points) == 0 })
	return f
}

// smallestBin ends at a thousandth of the unit, and has all smaller values, too.
const smallestBin = -3 * binsPerDecade

// binOf returns the bin of a value: the first one whose end is not below the value.
func binOf(value float64) int {
	bin := smallestBin
	for endOf(bin) < value {
		bin++
	}
	return bin
}

// endOf returns the end of a bin, with two digits: 1, 1.6, 2.5, 4, 6.3, 10.
func endOf(bin int) float64 {
	decade := math.Floor(float64(bin) / binsPerDecade)
	within := float64(bin)/binsPerDecade - decade
	return math.Round(10*math.Pow(10, within)) * math.Pow(10, decade-1)
}
