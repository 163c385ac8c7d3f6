package test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// memoryWays are those in which the director remembers flows.
var memoryWays = []way{{mode: "l2dsr"}, {mode: "l2dsr", inner6: true, outer6: true}, {mode: "ipip"},
	{mode: "ipip", inner6: true, outer6: true}, {mode: "nat"}, {mode: "nat", inner6: true, outer6: true}}

const memoryPort = 7000

// memoryServices are one TCP and one UDP service for each way, and UDP in gue, with these backends
// and other keys.
func memoryServices(backends []backend, keys string) (services []string) {
	add := func(w way, protocol string) {
		text := w.service(protocol, fmt.Sprint(memoryPort), backends)
		services = append(services, strings.Replace(text, "  backends:\n", keys+"  backends:\n", 1))
	}
	for _, w := range memoryWays {
		add(w, "tcp")
		add(w, "udp")
	}
	add(way{mode: "gue"}, "udp")
	return services
}

// No connection breaks and no UDP flow goes elsewhere when one director gets other backends,
// weights, another ring size and another affinity without the help of agents, and when only its
// memory is left of the previous generations.
//
//	client --- router --- switch --- director
//	                             --- backend1 ... backend4
func TestFlowsOutliveChanges(t *testing.T) {
	t.Parallel()
	l := newLab(t, size{backends: 4})
	first := everyBackend(3)
	text := func(backends []backend, keys string) string {
		return configText("eth0", "", memoryServices(backends, keys)...)
	}
	for _, b := range l.backends {
		startDaemon(t, b, "agent", configText("", "eth0", memoryServices(everyBackend(4), "")...))
	}
	l.serveMemory(append(slices.Clone(memoryWays), way{mode: "gue"})...)
	director := startDaemon(t, l.director, "run", text(first, "  ring-size: 251\n"))
	f := &flowsUnderTest{lab: l}
	f.open(6)
	f.goOn("before any change")
	for n, change := range []struct {
		what     string
		backends []backend
	}{
		{"another ring size", first},
		{"a backend more", everyBackend(4)},
		{"other weights", []backend{{number: 1, weight: 300}, {number: 2, weight: 50}, {number: 3}, {number: 4, weight: 200}}},
		{"a draining backend", []backend{{number: 1, state: "draining"}, {number: 2}, {number: 3}, {number: 4}}},
	} {
		director.edit(text(change.backends, "  ring-size: 397\n"))
		director.waitFor("have a generation more", func() bool { return director.generations(n + 2) })
		f.goOn(change.what)
		f.open(1)
	}
	// The previous generations are forgotten; flows that began in them are not.
	last := []backend{{number: 1, state: "draining"}, {number: 2}, {number: 3}, {number: 4}}
	director.edit(text(last, "  ring-size: 397\n  drain: 1s\n"))
	director.waitFor("have one generation", func() bool { return director.generations(1) })
	f.goOn("without the old generations")
	director.edit(text(last[:3], "  ring-size: 397\n  drain: 1s\n"))
	director.waitFor("lose a backend", func() bool { return director.generations(1) && director.forwards(director.read()) })
	f.lose("backend4")
	f.goOn("without a backend")
	director.end(syscall.SIGTERM)
	director.start()
	director.ready()
	f.goOn("after a restart")
	// There and back again, and other changes while the log has both affinities.
	for _, affinity := range []string{"source-ip", "flow"} {
		keys := fmt.Sprintf("  ring-size: 397\n  affinity: %s\n", affinity)
		director.edit(text(last[:3], keys))
		director.waitFor("have two affinities", func() bool { return director.generations(2) })
		f.goOn("slots by " + affinity)
		f.open(2)
		director.edit(text([]backend{{number: 1}, {number: 2}, {number: 3, weight: 300}}, keys))
		director.waitFor("have a generation more", func() bool { return director.generations(3) })
		f.goOn("other weights meanwhile")
		director.edit(text(last[:3], keys+"  drain: 1s\n"))
		director.waitFor("have one generation", func() bool { return director.generations(1) })
		f.goOn("slots by " + affinity + " alone")
	}
}

// generations reports whether every service's log has this many.
func (d *daemon) generations(want int) bool {
	services, err := d.services()
	return err == nil && len(services) > 0 && !slices.ContainsFunc(services, func(s model.ServiceStatus) bool { return s.Log.Generations != want })
}

// serveMemory runs servers for these ways on every backend.
func (l *lab) serveMemory(ways ...way) {
	l.t.Helper()
	for i, b := range l.backends {
		for _, w := range ways {
			l.answerAt(b, w.at(i+1, memoryPort))
		}
	}
}

// answerAt runs servers on a host: each answers a line or a datagram with the host's name and what
// came.
func (l *lab) answerAt(b *netlab.Host, at netip.AddrPort) {
	l.t.Helper()
	var listener net.Listener
	l.must(b.Do(func() (err error) {
		// No keepalives: a test alone decides what is sent, see dialTo.
		quiet := net.ListenConfig{KeepAlive: -1}
		listener, err = quiet.Listen(l.t.Context(), "tcp", at.String())
		return err
	}))
	l.t.Cleanup(func() { listener.Close() })
	go accept(listener, func(conn net.Conn) {
		answerLines(conn, func(line string) string { return b.Name + " " + line })
	})
	serveUDP(l.t, b, at, func(datagram []byte) []byte { return append([]byte(b.Name+" "), datagram...) })
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// flowsUnderTest are connections and UDP flows, each with one backend for good.
type flowsUnderTest struct {
	*lab
	flows []*flowUnderTest
	said  string // the last argument of goOn: in a loop it is logged once
}

type flowUnderTest struct {
	net.Conn
	name    string // for messages
	lines   *bufio.Reader
	backend string // that answered first
	asked   int
}

// open begins this many flows to every service.
func (f *flowsUnderTest) open(n int) {
	f.t.Helper()
	for range n {
		for _, w := range memoryWays {
			f.dial(w, "tcp")
			f.dial(w, "udp")
		}
		f.dial(way{mode: "gue"}, "udp")
	}
}

func (f *flowsUnderTest) dial(w way, network string) {
	f.t.Helper()
	f.dialTo(network+" over "+w.String(), network, netip.AddrPortFrom(w.vip(), memoryPort))
}

// dialTo begins a flow to a service, and names it for messages.
func (f *flowsUnderTest) dialTo(name, network string, to netip.AddrPort) {
	f.t.Helper()
	f.must(f.client.Do(func() error {
		// No keepalives after 15 s without a packet: a flow that must stay silent sends nothing,
		// however long it takes.
		dialer := net.Dialer{Timeout: 20 * time.Second, KeepAlive: -1}
		c, err := dialer.DialContext(f.t.Context(), network, to.String())
		if err != nil {
			return err
		}
		f.t.Cleanup(func() { c.Close() })
		f.flows = append(f.flows, &flowUnderTest{Conn: c, lines: bufio.NewReader(c), name: fmt.Sprintf("%s from %v", name, c.LocalAddr())})
		return nil
	}))
}

// goOn sends something in every flow, and its backend must answer.
func (f *flowsUnderTest) goOn(when string) {
	f.t.Helper()
	used := map[string]int{}
	for _, flow := range f.flows {
		backend, err := flow.ask()
		switch {
		case err != nil:
			f.t.Errorf("%s: %s (%s) is broken: %v", when, flow.name, flow.backend, err)
		case flow.backend != "" && backend != flow.backend:
			f.t.Errorf("%s: %s went from %s to %s", when, flow.name, flow.backend, backend)
		}
		flow.backend = backend
		used[backend]++
	}
	if f.t.Failed() {
		f.t.FailNow()
	}
	if f.said != when {
		f.t.Logf("%s: %d flows, by backend %v", when, len(f.flows), used)
	}
	f.said = when
}

// lose forgets the flows of a removed backend.
func (f *flowsUnderTest) lose(backend string) {
	f.flows = slices.DeleteFunc(f.flows, func(flow *flowUnderTest) bool { return flow.backend == backend })
}

// ask sends a line and returns which backend answered it. A datagram may be lost, and is sent
// again.
func (flow *flowUnderTest) ask() (backend string, err error) {
	_, datagrams := flow.Conn.(*net.UDPConn)
	flow.asked++
	question := fmt.Sprintf("question %d", flow.asked)
	patience := 30 * time.Second
	if datagrams {
		patience = time.Second
	}
	for tries := 0; tries < 5; tries++ {
		if _, err := fmt.Fprintf(flow, "%s\n", question); err != nil {
			return "", err
		}
		if err := flow.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return "", err
		}
		var answer string
		err = nil // the error of the last try
		for err == nil && answer != question {
			answer, err = flow.lines.ReadString('\n')
			backend, answer, _ = strings.Cut(strings.TrimSuffix(answer, "\n"), " ")
		}
		if err == nil {
			return backend, nil
		}
		var timeout net.Error
		if !datagrams || !errors.As(err, &timeout) || !timeout.Timeout() {
			return "", err
		}
	}
	return "", err
}
