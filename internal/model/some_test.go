package model

import "testing"

func TestSome(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e", "f", "g"}
	for count, want := range map[int]string{0: "", 1: "a", 5: "a, b, c, d, e", 6: "a, b, c, d, e and 1 more", 7: "a, b, c, d, e and 2 more"} {
		if got := Some(names[:count]); got != want {
			t.Errorf("of %d it says %q, want %q", count, got, want)
		}
	}
}
