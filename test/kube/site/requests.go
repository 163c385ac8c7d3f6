package site

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"weir.io/weir/test/kube/cluster"
)

// giveUp is after which time a request counts as failed.
const giveUp = 5 * time.Second

// Answer is what came of a request.
type Answer struct {
	Began time.Time // before its connection was opened
	Took  time.Duration
	Pod   string
	Seen  netip.Addr // whom the pod has seen
	Err   error
}

// Ask makes a request from outside, over a connection of its own.
func (s *Site) Ask(ctx context.Context, vip netip.Addr) Answer { return s.ask(ctx, vip, "/", giveUp) }

// AskLong makes one whose answer takes [LongAnswer].
func (s *Site) AskLong(ctx context.Context, vip netip.Addr) Answer {
	return s.ask(ctx, vip, "/slow", LongAnswer+giveUp)
}

func (s *Site) ask(ctx context.Context, vip netip.Addr, path string, patience time.Duration) (a Answer) {
	a.Began = time.Now()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	a.Err = s.exchange(ctx, vip, path, &a)
	a.Took = time.Since(a.Began)
	return a
}

func (s *Site) exchange(ctx context.Context, vip netip.Addr, path string, a *Answer) error {
	conn, err := s.client.DialContext(ctx, "tcp4", netip.AddrPortFrom(vip, ServicePort).String())
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", path, vip); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	a.Pod = answer.Header.Get("Pod")
	a.Seen, _ = netip.ParseAddr(answer.Header.Get("Seen-Client"))
	switch {
	case answer.StatusCode != http.StatusOK:
		return errors.New(answer.Status)
	case path == "/" && string(body) != a.Pod, path != "/" && len(body) != slowSize:
		return fmt.Errorf("the answer has %d bytes that are not what %s says", len(body), a.Pod)
	}
	return nil
}

// Requests are made from outside at equal intervals, whatever becomes of those before.
type Requests struct {
	stop    context.CancelFunc
	running sync.WaitGroup

	mu   sync.Mutex
	open map[int]time.Time // when those began that have not ended
	all  []Answer
}

// Request begins to make them; ask is one of them.
func Request(ctx context.Context, every time.Duration, ask func(ctx context.Context) Answer) *Requests {
	ticking, stop := context.WithCancel(ctx)
	r := &Requests{stop: stop, open: map[int]time.Time{}}
	r.running.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-ticking.Done():
				return
			case <-tick.C:
				r.begin(n)
				r.running.Go(func() { r.end(n, ask(ctx)) })
			}
		}
	})
	return r
}

func (r *Requests) begin(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open[n] = time.Now()
}

func (r *Requests) end(n int, a Answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, n)
	r.all = append(r.all, a)
}

// Close makes no more, and waits for those that are under way.
func (r *Requests) Close() {
	r.stop()
	r.running.Wait()
}

// Since returns those that have ended of what began since then, in the order in which they ended.
func (r *Requests) Since(then time.Time) (list []Answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.all {
		if !a.Began.Before(then) {
			list = append(list, a)
		}
	}
	return list
}

// Forget forgets all that have ended.
func (r *Requests) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = nil
}

// first returns when the first answer came from a pod, by each of those whom pods have seen.
func (r *Requests) first(pod string) map[netip.Addr]time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := map[netip.Addr]time.Time{}
	for _, a := range r.all {
		at := a.Began.Add(a.Took)
		if before, known := first[a.Seen]; a.Err == nil && a.Pod == pod && (!known || at.Before(before)) {
			first[a.Seen] = at
		}
	}
	return first
}

// Served waits until a pod has answered requests that came by so many ways, of which pods see the last
// part, a director's own address in full NAT; and returns when the first of each did: the earliest and
// the latest.
func (r *Requests) Served(ctx context.Context, pod string, ways int) (first, all time.Time, err error) {
	err = cluster.Until(ctx, fmt.Sprintf("%s to answer by %d ways", pod, ways), func() error {
		seen := r.first(pod)
		if len(seen) < ways {
			return fmt.Errorf("%d have brought it requests", len(seen))
		}
		first, all = time.Time{}, time.Time{}
		for _, at := range seen {
			if first.IsZero() || at.Before(first) {
				first = at
			}
			if at.After(all) {
				all = at
			}
		}
		return nil
	})
	return first, all, err
}

// Quiet waits until a pod has got no new connection for so long, while others have, and returns when
// the last request began that it answered; zero, if it was before then.
func (r *Requests) Quiet(ctx context.Context, pod string, then time.Time, silence time.Duration) (last time.Time, err error) {
	err = cluster.Until(ctx, pod+" to get no more connections", func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		last = time.Time{}
		for _, a := range r.all {
			if a.Err == nil && a.Pod == pod && a.Began.After(then) && a.Began.After(last) {
				last = a.Began
			}
		}
		since := then
		if last.After(since) {
			since = last
		}
		// What began in the meantime has to have ended.
		for _, began := range r.open {
			if began.Before(since.Add(silence)) {
				return errNotYet
			}
		}
		if time.Since(since) < silence {
			return errNotYet
		}
		return nil
	})
	return last, err
}

// Failures says of the requests that failed since then what became of them.
func (r *Requests) Failures(then time.Time) (list []string) {
	for _, a := range r.Since(then) {
		if a.Err != nil {
			list = append(list, strings.TrimSpace(fmt.Sprintf("%s, after %v: %v %s", a.Began.Format("15:04:05.000"), a.Took.Round(time.Millisecond), a.Err, a.Pod)))
		}
	}
	return list
}

// By waits until somebody has brought a pod a request, whom pods see, a director's own address in
// full NAT; and returns when the first was answered.
func (r *Requests) By(ctx context.Context, seen netip.Addr) (first time.Time, err error) {
	err = cluster.Until(ctx, fmt.Sprintf("an answer to who comes by %s", seen), func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, a := range r.all {
			if at := a.Began.Add(a.Took); a.Err == nil && a.Seen == seen && (first.IsZero() || at.Before(first)) {
				first = at
			}
		}
		if first.IsZero() {
			return errNotYet
		}
		return nil
	})
	return first, err
}
