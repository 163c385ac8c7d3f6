package model

import "iter"

// Nearest returns the known word that a misspelt one must mean; empty: none is that near.
func Nearest(key string, known iter.Seq[string]) string {
	best, least := "", 3
	for candidate := range known {
		limit := 1
		if len(candidate) >= 8 {
			limit = 2
		}
		n := typos(key, candidate)
		if n <= limit && (n < least || n == least && candidate < best) {
			best, least = candidate, n
		}
	}
	return best
}

// typos counts the fewest changes that turn a into b: letters added, left out, replaced, or swapped
// with the next one (optimal string alignment).
func typos(a, b string) int {
	if len(a) > len(b)+2 || len(b) > len(a)+2 {
		return 3 // too far, however long
	}
	var before []int
	last := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replaced := last[j-1]
			if a[i-1] != b[j-1] {
				replaced++
			}
			row[j] = min(replaced, last[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
