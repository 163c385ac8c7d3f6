package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// floodsFor makes each flood of TestFloods that long: WEIR_FLOODS=60s, as make floods does.
const floodsFor = "WEIR_FLOODS"

// What clients do during a flood.
const (
	idleConnections = 200
	idleDatagrams   = 40  // flows of UDP
	newConnections  = 200 // in a second
	// Longer than until a SYN that was lost twice is sent again.
	newPatience = 4 * time.Second
)

// floodKind is a lab whose service remembers flows in one of the possible ways.
type floodKind struct {
	name  string
	start func(t *testing.T) *floodLab
}

var floodKinds = []floodKind{
	{"full NAT", fullNATFloodLab},
	{"least-conn", leastConnFloodLab},
	{"gue", gueFloodLab},
	{"pods", podsFloodLab},
	{"redirect", redirectFloodLab},
}

// floodKinds6 are the same in IPv6, which only long floods try.
var floodKinds6 = []floodKind{
	{"full NAT, IPv6", sixFloodLab(way{mode: "nat", snat: true, inner6: true, outer6: true}, "")},
	{"least-conn, IPv6", sixFloodLab(way{mode: "ipip", inner6: true, outer6: true}, "  policy: least-conn\n")},
	{"gue, IPv6", sixFloodLab(way{mode: "gue", inner6: true, outer6: true}, "")},
}

// floodLab is a lab with a flooder, in which every table that remembers flows is small.
type floodLab struct {
	flowsUnderTest
	flooder  *flooder
	running  *daemon        // the director's
	tcp, udp netip.AddrPort // the services; invalid udp: no such service
	heavy    string         // the director's file with other weights
	light    string
}

// Floods of made-up flows break no earlier connection or UDP flow, whatever happens to weights
// meanwhile, and new connections work at once when a flood is over. During a flood they fail at
// most where there is no room for flows of which nothing is known. No flow of a flood is sustained
// or proved.
//
//	client --- router --- switch --- director
//	flooder ---            --- backend1 ... backend3, which are pods' hosts, too
func TestFloods(t *testing.T) {
	text, long := os.LookupEnv(floodsFor)
	if !long {
		for _, kind := range floodKinds {
			t.Run(kind.name, func(t *testing.T) {
				t.Parallel() // these tests wait most of the time
				for _, line := range kind.flood(t, 500*time.Millisecond, "synack", "dns") {
					t.Log(line)
				}
			})
		}
		return
	}
	duration, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", floodsFor, err)
	}
	var total floodResult
	for _, kind := range slices.Concat(floodKinds, floodKinds6) {
		t.Run(kind.name, func(t *testing.T) {
			for _, r := range kind.flood(t, duration, "syn", "synpsh", "synack", "dns") {
				fmt.Println(r)
				total.add(r)
			}
		})
	}
	total.of = fmt.Sprintf("%d floods", total.floods)
	fmt.Println(total)
}

// flood tries these modes on a kind of service.
func (k floodKind) flood(t *testing.T, duration time.Duration, modes ...string) (results []floodResult) {
	t.Helper()
	l := k.start(t)
	l.start()
	l.strike()
	for _, mode := range floodModes {
		if !slices.Contains(modes, mode.name) || mode.protocol == "udp" && !l.udp.IsValid() {
			continue
		}
		r := l.flood(mode, duration)
		r.of = k.name + ", " + mode.name
		l.judge(mode, r)
		results = append(results, r)
	}
	return results
}

// floodResult is the effect of a flood.
type floodResult struct {
	of                   string
	floods               int
	packets              int
	idle, broken         int
	datagrams, elsewhere int
	during, failed       int
	after, failedAfter   int
	noRoom               uint64 // packets for whose flows there was no place
	kept                 int    // flows that the director tells others of
	errors               map[string]int
}

func (r *floodResult) add(o floodResult) {
	r.floods++
	r.packets += o.packets
	r.idle, r.broken = r.idle+o.idle, r.broken+o.broken
	r.datagrams, r.elsewhere = r.datagrams+o.datagrams, r.elsewhere+o.elsewhere
	r.during, r.failed = r.during+o.during, r.failed+o.failed
	r.after, r.failedAfter = r.after+o.after, r.failedAfter+o.failedAfter
	r.noRoom += o.noRoom
}

func (r floodResult) String() string {
	return fmt.Sprintf("%-18s packets %d, idle broken %d of %d, datagrams elsewhere %d of %d, new failed %d of %d, after it %d of %d, no place %d, kept %d %v",
		r.of, r.packets, r.broken, r.idle, r.elsewhere, r.datagrams, r.failed, r.during, r.failedAfter, r.after, r.noRoom, r.kept, r.errors)
}

// start opens the flows that are idle during floods.
func (l *floodLab) start() {
	l.t.Helper()
	for range idleConnections {
		l.dialTo("tcp", "tcp", l.tcp)
	}
	for range idleDatagrams {
		if l.udp.IsValid() {
			l.dialTo("udp", "udp", l.udp)
		}
	}
	// A flow that has not gone on for 2 s may belong to a flood (PROOF_LASTS in bpf/lib/proof.h), and
	// the clock counts whole seconds.
	began := time.Now()
	l.running.waitFor("see flows that go on for a while", func() bool {
		l.goOn("before any flood")
		return time.Since(began) > 4*time.Second
	})
}

// strike sends packets with the clients' addresses and ports, as a host does that sees nothing of
// their connections. Their effect shows when floods take the places of flows that are over.
func (l *floodLab) strike() {
	l.t.Helper()
	before := l.look().packets
	var frames [][]byte
	for _, flow := range l.flows {
		conn, is := flow.Conn.(*net.TCPConn)
		if !is {
			continue
		}
		next := sequenceOf(l.t, conn)
		from := netip.MustParseAddrPort(flow.LocalAddr().String())
		for _, flags := range []byte{flagRST, flagFIN | flagACK, flagPSH | flagACK, flagRST | flagACK} {
			guess := floodSegment{flags, next + 1<<30, 12345} // one of 4,000 guesses at random is near
			frames = append(frames, l.flooder.framed(spoofed("tcp", guess, from, l.tcp, nil)))
		}
	}
	l.must(l.flooder.emit(frames))
	l.running.waitFor("get what was guessed", func() bool { return l.look().packets >= before+uint64(len(frames)) })
}

// sequenceOf is a connection's next sequence number (TCP_REPAIR in net/ipv4/tcp.c).
func sequenceOf(t *testing.T, conn *net.TCPConn) (sequence uint32) {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		const sendQueue, offWithoutProbe = 2, -1
		set := func(option, value int) {
			failed = errors.Join(failed, unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, option, value))
		}
		set(unix.TCP_REPAIR, 1)
		set(unix.TCP_REPAIR_QUEUE, sendQueue)
		value, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ)
		failed, sequence = errors.Join(failed, err), uint32(value)
		set(unix.TCP_REPAIR, offWithoutProbe)
	})
	if err = errors.Join(err, failed); err != nil {
		t.Fatal("sequence number:", err)
	}
	return sequence
}

// flood floods the lab, changes weights meanwhile, and returns the effect on clients.
func (l *floodLab) flood(mode floodMode, duration time.Duration) (r floodResult) {
	l.t.Helper()
	to := l.tcp
	if mode.protocol == "udp" {
		to = l.udp
	}
	before := l.look()
	over, ended := make(chan struct{}), make(chan calls)
	go func() { ended <- l.callUntil(over) }()
	changed := make(chan struct{})
	go func() {
		defer close(changed)
		time.Sleep(duration / 2) // in the middle of the flood
		l.heavy, l.light = l.light, l.heavy
		l.running.edit(l.heavy)
	}()
	sent, err := l.flooder.send(mode, to, duration)
	l.must(err)
	<-changed
	close(over)
	during := <-ended
	after := l.look()
	r = floodResult{packets: sent, during: during.opened, failed: len(during.failed), errors: map[string]int{}}
	for _, err := range during.failed {
		r.errors[err]++
	}
	r.noRoom = after.noRoom - before.noRoom
	r.kept = after.kept
	time.Sleep(time.Second) // from then on no connection may fail
	over = make(chan struct{})
	time.AfterFunc(min(duration, time.Second), func() { close(over) })
	late := l.callUntil(over)
	r.after, r.failedAfter = late.opened, len(late.failed)
	for _, flow := range l.flows {
		backend, err := flow.ask()
		_, datagrams := flow.Conn.(*net.UDPConn)
		if datagrams {
			r.datagrams++
		} else {
			r.idle++
		}
		if err == nil && backend == flow.backend {
			continue
		}
		if datagrams {
			r.elsewhere++
			flow.backend = backend
		} else {
			r.broken++
		}
	}
	return r
}

// judge fails the test if a flood did what it must not.
func (l *floodLab) judge(mode floodMode, r floodResult) {
	l.t.Helper()
	if r.broken > 0 || r.elsewhere > 0 {
		l.t.Errorf("%s: %d of %d idle connections are broken, and %d of %d flows of datagrams are elsewhere", mode.name, r.broken, r.idle, r.elsewhere, r.datagrams)
	}
	if r.failed > 0 && r.noRoom == 0 {
		l.t.Errorf("%s: %d of %d new connections fail, and there was room: %v", mode.name, r.failed, r.during, r.errors)
	}
	if r.failedAfter > 0 {
		l.t.Errorf("%s: %d of %d connections fail that begin a second after the flood", mode.name, r.failedAfter, r.after)
	}
	if r.noRoom > manyRefused {
		l.running.waitFor("name the service whose flows have no room", func() bool { return l.crowded(mode.protocol) })
	}
	if r.kept > len(l.flows) {
		l.t.Errorf("%s: %d flows are told to others, and %d are none of the flood's", mode.name, r.kept, len(l.flows))
	}
}

// manyRefused is a number of flows without a place that a status has to show.
const manyRefused = 1000

// crowded reports whether the director names a service of a protocol whose flows have no room.
func (l *floodLab) crowded(protocol string) bool {
	l.t.Helper()
	services, err := l.running.services()
	if err != nil {
		l.t.Fatal(err)
	}
	return slices.ContainsFunc(l.running.directorStatus().Problems, func(p model.Problem) bool {
		return p.Kind == model.ProblemService && strings.Contains(p.Text, "no room") &&
			slices.ContainsFunc(services, func(s model.ServiceStatus) bool {
				return s.Name == p.Part && s.Protocol.String() == protocol
			})
	})
}

// calls are connections that were opened, and why some failed.
type calls struct {
	opened int
	failed []string
}

// callUntil opens connections; each sends something and must be answered.
func (l *floodLab) callUntil(over chan struct{}) (c calls) {
	var all sync.WaitGroup
	var mu sync.Mutex
	pace := time.NewTicker(time.Second / newConnections)
	defer pace.Stop()
	for {
		select {
		case <-over:
			all.Wait()
			return c
		case <-pace.C:
		}
		c.opened++
		all.Go(func() {
			if err := l.call(); err != nil {
				mu.Lock()
				defer mu.Unlock()
				c.failed = append(c.failed, why(err))
			}
		})
	}
}

func why(err error) string {
	var deep net.Error
	if errors.As(err, &deep) && deep.Timeout() {
		return "timeout"
	}
	text := err.Error()
	return text[strings.LastIndex(text, ": ")+1:]
}

func (l *floodLab) call() error {
	ctx, cancel := context.WithTimeout(context.Background(), newPatience)
	defer cancel()
	conn, err := l.client.DialContext(ctx, "tcp", l.tcp.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(newPatience)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "new\n"); err != nil {
		return err
	}
	answer := make([]byte, 100)
	_, err = conn.Read(answer)
	return err
}

// floodLook is the director's status of its flows.
type floodLook struct {
	packets uint64 // received
	noRoom  uint64
	kept    int
}

func (l *floodLab) look() (seen floodLook) {
	l.t.Helper()
	status := l.running.directorStatus()
	for _, e := range status.Flows.Events {
		if e.Name == "flow_refused" {
			seen.noRoom += e.Count
		}
	}
	for _, r := range status.Reasons {
		seen.packets += r.Packets
		if r.Name == "drop_snat_full" {
			seen.noRoom += r.Packets
		}
	}
	seen.kept = status.Flows.Remembered - status.Flows.Fresh
	return seen
}
