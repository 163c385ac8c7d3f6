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

// report reads what the guest prints: lines of "go test -v", and the init's own,
// which begin with "guest: ". It prints on what is not simply a test that passes.
type report struct {
	out     io.Writer
	release string
	total   tally
	exits   map[string]string // test binary -> exit status
	done    bool
	since   []string // lines since the last result, shown when it is a failure
}

func newReport(out io.Writer, release string) *report {
	return &report{out: out, release: release, exits: map[string]string{}}
}

func (r *report) line(line string) {
	trimmed := strings.TrimSpace(line)
	switch {
	case strings.HasPrefix(line, "guest: exit "):
		if f := strings.Fields(line); len(f) == 4 {
			r.exits[f[2]] = f[3]
			if f[3] != "0" {
				r.show()
			}
		}
		r.since = nil
	case line == "guest: done":
		r.done = true
	case strings.HasPrefix(line, "guest: "):
		fmt.Fprintf(r.out, "%s: %s\n", r.release, strings.TrimPrefix(line, "guest: "))
	case strings.HasPrefix(trimmed, "--- PASS"):
		r.total.passed++
	case strings.HasPrefix(trimmed, "--- SKIP"):
		r.total.skipped++
		r.since = append(r.since, line)
		r.show()
	case strings.HasPrefix(trimmed, "--- FAIL"):
		r.total.failed++
		r.since = append(r.since, line)
		r.show()
	case strings.HasPrefix(trimmed, "=== "):
		if strings.HasPrefix(line, "=== RUN") && !strings.Contains(line, "/") {
			r.since = nil
		}
	default:
		r.since = append(r.since, line)
	}
}

func (r *report) show() {
	for _, line := range r.since {
		fmt.Fprintf(r.out, "%s: %s\n", r.release, line)
	}
	r.since = nil
}

// verdict is nil only if every test binary ran and said that it passed.
func (r *report) verdict(tests []binary) error {
	var errs []error
	for i, t := range tests {
		status, ran := r.exits[fmt.Sprintf("%d-%s", i, t.name)]
		switch {
		case !ran:
			errs = append(errs, fmt.Errorf("%s did not run to its end", t.dir))
		case status != "0":
			errs = append(errs, fmt.Errorf("%s ended with status %s", t.dir, status))
		}
	}
	if r.total.passed == 0 {
		errs = append(errs, errors.New("no test passed"))
	}
	if !r.done {
		r.show()
	}
	return errors.Join(errs...)
}
