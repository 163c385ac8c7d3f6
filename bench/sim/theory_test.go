package sim

import (
	"math"
	"testing"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// replicas is the number of runs with seeds of their own, whose results are independent.
const replicas = 10

// confidence is the confidence of the intervals that tests judge by: with this many comparisons one
// of them may be far from the mean, and with fixed seeds none changes from run to run.
const confidence = 0.9999

// estimated returns the mean of the replicas' results, and half the width of its confidence
// interval, by Student's distribution.
func estimated(t *testing.T, c Config, of func(*Result) float64) (mean, half float64) {
	t.Helper()
	var values []float64
	for seed := range uint64(replicas) {
		c.Seed = seed + 1
		result, err := Run(c)
		if err != nil {
			t.Fatal(err)
		}
		values = append(values, of(result))
	}
	mean, deviation := stat.MeanStdDev(values, nil)
	student := distuv.StudentsT{Sigma: 1, Nu: replicas - 1}
	return mean, student.Quantile((1+confidence)/2) * deviation / math.Sqrt(replicas)
}

// agrees fails if the truth is outside the interval, or if the interval is so wide that it says
// nothing.
func agrees(t *testing.T, name string, c Config, of func(*Result) float64, truth float64) {
	t.Helper()
	mean, half := estimated(t, c, of)
	t.Logf("%s: %.4f ± %.4f, in theory %.4f", name, mean, half, truth)
	if math.Abs(mean-truth) > half {
		t.Errorf("%s: %.4f ± %.4f, and theory says %.4f", name, mean, half, truth)
	}
	if half > 0.1*truth {
		t.Errorf("%s: %.4f ± %.4f tells nothing: more requests are needed", name, mean, half)
	}
}

func meanTime(r *Result) float64 { return r.Mean }

// secondMoment returns the mean of the square of a service time.
func secondMoment(s Service) float64 {
	switch s {
	case Exponential:
		return 2
	case Bimodal:
		return bimodalPart*bimodalShort*bimodalShort + (1-bimodalPart)*bimodalLong*bimodalLong
	}
	return 1
}

// alone is a cluster of servers that do not affect each other.
func alone(service Service, load float64) Config {
	return Config{Policy: Random, Directors: 16, Servers: 50, Workers: 1, Service: service, Load: load, Warm: 10000, Count: 40000}
}

// Requests that are placed at random, or by hashing, make every server an M/G/1 queue, whose mean
// time Pollaczek and Khinchine give: for exponential service M/M/1, 1 / (1 - load), for fixed
// service M/D/1, 1 + load / 2 (1 - load).
func TestRandomIsAnMG1Queue(t *testing.T) {
	for _, service := range Services {
		for _, load := range []float64{0.3, 0.7} {
			truth := 1 + load*secondMoment(service)/(2*(1-load))
			agrees(t, string(service), alone(service, load), meanTime, truth)
		}
	}
}

// The share of requests in an M/M/1 queue that take longer than t is e^(-(1-load) t), and for none
// of the other queues is the far tail known.
func TestPercentilesOfMM1(t *testing.T) {
	const load = 0.6
	for _, share := range []float64{0.5, 0.99, 0.999} {
		at := func(r *Result) float64 { return r.Percentile(share) }
		c := alone(Exponential, load)
		c.Count *= 3
		agrees(t, "percentile", c, at, -math.Log(1-share)/(1-load))
	}
}

// Servers that are as fast as their weights say, and get requests by weight, are M/M/1
// queues of equal load. The mean is over requests: the heavy ones have more of them.
func TestWeightsAreSpeeds(t *testing.T) {
	const load = 0.6
	c := alone(Exponential, load)
	c.Weights = make([]uint16, c.Servers)
	for i := range c.Weights {
		c.Weights[i] = []uint16{1, 4}[i%2]
	}
	// A fifth of the requests is served at 2/5 of the mean speed, the rest at 8/5.
	agrees(t, "weights 1 and 4", c, meanTime, (0.2/0.4+0.8/1.6)/(1-load))
}

// With one queue for all workers the probability of waiting is Erlang's C.
func TestOneQueueIsMMC(t *testing.T) {
	for _, workers := range []int{2, 16} {
		const load = 0.8
		offered := load * float64(workers)
		term, sum := 1.0, 0.0
		for k := range workers {
			sum += term
			term *= offered / float64(k+1)
		}
		wait := term / (1 - load) / (sum + term/(1-load))
		truth := 1 + wait/(float64(workers)*(1-load))
		agrees(t, "M/M/c", Config{Policy: OneQueue, Directors: 1, Servers: workers, Workers: 1,
			Service: Exponential, Load: load, Warm: 5000, Count: 50000}, meanTime, truth)
	}
}

// With turns that all share, a request comes to a server after as many arrivals as there
// are servers: an E_n/M/1 queue. Its mean time is 1 / (1 - s), where s is the root of
// s = (n load / (n load + 1 - s))^n below 1.
func TestCentralTurnsAreAnEM1Queue(t *testing.T) {
	const load, n = 0.8, 16
	root := 0.0
	for range 1000 {
		root = math.Pow(n*load/(n*load+1-root), n)
	}
	c := Config{Policy: Central, Directors: 8, Servers: n, Workers: 1, Service: Exponential, Load: load, Warm: 5000, Count: 50000}
	agrees(t, "E16/M/1", c, meanTime, 1/(1-root))
	// One director shares its turns with itself.
	c.Policy, c.Directors = Distributed, 1
	agrees(t, "E16/M/1, one director", c, meanTime, 1/(1-root))
}

// If each server serves all its requests at once, the number of requests in the cluster does not
// depend on the distribution. (M/G/∞.)
func TestOpenConnections(t *testing.T) {
	for _, service := range Services {
		c := Config{Policy: Random, Directors: 4, Servers: 20, Service: service, Load: 5, Warm: 4000, Count: 20000}
		agrees(t, "held", c, func(r *Result) float64 { return r.Held }, 100)
	}
}
