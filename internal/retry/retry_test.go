package retry

import (
	"context"
	"slices"
	"testing"
	"time"
)

func TestBackoff(t *testing.T) {
	b := Backoff{First: time.Second, Last: 5 * time.Second}
	var got []time.Duration
	for range 4 {
		got = append(got, b.Next())
	}
	b.Reset()
	got = append(got, b.Next())
	want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, time.Second}
	if !slices.Equal(got, want) {
		t.Errorf("the pauses are %v, want %v", got, want)
	}
}

// A context that ends ends the pause.
func TestSleepEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	Sleep(ctx, 24*time.Hour)
	Sleep(t.Context(), -1)
}
