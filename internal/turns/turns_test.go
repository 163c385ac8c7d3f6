package turns

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestOrder(t *testing.T) {
	for _, test := range []struct {
		weights []uint16
		most    int
		want    []uint32
	}{
		{nil, 8, nil},
		{[]uint16{0, 0}, 8, nil},
		{[]uint16{100}, 8, []uint32{0}},
		{[]uint16{0, 7, 0}, 8, []uint32{1}},
		{[]uint16{100, 100, 100}, 8, []uint32{0, 1, 2}},
		{[]uint16{200, 100}, 8, []uint32{0, 1, 0}},
		{[]uint16{1, 4, 1}, 8, []uint32{1, 1, 0, 1, 2, 1}},
		{[]uint16{300, 200, 100}, 3, []uint32{0, 1, 2}}, // three turns are not enough for shares
		{[]uint16{1, 60000, 0}, 4, []uint32{1, 0, 1, 1}},
		{[]uint16{5, 5, 5, 5}, 2, []uint32{0, 1, 2, 3}}, // nobody is left out
	} {
		if got := Order(test.weights, test.most); !slices.Equal(got, test.want) {
			t.Errorf("weights %v, %d turns at most: %v, want %v", test.weights, test.most, got, test.want)
		}
	}
	if got := Once([]uint16{0, 3, 1, 0, 9}); !slices.Equal(got, []uint32{1, 2, 4}) {
		t.Errorf("each once: %v, want 1, 2 and 4", got)
	}
}

// After any number of turns, also across the order's end, everybody has had his share to
// within one turn.
func TestTurnsAreSpreadEvenly(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		weights := make([]uint16, 1+r.IntN(30))
		for i := range weights {
			switch r.IntN(4) {
			case 0: // none
			case 1:
				weights[i] = uint16(1 + r.IntN(3))
			default:
				weights[i] = uint16(1 + r.IntN(100))
			}
		}
		order := Order(weights, 1<<20)
		if len(order) == 0 {
			continue
		}
		checkSpread(t, weights, order)
	}
	checkSpread(t, []uint16{20, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
		Order([]uint16{20, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 100))
}

func checkSpread(t *testing.T, weights []uint16, order []uint32) {
	t.Helper()
	sum, members := 0, 0
	for _, w := range weights {
		sum += int(w)
		if w > 0 {
			members++
		}
	}
	bound := 1 - 1/float64(2*members-2)
	if members == 1 {
		bound = 0
	}
	had := make([]int, len(weights))
	for turn := range 2 * len(order) {
		had[order[turn%len(order)]]++
		for i, w := range weights {
			due := float64(turn+1) * float64(w) / float64(sum)
			if off := math.Abs(float64(had[i]) - due); off > bound+1e-9 {
				t.Fatalf("weights %v: after %d turns member %d had %d, its share are %.2f, which is off by more than %.3f", weights, turn+1, i, had[i], due, bound)
			}
		}
	}
}

// With fewer turns than weight, shares are as near as whole turns come.
func TestRoundedShares(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		weights := make([]uint16, 2+r.IntN(50))
		sum := 0
		for i := range weights {
			weights[i] = uint16(1 + r.IntN(math.MaxUint16))
			sum += int(weights[i])
		}
		const most = 5003
		order := Order(weights, most)
		had := make([]int, len(weights))
		for _, i := range order {
			had[i]++
		}
		if len(order) > most+len(weights) {
			t.Fatalf("%d turns, at most %d are asked for", len(order), most)
		}
		for i, w := range weights {
			if due := float64(w) * most / float64(sum); had[i] < 1 || math.Abs(float64(had[i])-due) > 1 {
				t.Errorf("weights %v: member %d has %d of %d turns, its share are %.2f", weights, i, had[i], len(order), due)
			}
		}
	}
}

func BenchmarkOrder(b *testing.B) {
	for _, size := range [][2]int{{16, 1021}, {1000, 65537}, {4000, 400009}} {
		b.Run(fmt.Sprintf("%d members, %d turns", size[0], size[1]), func(b *testing.B) {
			r := rand.New(rand.NewPCG(5, 6))
			weights := make([]uint16, size[0])
			for i := range weights {
				weights[i] = uint16(1 + r.IntN(math.MaxUint16))
			}
			for b.Loop() {
				Order(weights, size[1])
			}
		})
	}
}
