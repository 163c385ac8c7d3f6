package test

import (
	"bufio"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"weir.io/weir/lab/netlab"
)

// gueWays are the ways whose packets carry rows, in every pair of families.
var gueWays = []way{{mode: "gue"}, {mode: "gue", inner6: true, outer6: true}, {mode: "gue", inner6: true}, {mode: "gue", outer6: true}}

const linesPort = 7

// Open connections in gue stay where they are whatever happens to the ring, because the host that
// gets a packet sends it on to the host that has the connection. They stay while backends drain and
// come back, weights change, and another director with only the first one's state takes over and
// the backends change at once.
//
//	client --- router --- switch --- director, then another
//	                             --- backend1, backend2, backend3
func TestConnectionsOutliveChanges(t *testing.T) {
	t.Parallel()
	for _, cookies := range []string{"1", "2"} {
		t.Run("syncookies "+cookies, func(t *testing.T) {
			l := newChanceLab(t, cookies, "")
			l.direct(t, everyBackend(3)...)
			var sessions []*session
			for _, w := range gueWays {
				for range 20 {
					sessions = append(sessions, l.open(t, w))
				}
			}
			l.step(t, sessions, "backend1", "a backend drains", func() {
				l.running.edit(l.text(directorHost, backend{number: 1, state: "draining"}, backend{number: 2}, backend{number: 3}))
				l.running.ready()
			})
			l.step(t, sessions, "backend2", "it is back, others drain", func() {
				l.running.edit(l.text(directorHost, backend{number: 1}, backend{number: 2, state: "draining"}, backend{number: 3, state: "draining"}))
				l.running.ready()
			})
			l.step(t, sessions, "backend3", "weights change", func() {
				l.running.edit(l.text(directorHost, backend{number: 1, weight: 100}, backend{number: 2, weight: 1}, backend{number: 3, weight: 1}))
				l.running.ready()
			})
			l.step(t, sessions, "backend1", "another director and other backends at once", func() {
				l.replaceDirector(t, l.text(otherDirector, backend{number: 1, state: "draining"}, backend{number: 2}, backend{number: 3}))
			})
		})
	}
}

// chanceLab is a lab with servers that answer each line with their host's name.
type chanceLab struct {
	*lab
	protocol string
	cookies  string  // of the backends: net.ipv4.tcp_syncookies
	policy   string  // of the services in directors' files, "": the default
	running  *daemon // the director
	agents   []*daemon
	servers  []*lineServer
	other    *netlab.Host
}

// newChanceLab starts everything. Agents get this key in addition.
func newChanceLab(t *testing.T, cookies, key string) *chanceLab {
	t.Helper()
	l := newChanceLabOf(t, "tcp", cookies, key)
	for i, b := range l.backends {
		l.servers = append(l.servers, serveLines(t, b, fmt.Sprintf("backend%d", i+1)))
	}
	return l
}

func newChanceLabOf(t *testing.T, protocol, cookies, key string) *chanceLab {
	t.Helper()
	l := &chanceLab{lab: newLab(t, size{backends: 3}), protocol: protocol, cookies: cookies}
	l.other, _ = l.secondDirector()
	for _, b := range l.backends {
		b.Sysctl("net.ipv4.tcp_syncookies", cookies)
		text := configText("", "eth0", l.services(everyBackend(3)...)...)
		l.agents = append(l.agents, startDaemon(t, b, "agent",
			strings.Replace(text, "directors: [", fmt.Sprintf("%sdirectors: [%s, \"%s\", ", key,
				lanAddress(otherDirector, false), lanAddress(otherDirector, true)), 1)))
	}
	return l
}

func (l *chanceLab) services(backends ...backend) []string {
	var list []string
	for _, w := range gueWays {
		s := w.service(l.protocol, fmt.Sprint(linesPort), backends)
		if l.policy != "" {
			s = strings.Replace(s, "  mode: ", "  policy: "+l.policy+"\n  mode: ", 1)
		}
		list = append(list, s)
	}
	return list
}

// text is the configuration of a director at that host number.
func (l *chanceLab) text(director int, backends ...backend) string {
	return strings.NewReplacer(
		lanAddress(directorHost, false).String()+",", lanAddress(director, false).String()+",",
		lanAddress(directorHost, true).String()+"\"", lanAddress(director, true).String()+"\"",
	).Replace(configText("eth0", "", l.services(backends...)...))
}

// direct starts the first director.
func (l *chanceLab) direct(t *testing.T, backends ...backend) {
	t.Helper()
	l.running = startDaemon(t, l.director, "run", l.text(directorHost, backends...))
}

// replaceDirector ends the director and removes all that it has in the kernel, and starts another
// one with the first one's files.
func (l *chanceLab) replaceDirector(t *testing.T, text string) {
	t.Helper()
	l.running.end(syscall.SIGKILL)
	if err := os.CopyFS(filepath.Join(l.other.Dir(), "state"), os.DirFS(filepath.Join(l.director.Dir(), "state"))); err != nil {
		t.Fatal(err)
	}
	l.running = startDaemon(t, l.other, "run", text)
	l.router.Route("192.0.2.0/24", lanAddress(otherDirector, false).String())
	l.router.Route("2001:db8::/64", lanAddress(otherDirector, true).String())
	on(t, l.director, weir, "detach", "--bpffs", l.director.BPFFS())
}

// session is one of the client's connections.
type session struct {
	net.Conn
	lines   *bufio.Reader
	backend string
	way     way
}

// open opens a connection and asks which backend has it.
func (l *chanceLab) open(t *testing.T, w way) *session {
	t.Helper()
	s, err := l.connect(t, w)
	if err != nil {
		t.Fatal(err)
	}
	s.backend = s.ask(t)
	return s
}

func (l *chanceLab) connect(t *testing.T, w way) (*session, error) {
	return l.connectFrom(t, w, 0)
}

// connectFrom opens a connection from one of the client's ports; 0: any.
func (l *chanceLab) connectFrom(t *testing.T, w way, port int) (*session, error) {
	var conn net.Conn
	err := l.client.Do(func() (err error) {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{Port: port}}
		return netlab.UntilFree(func() error {
			conn, err = dialer.DialContext(t.Context(), "tcp", netip.AddrPortFrom(w.vip(), linesPort).String())
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", w, err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &session{Conn: conn, lines: bufio.NewReader(conn), way: w}, nil
}

// ask returns the name of the host that has the connection.
func (s *session) ask(t *testing.T) string {
	t.Helper()
	name, err := s.tryAsk()
	if err != nil {
		t.Fatalf("%s: a connection of %s that was opened to %q is broken: %v", s.way, s.LocalAddr(), s.backend, err)
	}
	return name
}

func (s *session) tryAsk() (string, error) {
	if err := s.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintln(s, "who?"); err != nil {
		return "", err
	}
	name, err := s.lines.ReadString('\n')
	return strings.TrimSpace(name), err
}

// step makes a change, asks on all connections, and checks that the other hosts have sent on the
// packets of one backend's connections.
func (l *chanceLab) step(t *testing.T, sessions []*session, moved, what string, change func()) {
	t.Helper()
	before := l.count(t, "passed_on")
	change()
	ofMoved := 0
	for _, s := range sessions {
		if got := s.ask(t); got != s.backend {
			t.Fatalf("%s: %s has a connection of %s", what, got, s.backend)
		}
		if s.backend == moved {
			ofMoved++
		}
	}
	if after := l.count(t, "passed_on"); ofMoved == 0 || after < before+uint64(ofMoved) {
		t.Errorf("%s: %d connections are on %s, and the agents sent on %d packets", what, ofMoved, moved, after-before)
	}
	for _, never := range []string{"decap_last_resort", "drop_row_malformed", "drop_not_peer"} {
		if n := l.count(t, never); n > 0 {
			t.Errorf("%s: the agents count %d packets as %s", what, n, never)
		}
	}
}

// count is the sum of a counter over some agents, or all.
func (l *chanceLab) count(t *testing.T, reason string, agents ...*daemon) (sum uint64) {
	t.Helper()
	if len(agents) == 0 {
		agents = l.agents
	}
	return countedBy(slices.Values(agents), reason)
}

// countedBy is the sum of a reason over agents.
func countedBy(agents iter.Seq[*daemon], reason string) (sum uint64) {
	for a := range agents {
		for _, c := range a.agentStatus().Reasons {
			if c.Name == reason {
				sum += c.Packets
			}
		}
	}
	return sum
}

// lineServer answers each line of a connection with a name.
type lineServer struct {
	name     string
	accepted atomic.Int64
	listener net.Listener
	busy     sync.Mutex // held while the server accepts nothing
}

func serveLines(t *testing.T, h *netlab.Host, name string) *lineServer {
	t.Helper()
	return serveLinesAt(t, h, linesPort, name)
}

func serveLinesAt(t *testing.T, h *netlab.Host, port uint16, name string) *lineServer {
	t.Helper()
	listener, err := h.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		t.Fatal(err)
	}
	s := &lineServer{name: name, listener: listener}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.busy.Lock()
			s.accepted.Add(1)
			go s.answer(conn)
			s.busy.Unlock()
		}
	}()
	return s
}

func (s *lineServer) answer(conn net.Conn) {
	defer conn.Close()
	answerLines(conn, func(string) string { return s.name })
}
