package traffic

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Tracker knows every connection of a run, its backend and how it ended, from both of its ends.
type Tracker struct {
	client netip.Addr
	vip    netip.Addr // zero: nothing is redirected
	broke  func(Break)
	astray func(Stray)

	mu        sync.Mutex
	nextID    uint64
	byPort    map[uint16]*Connection        // TCP: the latest of each port, until its client closes it
	byID      map[uint64]*Connection        // UDP
	served    map[uint64]*remains           // TCP: the backends' end of each connection
	acceptors map[acceptedFrom][]acceptance // latest backends that accepted connections from there
	answerers map[uint16][]synAck           // latest backends that answered SYNs of a port
	lost      map[uint16]time.Time          // when a port's latest connection to a dead backend ended
	names     map[string]name               // QUIC connection IDs that servers have given out
	absences  map[int][]absence             // when backends were dead
	live      int                           // TCP connections
	totals    Totals
	broken    []Break
	strays    []Stray
	stalls    histogram
}

// acceptedFrom is where a connection came from.
type acceptedFrom struct {
	protocol string
	client   netip.AddrPort
}

// acceptance is a server's report that it has a connection.
type acceptance struct {
	who        Identity
	at         time.Time
	redirected bool
}

// synAck is a backend's SYN-ACK.
type synAck struct {
	backend    int
	seq        uint32
	at         time.Time
	redirected bool
}

// absence is a time in which a backend was dead, or removed.
type absence struct {
	from, until time.Time // until: zero while it lasts
	removed     bool      // its host lives, and keeps redirected connections
}

// mostLately bounds the lists of backends that answered or accepted.
const mostLately = 16

// name is the backend of a QUIC connection ID, and since when.
type name struct {
	who Identity
	at  time.Time
}

// Totals count connections, by protocol.
type Totals struct {
	TCP, UDP     int // established ones; UDP: those that got an answer
	QUIC         int
	Moved        int // how often QUIC clients continued from another address
	FailedToOpen int // attempts that never became a connection
	Outlived     int // TCP connections that lived as long as required
	Redirected   int // TCP connections that are over and had no director after their SYN
	// OutlivedRemoval are the redirected ones that went on after their backend's removal.
	OutlivedRemoval int
	Misdirected     int            // packets of live connections that came to a host without them
	Astray          map[string]int // misdirected packets, by protocol
	Exchanges       int            // answered and checked requests
	Bytes           int            // checked bytes, both ways
}

// Connection is a TCP or QUIC connection, or a UDP flow.
type Connection struct {
	ID       uint64
	Protocol string         // tcp, udp or quic
	Kind     string         // the name of its kind
	Client   netip.AddrPort // the latest
	Began    time.Time      // before the client's first packet
	Opened   time.Time
	Good     time.Time // its last good moment

	known  bool // its backend is known
	who    Identity
	opened bool // only the backend that opened it is known
	opener int
	resets []Reset
	ended  bool
}

// Reset is a TCP reset that a backend sent for a connection.
type Reset struct {
	At      time.Time
	Backend int
}

// Break is a connection's end that its client did not want.
type Break struct {
	Connection
	At      time.Time
	Backend int // the backend that had it, -1 if unknown
	What    string
	Detail  string
	Resets  []Reset // that backends were seen to send for it
	Excused bool    // its backend was dead at the time, or died after it began
	Ends    []int   // the backends that had accepted it
	// Redirected says that it had no director after its SYN.
	Redirected bool

	Answered []int // TCP: the backends that answered its SYN
}

// NewTracker returns an empty tracker of the client with that address.
func NewTracker(client netip.Addr) *Tracker {
	return &Tracker{client: client, byPort: map[uint16]*Connection{}, byID: map[uint64]*Connection{}, served: map[uint64]*remains{},
		acceptors: map[acceptedFrom][]acceptance{}, answerers: map[uint16][]synAck{}, lost: map[uint16]time.Time{}, names: map[string]name{}, absences: map[int][]absence{}, totals: Totals{Astray: map[string]int{}}, broke: func(Break) {}, astray: func(Stray) {}}
}

// OnBreak sets a function that is called with every connection that breaks from now on. It must not
// wait or call the tracker.
func (t *Tracker) OnBreak(f func(Break)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.broke = f
}

// OnStray sets a function that is called with every packet that goes astray from now on. It must
// not wait or call the tracker.
func (t *Tracker) OnStray(f func(Stray)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.astray = f
}

// Died notes that a backend dies or is removed, and its connections with it.
func (t *Tracker) Died(backend int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.dead(backend) {
		t.absences[backend] = append(t.absences[backend], absence{from: time.Now()})
	}
}

// Returned notes that a backend is back. Connections that began before have ended, also those from
// a director that had not yet learned that the backend was gone.
func (t *Tracker) Returned(backend int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if list := t.absences[backend]; t.dead(backend) {
		list[len(list)-1].until = time.Now()
	}
}

// Live returns how many TCP connections are established.
func (t *Tracker) Live() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live
}

// Totals returns the counts so far.
func (t *Tracker) Totals() Totals {
	t.mu.Lock()
	defer t.mu.Unlock()
	totals := t.totals
	totals.Astray = maps.Clone(t.totals.Astray)
	return totals
}

// Breaks returns the connections that broke so far, in order.
func (t *Tracker) Breaks() []Break {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]Break, len(t.broken))
	for i, b := range t.broken {
		// The packets of backends may have been read after the client saw them.
		list[i] = b
		c := &b.Connection
		if latest := t.byPort[b.Client.Port()]; latest != nil && latest.ID == b.ID {
			c = latest
			list[i].Resets = c.resets
		}
		list[i].Answered = t.whoAnswered(c)
		list[i].Excused = b.Excused || b.What != wrongData && b.Backend < 0 && t.excused(c, b.At)
	}
	return list
}

// Stall returns the longest time of the given share of all exchanges.
func (t *Tracker) Stall(share float64) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stalls.quantile(share)
}

// diedSince reports whether a backend is dead, or was dead after that time.
func (t *Tracker) diedSince(backend int, since time.Time) bool {
	return t.diedBetween(backend, since, time.Now(), false)
}

// diedBetween reports whether a backend was dead or removed at some time between two. Only the end
// of its host ends redirected connections.
func (t *Tracker) diedBetween(backend int, since, until time.Time, redirected bool) bool {
	return slices.ContainsFunc(t.absences[backend], func(a absence) bool {
		return !(redirected && a.removed) && !a.from.After(until) && (a.until.IsZero() || a.until.After(since))
	})
}

// dead reports whether a backend is dead.
func (t *Tracker) dead(backend int) bool {
	list := t.absences[backend]
	return len(list) > 0 && list[len(list)-1].until.IsZero()
}

// excused reports whether a connection's backend died after the connection began and before it
// ended. A client may have got answers of a backend that never accepted its connection.
func (t *Tracker) excused(c *Connection, end time.Time) bool {
	if backend := t.backend(c); backend >= 0 {
		return t.diedBetween(backend, c.Began, end, t.isRedirected(c))
	}
	answered := t.whoAnswered(c)
	return len(answered) > 0 &&
		!slices.ContainsFunc(answered, func(backend int) bool { return !t.diedBetween(backend, c.Began, end, false) })
}

// readLate is how long after a SYN-ACK opened a connection the watcher at its sender may read it.
const readLate = 500 * time.Millisecond

// whoAnswered are the backends that answered a connection's SYN, without those of the port's
// previous and next connections.
func (t *Tracker) whoAnswered(c *Connection) []int {
	var list []int
	for _, a := range t.answerers[c.Client.Port()] {
		late := !c.Opened.IsZero() && a.at.After(c.Opened.Add(readLate))
		if c.Protocol == "tcp" && a.at.After(c.Began) && !late && !slices.Contains(list, a.backend) {
			list = append(list, a.backend)
		}
	}
	return list
}

// noteOpener notes the backend that opened a connection, by the number that a packet acknowledges.
func (t *Tracker) noteOpener(c *Connection, acknowledged uint32) {
	for _, a := range t.answerers[c.Client.Port()] {
		if a.seq+1 == acknowledged && a.at.After(c.Began) {
			c.opened, c.opener = true, a.backend
		}
	}
}

// backend returns a connection's backend, if one of its ends or its packets have told it.
func (t *Tracker) backend(c *Connection) int {
	if c.known {
		return int(c.who.Backend)
	}
	for _, a := range slices.Backward(t.acceptors[acceptedFrom{c.Protocol, c.Client}]) {
		if a.at.After(c.Began) {
			return int(a.who.Backend)
		}
	}
	if c.opened {
		return c.opener
	}
	return -1
}

// ends are the backends that have accepted a connection.
func (t *Tracker) ends(c *Connection) map[int]bool {
	ends := map[int]bool{}
	for _, a := range t.acceptors[acceptedFrom{c.Protocol, c.Client}] {
		if a.at.After(c.Began) {
			ends[int(a.who.Backend)] = true
		}
	}
	return ends
}

// accepted notes the backend of a client's connection, and the address there. With full NAT servers
// see a director's address, and tell nothing.
func (t *Tracker) accepted(protocol string, client netip.AddrPort, at netip.Addr, who Identity) {
	if _, own := t.clientPort(client); protocol == "tcp" && !own {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	from := acceptedFrom{protocol, netip.AddrPortFrom(client.Addr().Unmap(), client.Port())}
	t.acceptors[from] = append(lately(t.acceptors[from]), acceptance{who, time.Now(), t.redirected(protocol, at)})
}

// clientPort returns a port if it is a client's own: with full NAT the server sees
// the director's.
func (t *Tracker) clientPort(a netip.AddrPort) (uint16, bool) {
	return a.Port(), a.Addr().Unmap() == t.client
}

// named notes a connection ID that a server issues.
func (t *Tracker) named(id string, who Identity) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.names[id] = name{who, time.Now()}
}

// gotQUIC notes the backend to which a packet with a connection ID came. It is misdirected if the
// ID belongs to another backend that has lived since.
func (t *Tracker) gotQUIC(id string, who Identity) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, known := t.names[id]
	if known && n.who.Backend != who.Backend && !t.diedSince(int(n.who.Backend), n.at) {
		t.misdirected(Stray{Connection: Connection{Protocol: "quic", Began: n.at}, Backend: int(n.who.Backend), CameTo: int(who.Backend)})
	}
}

// Stray is a misdirected packet.
type Stray struct {
	Connection
	At       time.Time
	Backend  int   // of its connection, -1 if unknown
	CameTo   int   // -1: some backend
	Answered []int // TCP: the backends that answered the connection's SYN
}

// mostStrays bounds how many misdirected packets are kept: rivals have thousands.
const mostStrays = 100

// misdirected counts a packet.
func (t *Tracker) misdirected(s Stray) {
	t.totals.Misdirected++
	t.totals.Astray[s.Protocol]++
	if len(t.strays) < mostStrays {
		s.At = time.Now()
		t.strays = append(t.strays, s)
		t.astray(s)
	}
}

// Strays returns the first misdirected packets.
func (t *Tracker) Strays() []Stray {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.strays)
}

// AnsweredBy notes that a backend answered the SYN of a client's port from one of its
// addresses, with its own sequence number.
func (t *Tracker) AnsweredBy(backend int, at netip.Addr, client netip.AddrPort, seq uint32) {
	port, own := t.clientPort(client)
	if !own {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answerers[port] = append(lately(t.answerers[port]), synAck{backend, seq, time.Now(), t.redirected("tcp", at)})
}

// lately makes room for one more.
func lately[T any](list []T) []T { return list[max(0, len(list)-mostLately+1):] }

// stillUnderWay is how long packets of a connection may arrive after its end: the weather holds
// some of them back, and clients send again.
const stillUnderWay = time.Second

// ResetBy notes that a backend sent a reset to a client's port; -1: some backend. Its sequence
// number is what the rejected packet acknowledged (RFC 9293, 3.10.7.1): if no backend has accepted
// the connection, that tells whose SYN-ACK the client has taken. If another backend has the
// connection, the rejected packet came to a host without that connection, unless this backend had
// accepted it, too, and ends its own end.
func (t *Tracker) ResetBy(backend int, client netip.AddrPort, seq uint32) {
	port, own := t.clientPort(client)
	if !own {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.byPort[port]
	if c != nil && t.backend(c) < 0 {
		t.noteOpener(c, seq)
	}
	if c == nil || t.backend(c) == backend || t.ends(c)[backend] || t.excused(c, time.Now()) {
		return
	}
	// Answers to the port's previous connection are no loss.
	if end, ended := t.lost[port]; ended && c.Began.Before(end.Add(stillUnderWay)) {
		return
	}
	t.misdirected(Stray{Connection: *c, Backend: t.backend(c), CameTo: backend, Answered: t.whoAnswered(c)})
	if len(c.resets) < maxResets {
		c.resets = append(c.resets, Reset{time.Now(), backend})
	}
}

// maxResets bounds the resets that are kept of one connection.
const maxResets = 8

// gotDatagram notes the backend to which a flow's datagram came.
func (t *Tracker) gotDatagram(id uint64, who Identity) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.byID[id]
	if c != nil && c.known && c.who != who && !t.diedSince(int(c.who.Backend), c.Began) {
		t.misdirected(Stray{Connection: *c, Backend: int(c.who.Backend), CameTo: int(who.Backend)})
	}
}
