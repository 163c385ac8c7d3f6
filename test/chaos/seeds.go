package main

import (
	"fmt"
	"strconv"
	"strings"
)

// mostSeeds bounds the seeds of one command line.
const mostSeeds = 1000

// parseSeeds reads a list of numbers and ranges. An empty list means the one seed.
func parseSeeds(text string, one uint64) ([]uint64, error) {
	if text == "" {
		return []uint64{one}, nil
	}
	var list []uint64
	for part := range strings.SplitSeq(text, ",") {
		low, high, isRange := strings.Cut(part, "-")
		first, err := strconv.ParseUint(low, 10, 63)
		last := first
		if err == nil && isRange {
			last, err = strconv.ParseUint(high, 10, 63)
		}
		if err != nil {
			return nil, fmt.Errorf("--seeds %s: %q is no number and no range of numbers", text, part)
		}
		if last < first || last-first >= mostSeeds-uint64(len(list)) {
			return nil, fmt.Errorf("--seeds %s: %q is empty, or makes more than %d", text, part, mostSeeds)
		}
		for seed := first; seed <= last; seed++ {
			list = append(list, seed)
		}
	}
	return list, nil
}
