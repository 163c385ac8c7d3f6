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
	// Bodies that have come, or are coming: of one client at most as much as it leaves, and at most setBytes.
	bodiesOfAll = 2 * (setBytes + readAtLeast)
	servicesIn  = 512 << 20 // services that were read from sets, and are not applied yet
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
// of all sets that were read and are not applied yet. Clients share both: whoever has had the least of
// the time lately is next, and nobody may hold more memory than is left for others.
type Reading struct {
	wait time.Duration
	most int // bytes of services

	mu      sync.Mutex
	taken   bool
	waiting []*reader                // the oldest first
	spent   map[string]time.Duration // by clients' names: how long their sets have been read lately
	halved  time.Time
	held    int
	of      map[string]int // by clients' names
}

// reader waits for its turn.
type reader struct {
	client string
	turn   chan struct{} // is closed when it has come
}

// readWait is how long a set waits for its turn: longer than one other set is read.
const readWait = 3 * turnWait

// spentHalves is after how long what a client has had of the time counts half.
const spentHalves = 10 * time.Second

// NewReading returns an unused Reading.
func NewReading() *Reading {
	return &Reading{wait: readWait, most: servicesIn, spent: map[string]time.Duration{}, of: map[string]int{}}
}

// Do reads a set when it is its turn: read returns the bytes that the services take, which are held
// until release. An error of Do itself is a Problem that says to ask again.
func (r *Reading) Do(ctx context.Context, read func() (size int, err error)) (release func(), err error) {
	who := callerOf(ctx)
	if err := r.await(ctx, who.Name); err != nil {
		return nil, err
	}
	begun := time.Now()
	defer func() { r.pass(who.Name, time.Since(begun)) }()
	size, err := read()
	if err != nil {
		return nil, err
	}
	return r.hold(who, size)
}

// await returns when it is the client's turn.
func (r *Reading) await(ctx context.Context, client string) error {
	r.mu.Lock()
	if !r.taken {
		r.taken = true
		r.mu.Unlock()
		return nil
	}
	mine := &reader{client, make(chan struct{})}
	r.waiting = append(r.waiting, mine)
	r.mu.Unlock()
	end := time.NewTimer(r.wait)
	defer end.Stop()
	var gone error
	select {
	case <-mine.turn:
		return nil
	case <-end.C:
		gone = busy("another set is being read: ask again")
	case <-ctx.Done():
		gone = ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.waiting, mine); i >= 0 {
		r.waiting = slices.Delete(r.waiting, i, i+1)
	} else { // the turn has come meanwhile
		r.next()
	}
	return gone
}

// pass counts what a client's turn took, and gives the next one.
func (r *Reading) pass(client string, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spent[client] += took
	if since := time.Since(r.halved); since > spentHalves {
		r.halved = time.Now()
		for name := range r.spent {
			if r.spent[name] >>= min(uint(since/spentHalves), 63); r.spent[name] < time.Millisecond {
				delete(r.spent, name)
			}
		}
	}
	r.next()
}

// next gives the turn to a set of the client that has had the least of the time. The lock is held.
func (r *Reading) next() {
	if r.taken = len(r.waiting) > 0; !r.taken {
		return
	}
	best := 0
	for i, w := range r.waiting {
		if r.spent[w.client] < r.spent[r.waiting[best].client] {
			best = i
		}
	}
	turn := r.waiting[best].turn
	r.waiting = slices.Delete(r.waiting, best, best+1)
	close(turn)
}

// hold takes room for services that were read. Alone there is room for any set, but for one tenant's.
func (r *Reading) hold(who Caller, size int) (release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	alone := r.held == 0 && !who.limited()
	if !alone && !leavesAsMuch(r.of[who.Name], r.held, size, r.most) {
		return nil, busy("other sets that were sent are not applied yet: ask again")
	}
	r.held += size
	r.of[who.Name] += size
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.held -= size
		if r.of[who.Name] -= size; r.of[who.Name] == 0 {
			delete(r.of, who.Name)
		}
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
func newBodies() *quota { return newSharedQuota(bodiesOfAll, setBytes+readAtLeast) }

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
