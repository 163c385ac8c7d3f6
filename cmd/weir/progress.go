package main

import (
	"fmt"
	"io"
	"sync"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/logs"
)

// progressPatience is for how long a command may be silent; then it says what it waits for.
const progressPatience = time.Second

// overwrite begins the terminal's current line anew.
const overwrite = "\r\x1b[K"

// progress says on a terminal what a command waits for, on one line that is gone when the wait is
// over. Without a terminal it says nothing: other output is read later.
type progress struct {
	w io.Writer // nil: progress is not wanted

	mu   sync.Mutex
	busy bool
}

// start says something about a wait each second, until the returned function is called. A wait
// within another one is part of it.
func (p *progress) start(say func() string) (end func()) {
	if p.w == nil || !logs.IsTerminal(p.w) {
		return func() {}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy {
		return func() {}
	}
	p.busy = true
	over, quiet := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(quiet)
		p.follow(say, over)
	}()
	return func() {
		close(over)
		<-quiet // the next output begins on an empty line
		p.mu.Lock()
		defer p.mu.Unlock()
		p.busy = false
	}
}

func (p *progress) follow(say func() string, over <-chan struct{}) {
	began := time.Now()
	tick := time.NewTicker(progressPatience)
	defer tick.Stop()
	for shown := false; ; shown = true {
		select {
		case <-over:
			if shown {
				fmt.Fprint(p.w, overwrite)
			}
			return
		case <-tick.C:
			fmt.Fprintf(p.w, "%s%s, %v", overwrite, say(), time.Since(began).Round(time.Second))
		}
	}
}

// follows makes progress say a client's questions while they are not answered.
func (p *progress) follows(client *api.Client, where string) *api.Client {
	client.While = func() (done func()) {
		return p.start(func() string { return "waiting for the answer of " + where })
	}
	return client
}
