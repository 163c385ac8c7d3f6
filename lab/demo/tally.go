package demo

import "sync"

// tally is what the clients of one row saw.
type tally struct {
	mu       sync.Mutex
	requests int
	failures int
	ended    int
	errors   map[string]int    // of failures, by text
	got      [backends]int     // new connections per backend, while nothing changed
	want     [backends]float64 // what the weights at that time give each
}

// maxErrors bounds how many different texts of errors are kept.
const maxErrors = 8

func (t *tally) answered() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.requests++
}

func (t *tally) placed(backend int, share [backends]float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.got[backend]++
	for i, s := range share {
		t.want[i] += s
	}
}

// failed notes a request without a right answer; gone means that its connection's backend was
// removed or lost.
func (t *tally) failed(err error, gone bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.requests++
	if gone {
		t.ended++
		return
	}
	t.failures++
	if t.errors == nil {
		t.errors = map[string]int{}
	}
	if text := err.Error(); t.errors[text] > 0 || len(t.errors) < maxErrors {
		t.errors[text]++
	}
}

// row returns what there is to say about a row so far, apart from crossings.
func (t *tally) row(r *row) Row {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := Row{Mode: r.modeName(), Family: r.familyName(), VIP: r.vip,
		Requests: t.requests, Failed: t.failures, Ended: t.ended, Direct: r.direct()}
	total := 0
	for _, n := range t.got {
		total += n
	}
	for i, n := range t.got {
		share := Share{Backend: member{backend: i}.name()}
		if total > 0 {
			share.Got = float64(n) / float64(total)
			share.Want = t.want[i] / float64(total)
		}
		out.Shares = append(out.Shares, share)
	}
	for text, n := range t.errors {
		out.Errors = append(out.Errors, Failure{text, n})
	}
	return out
}
