package machine

import (
	"math"
	"math/rand/v2"
	"time"

	"weir.io/weir/lab/record"
)

// line is how many bytes a cache fetches at once.
const line = 64

// The sizes of what is read: from what a core's second cache holds to what no cache does. If
// reading takes long although the last cache should hold the data, other machines of the host use
// that cache, and whatever depends on it is slow: for example, a forwarder with many rings.
var workingSets = []int{256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20}

// latencies returns how long a read takes that waits for the previous one.
func latencies() []record.Latency {
	var all []record.Latency
	for _, size := range workingSets {
		all = append(all, record.Latency{Bytes: uint64(size), Nanoseconds: latency(size)})
	}
	return all
}

// latency is the median of some runs through lines in random order.
func latency(size int) float64 {
	const steps, runs = 50_000, 9
	memory := chain(size / line)
	var took []float64
	at := uint64(0)
	for range runs {
		start := time.Now()
		for range steps {
			at = memory[at*line/8]
		}
		took = append(took, float64(time.Since(start).Nanoseconds())/steps)
	}
	if at == math.MaxUint64 { // never, but the compiler does not know
		return 0
	}
	return record.Median(took)
}

// chain makes every line name the next one, in one circle through all.
func chain(lines int) []uint64 {
	memory := make([]uint64, lines*line/8)
	order := rand.New(rand.NewPCG(1, uint64(lines))).Perm(lines)
	for i, from := range order {
		memory[from*line/8] = uint64(order[(i+1)%lines])
	}
	return memory
}
