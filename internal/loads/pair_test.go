package loads

import (
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(time.Millisecond) { // between two looks
		if time.Now().After(end) {
			t.Fatalf("in %v there was no sign of it: %s", patience, what)
		}
	}
}

// meter says what it is told to say.
type meter struct {
	mu    sync.Mutex
	loads []model.Load
}

func (m *meter) Loads() ([]model.Load, time.Duration, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.loads), 0, nil
}

// ear hears what a receiver takes.
type ear struct {
	mu   sync.Mutex
	last map[uint64]model.Load // by agent
	all  int
}

func (e *ear) take(from uint64, _ time.Duration, loads []model.Load) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range loads {
		e.last[from] = l
		e.all++
	}
}

func (e *ear) heard() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.all
}

// writeKeys writes a file of keys, and returns its name.
func writeKeys(t *testing.T, file string, all ...key) string {
	t.Helper()
	text := "# for a test\n"
	for _, k := range all {
		text += hex.EncodeToString(k.secret[:]) + "\n"
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// freePort is a port of UDP that nobody has, at an address of loopback.
func freePort(t *testing.T, at netip.Addr) uint16 {
	t.Helper()
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, 0)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
}

func listening(t *testing.T, c *model.Config) (*Receiver, *ear) {
	t.Helper()
	e := &ear{last: map[uint64]model.Load{}}
	r := NewReceiver(e.take, slog.New(slog.DiscardHandler))
	// Loopback's address 127.0.0.3 is of this host, too, and is not listed.
	r.local = func(a netip.Addr) bool { return a.IsLoopback() }
	if err := r.Set(c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	await(t, "the receiver listens", func() bool { return len(r.Status().Listens) == len(c.LoadDirectors()) })
	return r, e
}

// A flood of datagrams costs agents that have been believed no report, whoever sends it: garbage,
// or what looks like a report with a wrong MAC, also in an agent's name by somebody who has not seen
// its reports. Each report is sent once.
func TestFlood(t *testing.T) {
	for _, addresses := range [][3]string{{"127.0.0.1", "127.0.0.2", "127.0.0.66"}, {"::1", "2001:db8::2", "2001:db8::66"}} {
		t.Run(addresses[0], func(t *testing.T) {
			at := netip.MustParseAddr(addresses[0])
			file := writeKeys(t, filepath.Join(t.TempDir(), "keys"), ours)
			c := model.Config{Loads: model.Loads{KeyFile: file, Port: freePort(t, at), Interval: model.Duration(time.Second), To: []netip.Addr{at}}}
			r, _ := listening(t, &c)
			dial := func(from string) net.Conn {
				t.Helper()
				dialer := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(from)}, Control: asAnybody}
				conn, err := dialer.DialContext(t.Context(), "udp", netip.AddrPortFrom(at, c.Loads.Port).String())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close() })
				return conn
			}
			agent := dial(addresses[1])
			sequence := uint64(0)
			say := func() {
				t.Helper()
				sequence++
				m := message{kind: kindReport, agent: 7 << lineBits, director: r.number, sequence: sequence, interval: time.Second,
					loads: []model.Load{{Target: target(vip, 80, "10.0.0.1:0"), Connections: 1}}}
				if _, err := agent.Write(m.encode(&ours)); err != nil {
					t.Fatal(err)
				}
			}
			say()
			await(t, "the agent is believed", func() bool { return r.counted(accepted) == 1 })
			forgery := func(director uint64) []byte {
				m := message{kind: kindReport, agent: 8 << lineBits, director: director, sequence: 1}
				text := m.encode(&ours)
				text[len(text)-1]++
				return text
			}
			over := make(chan struct{})
			var floods sync.WaitGroup
			for _, f := range []struct {
				from string
				text []byte
			}{
				{addresses[2], []byte("garbage")}, {addresses[2], forgery(r.number)},
				{addresses[1], []byte("garbage")}, {addresses[1], forgery(r.number + 1)}, // in an agent's name
			} {
				flood := dial(f.from)
				floods.Go(func() {
					for {
						select {
						case <-over:
							return
						default:
							_, _ = flood.Write(f.text) // what has no place is lost, as it should be
						}
					}
				})
			}
			defer floods.Wait()
			defer close(over)
			await(t, "the flood is more than is read in a time slice", func() bool { return r.counted(short)+r.counted(foreign)+r.counted(forged) > wrongInSlice })
			for range 100 {
				said := sequence + 1
				say()
				await(t, "a report comes through the flood", func() bool { return r.counted(accepted) == said })
			}
		})
	}
}

// asAnybody lets a socket send from any address of IPv6, for loopback has but one.
func asAnybody(network, _ string, c syscall.RawConn) (failed error) {
	if network != "udp6" {
		return nil
	}
	return errors.Join(c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_FREEBIND, 1) }), failed)
}

func (r *Receiver) counted(what outcome) uint64 { return r.counts[what].Load() }

// An agent reports to two directors; each takes what it says, from the second message on. A
// director that begins anew believes nothing of what was said before.
func TestAgentAndDirectors(t *testing.T) {
	at := netip.MustParseAddr("127.0.0.1")
	other := netip.MustParseAddr("127.0.0.3")
	file := writeKeys(t, filepath.Join(t.TempDir(), "keys"), ours)
	c := model.Config{Loads: model.Loads{KeyFile: file, Port: freePort(t, at), Interval: model.Duration(5 * time.Millisecond), To: []netip.Addr{at}}}
	first, ear1 := listening(t, &c)
	c2 := c
	c2.Loads.To = []netip.Addr{other}
	_, ear2 := listening(t, &c2)

	m := &meter{}
	for range 2*loadsAtOnce + 1 { // three messages
		m.loads = append(m.loads, model.Load{Target: target(vip, 80, "10.0.0.1:0"), Connections: 5})
	}
	sender := NewSender(m, slog.New(slog.DiscardHandler))
	agents := c
	agents.Loads.To = []netip.Addr{at, other}
	if err := sender.Set(&agents); err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	await(t, "both directors hear the agent", func() bool { return ear1.heard() > 3*loadsAtOnce && ear2.heard() > 3*loadsAtOnce })
	if first.counted(oldEpoch) == 0 {
		t.Error("the first message is believed, which might be one of long ago")
	}
	if status := sender.Status(); status.Known != 2 || status.Sent == 0 {
		t.Errorf("the agent's status is %+v", status)
	}

	// Keys change: the new one is known first, then used, then the only one.
	writeKeys(t, file, ours, older)
	for _, set := range []func() error{func() error { return first.Set(&c) }, func() error { return sender.Set(&agents) }} {
		if err := set(); err != nil {
			t.Fatal(err)
		}
	}
	writeKeys(t, file, older)
	if err := sender.Set(&agents); err != nil {
		t.Fatal(err)
	}
	at1 := ear1.heard()
	await(t, "reports by the second key are believed", func() bool { return ear1.heard() > at1 })

	// A file that cannot be read leaves all as it is.
	writeKeys(t, file)
	if first.Set(&c) == nil || sender.Set(&agents) == nil || first.Problem() == nil || sender.Status().Problem == "" {
		t.Error("a file without keys is nobody's problem")
	}
	at1 = ear1.heard()
	await(t, "the keys before count on", func() bool { return ear1.heard() > at1 })

	first.Close()
	second, ear3 := listening(t, func() *model.Config { writeKeys(t, file, older); return &c }())
	await(t, "the next process hears the agent", func() bool { return ear3.heard() > 0 })
	if second.counted(oldEpoch) == 0 {
		t.Error("what was sent to the process before is believed by the next one")
	}
	// Nobody is to report any more.
	if err := sender.Set(&model.Config{}); err != nil || sender.Status() != nil {
		t.Errorf("an agent that is not to report says %+v, %v", sender.Status(), err)
	}
}

// An agent ignores a replayed answer of a director's earlier process: it goes on reporting to the
// current process.
func TestNumbersAreNotTakenAgain(t *testing.T) {
	at := netip.MustParseAddr("127.0.0.1")
	director, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, 0)))
	if err != nil {
		t.Fatal(err)
	}
	defer director.Close()
	c := model.Config{Loads: model.Loads{KeyFile: writeKeys(t, filepath.Join(t.TempDir(), "keys"), ours),
		Port: director.LocalAddr().(*net.UDPAddr).AddrPort().Port(), Interval: model.Duration(5 * time.Millisecond), To: []netip.Addr{at}}}
	sender := NewSender(&meter{loads: []model.Load{{Target: target(vip, 80, "10.0.0.1:0")}}}, slog.New(slog.DiscardHandler))
	if err := sender.Set(&c); err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	_ = director.SetReadDeadline(time.Now().Add(patience))
	b := make([]byte, longest)
	report := func() (m message, from netip.AddrPort) {
		t.Helper()
		n, from, err := director.ReadFromUDPAddrPort(b)
		if err == nil {
			m, _, err = decode(b[:n], keys{ours})
		}
		if err != nil {
			t.Fatal(err)
		}
		return m, from
	}
	var said [][]byte
	send := func(text []byte, to netip.AddrPort) {
		t.Helper()
		if _, err := director.WriteToUDPAddrPort(text, to); err != nil {
			t.Fatal(err)
		}
	}
	const processes = 3
	for number := uint64(1); number <= processes; number++ {
		m, from := report()
		for m.director != number {
			answer := message{kind: kindNumber, agent: m.agent, director: number}
			said = append(said, answer.encode(&ours))
			send(said[len(said)-1], from)
			m, from = report()
		}
	}
	for range 20 {
		_, from := report()
		for _, text := range slices.Backward(said) { // the oldest comes last
			send(text, from)
		}
		if m, _ := report(); m.director != processes {
			t.Fatalf("the agent reports to process %d of the director, which is gone", m.director)
		}
	}
}

// A director that is known by two addresses hears an agent at both, and takes neither for the
// other one's, again.
func TestDirectorWithTwoAddresses(t *testing.T) {
	both := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.5")}
	file := writeKeys(t, filepath.Join(t.TempDir(), "keys"), ours)
	c := model.Config{Loads: model.Loads{KeyFile: file, Port: freePort(t, both[0]), Interval: model.Duration(5 * time.Millisecond), To: both}}
	r, ear := listening(t, &c)
	sender := NewSender(&meter{loads: []model.Load{{Target: target(vip, 80, "10.0.0.1:0")}}}, slog.New(slog.DiscardHandler))
	if err := sender.Set(&c); err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	await(t, "reports at both addresses", func() bool {
		ear.mu.Lock()
		defer ear.mu.Unlock()
		return len(ear.last) == 2 && ear.all > 20
	})
	if n := r.counted(replayed); n != 0 {
		t.Errorf("%d reports are taken for others, again", n)
	}
}

// Messages that no agent sends are counted by kind, and change nothing.
func TestHostileMessages(t *testing.T) {
	at := netip.MustParseAddr("127.0.0.1")
	c := model.Config{Loads: model.Loads{KeyFile: writeKeys(t, filepath.Join(t.TempDir(), "keys"), ours), Port: freePort(t, at), To: []netip.Addr{at}}}
	r, ear := listening(t, &c)
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, c.Loads.Port)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	send := func(b []byte, what outcome, count uint64) {
		t.Helper()
		before := r.counted(what)
		if _, err := conn.Write(b); err != nil {
			t.Fatal(err)
		}
		await(t, "a message is counted as "+outcomeNames[what], func() bool { return r.counted(what) == before+count })
	}
	m := some()
	m.director = 0
	send(m.encode(&ours), oldEpoch, 1)
	b := make([]byte, longest)
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	n, err := conn.Read(b)
	if err != nil {
		t.Fatalf("an agent that does not know the director's number is not told: %v", err)
	}
	answer, _, err := decode(b[:n], keys{ours})
	if err != nil || answer.kind != kindNumber || answer.agent != m.agent || answer.director == 0 {
		t.Fatalf("it is told %+v, %v", answer, err)
	}
	m.director = answer.director
	good := m.encode(&ours)
	send(good, accepted, 1)
	send(good, replayed, 1)
	m.sequence--
	send(m.encode(&ours), replayed, 1)
	m.sequence += 2
	send(m.encode(&ours), accepted, 1)
	m.director++
	m.sequence++
	send(m.encode(&ours), oldEpoch, 1)
	m.director--
	send(m.encode(&theirs), unknown, 1)
	send(good[:len(good)-7], forged, 1)
	send(good[:shortest-1], short, 1)
	send([]byte("GET / HTTP/1.1 of somebody who is wrong here, at some length\r\n\r\n"), foreign, 1)
	own := message{kind: kindNumber, agent: 1, director: 2}
	send(own.encode(&ours), malformed, 1)
	if n := ear.heard(); n != 2*len(m.loads) {
		t.Errorf("%d loads were taken, want those of two messages: %d", n, 2*len(m.loads))
	}
	// A flood: what the socket has no room for is lost, and an agent is heard again after it.
	for range 20 * wrongInSlice {
		_, _ = conn.Write(good[:len(good)-7])
	}
	await(t, "after a flood an agent is heard", func() bool {
		before := r.counted(accepted)
		m.sequence++
		_, _ = conn.Write(m.encode(&ours))
		return r.counted(accepted) > before
	})
}

// When there are more agents than are remembered, the director takes another number: what was
// forgotten could be told again.
func TestMoreAgentsThanAreRemembered(t *testing.T) {
	e := &ear{last: map[uint64]model.Load{}}
	r := NewReceiver(e.take, slog.New(slog.DiscardHandler))
	m := some()
	m.director, m.sequence = r.number, 1
	var first []byte
	for agent := range uint64(agentsMost + 1) {
		m.agent = agent + 1
		b := m.encode(&ours)
		if first == nil {
			first = b
		}
		if what, _ := r.hearOne(b, keys{ours}); what != accepted {
			t.Fatalf("message of agent %d is %s", agent, outcomeNames[what])
		}
	}
	if what, answer := r.hearOne(first, keys{ours}); what != oldEpoch || answer == nil {
		t.Errorf("what an agent has said that was forgotten is %s again", outcomeNames[what])
	}
}
