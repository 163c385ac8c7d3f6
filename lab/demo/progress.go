package demo

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"
)

// progress tells what happens: events on lines of their own, and the traffic's progress on a last
// line, which is rewritten in place on a terminal.
type progress struct {
	mu       sync.Mutex
	w        io.Writer
	terminal bool
	last     string // the last line, on a terminal
}

const clearLine = "\r\x1b[K"

// say writes an event.
func (p *progress) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last != "" {
		fmt.Fprint(p.w, clearLine)
	}
	fmt.Fprintf(p.w, format+"\n", args...)
	fmt.Fprint(p.w, p.last)
}

// follow writes the traffic's progress every second.
func (p *progress) follow(ctx context.Context, traffic *traffic) {
	begin := time.Now()
	for sleep(ctx, time.Second) {
		requests, failed, ended := traffic.totals()
		line := fmt.Sprintf("%3.0f s: %d requests, %d failed, %d ended with their backend",
			time.Since(begin).Seconds(), requests, failed, ended)
		p.mu.Lock()
		if p.terminal {
			p.last = line
			fmt.Fprint(p.w, clearLine, line)
		} else {
			fmt.Fprintln(p.w, line)
		}
		p.mu.Unlock()
	}
}

// end clears the last line.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last != "" {
		fmt.Fprint(p.w, clearLine)
		p.last = ""
	}
}

// totals sums the tallies.
func (t *traffic) totals() (requests, failed, ended int) {
	for _, tally := range t.tallies {
		tally.mu.Lock()
		requests, failed, ended = requests+tally.requests, failed+tally.failures, ended+tally.ended
		tally.mu.Unlock()
	}
	return requests, failed, ended
}
