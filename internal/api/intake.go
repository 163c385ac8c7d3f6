package api

import (
	"context"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// Bounds on what large requests take together, in bytes.
const (
	bodiesOfAll = 2 * setBytes // bodies that have come, or are coming; of one client at most setBytes
	servicesIn  = 512 << 20    // services that were read from sets, and are not applied yet
)

// How long large requests wait for their turn, and after how long clients should ask again if there
// is none.
const (
	turnWait  = 5 * time.Second
	turnAgain = 5 * time.Second
)

// busy tells a client that other clients take what its request needs.
func busy(detail string) error {
	after := http.Header{"Retry-After": {seconds(turnAgain)}}
	return huma.ErrorWithHeaders(NewProblem(http.StatusServiceUnavailable, detail), after)
}

// Reading lets one set be read at a time, because reading takes most memory, and bounds the memory
// of all sets that were read and are not applied yet.
type Reading struct {
	turn chan struct{}
	wait time.Duration
	most int // bytes of services

	mu   sync.Mutex
	held int
}

// NewReading returns an unused Reading.
func NewReading() *Reading {
	return &Reading{turn: make(chan struct{}, 1), wait: turnWait, most: servicesIn}
}

// Do reads a set when it is its turn: read returns the bytes that the services take, which are held
// until release. An error of Do itself is a Problem that says to ask again.
func (r *Reading) Do(ctx context.Context, read func() (size int, err error)) (release func(), err error) {
	end := time.NewTimer(r.wait)
	defer end.Stop()
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-end.C:
		return nil, busy("another set is being read: ask again")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	size, err := read()
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held > 0 && r.held+size > r.most {
		return nil, busy("other sets that were sent are not applied yet: ask again")
	}
	r.held += size
	return func() {
		r.mu.Lock()
		r.held -= size
		r.mu.Unlock()
	}, nil
}

// body is that of a large request which comes, and takes its room from a quota.
type body struct {
	of     *quota
	client string
	held   int
}

type bodyKey struct{}

// newBodies returns the quota of all bodies that have come, or are coming.
func newBodies() *quota { return newQuota(bodiesOfAll, setBytes+readAtLeast) }

// take takes room for more of the body, and reports whether there is room.
func (b *body) take(more int) bool {
	taken, _ := b.of.take(b.client, more)
	if taken {
		b.held += more
	}
	return taken
}

func (b *body) end() {
	b.of.give(b.client, b.held)
	b.held = 0
}

const readAtLeast = 4096

// read reads a body, with room for what has come and not for what a client says will come.
func (b *body) read(r io.Reader) ([]byte, error) {
	var text []byte
	for {
		if len(text) == cap(text) {
			// Half as much again, but not beyond the longest set and a little, in which its end is read.
			more := max(readAtLeast, min(cap(text)/2, setBytes+readAtLeast-cap(text)))
			if !b.take(more) {
				return nil, busy("others send as much as there is room for: ask again")
			}
			text = slices.Grow(text, more)[: len(text) : len(text)+more]
		}
		n, err := r.Read(text[len(text):cap(text)])
		if text = text[:len(text)+n]; err == io.EOF {
			return text, nil
		} else if err != nil {
			return nil, err
		}
	}
}
