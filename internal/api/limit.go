package api

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"golang.org/x/time/rate"

	"weir.io/weir/internal/model"
)

// How often a client may ask over TCP, and a stranger from one address. Some requests may come at
// once.
const (
	callerRate, callerBurst     = 300, 600
	strangerRate, strangerBurst = 20, 100
	mostStrangers               = 4096

	// Of an agent, whose host may be a tenant's, and how many of its requests are answered at once.
	agentRate, agentBurst, agentAtOnce = 20, 40, 4

	// Of a client that is no administrator: changes of sets, plans, and explanations that suppose a set, together.
	// Each takes the store's or the kernel's time.
	changeEvery, changeBurst = time.Second, 30

	strangerPause = time.Second // before a stranger that has asked too often gets an answer
)

// paces are how often each client, or stranger, may do something.
type paces struct {
	limit rate.Limit
	burst int
	most  int // how many are remembered: if there are more, all begin again

	mu sync.Mutex
	of map[string]*rate.Limiter
}

func newPaces(every time.Duration, burst, most int) *paces {
	return &paces{limit: rate.Every(every), burst: burst, most: most, of: map[string]*rate.Limiter{}}
}

// noBound is for clients: there are not more clients than the configuration has.
const noBound = math.MaxInt

// take counts a request, and reports whether it may be made now.
func (p *paces) take(name string) bool { return p.limiter(name).Allow() }

// wait returns how long a client has to wait; 0: it may now. It does not count the request.
func (p *paces) wait(name string) time.Duration {
	if missing := 1 - p.limiter(name).Tokens(); missing > 0 {
		return max(1, time.Duration(missing/float64(p.limit)*float64(time.Second)))
	}
	return 0
}

func (p *paces) limiter(name string) *rate.Limiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of[name] == nil {
		if len(p.of) >= p.most {
			clear(p.of)
		}
		p.of[name] = rate.NewLimiter(p.limit, p.burst)
	}
	return p.of[name]
}

// How many large answers are made, or read by clients, at the same time: of all clients of a kind, and of
// one. A client that does not read its answer keeps its place until the write times out. To a client that is
// for some segments alone any answer that is read from the whole director counts as large.
const (
	largeAnswers     = 4
	largeOfOneName   = 2
	largeOfOneTenant = 1
)

// places are quotas of the same thing: clients of one kind take nothing from those of another.
type places struct {
	admins, tenants, others *quota
}

// of returns the quota that a client has a part of. A tenant's is one that is for some segments alone.
func (p places) of(c Caller) *quota {
	switch {
	case c.Role == model.RoleAdmin:
		return p.admins
	case c.limited():
		return p.tenants
	}
	return p.others
}

// quota is how much of something all clients may have together, and each of them.
type quota struct {
	all, each int
	shared    bool // a client must also leave as much to others as it has

	mu   sync.Mutex
	held int
	of   map[string]int // by the client's name
	left chan struct{}  // is closed when something is given back
}

func newQuota(all, each int) *quota {
	return &quota{all: all, each: each, of: map[string]int{}, left: make(chan struct{})}
}

func newSharedQuota(all, each int) *quota {
	q := newQuota(all, each)
	q.shared = true
	return q
}

// leavesAsMuch reports whether a client may take more of what has room for so much, and of which it has
// some: it must leave at least as much as it has then. So there is room for others, however many clients
// take all that they may.
func leavesAsMuch(has, held, more, most int) bool { return has+more <= most-held-more }

// take takes so much for a client. If there is not so much it returns a channel that is closed when
// something is given back.
func (q *quota) take(name string, n int) (taken bool, left <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.held+n > q.all || q.of[name]+n > q.each || q.shared && !leavesAsMuch(q.of[name], q.held, n, q.all) {
		return false, q.left
	}
	q.held += n
	q.of[name] += n
	return true, nil
}

func (q *quota) give(name string, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.held -= n
	if q.of[name] -= n; q.of[name] == 0 {
		delete(q.of, name)
	}
	close(q.left)
	q.left = make(chan struct{})
}

// wait takes one for a client, when there is one in time. An error is a Problem, or the context's.
func (q *quota) wait(ctx context.Context, name string, patience time.Duration) error {
	over := time.NewTimer(patience)
	defer over.Stop()
	for {
		taken, left := q.take(name, 1)
		if taken {
			return nil
		}
		select {
		case <-left:
		case <-over.C:
			return busy("other large answers are being made or read: ask again")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// tooSoon tells a client when to ask again.
func tooSoon(wait time.Duration, detail string) error {
	after := http.Header{"Retry-After": {seconds(wait)}}
	return huma.ErrorWithHeaders(NewProblem(http.StatusTooManyRequests, detail), after)
}

// seconds is a time in whole seconds, as headers have it.
func seconds(d time.Duration) string { return strconv.Itoa(int(math.Ceil(d.Seconds()))) }

// unreadable says why a body could not be read.
func unreadable(err error) error {
	if known := huma.StatusError(nil); errors.As(err, &known) {
		return err
	}
	if long := (*http.MaxBytesError)(nil); errors.As(err, &long) {
		return NewProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is longer than %d bytes", long.Limit))
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return NewProblem(http.StatusRequestTimeout, "the body has not come in time")
	}
	return NewProblem(http.StatusBadRequest, "the body cannot be read: "+err.Error())
}

// hostOf returns an address without its port.
func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}
