package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// tally counts tests and subtests.
type tally struct {
	passed, failed, skipped int
}

func (t *tally) add(o tally) {
	t.passed += o.passed
	t.failed += o.failed
	t.skipped += o.skipped
}

func (t tally) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", t.passed, t.failed, t.skipped)
}

// result is how a test binary ended.
type result struct {
	status string
	tally
}

// report reads what the guest prints: lines of "go test -v", and the init's own, which begin with
// "guest: ". It prints everything except tests that simply pass.
type report struct {
	out     io.Writer
	release string
	current tally
	results map[string]result
	done    bool
	since   []string // lines since the last result, shown when the next is a failure
}

func newReport(out io.Writer, release string) *report {
	return &report{out: out, release: release, results: map[string]result{}}
}

func (r *report) line(line string) {
	trimmed := strings.TrimSpace(line)
	switch {
	case strings.HasPrefix(line, "guest: exit "):
		r.exit(strings.Fields(line))
	case line == "guest: done":
		r.done = true
	case strings.HasPrefix(trimmed, "--- PASS"):
		r.current.passed++
	case strings.HasPrefix(trimmed, "--- SKIP"):
		r.current.skipped++
		r.since = append(r.since, line)
		r.show()
	case strings.HasPrefix(trimmed, "--- FAIL"):
		r.current.failed++
		r.since = append(r.since, line)
		r.show()
	case strings.HasPrefix(line, "=== RUN") && !strings.Contains(line, "/"):
		r.since = nil
	case !strings.HasPrefix(trimmed, "=== "):
		r.since = append(r.since, line)
	}
}

// exit takes "guest: exit NAME STATUS".
func (r *report) exit(fields []string) {
	if len(fields) != 4 {
		return
	}
	if fields[3] != "0" {
		r.show()
	}
	r.results[fields[2]] = result{fields[3], r.current}
	r.current, r.since = tally{}, nil
}

func (r *report) show() {
	for _, line := range r.since {
		fmt.Fprintf(r.out, "%s: %s\n", r.release, line)
	}
	r.since = nil
}

func (r *report) total() tally {
	total := r.current
	for _, result := range r.results {
		total.add(result.tally)
	}
	return total
}

// verdict is nil only if the guest finished and every test binary ran, passed tests and failed
// none.
func (r *report) verdict(tests []binary) error {
	var errs []error
	for i, t := range tests {
		result, ran := r.results[t.inGuest(i)]
		switch {
		case !ran:
			errs = append(errs, fmt.Errorf("%s did not run to its end", t.dir))
		case result.status != "0":
			errs = append(errs, fmt.Errorf("%s ended with status %s", t.dir, result.status))
		case result.passed == 0 && !t.command:
			errs = append(errs, fmt.Errorf("%s passed no test", t.dir))
		}
	}
	if !r.done {
		r.show()
		errs = append(errs, errors.New("the guest stopped before its tests ended"))
	}
	return errors.Join(errs...)
}
