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
)

// How often a client may ask over TCP, and a stranger from one address. Some requests may come at
// once.
const (
	callerRate, callerBurst     = 300, 600
	strangerRate, strangerBurst = 20, 100
	mostStrangers               = 4096

	strangerPause = time.Second // before a stranger that has asked too often gets an answer
)

// limits are how often each has asked.
type limits struct {
	mu        sync.Mutex
	callers   map[string]*rate.Limiter // there are not more than the configuration has
	strangers map[string]*rate.Limiter
}

func newLimits() *limits {
	return &limits{callers: map[string]*rate.Limiter{}, strangers: map[string]*rate.Limiter{}}
}

// caller reports whether a client may ask now.
func (l *limits) caller(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.callers[name] == nil {
		l.callers[name] = rate.NewLimiter(callerRate, callerBurst)
	}
	return l.callers[name].Allow()
}

// stranger makes an address that asks too often wait. When there are too many to remember, all
// begin again.
func (l *limits) stranger(ctx context.Context, address string) {
	if l.may(address) {
		return
	}
	pause := time.NewTimer(strangerPause)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
}

func (l *limits) may(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.strangers[host] == nil {
		if len(l.strangers) >= mostStrangers {
			clear(l.strangers)
		}
		l.strangers[host] = rate.NewLimiter(strangerRate, strangerBurst)
	}
	return l.strangers[host].Allow()
}

// paces are how often each client may do what costs the whole host work.
type paces struct {
	mu    sync.Mutex
	every time.Duration
	burst int
	of    map[string]*rate.Limiter // there are not more than the configuration has
}

func newPaces(every time.Duration, burst int) *paces {
	return &paces{every: every, burst: burst, of: map[string]*rate.Limiter{}}
}

// wait returns how long a client has to wait; 0: it may now. It does not count the request.
func (p *paces) wait(name string) time.Duration {
	if missing := 1 - p.limiter(name).Tokens(); missing > 0 {
		return max(1, time.Duration(missing*float64(p.every)))
	}
	return 0
}

// count counts a request of a client.
func (p *paces) count(name string) { p.limiter(name).Allow() }

func (p *paces) limiter(name string) *rate.Limiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of[name] == nil {
		p.of[name] = rate.NewLimiter(rate.Every(p.every), p.burst)
	}
	return p.of[name]
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
