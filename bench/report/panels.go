package report

import (
	"math"
	"slices"
	"strconv"

	"weir.io/weir/lab/record"
)

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
