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
	var x, y span
	for _, s := range f.series {
		for _, p := range s.points {
			x.take(p.x)
			y.take(p.low)
			y.take(p.high)
		}
	}
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
