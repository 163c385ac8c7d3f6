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

	"weir.io/weir/kube/test/cluster"
	"weir.io/weir/lab/netlab"
)

// giveUp is the time after which a request counts as failed.
const giveUp = 5 * time.Second

// Answer is the result of a request.
type Answer struct {
	Began time.Time // before its connection was opened
	Took  time.Duration
	Pod   string
	Seen  netip.Addr // the client that the pod has seen
	Err   error
}

// Ask makes a request from outside, over a connection of its own.
func (s *Site) Ask(ctx context.Context, vip netip.Addr) Answer { return s.ask(ctx, vip, "/", giveUp) }

// AskLong makes a request whose answer takes [LongAnswer].
func (s *Site) AskLong(ctx context.Context, vip netip.Addr) Answer {
	return s.ask(ctx, vip, "/slow", LongAnswer+giveUp)
}

// AskHeld makes a request whose answer takes [HeldAnswer].
func (s *Site) AskHeld(ctx context.Context, vip netip.Addr) Answer {
	return s.ask(ctx, vip, "/held", HeldAnswer+giveUp)
}

// sizes are the sizes of answers other than a pod's name, by path.
var sizes = map[string]int{"/slow": slowSize, "/held": heldSize, "/large": LargeSize}

// sent are the sizes of requests with a body, whose answer is the pod's name.
var sent = map[string]int{"/count": LargeSize}

// AskLarge makes a request with an answer of [LargeSize].
func (s *Site) AskLarge(ctx context.Context, vip netip.Addr) Answer {
	return s.ask(ctx, vip, "/large", LargeTime)
}

// SendLarge makes a request of [LargeSize], all of which the pod reads before it answers.
func (s *Site) SendLarge(ctx context.Context, vip netip.Addr) Answer {
	return s.ask(ctx, vip, "/count", LargeTime)
}

// LargeTime is how long a large request may take.
const LargeTime = 30 * time.Second

func (s *Site) ask(ctx context.Context, vip netip.Addr, path string, patience time.Duration) Answer {
	return askFrom(ctx, s.client, netip.AddrPortFrom(vip, ServicePort), path, patience)
}

// AskPort makes a request to any port.
func (s *Site) AskPort(ctx context.Context, at netip.AddrPort) Answer {
	return askFrom(ctx, s.client, at, "/", giveUp)
}

// AskHeldPort makes a request to any port whose answer takes [HeldAnswer].
func (s *Site) AskHeldPort(ctx context.Context, at netip.AddrPort) Answer {
	return askFrom(ctx, s.client, at, "/held", HeldAnswer+giveUp)
}

// Ask makes a request from the pod.
func (p *Pod) Ask(ctx context.Context, vip netip.Addr) Answer {
	return p.AskPort(ctx, netip.AddrPortFrom(vip, ServicePort))
}

// AskPort makes a request from the pod to any port.
func (p *Pod) AskPort(ctx context.Context, at netip.AddrPort) Answer {
	return askFrom(ctx, p.slot.host, at, "/", giveUp)
}

// AskPort makes a request from the node itself to any port.
func (n *Node) AskPort(ctx context.Context, at netip.AddrPort) Answer {
	return askFrom(ctx, n.host, at, "/", giveUp)
}

// AskHeldPort makes a request from the node whose answer takes [HeldAnswer].
func (n *Node) AskHeldPort(ctx context.Context, at netip.AddrPort) Answer {
	return askFrom(ctx, n.host, at, "/held", HeldAnswer+giveUp)
}

// Call makes a request from the pod to another one, at its own address.
func (p *Pod) Call(ctx context.Context, other *Pod) Answer {
	return askFrom(ctx, p.slot.host, netip.AddrPortFrom(other.Address, uint16(other.port)), "/", giveUp)
}

func askFrom(ctx context.Context, from *netlab.Host, at netip.AddrPort, path string, patience time.Duration) (a Answer) {
	a.Began = time.Now()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	a.Err = exchange(ctx, from, at, path, &a)
	a.Took = time.Since(a.Began)
	return a
}

func exchange(ctx context.Context, from *netlab.Host, at netip.AddrPort, path string, a *Answer) error {
	conn, err := from.DialContext(ctx, "tcp", at.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	request := "GET " + path + " HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n"
	if size := sent[path]; size > 0 {
		request = fmt.Sprintf("POST %s HTTP/1.1\r\nHost: web\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", path, size, strings.Repeat("x", size))
	}
	if _, err := io.WriteString(conn, request); err != nil {
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
	case sizes[path] == 0 && string(body) != a.Pod, sizes[path] > 0 && len(body) != sizes[path]:
		return fmt.Errorf("the answer has %d bytes that are not what %s says", len(body), a.Pod)
	}
	return nil
}

// Requests are made at equal intervals, whatever happens to earlier ones.
type Requests struct {
	stop    context.CancelFunc
	running sync.WaitGroup

	mu   sync.Mutex
	open map[int]time.Time // when each unfinished request began
	all  []Answer
}

// Request starts requests at an interval; ask makes one.
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
				r.start(n)
				r.running.Go(func() { r.end(n, ask(ctx)) })
			}
		}
	})
	return r
}

func (r *Requests) start(n int) {
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

// Close stops making requests, and waits for those under way.
func (r *Requests) Close() {
	r.stop()
	r.running.Wait()
}

// Since returns the finished requests that began since then, in the order in which they ended.
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

// Forget forgets all finished requests.
func (r *Requests) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = nil
}

// first returns when the first answer came from a pod, for each client that it has seen.
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

// Served waits until a pod has answered requests by this many ways, which pods tell apart by the
// client that they see (a director's own address in full NAT). It returns when the first request of
// each way was answered: the earliest and the latest.
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

// Quiet waits until a pod has got no new connection for this long, while others have. It returns
// when the last request that the pod answered began; zero if that was before then.
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
		// Requests that began in the meantime must have ended.
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

// Failures tells what became of each request that failed since then.
func (r *Requests) Failures(then time.Time) (list []string) {
	for _, a := range r.Since(then) {
		if a.Err != nil {
			list = append(list, strings.TrimSpace(fmt.Sprintf("%s, after %v: %v %s", a.Began.Format("15:04:05.000"), a.Took.Round(time.Millisecond), a.Err, a.Pod)))
		}
	}
	return list
}

// By waits until pods have answered a request of a client that they see (a director's own address
// in full NAT), and returns when the first was answered.
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
