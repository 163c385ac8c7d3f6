package main

import (
	"fmt"
	"strconv"
	"strings"
)

// mostSeeds bounds what one command line asks for.
const mostSeeds = 1000

// parseSeeds reads a list of numbers and ranges. An empty one is the one seed.
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

// The settings of tcp_syncookies that have a name here.
const (
	cookiesBySeed = -1
	cookiesUsual  = 1
	cookiesAlways = 2
)

// cookies returns a run's tcp_syncookies: every tenth seed shows what happens where
// no host remembers a SYN. The backends of a lab are one kernel and share the secret
// of their cookies (net/ipv4/syncookies.c has one), so that one takes the cookie of
// another for its own and a connection gets two ends. No two machines do that.
func cookies(set int, seed uint64) int {
	switch {
	case set != cookiesBySeed:
		return set
	case seed%10 == 0:
		return cookiesAlways
	}
	return cookiesUsual
}
