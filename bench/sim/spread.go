package sim

import (
	"math"
	"math/rand/v2"
	"slices"
)

// spreads is how often flows are spread over queues anew.
const spreads = 1000

// ZipfWeights are the shares of flows of which the n-th largest has one like n^-exponent; 0: all have the same.
func ZipfWeights(flows int, exponent float64) []float64 {
	weights, sum := make([]float64, flows), 0.0
	for i := range weights {
		weights[i] = math.Pow(float64(i+1), -exponent)
		sum += weights[i]
	}
	for i := range weights {
		weights[i] /= sum
	}
	return weights
}

// QueueShares are the shares of the packets that receive queues have, the largest first, where a hash spreads
// flows of these weights over that many queues: in the mean over many ways to hash.
func QueueShares(queues int, weights []float64, seed uint64) []float64 {
	rng := rand.New(rand.NewPCG(seed, uint64(queues)))
	mean := make([]float64, queues)
	for range spreads {
		shares := make([]float64, queues)
		for _, w := range weights {
			shares[rng.IntN(queues)] += w
		}
		slices.Sort(shares)
		slices.Reverse(shares)
		for i, share := range shares {
			mean[i] += share / spreads
		}
	}
	return mean
}
