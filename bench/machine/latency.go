package machine

import (
	"math"
	"math/rand/v2"
	"time"

	"weir.io/weir/bench/record"
)

// line is what a cache fetches.
const line = 64

// What is read: from what the second cache of a core holds to what no cache does.
// Where it takes long although the last cache should hold it, others of the host use
// that cache, and what depends on it is slow: a forwarder with many rings.
var workingSets = []int{256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20}

// latencies returns how long a read takes that waits for the one before.
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

// chain makes every line say which is the next, in one circle through all.
func chain(lines int) []uint64 {
	memory := make([]uint64, lines*line/8)
	order := rand.New(rand.NewPCG(1, uint64(lines))).Perm(lines)
	for i, from := range order {
		memory[from*line/8] = uint64(order[(i+1)%lines])
	}
	return memory
}
