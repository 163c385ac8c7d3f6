package sim

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// small is a cluster for which every policy works.
func small(policy string) Config {
	return Config{Policy: policy, Directors: 4, Servers: 8, Workers: 1, Service: Exponential, Load: 0.8, Interval: 1, Warm: 100, Count: 2000, Seed: 7}
}

func run(t *testing.T, c Config) *Result {
	t.Helper()
	r, err := Run(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestSameSeedSameResult(t *testing.T) {
	for _, policy := range Policies() {
		c := small(policy)
		a, b := run(t, c), run(t, c)
		if !slices.Equal(a.times, b.times) || a.Most != b.Most {
			t.Errorf("%s: two runs with one seed differ", policy)
		}
		c.Seed++
		if slices.Equal(a.times, run(t, c).times) {
			t.Errorf("%s: another seed gives the same", policy)
		}
	}
}

// No policy that places requests on arrival is better than one queue, and a policy that knows
// everything is better than one that knows nothing.
func TestOrderOfPolicies(t *testing.T) {
	order := []string{OneQueue, Shortest, P2C, Random}
	before := 0.0
	for _, policy := range order {
		c := small(policy)
		c.Servers, c.Count = 16, 40000
		mean, half := estimated(t, c, meanTime)
		if mean-half <= before {
			t.Errorf("%s takes %.3f ± %.3f, one that knows more up to %.3f", policy, mean, half, before)
		}
		before = mean + half
	}
}

// With all policies the servers' shares of the requests follow their weights, and all requests are
// placed.
func TestSharesFollowWeights(t *testing.T) {
	weights := []uint16{1, 2, 5, 1, 3}
	for _, policy := range Policies() {
		if policy == OneQueue {
			continue
		}
		c := small(policy)
		c.Servers, c.Weights, c.Load = len(weights), weights, 0.95
		r := newCluster(&c)
		const requests = 60000
		got := make([]int, len(weights))
		r.policy = counting{r.policy, got}
		for range requests {
			r.arrive()
		}
		for i, n := range got {
			share, want := float64(n)/requests, float64(weights[i])/12
			if share < 0.9*want-0.01 || share > 1.1*want+0.01 {
				t.Errorf("%s: server %d of weight %d gets %.3f of the requests, want about %.3f", policy, i, weights[i], share, want)
			}
		}
	}
}

type counting struct {
	policy
	placed []int
}

func (c counting) place(director int) int32 {
	server := c.policy.place(director)
	c.placed[server]++
	return server
}

// Servers take turns in the order that weir's directors are given; equal ones one after the other.
func TestTurns(t *testing.T) {
	for _, c := range []struct {
		weights []uint16
		want    string
	}{{[]uint16{4, 2, 1}, "[0 1 0 0 2 1 0]"}, {nil, "[0 1 2]"}} {
		if got := fmt.Sprint(turnsOf(&Config{Servers: 3, Weights: c.weights})); got != c.want {
			t.Errorf("turns of %v are %s, want %s", c.weights, got, c.want)
		}
	}
}

// Departures come out in the order of their times, whatever order they went in.
func TestDepartures(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var queue departures
	var want []float64
	for range 3000 {
		if len(want) > 0 && random.IntN(5) < 2 {
			slices.Sort(want)
			if got := heap.Pop(&queue).(departure).at; got != want[0] {
				t.Fatalf("%v came, and %v is earlier", got, want[0])
			}
			want = want[1:]
			continue
		}
		at := float64(random.IntN(500))
		heap.Push(&queue, departure{at: at})
		want = append(want, at)
	}
	slices.Sort(want)
	for _, at := range want {
		if got := heap.Pop(&queue).(departure).at; got != at {
			t.Fatalf("%v came, and %v is earlier", got, at)
		}
	}
	if queue.until(1e9) {
		t.Error("something is left")
	}
}

// The shortest queue is the one that a search of all queues finds.
func TestShortestIsShortest(t *testing.T) {
	c := small(Shortest)
	c.Servers, c.Weights = 9, []uint16{1, 1, 1, 2, 2, 2, 7, 7, 7}
	r := newCluster(&c)
	for range 5000 {
		server := r.policy.place(0)
		for other, has := range r.has {
			if float64(has+1)/r.weights[other] < float64(r.has[server]+1)/r.weights[server] {
				t.Fatalf("server %d is chosen and %d is better: %v", server, other, r.has)
			}
		}
		r.arrive()
		r.pass(r.now) // handle what is due at this moment
	}
	for server, has := range r.has {
		class := r.policy.(*shortest).classes[r.policy.(*shortest).of[server]]
		if class.has[class.place[server]] != has {
			t.Errorf("server %d has %d, and its class says %d", server, has, class.has[class.place[server]])
		}
	}
}

// The second implementation here does what the program does.
func TestP2CInGUEIsThePrograms(t *testing.T) {
	text := ""
	for _, file := range []string{"../../bpf/director/pick/p2c.h", "../../bpf/abi/load_types.h"} {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text += string(data)
	}
	for name, want := range map[string]int{"P2C_OWNER_PARTS": ownerParts, "P2C_BACKUP_PARTS": backupParts, "LOAD_CONNECTION": loadConnection, "LOAD_PERIOD": 35} {
		found := regexp.MustCompile(`(?m)\b` + name + `(?: =)? (\d+),?$`).FindStringSubmatch(text)
		if found == nil || found[1] != strconv.Itoa(want) {
			t.Errorf("%s is %q in bpf/, %d here", name, found, want)
		}
	}
	for _, want := range []string{"LOAD_MOST = 1 << 30", "load_now(its, period) + LOAD_CONNECTION", "was.opened >> passed"} {
		if !strings.Contains(text, want) {
			t.Errorf("bpf/ does not say %q any more: look whether this package still does the same", want)
		}
	}
}

func TestRefusals(t *testing.T) {
	for says, change := range map[string]func(*Config){
		`no policy "best"`:       func(c *Config) { c.Policy = "best" },
		"0 directors":            func(c *Config) { c.Directors = 0 },
		"1 servers":              func(c *Config) { c.Servers = 1 },
		`no distribution "odd"`:  func(c *Config) { c.Service = "odd" },
		"1 weights for 8":        func(c *Config) { c.Weights = []uint16{1} },
		"server 3 has no weight": func(c *Config) { c.Weights = []uint16{1, 1, 1, 0, 1, 1, 1, 1} },
		"load 1:":                func(c *Config) { c.Load = 1 },
		"-1 workers":             func(c *Config) { c.Workers = -1 },
		"interval -1":            func(c *Config) { c.Interval = -1 },
		"0 requests":             func(c *Config) { c.Count = 0 },
	} {
		c := small(P2C)
		change(&c)
		if _, err := Run(c); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("the error is %v, want one that says %s", err, says)
		}
	}
}

// BenchmarkEvents says how many events are simulated in a second, in the largest cluster.
func BenchmarkEvents(b *testing.B) {
	for _, policy := range []string{Random, Distributed, P2C, Shortest} {
		b.Run(policy, func(b *testing.B) {
			c := Config{Policy: policy, Directors: 1000, Servers: 100000, Workers: 1, Service: Exponential, Load: 0.8, Interval: 10, Count: 1, Seed: 1}
			r := newCluster(&c)
			for range 1000000 {
				r.arrive()
			}
			r.handled = 0
			for b.Loop() {
				r.arrive()
			}
			b.ReportMetric(float64(r.handled)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
