package health

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// tap is a TCP server on loopback that can be turned off and on, and counts.
type tap struct {
	t        *testing.T
	address  netip.AddrPort
	accepted atomic.Int64
	mu       sync.Mutex
	listener net.Listener
}

func newTap(t *testing.T) *tap {
	tap := &tap{t: t, address: netip.MustParseAddrPort("127.0.0.1:0")}
	tap.on()
	tap.address = tap.listener.Addr().(*net.TCPAddr).AddrPort()
	t.Cleanup(tap.off)
	return tap
}

func (p *tap) on() {
	p.t.Helper()
	l, err := net.Listen("tcp", p.address.String())
	if err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	p.listener = l
	p.mu.Unlock()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p.accepted.Add(1)
			conn.Close()
		}
	}()
}

func (p *tap) off() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listener.Close()
}

// checkOf is a check of a server, as service number n.
func checkOf(n int, to netip.AddrPort, change func(*model.HealthCheck)) model.Check {
	how := model.HealthCheck{Kind: model.CheckTCP, Interval: model.Duration(10 * time.Millisecond)}
	if change != nil {
		change(&how)
	}
	config := model.Config{Services: []model.Service{{Health: &how}}}
	config.SetDefaults()
	return model.Check{
		Target:  model.Target{Service: model.ServiceID{VIP: netip.AddrFrom4([4]byte{192, 0, byte(n >> 8), byte(n)}), Protocol: model.TCP}, Backend: to},
		Service: fmt.Sprint("service-", n), Backend: "a", To: to, How: config.Services[0].Health,
	}
}

func newChecker(t testing.TB, path Path) *Checker {
	t.Helper()
	c := New(path, slog.New(slog.DiscardHandler))
	t.Cleanup(c.Close)
	return c
}

// await returns when a condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
		time.Sleep(time.Millisecond) // between two looks
	}
}

func (c *Checker) awaitState(t *testing.T, check model.Check, want model.HealthState) model.BackendHealth {
	t.Helper()
	await(t, fmt.Sprintf("%s is %s", check.Service, want), func() bool { return c.States()[check.Target] == want })
	return c.Results()[check.Target]
}

func TestCheckerFollowsAServer(t *testing.T) {
	server := newTap(t)
	c := newChecker(t, Direct{})
	check := checkOf(1, server.address, nil)
	c.Set([]model.Check{check})
	other := c.Watch()
	up := c.awaitState(t, check, model.HealthUp)
	<-c.Changed()
	if up.Kind != model.CheckTCP || up.Reason != "" || up.Since.IsZero() || up.Probed.IsZero() || up.Took <= 0 {
		t.Errorf("a backend that answers has the result %+v", up)
	}
	for range 2 {
		server.off()
		down := c.awaitState(t, check, model.HealthDown)
		<-c.Changed()
		if down.Reason != string(Refused) || !strings.Contains(down.Detail, "closed") || down.Since.Before(up.Since) {
			t.Errorf("a backend that refuses has the result %+v", down)
		}
		server.on()
		c.awaitState(t, check, model.HealthUp)
		<-c.Changed()
	}
	<-other
	found := c.Found()[check.Target]
	if since := c.Results()[check.Target].Since; found.State != model.HealthUp || found.For <= 0 || found.For > time.Since(since.Add(-time.Millisecond)) {
		t.Errorf("what is up since %v is found %+v", since, found)
	}
	c.Set(nil)
	if left := c.States(); len(left) > 0 {
		t.Errorf("without checks there are the states %v", left)
	}
	// A probe that was under way may still be accepted. Then there are no more.
	await(t, "no probe is under way", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.running == 0 && len(c.lines.order) == 0 })
}

// TestWhatHolds changes checks of backends whose state is known.
func TestWhatHolds(t *testing.T) {
	server, closed := newTap(t), newTap(t)
	closed.off()
	c := newChecker(t, Direct{})
	good, bad := checkOf(1, server.address, nil), checkOf(2, closed.address, nil)
	c.Set([]model.Check{good, bad})
	up, down := c.awaitState(t, good, model.HealthUp), c.awaitState(t, bad, model.HealthDown)

	// Other times and counts: nothing is forgotten.
	slower := func(h *model.HealthCheck) {
		h.Interval, h.Fall, h.Rise = model.Duration(time.Hour), 5, 4
	}
	renamed := checkOf(1, server.address, slower)
	renamed.Service, renamed.Backend = "other-name", "b"
	c.Set([]model.Check{renamed, checkOf(2, closed.address, slower)})
	if now := c.Results()[good.Target]; now.State != model.HealthUp || !now.Since.Equal(up.Since) {
		t.Errorf("with other times and names a backend that is up since %v is %s since %v", up.Since, now.State, now.Since)
	}
	if now := c.Results()[bad.Target]; now.State != model.HealthDown || !now.Since.Equal(down.Since) {
		t.Errorf("with other times a backend that is down since %v is %s since %v", down.Since, now.State, now.Since)
	}

	// Another question: what is up stays up until that fails often enough, what was down
	// by another question is up with the first success.
	wrong := func(h *model.HealthCheck) { h.Interval, h.Port = model.Duration(time.Hour), 1 }
	asksOther, asksRight := checkOf(1, closed.address, wrong), checkOf(2, server.address, wrong)
	asksOther.Target, asksRight.Target = good.Target, bad.Target
	asksOther.How.Fall, asksRight.How.Rise = 2, 100
	c.Set([]model.Check{asksOther, asksRight})
	c.awaitState(t, bad, model.HealthUp)
	await(t, "the other question is answered", func() bool { return c.Results()[good.Target].Failures == 1 })
	if now := c.Results()[good.Target]; now.State != model.HealthUp || now.Reason != string(Refused) {
		t.Errorf("one failure of another question makes a backend that was up %+v", now)
	}

	// Shorter intervals hold from now on, and not after the long one that was waited for.
	shorter := *asksOther.How
	shorter.Interval = model.Duration(10 * time.Millisecond)
	asksOther.How = &shorter
	c.Set([]model.Check{asksOther, asksRight})
	c.awaitState(t, good, model.HealthDown)
}

func TestStartDelay(t *testing.T) {
	server := newTap(t)
	delayed := func(delay time.Duration) model.Check {
		return checkOf(1, server.address, func(h *model.HealthCheck) { h.StartDelay = model.Duration(delay) })
	}
	now := checkOf(2, server.address, nil)
	c := newChecker(t, Direct{})
	late := delayed(time.Hour)
	c.Set([]model.Check{late, now})
	c.awaitState(t, now, model.HealthUp)
	await(t, "the other one is probed again", func() bool { return c.Probes()[0].Count > 3 })
	h := c.Results()[late.Target]
	want := time.Now().Add(time.Hour).UTC().Format("2006-01-02T")
	if h.State != model.HealthUnknown || !h.Probed.IsZero() || !strings.HasPrefix(h.Detail, "its first probe is sent at "+want) || !strings.HasSuffix(h.Detail, "Z (start-delay)") {
		t.Errorf("a backend that is not to be probed yet is %+v", h)
	}
	// The delay is for new backends alone, and one that is taken away counts at once.
	late = delayed(0)
	c.Set([]model.Check{late, now})
	if h := c.awaitState(t, late, model.HealthUp); h.Detail != "" {
		t.Errorf("a backend that was probed is %+v", h)
	}
	gone := newTap(t)
	gone.off()
	changed := delayed(time.Hour)
	changed.How.Port, changed.To = 1, gone.address
	c.Set([]model.Check{changed, now})
	c.awaitState(t, changed, model.HealthDown)
}

func TestServingIsNotTakenOutByOneFailure(t *testing.T) {
	closed := newTap(t)
	closed.off()
	c := newChecker(t, Direct{})
	slow := func(h *model.HealthCheck) { h.Interval, h.Fall = model.Duration(time.Hour), 2 }
	serving, fresh := checkOf(1, closed.address, slow), checkOf(2, closed.address, slow)
	serving.Serving = true
	c.Set([]model.Check{serving, fresh})
	c.awaitState(t, fresh, model.HealthDown)
	await(t, "the other one is probed, too", func() bool { return !c.Results()[serving.Target].Probed.IsZero() })
	if state, known := c.States()[serving.Target]; known {
		t.Errorf("one failure makes a backend %s that was serving when its check was switched on", state)
	}
	quick := *serving.How
	quick.Interval = model.Duration(10 * time.Millisecond)
	serving.How = &quick
	c.Set([]model.Check{serving, fresh})
	c.awaitState(t, serving, model.HealthDown)
}

// brokenPath is a host that cannot make sockets when it is told so.
type brokenPath struct{ broken atomic.Bool }

func (p *brokenPath) Set([]model.Check) {}

func (p *brokenPath) Failed(*model.Check) {}

func (p *brokenPath) Way(c *model.Check) model.Way {
	return model.Way{To: c.To, Prepare: func(int) error {
		if p.broken.Load() {
			return os.NewSyscallError("socket", syscall.EMFILE)
		}
		return nil
	}}
}

func TestOwnFailuresAreNobodys(t *testing.T) {
	server, path := newTap(t), &brokenPath{}
	c := newChecker(t, path)
	check, later := checkOf(1, server.address, nil), checkOf(2, server.address, nil)
	c.Set([]model.Check{check})
	c.awaitState(t, check, model.HealthUp)
	path.broken.Store(true)
	c.Set([]model.Check{check, later})
	own := func() uint64 {
		for _, p := range c.Probes() {
			if p.Name == string(Local) {
				return p.Count
			}
		}
		return 0
	}
	await(t, "many probes failed here", func() bool { return own() > 20 })
	if state := c.States(); state[check.Target] != model.HealthUp || state[later.Target] != model.HealthUnknown {
		t.Errorf("without sockets the states are %v", state)
	}
	if r := c.Results()[check.Target]; r.Reason != string(Local) || !strings.Contains(r.Detail, "too many open files") {
		t.Errorf("without sockets the result is %+v", r)
	}
	if err := c.Prevented(); err == nil || !strings.Contains(err.Error(), "too many open files") {
		t.Errorf("without sockets what prevents probes is %v", err)
	}
	path.broken.Store(false)
	c.awaitState(t, later, model.HealthUp)
}

// TestNothingIsLeftBehind checks a thousand backends of which many do not answer, and
// wants goroutines and descriptors back, also those of probes that were under way.
func TestNothingIsLeftBehind(t *testing.T) {
	server, mute := newTap(t), mutePort(t)
	goroutines, files := runtime.NumGoroutine(), descriptors(t)
	c := newChecker(t, Direct{})
	c.most = 64
	kinds := []func(*model.HealthCheck){
		func(h *model.HealthCheck) {},
		func(h *model.HealthCheck) { h.Kind = model.CheckHTTP },
		func(h *model.HealthCheck) { h.Kind = model.CheckGRPC },
		func(h *model.HealthCheck) { h.Kind, h.TLS = model.CheckTLS, &model.HealthTLS{SkipVerify: true} },
	}
	long := func(i int) func(*model.HealthCheck) {
		return func(h *model.HealthCheck) {
			h.Interval, h.Timeout = model.Duration(50*time.Millisecond), model.Duration(time.Minute)
			kinds[i%len(kinds)](h)
		}
	}
	var checks []model.Check
	for i := range 1000 {
		to := server.address
		if i%20 == 0 {
			to = mute
		}
		checks = append(checks, checkOf(i, to, long(i)))
	}
	c.Set(checks)
	most := 0
	await(t, "all that answers has answered", func() bool {
		c.mu.Lock()
		most = max(most, c.running)
		c.mu.Unlock()
		unknown := 0
		for _, state := range c.States() {
			if state == model.HealthUnknown {
				unknown++
			}
		}
		return unknown <= 50
	})
	if most > 64 {
		t.Errorf("%d probes were under way, more than 64", most)
	}
	c.Set(checks[:100])
	c.Close()
	await(t, "the goroutines have ended", func() bool { return runtime.NumGoroutine() <= goroutines })
	await(t, "the sockets are closed", func() bool { return descriptors(t) <= files })
}

// mutePort accepts connections by the kernel alone and says nothing on them.
func mutePort(t *testing.T) netip.AddrPort {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// TestChecksThatAreGoneLetGo changes the check of a backend that does not answer while no
// more than one probe may be under way.
func TestChecksThatAreGoneLetGo(t *testing.T) {
	silent, server := silentPort(t), newTap(t)
	for _, kind := range []model.CheckKind{model.CheckTCP, model.CheckHTTP} {
		c := newChecker(t, Direct{})
		c.most = 1
		long := func(h *model.HealthCheck) { h.Kind, h.Timeout = kind, model.Duration(time.Minute) }
		check := checkOf(1, silent, long)
		c.Set([]model.Check{check})
		await(t, "the probe is under way", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.running == 1 })
		check.To = server.address
		check.How = checkOf(1, server.address, nil).How
		c.Set([]model.Check{check})
		c.awaitState(t, check, model.HealthUp)
	}
}

// silentPort answers no SYN: its queue of connections that nobody accepts is full.
func silentPort(t *testing.T) netip.AddrPort {
	t.Helper()
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(socket) })
	if err := errors.Join(unix.Bind(socket, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(socket, 0)); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(socket)
	if err != nil {
		t.Fatal(err)
	}
	address := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(name.(*unix.SockaddrInet4).Port))
	conn, err := net.Dial("tcp", address.String()) // a queue of length 0 takes one
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return address
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestProbesOfABackendDoNotOverlap wants no probe of a backend to begin before the one
// before it has ended.
func TestProbesOfABackendDoNotOverlap(t *testing.T) {
	var now, most atomic.Int64
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				most.Store(max(most.Load(), now.Add(1)))
				_, _ = io.Copy(io.Discard, conn) // until the probe gives up
				now.Add(-1)
				conn.Close()
			}()
		}
	}()
	c := newChecker(t, Direct{})
	check := checkOf(1, l.Addr().(*net.TCPAddr).AddrPort(), func(h *model.HealthCheck) {
		h.Kind, h.TLS, h.Timeout = model.CheckTLS, &model.HealthTLS{SkipVerify: true}, model.Duration(200*time.Millisecond)
	})
	c.Set([]model.Check{check})
	down := c.awaitState(t, check, model.HealthDown)
	if down.Reason != string(Timeout) {
		t.Errorf("a server that says nothing has the result %+v", down)
	}
	await(t, "there were some probes", func() bool { return c.Probes()[1+indexOf(Timeout)].Count > 5 })
	// The server may see the end of a probe after the beginning of the next.
	if most.Load() > 2 {
		t.Errorf("%d probes of one backend were under way at once", most.Load())
	}
}

func indexOf(r Reason) int {
	for i, known := range Reasons {
		if r == known {
			return i
		}
	}
	return -1
}

func TestChangesAreCoalesced(t *testing.T) {
	server := newTap(t)
	c := newChecker(t, Direct{})
	var checks []model.Check
	for i := range 300 {
		checks = append(checks, checkOf(i, server.address, func(h *model.HealthCheck) { h.Interval = model.Duration(time.Second) }))
	}
	c.Set(checks)
	await(t, "all are up", func() bool {
		for _, state := range c.States() {
			if state != model.HealthUp {
				return false
			}
		}
		return true
	})
	<-c.Changed()
	select {
	case <-c.Changed():
		t.Error("300 changes of state are announced one by one")
	default:
	}
}
